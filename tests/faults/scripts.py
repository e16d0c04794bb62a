"""Whole processes under a watchdog, and what their scripts have at hand.

A script talks to a broker of the test, whose address is in `url`, or to one of its own.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar_fast
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.tls_front import TlsFront
from tests.waiting import until

PREAMBLE = """
import asyncio, atexit, faulthandler, gc, logging, os, signal, sys, threading, time, warnings
import pulsar_fast
import pulsar_fast.asyncio
from tests.faults.scripts import fork, say, when_blocked
from tests.waiting import until
faulthandler.register(signal.SIGUSR2)  # a script that hangs is asked where
url, number = sys.argv[1], int(sys.argv[2])
"""
NOISE = ("Traceback", "Exception ignored", "Fatal", "was never awaited", "Task was destroyed")
_OPTIONS = ("-u", "-W", "ignore::ResourceWarning", "-W", "ignore::DeprecationWarning")
_TOGETHER = 4  # processes at a time


def run_script(
    broker: ScriptedBroker | TlsFront,
    script: str,
    *,
    interrupt_at: str = "",
    timeout: float = 15,
    noise: tuple[str, ...] = NOISE,
    number: int = 0,
) -> str:
    """What a script printed before it ended, by itself, with code 0 and in silence but for that.

    Gets SIGINT once it blocks after having printed `interrupt_at`.
    """
    process = subprocess.Popen(
        [sys.executable, *_OPTIONS, "-c", PREAMBLE + textwrap.dedent(script), broker.url, str(number)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        said = ""
        if interrupt_at:
            while interrupt_at not in said:
                line = process.stdout.readline()
                assert line, f"it ended early: {process.communicate()[1]}"
                said += line
            until(lambda: is_blocked(process.pid))  # in the call that follows the line
            process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        out, error = _put_down(process)
        raise AssertionError(f"it did not end within {timeout} s: {out}{error}") from None
    assert process.returncode == 0, f"exit code {process.returncode}: {out}{error}"
    assert not any(word in error for word in noise), error
    return said + out


def _put_down(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """End a process that hangs, with its children; they say where they are."""
    os.killpg(process.pid, signal.SIGUSR2)
    try:
        return process.communicate(timeout=1)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def run_often(
    times: int,
    script: str,
    check: Callable[[ScriptedBroker, str], Any],
    prepare: Callable[[ScriptedBroker], Any] = lambda broker: None,
    **options: Any,
) -> None:
    """Run a script so many times, a few at once, each with a broker and a `number` of its own."""

    def once(number: int) -> None:
        try:
            with ScriptedBroker() as broker:
                prepare(broker)
                check(broker, run_script(broker, script, number=number, **options))
        except AssertionError as error:
            raise AssertionError(f"number {number}: {error}") from error

    with ThreadPoolExecutor(_TOGETHER) as pool:
        list(pool.map(once, range(times)))


def is_blocked(pid: int) -> bool:
    """Whether the main thread of a process sleeps, and goes on sleeping for a while."""

    def state() -> tuple[str, str]:
        with open(f"/proc/{pid}/task/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return fields[0], fields[11]  # state and CPU time

    seen = [state()]
    for _ in range(20):
        time.sleep(0.005)
        seen.append(state())
    return seen[0][0] == "S" and len(set(seen)) == 1


# --- inside of scripts


def say(*words: object) -> None:
    """One line in one write, as several processes may do at once."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def fork(work: Callable[[], object], how: str = "_exit") -> int:
    """Run `work` in a forked child that ends by `_exit` or `exit`; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        say(f"child failed: {error!r}")
    finally:
        if how == "_exit":
            os._exit(status)
    sys.exit(status)


def when_blocked(*actions: Callable[[], object]) -> threading.Thread:
    """Do one action after the other, each once the main thread is blocked."""

    def work() -> None:
        for action in actions:
            until(lambda: is_blocked(os.getpid()))
            action()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def produce(url: str, payload: bytes, given: object = None) -> bool:
    """The work of a process that makes a client of its own."""
    with pulsar_fast.Client(url) as client:
        client.create_producer("own").send(payload)
    return given is None
