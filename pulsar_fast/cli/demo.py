"""Sends files line by line, and has another process read them back with the official client."""

import hashlib
import importlib.util
import multiprocessing
import os
import signal
import sysconfig
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console

import pulsar_fast

from .ingest import Ingest
from .reading import split_lines
from .report import progress
from .stopping import SIGNALS, Stop

_PATIENCE = 15.0  # seconds without a message until the rest counts as lost
_AFTERWARDS = 0.5  # seconds in which a message too many would show
_START_TIMEOUT = 60.0  # seconds, for the reading process to start and subscribe
_SHOWN = 100  # bytes of a message that is not the expected one


class DemoError(Exception):
    """The demo cannot run, or what came back is not what was sent."""


@dataclass(frozen=True)
class ReadBack:
    """What another process got from the topic."""

    messages: int
    sha256: str
    """Of the messages, each followed by a newline."""
    seconds: float
    difference: str
    """The first one from what was expected; empty if there is none."""


def standard_library() -> list[str]:
    """The modules that came with this Python, in a fixed order."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    return [str(path) for path in modules if path.is_file() and "site-packages" not in path.parts]


def round_trip(
    client: pulsar_fast.Client, url: str, paths: Sequence[str], stop: Stop, console: Console
) -> tuple[Ingest, ReadBack]:
    """Send the lines of the files to a new topic and read them back.

    Raises `DemoError` unless the same lines come back in the same order, and `Stopped` when a signal comes.
    """
    if importlib.util.find_spec("pulsar") is None:
        raise DemoError("the demo reads back with the official client: pip install pulsar-client")
    topic = f"pulsar-fast-demo-{uuid.uuid4().hex}"
    ingest = Ingest(client, topic, stop)
    stop.begin()  # there is a process to end
    with _reading_process(url, topic, paths) as reader:
        # Subscribed before the first message is sent, so that the topic's retention does not matter.
        _next_answer(reader, stop, _START_TIMEOUT)
        with progress(ingest, console, paths):
            ingest.run(paths, split_lines)
        stop.check()
        if ingest.problem or ingest.failed:
            raise DemoError(ingest.problem or f"{ingest.failed} messages were not acknowledged")
        reader.send(None)
        read_back = _next_answer(reader, stop)
    assert isinstance(read_back, ReadBack)
    _compare(ingest, read_back, paths)
    return ingest, read_back


@contextmanager
def _reading_process(url: str, topic: str, paths: Sequence[str]) -> Iterator[Connection]:
    """A process that reads the topic, as a connection to it.

    It keeps the reader out of the client's CPU figure, and is spawned since threads do not survive a fork.
    """
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_reader, args=(there, url, topic, paths), daemon=True)
    try:
        _start_without_signals(process)
        there.close()
        yield here
    finally:
        if process.pid is not None:
            process.kill()
            process.join()
        here.close()


def _start_without_signals(process: BaseProcess) -> None:
    """Start a process that Ctrl-C in the terminal does not reach: it inherits that the signals are blocked."""
    resource_tracker.ensure_running()  # starting it later would unblock them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _next_answer(connection: Connection, stop: Stop, timeout: float | None = None) -> object:
    if not stop.wait_for(connection.fileno(), timeout):
        raise DemoError(f"the reading process did not start within {timeout:g} s")
    try:
        answer = connection.recv()
    except EOFError:
        raise DemoError("the reading process ended early") from None
    if isinstance(answer, DemoError):
        raise answer
    return answer


def _compare(ingest: Ingest, read_back: ReadBack, paths: Sequence[str]) -> None:
    if read_back.difference:
        raise DemoError(read_back.difference)
    if read_back.messages != ingest.messages:
        raise DemoError(f"{ingest.messages} messages were sent, but {read_back.messages} expected to be read")
    if read_back.sha256 != (expected := _sha256(paths)):
        raise DemoError(f"SHA-256 of the lines is {expected}, of what was read back {read_back.sha256}")


def _sha256(paths: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            for lines in split_lines(iter(partial(file.read, 1 << 18), b"")):
                digest.update(b"\n".join([*lines, b""]))
    return digest.hexdigest()


# From here on: the reading process.


def _reader(connection: Connection, url: str, topic: str, paths: Sequence[str]) -> None:
    official: Any = importlib.import_module("pulsar")
    # What goes wrong is told by exceptions.
    client = official.Client(url, logger=official.FileLogger(official.LoggerLevel.Error, os.devnull))
    with suppress(BrokenPipeError, EOFError):  # the sender has gone
        try:
            consumer = _subscribed(client, official, topic)
            connection.send(None)
            connection.recv()  # begin when told: until then the processors are the sender's
            connection.send(_read_back(consumer, official.Timeout, paths))
        except official.PulsarException as error:
            connection.send(DemoError(f"reading back from {url}: {error}"))
    client.close()


def _subscribed(client: Any, official: Any, topic: str) -> Any:
    # The only consumer gets all in order; pulsar-lite repeats messages to a fast exclusive one.
    return client.subscribe(
        topic,
        "demo",
        consumer_type=official.ConsumerType.Shared,
        initial_position=official.InitialPosition.Earliest,
    )


def _read_back(consumer: Any, timeout_error: type[Exception], paths: Sequence[str]) -> ReadBack:
    def receive(seconds: float) -> bytes | None:
        try:
            message = consumer.receive(timeout_millis=int(seconds * 1000))
        except timeout_error:
            return None
        consumer.acknowledge(message)
        content: bytes = message.data()
        return content

    digest = hashlib.sha256()
    started = time.monotonic()
    difference = ""
    count = 0
    for expected in _lines(paths):
        got = receive(_PATIENCE)
        if got != expected:
            difference = f"message {count}: expected {_shown(expected)}, got {_shown(got)}"
            break
        digest.update(got + b"\n")
        count += 1
    seconds = time.monotonic() - started
    if not difference and (extra := receive(_AFTERWARDS)) is not None:
        difference = f"message {count}: expected none, got {_shown(extra)}"
    return ReadBack(count, digest.hexdigest(), seconds, difference)


def _lines(paths: Sequence[str]) -> Iterator[bytes]:
    # On purpose not by the code that split what was sent.
    for path in paths:
        with open(path, "rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")


def _shown(message: bytes | None) -> str:
    if message is None:
        return "none"
    return repr(message[:_SHOWN]) + (f" and {len(message) - _SHOWN} bytes" if len(message) > _SHOWN else "")
