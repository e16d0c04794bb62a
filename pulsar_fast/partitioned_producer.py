"""The loop's side of a producer on a topic with partitions: one producer on each, and those that come later."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ._core import LatencyHistogram, Router, Sender
from .enums import PartitionsRoutingMode, ProducerAccessMode
from .exceptions import AlreadyClosed, PulsarException
from .options import ProducerOptions
from .regularly import Regularly
from .stats import ProducerStats
from .topic_name import TopicName
from .topic_producer import State, TopicProducer

if TYPE_CHECKING:
    from .client_core import ClientCore

__all__ = ["PartitionedProducer"]

_AT_ONCE = 100  # partitions that are registered at the same time


class PartitionedProducer:
    """A producer of one topic with partitions. Owned by the event loop.

    `make_sender(producer)` makes what messages for one partition go through; `router` chooses among them.
    """

    def __init__(
        self,
        client: "ClientCore",
        topic: TopicName,
        options: ProducerOptions,
        partitions: int,
        make_sender: Callable[[TopicProducer], Sender],
    ) -> None:
        self.topic = topic
        self.encoding = options.schema
        self._client = client
        self._options = replace(options, max_pending_messages=_limit_of_one(options, partitions))
        self._make_sender = make_sender
        self._lazy = (
            options.lazy_start_partitioned_producers
            and options.producer_name is None
            and options.access_mode is ProducerAccessMode.Shared
        )
        self._polling: Regularly | None = None
        self._partitions = [self._new_partition(index) for index in range(partitions)]
        first = random.randrange(partitions)  # nosec B311 # no secret hangs on it
        # Two that wait for exclusive access in different orders would wait for each other.
        self._first = first if options.access_mode is ProducerAccessMode.Shared else 0
        self.router = Router(
            [make_sender(partition) for partition in self._partitions],
            options.hashing_scheme,
            options.message_routing_mode is PartitionsRoutingMode.RoundRobinDistribution,
            first,
            options.router_function,
        )

    def _new_partition(self, index: int) -> TopicProducer:
        return self._client.add_producer(TopicName.parse(self.topic.partition_name(index)), self._options)

    async def create(self) -> None:
        """Register all partitions, or the one to begin with. Raises what keeps one of them from being registered."""
        try:
            await self._partitions[self._first].create()
            rest = [*self._partitions[: self._first], *self._partitions[self._first + 1 :]]
            self._name_like_the_first(rest)
            if self._lazy:
                for partition in rest:
                    partition.start_later()
            else:
                await _create_all(rest)
        except BaseException:
            for partition in self._partitions:
                partition.shut_down()
            raise
        if self._options.partitions_update_interval_seconds is not None:
            self._polling = self._client.regularly(
                self._options.partitions_update_interval_seconds, self._look_for_new_partitions
            )

    def _name_like_the_first(self, partitions: Sequence[TopicProducer]) -> None:
        for partition in partitions:
            partition.producer_name = self.producer_name

    # --- partitions that come later

    async def _look_for_new_partitions(self) -> None:
        try:
            await self._take_up_new_partitions()
        except PulsarException as error:
            self._client.logger.warning("%s: looking for new partitions: %s", self.topic.full, error)

    async def _take_up_new_partitions(self) -> None:
        """Messages go there once they are registered, in the order of their numbers."""
        count = await self._client.partitions_of(self.topic)
        while len(self._partitions) < count:
            partition = self._new_partition(len(self._partitions))
            self._name_like_the_first([partition])
            await partition.create()
            self._partitions.append(partition)
            self.router.add(self._make_sender(partition))
            self._client.logger.info("%s: %d partitions now", self.topic.full, len(self._partitions))

    def _stop_polling(self) -> None:
        if self._polling is not None:
            self._polling.stop()

    # --- what the application asks

    @property
    def ends(self) -> Router:
        """Where messages go in."""
        return self.router

    @property
    def state(self) -> State:
        """CLOSED once every partition is; FAILED when none takes messages any more."""
        states = {partition.state for partition in self._partitions}
        if len(states) == 1:
            return states.pop()
        return next(state for state in State if state in states)

    @property
    def producer_name(self) -> str:
        return self._partitions[self._first].producer_name

    @property
    def last_sequence_id(self) -> int:
        """Highest sequence id acknowledged on any partition; -1 without any."""
        return max(partition.last_sequence_id for partition in self._partitions)

    @property
    def is_connected(self) -> bool:
        """Whether every partition that was started is."""
        return all(partition.is_connected for partition in self._partitions if partition.is_started)

    def stats(self) -> ProducerStats:
        latency = LatencyHistogram()
        for partition in self._partitions:
            latency.add_all(partition.latency)
        return ProducerStats.sum_of([partition.stats() for partition in self._partitions], latency)

    async def flush(self, marks: list[int]) -> None:
        """Wait until everything accepted before the marks, one for each partition, is answered.

        Raises the first error of the partition with the lowest number.
        """
        pairs = zip(self._partitions, marks, strict=False)  # there may be one more partition by now
        await _all([partial(partition.flush, [mark]) for partition, mark in pairs])

    async def close(self, timeout: float | None = None) -> None:
        """As `TopicProducer.close`, of all partitions at the same time."""
        self._stop_polling()
        for partition in self._partitions:  # before anything is awaited: nothing more is accepted anywhere
            partition.accumulator.end(AlreadyClosed("the producer is closed"))
        await _all([partial(partition.close, timeout) for partition in self._partitions])

    def close_soon(self) -> None:
        """Close in the background."""
        self._stop_polling()
        for partition in self._partitions:
            partition.close_soon()

    def abandon(self) -> None:
        """The loop has been closed before the client."""
        for partition in self._partitions:
            partition.abandon()


def _limit_of_one(options: ProducerOptions, partitions: int) -> int:
    """How many messages of one partition may wait, 0 for any number."""
    limits = [options.max_pending_messages]
    if options.max_pending_messages_across_partitions:
        limits.append(max(options.max_pending_messages_across_partitions // partitions, 1))
    return min((limit for limit in limits if limit), default=0)


async def _create_all(partitions: Sequence[TopicProducer]) -> None:
    """Raises as soon as one of them is refused: others may wait for exclusive access without end."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def create(partition: TopicProducer) -> None:
        async with slots:
            await partition.create()

    tasks = [asyncio.ensure_future(create(partition)) for partition in partitions]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _all(works: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Wait for all of them; then raise the first error by their order."""
    for outcome in await asyncio.gather(*(work() for work in works), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
