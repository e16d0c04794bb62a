"""The loop's side of a client: what its producers share."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from ._core import Budget, BufferPool, Clock, Sender, Waker
from .backoff import Backoff
from .bounds import TimeIsUp, ended, within
from .cluster import Cluster, Service
from .connection import BrokerAddress
from .exceptions import AlreadyClosed, ConnectError, PulsarException, Timeout
from .failover import Failover
from .log import log_of
from .options import ProducerOptions
from .partitioned_producer import PartitionedProducer
from .regularly import Regularly
from .service_info import AutoClusterFailover
from .topic_name import TopicName
from .topic_producer import TopicProducer

__all__ = ["ClientCore"]

_T = TypeVar("_T")


class ClientCore:
    """Everything of a client that lives on its event loop. Made and used on that loop's thread only.

    Time and connections come from outside (`clock`, the `dial` of a `Service`), so that all of it can be run in
    simulation.
    """

    def __init__(
        self,
        service: Service,
        clock: Clock | None = None,
        on_released: "Callable[[ClientCore], None]" = lambda core: None,
    ) -> None:
        self._on_released = on_released
        self.options = service.options
        self.logger = log_of(service.options)
        self.clock = clock or Clock()
        self.buffers = BufferPool()
        self.budget = Budget(service.options.memory_limit_bytes)
        self.cluster = Cluster(service, self.clock, self.logger, self._on_reached)
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._wake_fds: tuple[int, int] | None = _open_wake_fds()
        self.waker = Waker(self._wake_fds[-1])
        self._loop.add_reader(self._wake_fds[0], self._on_wake)
        self._producers: dict[TopicProducer, None] = {}  # in the order of creation
        self._under_way: set[asyncio.Task[Any]] = set()  # what ends with the client
        self._last_producer_id = 0
        self._failover: Failover | None = None
        self._closing: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None  # kept, since the loop holds tasks weakly
        self._moved = asyncio.Event()  # to another cluster
        self._regular: list[Regularly] = []
        if self.options.stats_interval_in_seconds:
            self.regularly(self.options.stats_interval_in_seconds, self._log_stats)

    async def _log_stats(self) -> None:
        for producer in list(self._producers):
            self.logger.info("%s: %s", producer.topic.full, producer.stats())

    def regularly(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> Regularly:
        """Work that is done again and again until it is stopped or the client is closed."""
        regular = Regularly(seconds, work, self.begin, self.logger)
        self._regular = [other for other in self._regular if not other.stopped] + [regular]
        return regular

    def _stop_regular_work(self) -> None:
        for regular in self._regular:
            regular.stop()

    def follow(self, rules: AutoClusterFailover, services: Sequence[Service]) -> None:
        """Check the clusters from now on, the first of which is in use, and use the best one that answers."""
        if self.is_released:
            return
        self._failover = Failover(
            rules, services, lambda service: Cluster(service, self.clock, self.logger), self.use, self.logger
        )
        self.regularly(rules.check_interval_ms / 1000, self._failover.check)

    def use(self, service: Service) -> None:
        """Go to another cluster: the producers register there, and send what is pending."""
        old = self.cluster
        if self.is_released or service.info == old.service.info:
            return
        self.logger.warning("going from %s to %s", old.service.info.service_url, service.info.service_url)
        self.cluster = Cluster(service, self.clock, self.logger, self._on_reached)
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        for producer in self._producers:
            producer.move()
        old.close(ConnectError(f"the client has gone to {service.info.service_url}"))

    def next_producer_id(self) -> int:
        self._last_producer_id += 1
        return self._last_producer_id

    def _on_wake(self) -> None:
        if self._wake_fds is None:
            return
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_fds[0], 4096)
        for producer in self.waker.take():
            try:
                producer.turn()
            except Exception:  # a bug: it must not keep the others from their turn
                self.logger.exception("%s: a turn of the loop failed", producer.topic.full)

    def _on_reached(self, address: BrokerAddress) -> None:
        for producer in self._producers:
            producer.on_reached(address)

    async def retried(
        self, what: str, attempt: Callable[[], Awaitable[_T]], *, without_end: bool = False
    ) -> _T:
        """Attempt again, with back-off, what a retry can mend, until the operation timeout, or without end.

        Raises what it cannot mend at once, and the last error when the time is up.
        """
        timeout = self.options.operation_timeout_seconds
        how_long = "until it works" if without_end else f"for {timeout:g} s"
        backoff = Backoff(self.options.initial_backoff_interval_ms, self.options.max_backoff_interval_ms)
        failure: PulsarException | None = None

        async def until_it_works() -> _T:
            nonlocal failure
            while True:
                try:
                    return await attempt()
                except PulsarException as error:
                    if not error.retriable:
                        raise
                    if failure is None:
                        self.logger.warning("%s: %s; trying again %s", what, error.message, how_long)
                    failure = error
                with contextlib.suppress(TimeIsUp):
                    await within(backoff.next(), self._moved.wait())

        try:
            return await within(None if without_end else timeout, until_it_works())
        except TimeIsUp:
            if failure is None:
                raise Timeout(f"{what}: {self.cluster.lookup} gave no answer within {timeout:g} s") from None
            raise type(failure)(f"{what} failed for {timeout:g} s: {failure.message}") from failure

    async def create_producer(
        self, topic: TopicName, options: ProducerOptions, make_sender: Callable[[TopicProducer], Sender]
    ) -> TopicProducer | PartitionedProducer:
        """A registered producer. Raises what keeps it from being one. `make_sender`: see `PartitionedProducer`."""
        self.check_open()
        task = self.begin(self._create(topic, options, make_sender))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:  # of the caller; closing the client cancels the task alone
            task.cancel()
            if task.done() and not task.cancelled() and task.exception() is None:
                task.result().close_soon()  # registered in the same moment, and now nobody's
            raise
        if task.cancelled():
            raise AlreadyClosed("the client was closed meanwhile")
        return task.result()

    def begin(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """A task that is cancelled when the client is closed."""
        task = self._loop.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _create(
        self, topic: TopicName, options: ProducerOptions, make_sender: Callable[[TopicProducer], Sender]
    ) -> TopicProducer | PartitionedProducer:
        partitions = await self.partitions_of(topic) if topic.partition < 0 else 0
        producer = (
            PartitionedProducer(self, topic, options, partitions, make_sender)
            if partitions
            else self.add_producer(topic, options)
        )
        await producer.create()
        return producer

    def add_producer(self, topic: TopicName, options: ProducerOptions) -> TopicProducer:
        """One that belongs to the client from now on, and is not registered yet."""
        producer = TopicProducer(self, topic, options)
        self._producers[producer] = None
        return producer

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 for one without."""
        self.check_open()
        return await self.retried(
            f"looking up the partitions of {topic.full}", lambda: self.cluster.partitions_of(topic)
        )

    def check_open(self) -> None:
        if self.closed:
            raise AlreadyClosed("the client is closed")

    def forget(self, producer: TopicProducer) -> None:
        self._producers.pop(producer, None)

    async def close(self) -> None:
        """Close all producers, which wait for what they have accepted, then all connections.

        It goes on when the caller stops waiting, and begins anew when somebody else cancels its task; a second
        call waits for the same.
        """
        while True:
            if self._closing is None or self._closing.cancelled():
                self.closed = True
                self._closing = self._loop.create_task(self._close())
            if await ended(self._closing):
                return

    async def _close(self) -> None:
        self._stop_regular_work()
        under_way = list(self._under_way)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        closed = await asyncio.gather(
            *(producer.close() for producer in self._producers), return_exceptions=True
        )
        self._release()
        for error in closed:
            if isinstance(error, Exception):
                self.logger.error("closing a producer failed", exc_info=error)

    def close_soon(self) -> None:
        """Close in the background."""
        self._background = self._loop.create_task(self.close())

    @property
    def is_released(self) -> bool:
        """Whether nothing is left of it on the loop."""
        return self._wake_fds is None

    def shut_down(self) -> None:
        """End at once: everything pending fails."""
        self.closed = True
        self._stop_regular_work()
        for task in self._under_way:
            task.cancel()
        for producer in list(self._producers):
            producer.shut_down()
        self._release()

    def abandon(self) -> None:
        """The loop has been closed before the client: answer what is left and close what is open, without it."""
        self.closed = True
        for producer in list(self._producers):
            producer.abandon()
        self._close_ends()

    def leave_to_parent(self) -> None:
        """In a forked child: close this process's ends alone, and answer nobody."""
        self.closed = True
        for producer in self._producers:
            producer.leave_to_parent()
        self._close_ends()

    def _close_ends(self) -> None:
        """The connections and the way to wake the loop, without asking the loop."""
        if self._wake_fds is not None:
            self.cluster.pool.abandon()
            self._close_wake_fds(self._wake_fds)

    def _release(self) -> None:
        """Close the connections and the way to wake the loop, once."""
        if self._wake_fds is None:
            return
        self._loop.remove_reader(self._wake_fds[0])
        self._close_wake_fds(self._wake_fds)
        if self._failover is not None:
            self._failover.close()
        self.cluster.close(AlreadyClosed("the client is closed"))

    def _close_wake_fds(self, fds: tuple[int, int]) -> None:
        self._wake_fds = None
        self.waker.close()
        for fd in set(fds):
            os.close(fd)
        self._on_released(self)


def _open_wake_fds() -> tuple[int, int]:
    """The ends to read and to write of something that wakes the loop; one and the same where eventfd exists."""
    if hasattr(os, "eventfd"):
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        return fd, fd
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    return read, write
