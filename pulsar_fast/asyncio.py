"""The asyncio API: the same client and producer on the caller's own event loop."""

import asyncio
import atexit
import contextlib
import logging
import os
import ssl
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any

from ._core import FORKED, Feed, MessageId, RoomWaiter, SendFuture, SendHandle, answer_at_once, fork_count
from .authentication import (
    Authentication,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from .bounds import TimeIsUp, within
from .client_core import ClientCore
from .enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProxyProtocol,
)
from .exceptions import MemoryBufferIsFull, PulsarException, Timeout
from .message_routing import Message
from .options import ClientOptions, ProducerOptions
from .partitioned_producer import PartitionedProducer
from .producer_base import BaseProducer, EncodesContents, TopicSender, check_timeout, snapshot
from .result import Result
from .service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from .service_source import ServiceSource
from .topic_name import TopicName
from .topic_producer import State, TopicProducer

__all__ = [
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "BatchingType",
    "Client",
    "CompressionType",
    "HashingScheme",
    "MessageId",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "ProxyProtocol",
    "PulsarException",
    "Result",
    "ServiceInfo",
    "ServiceInfoProvider",
]

_cores: set[ClientCore] = set()


def _abandon_rest() -> None:
    """At interpreter exit: what a loop has left unanswered is answered, and counted in the log."""
    for core in list(_cores):
        core.abandon()


def _leave_rest() -> None:
    """In a forked child, whose copy of the loop may go on: what is under way is the parent's."""
    for core in list(_cores):
        core.leave_to_parent()


atexit.register(_abandon_rest)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_rest)


class LoopSender(TopicSender):
    """What messages go through whose senders are coroutines and callbacks of a loop, which cannot wait for room."""

    def __init__(
        self, core: TopicProducer | PartitionedProducer, block_if_queue_full: bool, timeout: float | None
    ) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._send_timeout = timeout

    def __new__(
        cls, core: TopicProducer | PartitionedProducer, block_if_queue_full: bool, timeout: float | None
    ) -> Any:
        return super().__new__(cls, core.ends, block_if_queue_full)

    def _queue_up(self, waiter: RoomWaiter, in_front: bool = False) -> None:
        try:
            self._accumulator.wait_for_room(waiter, in_front)
        except MemoryError as error:
            raise MemoryBufferIsFull(str(error)) from None

    def _send_when_there_is_room(self, wanted: int, target: object, content: Any, *arguments: Any) -> None:
        content, arguments = snapshot(content, arguments)
        timer: asyncio.TimerHandle | None = None

        def go_on() -> None:
            if timer is not None:
                timer.cancel()
            if isinstance(target, SendFuture) and target.cancelled():
                self._accumulator.stop_waiting(waiter)
                return
            try:
                self._offer(waiter, target, content, *arguments)
            except Exception as error:
                fail(error)

        def withdraw(future: SendFuture) -> None:
            if future.cancelled():  # nobody has to wait behind it any more
                if timer is not None:
                    timer.cancel()
                self._accumulator.stop_waiting(waiter)

        def give_up() -> None:
            self._accumulator.stop_waiting(waiter)
            fail(Timeout(f"waiting for room for {self._send_timeout:g} s"))

        def fail(error: Exception) -> None:
            if target is None:
                assert isinstance(self._core, TopicProducer)  # with a router it is its senders that wait
                self._core.nobody_heard(1, error)
            else:
                answer_at_once(target, getattr(error, "result", Result.UnknownError), error)

        waiter = RoomWaiter(wanted, go_on)
        if isinstance(target, SendFuture):
            target.add_done_callback(withdraw)
        if self._send_timeout is not None:
            timer = self._loop.call_later(self._send_timeout, give_up)
        try:
            self._queue_up(waiter)
        except PulsarException as error:
            if timer is not None:
                timer.cancel()
            fail(error)


