"""The synchronous producer."""

import threading
import warnings
from collections.abc import Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any

from ._core import Feed, MessageId, RoomWaiter, SendHandle, SendWaiter, fork_count, refuse_to_block
from .exceptions import MemoryBufferIsFull, ProducerQueueIsFull, PulsarException, Timeout
from .loop_thread import LoopThread
from .partitioned_producer import PartitionedProducer
from .producer_base import BaseProducer, EncodesContents, TopicSender, check_timeout, snapshot
from .topic_producer import State, TopicProducer

__all__ = ["EncodingProducer", "Producer", "ThreadSender"]

_GRACE = 5.0  # seconds behind its deadline until a message is not waited for any more


class ThreadSender(TopicSender):
    """What messages go through whose senders are threads, which may wait for room."""

    def __init__(
        self,
        thread: LoopThread,
        core: TopicProducer | PartitionedProducer,
        block_if_queue_full: bool,
        timeout: float | None,
    ) -> None:
        self._thread = thread
        self._core = core
        self._send_timeout = timeout

    def __new__(
        cls,
        thread: LoopThread,
        core: TopicProducer | PartitionedProducer,
        block_if_queue_full: bool,
        timeout: float | None,
    ) -> Any:
        return super().__new__(cls, core.ends, block_if_queue_full)

    def _send_when_there_is_room(self, wanted: int, target: object, content: Any, *arguments: Any) -> None:
        content, arguments = snapshot(content, arguments)
        try:
            while wanted:
                wanted = self._offer(
                    self._wait_for_room(wanted, self._send_timeout), target, content, *arguments
                )
        except PulsarException as error:
            self._answer(target, error)

    def _wait_for_room(self, size: int, timeout: float | None, dated: bool = True) -> RoomWaiter:
        """Wait in order of arrival until one message and `size` bytes are reserved."""
        try:
            refuse_to_block("waiting for room")
        except RuntimeError:
            raise ProducerQueueIsFull("the queue is full, and a callback cannot wait for room") from None
        room = threading.Lock()
        room.acquire()
        waiter = RoomWaiter(size, room.release, dated)
        try:
            self._accumulator.wait_for_room(waiter)
            in_time = room.acquire(timeout=-1 if timeout is None else timeout)
        except MemoryError as error:
            raise MemoryBufferIsFull(str(error)) from None
        except BaseException:  # a signal
            self._accumulator.stop_waiting(waiter)
            raise
        if waiter.granted:
            return waiter
        self._accumulator.stop_waiting(waiter)
        if not in_time:
            raise Timeout(f"waiting for room for {timeout:g} s")
        return waiter  # ended: the next offer says why


class Producer(BaseProducer, ThreadSender):
    """Sends messages to one topic; made by `Client.create_producer`.

    Any thread may use it. Callbacks run on the client's loop thread, where calls that wait (`send`, `flush`,
    `close`, `SendHandle.result`) raise `RuntimeError`. As a context manager it closes itself.
    """

    def __init__(self, client: object, *rest: Any) -> None:
        super().__init__(*rest)
        self._client = client  # a producer keeps its client alive

    def __new__(cls, client: object, *rest: Any) -> Any:
        return super().__new__(cls, *rest)

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
    ) -> MessageId:
        """Send a message, at once and with whatever is batched already, and wait until the broker has stored it.

        Arguments as in `send_async`. Waits at most for the send timeout; Ctrl-C interrupts. Raises what kept the
        message from being stored, and `RuntimeError` in a callback.
        """
        self._thread.check_process()
        refuse_to_block("Producer.send()")
        waiter = SendWaiter()
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
        sender: ThreadSender = self._choose(*arguments)
        wanted = sender._offer(None, waiter, *arguments)
        if wanted:
            sender._send_when_there_is_room(wanted, waiter, *arguments)
        sender._accumulator.mark()
        return self._wait_for_answer(waiter)

    def _wait_for_answer(self, waiter: SendWaiter) -> MessageId:
        """Deadlines are the loop's business; a loop that is kept from its work must not hold us for ever."""
        bound = None if self._send_timeout is None else self._send_timeout + _GRACE
        message_id = waiter.wait(bound)
        if message_id is None:
            raise Timeout(
                f"the client's loop has told nothing for {bound:g} s: does a callback, or a log handler that this "
                "call came from, keep it from its work?"
            )
        return message_id

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
        """Send every element of an iterable as a message; the other arguments hold for all of them.

        Waits for room whatever `block_if_queue_full` says, but not for receipts: `.result()` of the returned
        handle does. An element that cannot be sent becomes an error at its index, and the others go. If the
        iterable itself raises (or Ctrl-C comes), what was accepted is sent and the exception carries the handle as
        its attribute `handle`. Raises `TypeError` or `ValueError` for the other arguments before anything is taken.
        """
        self._thread.check_process()
        handle = SendHandle(self._marker())
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
            wanted = feed.run()
            while wanted:
                # No bound of its own: what is pending makes room at its deadlines.
                wanted = feed.run(feed.chosen._wait_for_room(wanted, None, dated=False))
        except BaseException as error:
            error.handle = handle  # type: ignore[attr-defined]
            raise
        finally:
            handle._end_input()
        return handle

    def flush(self, timeout: float | None = None) -> None:
        """Send what is batched and wait until every message accepted before this call is answered.

        `timeout` in seconds; None waits as long as messages live. Raises the first error among them, and `Timeout`.
        """
        self._thread.check_process()
        check_timeout(timeout)
        refuse_to_block("Producer.flush()")
        self._thread.call("Producer.flush()", self._core.flush(self._mark()), timeout)

    def close(self, timeout: float | None = None) -> None:
        """Accept nothing more, send and await what was accepted, then leave the broker; a second call does nothing.

        Waits at most until the latest deadline of a message, the client's operation timeout or `timeout` (seconds),
        whichever is first; what is left then gets `AlreadyClosed`.
        """
        check_timeout(timeout)
        if self._core.state is State.CLOSED:
            return
        self._thread.call("Producer.close()", self._core.close(timeout))

    def __enter__(self) -> "Producer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        core = getattr(self, "_core", None)
        if core is None or core.state is State.CLOSED or self._forks != fork_count():
            return
        self._thread.begin(core.close())  # first: the warning may raise
        warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)


class EncodingProducer(EncodesContents, Producer):
    """A producer with a schema."""
