"""Steady traffic to one topic."""

import asyncio
import itertools
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

import pulsar  # type: ignore[import-untyped]

import pulsar_fast
import pulsar_fast.asyncio
from pulsar_fast import PulsarException, Result
from pulsar_fast._core import SendFuture
from pulsar_fast.producer_base import BaseProducer
from pulsar_fast.stats import ProducerStats

from .verdict import Fates, Verdict, content, judge

RATE = 700  # messages a second
_TICK = 0.005  # seconds between two looks at the clock
_STALL = 60.0  # seconds until traffic counts as stopped for good


class SteadyTraffic:
    """Numbered messages of several sizes at a steady rate, from a thread of its own between enter and exit.

    Leaving waits until every message is answered and closes the producer; with an error it shuts the client down
    instead. The topic must be a new one, keep what is acknowledged, and drop duplicates; ``verdict`` reads all of it.

    Args:
        name: of the producer, 8 characters at most.
    """

    stats: ProducerStats
    """At the end of the traffic."""

    def __init__(self, name: str, service_url: str, topic: str, send_timeout_millis: int = 0) -> None:
        self.name = name
        self.topic = topic
        self._service_url = service_url
        self._options: dict[str, Any] = {
            "send_timeout_millis": send_timeout_millis,
            "batching_enabled": True,
            "max_pending_messages": 0,  # steady, whatever happens
        }
        self._sent = 0
        self._fates = Fates()
        self._stop = threading.Event()
        self._shut_down: Callable[[], object] = lambda: None
        self._failure: BaseException | None = None
        self._producer: BaseProducer | None = None
        # A client that hangs is told by a failure; it must not hold up the end of the process as well.
        self._thread = threading.Thread(target=self._run, name=f"traffic {name}", daemon=True)

    def __enter__(self) -> "SteadyTraffic":
        self._thread.start()
        try:
            self.await_receipt(time.monotonic())
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if error is not None:
            threading.Thread(target=self._shut_down, daemon=True).start()  # which may hang as well
        self._thread.join(2 * _STALL)
        if error is None:
            assert not self._thread.is_alive(), f"{self.name}: the producer does not end"
            if self._failure is not None:
                raise self._failure

    def await_receipt(self, moment: float) -> None:
        """Wait until a receipt has come after that moment of the monotonic clock.

        Raises:
            AssertionError: none came within 60 s.
        """
        deadline = time.monotonic() + _STALL
        while not self._fates.receipts or self._fates.receipts[-1] <= moment:
            assert self._failure is None, f"{self.name}: {self._failure!r}"
            if time.monotonic() > deadline:
                stats = self._producer and self._producer.stats()
                raise AssertionError(f"{self.name}: no receipt for {_STALL:g} s: {stats}")
            time.sleep(0.005)

    def next_receipt(self, moment: float) -> float:
        """When the first receipt after that moment came."""
        return self._fates.receipts[bisect_right(self._fates.receipts, moment)]

    def longest_gap(self, begun: float, moment: float) -> float:
        """The longest time between two receipts, from the last one before `begun` to the first after `moment`."""
        first = max(0, bisect_right(self._fates.receipts, begun) - 1)
        last = bisect_right(self._fates.receipts, moment)
        span = self._fates.receipts[first : last + 1]
        return max(later - earlier for earlier, later in itertools.pairwise(span))

    def verdict(self) -> Verdict:
        """Read the topic from its first message to its last, and compare. After the traffic has ended."""
        return judge(
            self.name,
            self._sent,
            self._fates,
            _everything(self._service_url, self.topic),
            may_time_out=self._options["send_timeout_millis"] > 0,
        )

    def _run(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self._failure = error

    def _produce(self) -> None:
        with pulsar_fast.Client(self._service_url, memory_limit_bytes=0) as client:
            self._shut_down = client.shutdown
            with client.create_producer(self.topic, **self._options) as producer:
                self._producer = producer
                started = time.monotonic()
                while not self._stop.wait(_TICK):
                    for number, message in self._due(started):
                        producer.send_async(message, partial(self._fates.note, number))
                with suppress(PulsarException):  # messages that timed out
                    producer.flush(_STALL)
                self.stats = producer.stats()

    def _due(self, started: float) -> Iterator[tuple[int, bytes]]:
        """The messages whose time has come."""
        for number in range(self._sent, int(RATE * (time.monotonic() - started))):
            self._sent = number + 1
            yield number, content(self.name, number)


class AsyncioTraffic(SteadyTraffic):
    """The same from coroutines: the results come by futures."""

    def _produce(self) -> None:
        asyncio.run(self._produce_on_a_loop())

    async def _produce_on_a_loop(self) -> None:
        loop = asyncio.get_running_loop()
        async with pulsar_fast.asyncio.Client(self._service_url, memory_limit_bytes=0) as client:
            self._shut_down = partial(_call_on, loop, client.shutdown)
            async with await client.create_producer(self.topic, **self._options) as producer:
                self._producer = producer
                started = time.monotonic()
                while not self._stop.is_set():
                    await asyncio.sleep(_TICK)
                    for number, message in self._due(started):
                        producer.send(message).add_done_callback(partial(self._note, number))
                with suppress(PulsarException):
                    await producer.flush(_STALL)
                self.stats = producer.stats()

    def _note(self, number: int, future: SendFuture) -> None:
        error = future.exception()
        if error is None:
            self._fates.note(number, Result.Ok)
        else:
            self._fates.note(number, getattr(error, "result", Result.UnknownError))


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(function)


def _everything(service_url: str, topic: str) -> Iterator[bytes]:
    """What the official client reads in a topic, from the first message to the last."""
    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        while reader.has_message_available():
            yield reader.read_next(timeout_millis=30_000).data()
        reader.close()
    finally:
        client.close()
