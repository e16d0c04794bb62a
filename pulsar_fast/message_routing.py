"""The caller's own choice of a partition."""

from collections.abc import Callable
from typing import Any

__all__ = ["Message", "router_of"]


class Message:
    """What a `message_router` sees: a message that is about to be sent. Names as in the official client."""

    def __init__(
        self,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        event_timestamp: int | None,
    ) -> None:
        self._content = content
        self._properties = properties
        self._partition_key = partition_key
        self._ordering_key = ordering_key
        self._event_timestamp = event_timestamp

    def data(self) -> bytes:
        """The payload; empty for a tombstone."""
        return b"" if self._content is None else bytes(self._content)

    def properties(self) -> dict[str, str]:
        return dict(self._properties or {})

    def partition_key(self) -> str:
        """Empty if there is none."""
        return self._partition_key or ""

    def ordering_key(self) -> str:
        """Empty if there is none."""
        return self._ordering_key or ""

    def event_timestamp(self) -> int:
        """Milliseconds since the epoch, 0 if there is none."""
        return self._event_timestamp or 0


def router_of(message_router: Callable[[Message, int], int]) -> Callable[..., int]:
    """For the compiled core, which gives the number of partitions and the arguments of the call that sends.

    Raises `TypeError` or `ValueError` for what is no partition.
    """

    def choose(
        partitions: int,
        content: Any,
        properties: dict[str, str] | None,
        partition_key: str | None,
        ordering_key: str | None,
        _sequence_id: int | None,
        _replication_clusters: list[str] | None,
        _disable_replication: bool,
        event_timestamp: int | None,
        *_delivery: object,
    ) -> int:
        message = Message(content, properties, partition_key, ordering_key, event_timestamp)
        index = message_router(message, partitions)
        if not isinstance(index, int) or isinstance(index, bool):
            raise TypeError(f"message_router must return an int, not {type(index).__name__}")
        if not 0 <= index < partitions:
            raise ValueError(f"message_router chose partition {index} of {partitions}")
        return index

    return choose