class Producer(BaseProducer, LoopSender):
    """Sends messages to one topic; made by `Client.create_producer`, used on the loop where that was awaited."""

    def __init__(self, client: object, *rest: Any) -> None:
        super().__init__(*rest)
        self._client = client  # a producer keeps its client alive
        self._inputs: dict[SendHandle, asyncio.Future[None]] = {}  # of `send_many`, which wait for room

    def __new__(cls, client: object, *rest: Any) -> Any:
        return super().__new__(cls, *rest)

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            if self._forks != fork_count():
                raise RuntimeError(FORKED)
            raise RuntimeError(
                "this producer belongs to another event loop: use it on the one that created it"
            )

    def send_async(self, content: Any, callback: Any, *arguments: Any, **named: Any) -> None:
        """As in the synchronous producer, on the loop of this one: the callback runs there. Nothing to await."""
        self._check_loop()
        super().send_async(content, callback, *arguments, **named)

    def send(
        self,
        content: Any,
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> SendFuture:
        """Send a message; awaiting what is returned gives its `MessageId`, or raises what went wrong.

        Arguments as in `send_async`. The message is accepted by the call itself, so that messages go in the order
        of the calls and `flush` covers them, awaited or not. With `block_if_queue_full` it keeps its place while it
        waits for room, at most the send timeout. Cancelling withdraws it only while it waits for room.
        """
        self._check_loop()
        arguments = (
            content,
            properties,
            partition_key,
            ordering_key,
            sequence_id,
            replication_clusters,
            disable_replication,
            event_timestamp,
            deliver_at,
            deliver_after,
        )
        sender: LoopSender = self._choose(*arguments)
        future = SendFuture(self._loop, sender._accumulator)
        wanted = sender._offer(None, future, *arguments)
        if wanted:
            sender._send_when_there_is_room(wanted, future, *arguments)
        return future

    def send_many(
        self,
        payloads: Iterable[Any],
        properties: dict[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        event_timestamp: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool = False,
    ) -> SendHandle:
        """Send every element of an iterable as a message; awaiting the handle waits for all of them.

        As much as there is room for is taken by the call itself, the rest as room comes, before later sends that
        wait for room too. The other arguments hold for all messages and are checked at once.
        """
        self._check_loop()
        handle = SendHandle(self._marker(), self._loop)
        feed = Feed(
            self,
            payloads,
            handle,
            properties,
            partition_key,
            ordering_key,
            event_timestamp,
            replication_clusters,
            disable_replication,
        )
        try:
            self._feed(feed, handle, feed.run())
        except BaseException as error:
            self._end_input(handle)
            error.handle = handle  # type: ignore[attr-defined]
            raise
        return handle

    def _feed(self, feed: Feed, handle: SendHandle, wanted: int, after: LoopSender | None = None) -> None:
        """Take the rest of the input as room comes; `after`: where the last element has waited for it."""
        if not wanted:
            self._end_input(handle)
            return
        chosen = feed.chosen

        def go_on() -> None:
            try:
                self._feed(feed, handle, feed.run(waiter), chosen)
            except BaseException as error:  # of the input, Ctrl-C too: whoever awaits the handle gets it
                handle._refuse(error)
                self._end_input(handle)

        waiter = RoomWaiter(wanted, go_on, dated=False)
        self._inputs.setdefault(handle, self._loop.create_future())
        chosen._queue_up(waiter, in_front=chosen is after)

    def _end_input(self, handle: SendHandle) -> None:
        handle._end_input()
        waiting = self._inputs.pop(handle, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def flush(self, timeout: float | None = None) -> None:
        """Send what is batched and wait until every message sent before this call is answered.

        That covers those that still wait for room. `timeout` in seconds. Raises the first error among them, and
        `Timeout`.
        """
        self._check_loop()
        check_timeout(timeout)
        try:
            await within(timeout, self._flush())
        except TimeIsUp:
            raise Timeout(f"Producer.flush() took longer than {timeout:g} s") from None

    async def _flush(self) -> None:
        if self._inputs:
            await asyncio.wait([*self._inputs.values()])
        for sender in self._senders():
            if sender._accumulator.waiting():
                turn = asyncio.Event()
                sender._accumulator.wait_for_room(RoomWaiter(0, turn.set, marks=True))
                await turn.wait()
        await self._core.flush(self._mark())

    async def close(self, timeout: float | None = None) -> None:
        """Accept nothing more, send and await what was accepted, then leave the broker; a second call does nothing.

        Waits at most until the latest deadline of a message, the client's operation timeout or `timeout` (seconds),
        whichever is first; what is left then gets `AlreadyClosed`.
        """
        self._check_loop()
        check_timeout(timeout)
        await self._core.close(timeout)

    async def __aenter__(self) -> "Producer":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or core.state is State.CLOSED or self._forks != fork_count():
            return
        # First, since the warning may raise.
        if self._loop.is_closed():
            core.abandon()
        else:
            self._loop.call_soon_threadsafe(core.close_soon)
        warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)


class EncodingProducer(EncodesContents, Producer):
    """A producer with a schema."""


class Client:
    """A connection to a Pulsar cluster, for producing from coroutines; `async with` closes it.

    Arguments as in `pulsar_fast.Client`. It belongs to the event loop on which it is first used.
    """

    def __init__(
        self,
        service_url: str | AutoClusterFailover | ServiceInfoProvider,
        authentication: Authentication | None = None,
        operation_timeout_seconds: float = 30,
        io_threads: int = 1,
        message_listener_threads: int = 1,
        concurrent_lookup_requests: int = 50000,
        log_conf_file_path: str | None = None,
        stats_interval_in_seconds: int = 600,
        use_tls: bool = False,
        tls_trust_certs_file_path: str | None = None,
        tls_allow_insecure_connection: bool = False,
        tls_validate_hostname: bool = True,
        logger: logging.Logger | None = None,
        connection_timeout_ms: int = 10000,
        listener_name: str | None = None,
        tls_private_key_file_path: str | None = None,
        tls_certificate_file_path: str | None = None,
        keep_alive_interval_seconds: float = 30,
        memory_limit_bytes: int = 64 * 1024 * 1024,
        initial_backoff_interval_ms: int = 100,
        max_backoff_interval_ms: int = 10000,
        connections_per_broker: int = 1,
        connection_max_idle_seconds: float | None = 60,
        description: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        tls_minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2,
        tls_ciphers: str | None = None,
        proxy_service_url: str | None = None,
        proxy_protocol: ProxyProtocol | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "service_url")}
        self._source = ServiceSource(service_url, ClientOptions.from_arguments(**arguments))
        self._core: ClientCore | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forks = fork_count()

    def _here(self) -> ClientCore:
        """The core, on the loop that it belongs to."""
        if fork_count() != self._forks:
            raise RuntimeError("this client was created before os.fork(): create the client after the fork")
        loop = asyncio.get_running_loop()
        if self._core is None:
            self._begin(loop)
        if self._loop is not loop:
            raise RuntimeError("this client belongs to another event loop: create one for each loop")
        assert self._core is not None
        return self._core

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        source = self._source

        def released(core: ClientCore) -> None:
            _cores.discard(core)
            source.close()

        def on_loop(call: Callable[[], None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(call)

        self._loop = loop
        self._core = ClientCore(source.first, on_released=released)
        _cores.add(self._core)
        try:
            source.start(self._core, on_loop)
        except BaseException:
            self._core.shut_down()
            raise

    async def create_producer(
        self,
        topic: str,
        producer_name: str | None = None,
        schema: object = None,
        initial_sequence_id: int | None = None,
        send_timeout_millis: int = 30000,
        compression_type: CompressionType = CompressionType.NONE,
        max_pending_messages: int = 1000,
        max_pending_messages_across_partitions: int = 50000,
        block_if_queue_full: bool = False,
        batching_enabled: bool | None = None,
        batching_max_messages: int = 1000,
        batching_max_allowed_size_in_bytes: int = 128 * 1024,
        batching_max_publish_delay_ms: int = 10,
        chunking_enabled: bool = False,
        message_routing_mode: PartitionsRoutingMode = PartitionsRoutingMode.RoundRobinDistribution,
        lazy_start_partitioned_producers: bool = False,
        properties: dict[str, str] | None = None,
        batching_type: BatchingType = BatchingType.Default,
        encryption_key: str | None = None,
        crypto_key_reader: object = None,
        access_mode: ProducerAccessMode = ProducerAccessMode.Shared,
        message_router: Callable[[Message, int], int] | None = None,
        hashing_scheme: HashingScheme = HashingScheme.BoostHash,
        partitions_update_interval_seconds: float | None = 60,
        compression_level: int | None = None,
    ) -> Producer:
        """Register a producer on a topic. Arguments and errors as in `pulsar_fast.Client.create_producer`."""
        arguments = {name: value for name, value in locals().items() if name not in ("self", "topic")}
        options = ProducerOptions.from_arguments(**arguments)
        name = TopicName.parse(topic)
        rest = options.block_if_queue_full, options.send_timeout_seconds
        core = await self._here().create_producer(name, options, lambda core: LoopSender(core, *rest))
        kind = Producer if options.schema is None else EncodingProducer
        producer: Producer = kind(self, core, *rest)
        return producer

    async def get_topic_partitions(self, topic: str) -> list[str]:
        """Complete names of the partitions of a topic; of the topic itself if it has none."""
        name = TopicName.parse(topic)
        count = await self._here().partitions_of(name)
        return [name.partition_name(index) for index in range(count)] or [name.full]

    def update_service_url(self, service_url: str | ServiceInfo) -> None:
        """Go to another cluster, as `pulsar_fast.Client.update_service_url`; on the client's loop."""
        core = self._here()
        core.check_open()
        core.use(self._source.changed(service_url, self.get_service_info()))

    def get_service_info(self) -> ServiceInfo:
        """The cluster that is in use."""
        return (self._source.first if self._core is None else self._core.cluster.service).info

    async def close(self) -> None:
        """Close every producer, which waits for what it has accepted, then all connections; idempotent."""
        await self._here().close()

    def shutdown(self) -> None:
        """End at once: what is pending fails with `AlreadyClosed`; idempotent."""
        self._here().shut_down()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> "tuple[object, ...]":
        raise TypeError("a client cannot be pickled: create one in each process")

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or core.closed or self._forks != fork_count():
            return
        # First, since the warning may raise.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(core.close_soon)
        else:
            core.abandon()
        warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
