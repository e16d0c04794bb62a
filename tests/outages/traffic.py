"""Steady traffic to one topic, and the verdict on what became of it."""

import asyncio
import itertools
import struct
import threading
import time
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pulsar  # type: ignore[import-untyped]

import pulsar_fast
import pulsar_fast.asyncio
from pulsar_fast import PulsarException, Result
from pulsar_fast._core import SendFuture
from pulsar_fast.producer_base import BaseProducer
from pulsar_fast.stats import ProducerStats

RATE = 700  # messages a second
SIZES = (24, 100, 400, 1000, 4000)  # bytes, in turn
_TICK = 0.005  # seconds between two looks at the clock
_STALL = 60.0  # seconds until traffic counts as stopped for good
_HEAD = struct.Struct(">I8sQ")  # checksum of the rest, producer, number


@dataclass(frozen=True)
class Verdict:
    """What was sent, heard and read back, in messages unless said otherwise."""

    sent: int
    delivered_once: int
    duplicates: int
    """Deliveries beyond the first."""
    lost: int
    """Success was told, but nothing was delivered."""
    out_of_order: int
    """Delivered behind one with a higher number."""
    timeouts: int
    other_errors: Counter[Result]
    not_answered_once: int
    damaged: int
    """Deliveries that this producer did not send like that."""
    stats: ProducerStats

    def complaints(self) -> list[str]:
        """What must not be, whatever the brokers did."""
        wrong = ("duplicates", "lost", "out_of_order", "other_errors", "not_answered_once", "damaged")
        return [f"{name}: {getattr(self, name)}" for name in wrong if getattr(self, name)]


@dataclass
class _Fates:
    """What the callbacks of the messages told, by number."""

    results: dict[int, Result] = field(default_factory=dict)
    repeated: int = 0
    receipts: list[float] = field(default_factory=list)
    """Moments of the monotonic clock, in order."""

    def note(self, number: int, result: Result, _message_id: object = None) -> None:
        if number in self.results:
            self.repeated += 1
        self.results[number] = result
        if result == Result.Ok:
            now = time.monotonic()
            if not self.receipts or now - self.receipts[-1] > 0.001:  # all messages of a batch at once
                self.receipts.append(now)


class SteadyTraffic:
    """Numbered messages of several sizes at a steady rate, from a thread of its own between enter and exit.

    Leaving waits until every message is answered and closes the producer. The topic must be a new one, keep what is
    acknowledged, and drop duplicates; ``verdict`` reads all of it.
    """

    def __init__(self, name: str, service_url: str, topic: str, send_timeout_millis: int = 0) -> None:
        self.name = name
        self.topic = topic
        self._service_url = service_url
        self._producer_id = name.encode()[:8].ljust(8)
        self._options: dict[str, Any] = {
            "send_timeout_millis": send_timeout_millis,
            "batching_enabled": True,
            "max_pending_messages": 0,  # steady, whatever happens
        }
        self._sent = 0
        self._fates = _Fates()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._producer: BaseProducer | None = None
        self._thread = threading.Thread(target=self._run, name=f"traffic {name}")

    def __enter__(self) -> "SteadyTraffic":
        self._thread.start()
        try:
            self.await_receipt(time.monotonic())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(2 * _STALL)
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
        deliveries: Counter[int] = Counter()
        damaged = out_of_order = 0
        highest = -1
        for content in _everything(self._service_url, self.topic):
            number = self._number(content)
            if number is None:
                damaged += 1
                continue
            out_of_order += number < highest
            highest = max(highest, number)
            deliveries[number] += 1
        results = self._fates.results
        told = Counter(results.values())
        return Verdict(
            sent=self._sent,
            delivered_once=sum(times == 1 for times in deliveries.values()),
            duplicates=deliveries.total() - len(deliveries),
            lost=sum(result == Result.Ok and number not in deliveries for number, result in results.items()),
            out_of_order=out_of_order,
            timeouts=told[Result.Timeout],
            other_errors=Counter({kind: told[kind] for kind in told if kind not in self._expected_results()}),
            not_answered_once=self._fates.repeated + self._sent - len(results),
            damaged=damaged,
            stats=self._stats,
        )

    def _expected_results(self) -> tuple[Result, ...]:
        return (Result.Ok, Result.Timeout) if self._options["send_timeout_millis"] else (Result.Ok,)

    def _run(self) -> None:
        try:
            self._produce()
        except BaseException as error:
            self._failure = error

    def _produce(self) -> None:
        with (
            pulsar_fast.Client(self._service_url, memory_limit_bytes=0) as client,
            client.create_producer(self.topic, **self._options) as producer,
        ):
            self._producer = producer
            for number, content in self._due():
                producer.send_async(content, partial(self._fates.note, number))
            with suppress(PulsarException):  # messages that timed out
                producer.flush(_STALL)
            self._stats = producer.stats()

    def _due(self) -> Iterator[tuple[int, bytes]]:
        """The messages, each when its time has come, until the traffic is to stop."""
        started = time.monotonic()
        while not self._stop.wait(_TICK):
            yield from self._due_by_now(started)

    def _due_by_now(self, started: float) -> Iterator[tuple[int, bytes]]:
        for number in range(self._sent, int(RATE * (time.monotonic() - started))):
            self._sent = number + 1
            yield number, self._content(number)

    def _content(self, number: int) -> bytes:
        size = SIZES[number % len(SIZES)]
        rest = _HEAD.pack(0, self._producer_id, number)[4:] + number.to_bytes(4, "big") * (
            (size - _HEAD.size) // 4
        )
        return zlib.crc32(rest).to_bytes(4, "big") + rest

    def _number(self, content: bytes) -> int | None:
        """That of a message of this traffic; None if it is another one or not as it was sent."""
        checksum, producer, number = _HEAD.unpack_from(content)
        if checksum != zlib.crc32(content[4:]) or producer != self._producer_id or number >= self._sent:
            return None
        return int(number)


class AsyncioTraffic(SteadyTraffic):
    """The same from coroutines: the results come by futures."""

    def _produce(self) -> None:
        asyncio.run(self._produce_on_a_loop())

    async def _produce_on_a_loop(self) -> None:
        async with (
            pulsar_fast.asyncio.Client(self._service_url, memory_limit_bytes=0) as client,
            await client.create_producer(self.topic, **self._options) as producer,
        ):
            self._producer = producer
            started = time.monotonic()
            while not self._stop.is_set():
                await asyncio.sleep(_TICK)
                for number, content in self._due_by_now(started):
                    producer.send(content).add_done_callback(partial(self._note, number))
            with suppress(PulsarException):
                await producer.flush(_STALL)
            self._stats = producer.stats()

    def _note(self, number: int, future: SendFuture) -> None:
        error = future.exception()
        if error is None:
            self._fates.note(number, Result.Ok)
        else:
            self._fates.note(number, getattr(error, "result", Result.UnknownError))


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
