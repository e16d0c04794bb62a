"""Sends what is read from files through a producer, and keeps the account of it."""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

import pulsar_fast as pulsar

from .reading import InputError, KeyFunction, Splitter
from .stopping import GaveUp, Stop, Stopped

STANDARD_INPUT = "-"

_PART = 1000  # messages given to the producer between two looks at the signals
_HANDLES = 64  # parts whose outcome is not asked for yet
_FAILURES_TOLD = 10
_SEND_TIMEOUT = 30.0  # seconds, from reading a message to its failure, and from a signal to the end
_CATCH_UP = 1.0  # seconds of the rate that may follow a stall in one burst
_PATIENCE = 0.5  # seconds from a signal until it is worth telling what is waited for
_MAX_PENDING = 100_000  # messages; by default one full batch of short lines would have to be waited for

_logger = logging.getLogger(__name__)


def said(error: BaseException) -> str:
    """What an error says, without the name that Pulsar's put before it."""
    return getattr(error, "message", "") or str(error)


class Ingest:
    """One run: inputs, in order, through one producer. One thread runs it; any may read the counts.

    Args:
        client: left open, except when a second signal gives up: that shuts it down.
        key_of: splits a message into content and key; None sends it whole.
        properties: sent with every message.
        rate: messages a second; None is as fast as possible.

    Raises what creating the producer raises.
    """

    def __init__(
        self,
        client: pulsar.Client,
        topic: str,
        stop: Stop,
        *,
        key_of: KeyFunction | None = None,
        properties: dict[str, str] | None = None,
        rate: int | None = None,
    ) -> None:
        self.bytes_read = 0
        self.messages = 0
        """Given to the producer."""
        self.bytes = 0
        """Of the contents of these."""
        self.failed = 0
        """Messages that ended without an acknowledgement, so far."""
        self.without_key = 0
        """Of the messages; counted if there is a `key_of`."""
        self.problem = ""
        """What ended the run before the input did; a signal is none."""
        self.cpu_seconds = 0.0
        """Of the whole process, when the run is over."""
        self._client = client
        self._producer = client.create_producer(
            topic,
            send_timeout_millis=int(_SEND_TIMEOUT * 1000),
            max_pending_messages=_MAX_PENDING,
            block_if_queue_full=True,
        )
        self._stop = stop
        self._key_of = key_of
        self._properties = properties
        self._rate = rate
        self._part = _PART if rate is None else max(1, min(_PART, rate // 20))
        self._handles: deque[tuple[str, int, pulsar.SendHandle]] = deque()
        # Failures are told by the loop's thread, but refused messages by the sending one.
        self._counting = threading.Lock()
        # All by time.monotonic().
        self._started = time.monotonic()
        self._ended: float | None = None
        self._due = self._started  # when the next part may be sent

    @property
    def acknowledged(self) -> int:
        """Messages acknowledged so far."""
        return self._producer.stats().acknowledged

    @property
    def waited_for(self) -> int:
        """Messages without an answer that keep a run from ending after a signal; 0 until that takes a moment."""
        return self._producer.stats().pending_messages if self._stop.left_of(_PATIENCE) == 0 else 0

    @property
    def seconds(self) -> float:
        """Since the run began, or what it took."""
        return (self._ended or time.monotonic()) - self._started

    def run(self, paths: Sequence[str], split: Splitter) -> None:
        """Send everything, or what is read until a signal asks to stop, and wait for the outcome."""
        self._stop.begin()
        self._started = self._due = time.monotonic()
        cpu_started = time.process_time()
        try:
            self._send_inputs(paths, split)
            self._producer.close(self._stop.left_of(_SEND_TIMEOUT))
        except GaveUp:
            self._client.shutdown()
        while self._handles:
            self._settle_first()
        self.cpu_seconds = time.process_time() - cpu_started
        self._ended = time.monotonic()

    def _send_inputs(self, paths: Sequence[str], split: Splitter) -> None:
        try:
            for path in paths:
                self._send_input(path, split)
        except Stopped:
            pass
        except (InputError, pulsar.PulsarException) as error:
            self.problem = said(error)

    def _send_input(self, path: str, split: Splitter) -> None:
        name = "standard input" if path == STANDARD_INPUT else path
        number = 1  # of the next message of this input
        for messages in self._read(path, name, split):
            for start in range(0, len(messages), self._part):
                part = messages[start : start + self._part]
                self._pace(len(part))
                self._send(name, number, part)
                number += len(part)

    def _read(self, path: str, name: str, split: Splitter) -> Iterator[list[bytes]]:
        try:
            yield from split(self._chunks(path))
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        except OSError as error:
            raise InputError(f"{name}: {error.strerror}") from None

    def _chunks(self, path: str) -> Iterator[bytes]:
        descriptor = 0 if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
        try:
            while chunk := self._stop.read(descriptor):
                self.bytes_read += len(chunk)
                yield chunk
        finally:
            if descriptor:
                os.close(descriptor)

    def _pace(self, count: int) -> None:
        if self._rate is None:
            self._stop.check()
            return
        self._stop.sleep_until(self._due)
        self._due = max(self._due, time.monotonic() - _CATCH_UP) + count / self._rate

    def _send(self, name: str, number: int, part: list[bytes]) -> None:
        if self._key_of is not None:
            self._send_keyed(name, number, part, self._key_of)
            return
        try:
            handle = self._producer.send_many(part, properties=self._properties)
        except BaseException as error:
            # A signal may come outside of what hands out the handle.
            if (accepted := getattr(error, "handle", None)) is not None:
                self._account(name, number, part, accepted)
            raise
        self._account(name, number, part, handle)
        if len(self._handles) > _HANDLES:
            self._settle_first()

    def _account(self, name: str, number: int, part: list[bytes], handle: pulsar.SendHandle) -> None:
        self._handles.append((name, number, handle))
        self.messages += handle.count
        self.bytes += sum(map(len, part[: handle.count]))

    def _send_keyed(self, name: str, number: int, part: list[bytes], key_of: KeyFunction) -> None:
        for place, message in enumerate(part, number):
            try:
                keyed = key_of(message)
            except InputError as error:
                column = f"{error.column}:" if error.column else ""
                raise InputError(f"{name}:{place}:{column} {error}") from None
            if keyed is None:
                continue
            content, key = keyed
            done = partial(self._completed, name, place)
            self._producer.send_async(content, done, properties=self._properties, partition_key=key)
            self.messages += 1
            self.bytes += len(content)
            self.without_key += key is None

    def _completed(self, name: str, number: int, result: pulsar.Result, message_id: object) -> None:
        if result is not pulsar.Result.Ok:
            self._tell_failure(name, number, result.name)

    def _settle_first(self) -> None:
        name, number, handle = self._handles.popleft()
        try:
            handle.result()
        except pulsar.PulsarException:
            for index, error in handle.errors.items():
                self._tell_failure(name, number + index, said(error))

    def _tell_failure(self, name: str, number: int, why: str) -> None:
        with self._counting:
            self.failed += 1
            failed = self.failed
        if failed <= _FAILURES_TOLD:
            _logger.warning("message %d of %s failed: %s", number, name, why)
        if failed == _FAILURES_TOLD:
            _logger.warning("further failures are only counted")
