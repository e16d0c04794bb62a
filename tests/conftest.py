"""What every test is held to, and the broker that needs nothing installed but wheels."""

import asyncio
import gc
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from pulsar_fast.embedded import EmbeddedBroker
from tests.brokers.lite import running_lite


@pytest.fixture(scope="session", autouse=True)
def _compiled_core() -> None:
    core = importlib.util.find_spec("pulsar_fast._core")
    if core is not None and core.origin is not None:  # a missing one fails by itself, at the import
        assert core.origin.endswith(tuple(EXTENSION_SUFFIXES)), f"not the compiled core: {core.origin}"


@pytest.fixture(scope="session", autouse=True)
def _old_objects_rest() -> None:
    """The collection after each test looks at what came up since, not at every module again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def loop_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What reached the exception handler of any event loop. A test that means it clears the list."""
    errors: list[dict[str, Any]] = []
    handle = asyncio.BaseEventLoop.call_exception_handler

    def record(loop: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
        errors.append(context)
        handle(loop, context)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", record)
    yield errors
    assert errors == [], "an event loop met unhandled exceptions"


@pytest.fixture(autouse=True)
def _no_leaks(loop_errors: list[dict[str, Any]]) -> Iterator[None]:
    """Threads and processes end with their test."""
    threads, processes = _threads(), _children()
    yield
    gc.collect()  # what is freed unclosed, or failed with nobody asking, says so now and not in a later test
    assert _settled(lambda: _threads() - threads) == set(), "the test left threads of pulsar_fast"
    assert _settled(lambda: _children() - processes) == set(), "the test left processes"


def _settled(left: Callable[[], set[Any]]) -> set[Any]:
    """What is still left after a moment for threads and processes that are about to end."""
    deadline = time.monotonic() + 2
    while (now := left()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return now


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("pulsar_fast")}


def _children() -> set[str]:
    """The command lines, with process ids, of our child processes (on Linux).

    By each process's parent: of a thread's list of children an entry may be missing while threads end.
    """
    children = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = path.joinpath("stat").read_bytes().rpartition(b")")[2].split()[1]
            command = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if (
            int(parent) == os.getpid() and "multiprocessing.resource_tracker" not in command
        ):  # one for the run
            children.add(f"{path.name} {command}")
    return children


@pytest.fixture(scope="session")
def lite_broker() -> Iterator[EmbeddedBroker]:
    """A running pulsar-lite."""
    with running_lite() as broker:
        yield broker
