"""What the synchronous and the asyncio producer have in common."""

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from ._core import Sender, Verdict, fresh_copy
from .exceptions import MemoryBufferIsFull, MessageTooBig, ProducerQueueIsFull, PulsarException
from .partitioned_producer import PartitionedProducer
from .schema.encoding import Encoding
from .stats import ProducerStats
from .topic_producer import TopicProducer

__all__ = ["BaseProducer", "EncodesContents", "TopicSender"]


def check_timeout(timeout: object) -> None:
    """Seconds to wait, or None. Raises `TypeError` or `ValueError`."""
    if timeout is None:
        return
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if not timeout >= 0:
        raise ValueError(f"timeout must not be negative, not {timeout}")


def snapshot(content: Any, arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A message as it is at the call, when it has to wait: its caller may change what it was made of meanwhile."""
    if content is not None and type(content) is not bytes:
        content = bytes(content)
    copies = (copy(one) if isinstance(one, (dict, list)) else one for one in arguments)
    return content, tuple(copies)


class TopicSender(Sender):
    """What messages of one topic, or of one partition, go through. Over partitions it has a router to their senders."""

    _core: TopicProducer | PartitionedProducer

    def topic(self) -> str:
        """Complete name of the topic, as in `persistent://public/default/my-topic`."""
        return self._core.topic.full

    def _refusal(self, verdict: int, size: int) -> PulsarException:
        accumulator = self._accumulator
        if verdict == Verdict.ENDED:
            refusal: PulsarException = accumulator.refusal
            return fresh_copy(refusal)
        if verdict == Verdict.QUEUE_FULL:
            return ProducerQueueIsFull(
                f"{accumulator.pending_messages} messages of {self.topic()} have no answer yet "
                "(max_pending_messages; block_if_queue_full=True waits for room)"
            )
        if verdict == Verdict.MEMORY_FULL:
            return MemoryBufferIsFull(f"no room for {size} bytes more within the client's memory_limit_bytes")
        if verdict == Verdict.TOO_BIG:
            return MessageTooBig(
                f"a message of about {size} bytes; the broker takes at most {accumulator.max_message_size}"
            )
        return MemoryBufferIsFull(f"the system has no memory for a message of {size} bytes")


class BaseProducer(TopicSender):
    """The names of the official client's producer that need no waiting. Any thread may call them."""

    def producer_name(self) -> str:
        """The given name, or the one that the broker has chosen."""
        return self._core.producer_name

    def last_sequence_id(self) -> int:
        """Highest sequence id that the broker has acknowledged; it never goes back.

        Right after creation the last one that the broker knows for this producer name (with deduplication on), -1
        without any.
        """
        return self._core.last_sequence_id

    def is_connected(self) -> bool:
        """Whether the producer is registered at a broker right now."""
        return self._core.is_connected

    def stats(self) -> ProducerStats:
        """Counters and latency percentiles at this moment."""
        return self._core.stats()

    def _senders(self) -> "list[TopicSender]":
        """What messages go through: itself, or one for each partition."""
        return [self] if self._router is None else self._router.all()

    def _mark(self) -> list[int]:
        """Seal what is open; the positions behind everything accepted so far, one for each sender."""
        return [self._accumulator.mark()] if self._router is None else self._router.mark()

    def _marker(self) -> Callable[[], object]:
        """What seals what is open, for those who must not keep the producer alive."""
        return self._accumulator.mark if self._router is None else self._router.mark

    def __reduce__(self) -> "tuple[object, ...]":
        raise TypeError("a producer cannot be pickled: create a client of its own in each process")

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.{type(self).__name__} {self.producer_name()!r} on {self.topic()}>"


class EncodesContents(BaseProducer):
    """In front of a producer whose topic has a schema: contents are encoded on the calling thread, before all else."""

    def send(
        self, content: Any, properties: Any = None, partition_key: Any = None, *others: Any, **named: Any
    ) -> Any:
        payload, key = self._encoding.encode(content, partition_key)
        return super().send(payload, properties, key, *others, **named)  # type: ignore[misc]

    def send_async(
        self,
        content: Any,
        callback: Any,
        properties: Any = None,
        partition_key: Any = None,
        *others: Any,
        **named: Any,
    ) -> None:
        payload, key = self._encoding.encode(content, partition_key)
        super().send_async(payload, callback, properties, key, *others, **named)

    def _elements(self, elements: Iterator[Any], partition_key: Any) -> Iterator[Any]:
        return self._encoding.encode_each(elements, partition_key)

    @property
    def _encoding(self) -> Encoding:
        assert self._core.encoding is not None
        return self._core.encoding
