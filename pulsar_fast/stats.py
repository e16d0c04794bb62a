"""What a producer counts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from ._core import LatencyHistogram

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

    @classmethod
    def sum_of(cls, parts: "Sequence[ProducerStats]", latency: LatencyHistogram) -> "ProducerStats":
        """Of several producers of one client that are one to the application."""
        counters = [field.name for field in fields(cls) if field.type is int]
        sums = {name: sum(getattr(part, name) for part in parts) for name in counters}
        errors = [part.last_connection_error for part in parts if part.last_connection_error is not None]
        return cls(
            **{
                **sums,
                "client_pending_bytes": parts[0].client_pending_bytes,
                "last_connection_error": errors[-1] if errors else None,
                "latency_p50_ms": latency.percentile(0.5),
                "latency_p99_ms": latency.percentile(0.99),
                "latency_p999_ms": latency.percentile(0.999),
            }
        )
