"""What a producer counts."""

from dataclasses import dataclass

__all__ = ["ProducerStats"]


@dataclass(frozen=True)
class ProducerStats:
    """Counters since the producer was created, in messages unless said otherwise, at the moment of the call."""

    accepted: int
    """Taken by `send`, `send_async` or `send_many`."""
    acknowledged: int
    """Stored by the broker, duplicates and drops included."""
    acknowledged_bytes: int
    """Bytes of these, with their keys and properties."""
    failed: int
    """Answered with an error after they had been accepted."""
    expired: int
    """Of the failed ones: their send timeout passed."""
    duplicates: int
    """Acknowledged without being stored again (deduplication)."""
    dropped: int
    """Acknowledged by a non-persistent topic without being delivered."""
    late: int
    """Answers of the broker (not messages) that came when nobody waited for them."""
    resent: int
    """Frames (not messages) written again after a reconnect."""
    reconnects: int
    """How often the registration at a broker was lost."""
    pending_messages: int
    """Accepted and not answered yet."""
    client_pending_bytes: int
    """Bytes held by all producers of the client, as `memory_limit_bytes` counts them."""
    last_connection_error: str | None
    """Why the last connection or registration ended or could not be made."""
    latency_p50_ms: float
    """Median of the time from the first append to a batch to its receipt, in ms; 0.0 without any."""
    latency_p99_ms: float
    latency_p999_ms: float
