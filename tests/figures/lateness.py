"""How long after its deadline a message is told that it has timed out."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pulsar_fast import Client, Producer, Result
from tests.faults.scripted_broker import ScriptedBroker
from tests.figures.table import Figure, spread

TIMEOUTS_MS = (50, 75, 100, 150, 200, 300, 400, 500)
BROKERS = ("present", "absent", "stalled")


def lateness(broker_is: str, busy_threads: int, seconds: float) -> Figure:
    """Of messages with deadlines of 50 to 500 ms, beside so many threads of pure Python that never rest.

    The broker is present and answers nothing, absent (nobody listens), or stalled (reads nothing).
    """
    with ScriptedBroker() as broker:
        client = Client(broker.url)
        try:
            producers = [
                client.create_producer(f"t{timeout}", send_timeout_millis=timeout, max_pending_messages=0)
                for timeout in TIMEOUTS_MS
            ]
            broker.on_send().say_nothing()
            if broker_is == "absent":
                broker.go_down()
            elif broker_is == "stalled":
                filler = _stall(broker, client)
                assert filler.is_connected()
            watch = _Watch()
            with _busy(busy_threads), _sleeper() as overslept:
                sent = watch.send_through(producers, seconds)
                watch.wait_for(sent)
            return Figure(
                f"broker {broker_is}, {busy_threads} busy threads",
                {
                    "messages": sent,
                    "lost callbacks": sent - len(watch.late),
                    **spread(watch.late),
                    "p95 of a bare sleep": spread(overslept)["p95"],
                },
            )
        finally:
            client.shutdown()


def _stall(broker: ScriptedBroker, client: Client) -> Producer:
    """No byte gets through any more; returns the producer of what fills the way."""
    filler = client.create_producer("filler", send_timeout_millis=0, batching_enabled=False)
    broker.stop_reading()
    for _ in range(10):
        filler.send_async(bytes(1_000_000), lambda *_: None)
    return filler


class _Watch:
    """Knows how late each callback came, in seconds; below 0 would be early."""

    def __init__(self) -> None:
        self.late: list[float] = []

    def send_through(self, producers: list[Producer], seconds: float) -> int:
        sent = 0
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for producer, timeout in zip(producers, TIMEOUTS_MS, strict=True):
                producer.send_async(b"x" * 100, self._callback(time.monotonic() + timeout / 1000))
                sent += 1
            time.sleep(0.005)
        return sent

    def _callback(self, deadline: float) -> Callable[[Result, Any], None]:
        def answered(result: Result, _message_id: Any) -> None:
            assert result is Result.Timeout, result
            self.late.append(time.monotonic() - deadline)

        return answered

    def wait_for(self, count: int) -> None:
        ends = time.monotonic() + 10
        while len(self.late) < count and time.monotonic() < ends:
            time.sleep(0.01)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    stopped = threading.Event()

    def spin() -> None:
        while not stopped.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=spin, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


@contextmanager
def _sleeper() -> Iterator[list[float]]:
    """How much too long a thread sleeps that does nothing else, in seconds: what the machine allows just then."""
    stopped = False
    overslept: list[float] = []

    def sleep() -> None:
        while not stopped:
            until = time.monotonic() + 0.05
            time.sleep(0.05)
            overslept.append(time.monotonic() - until)

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    try:
        yield overslept
    finally:
        stopped = True
        thread.join()
