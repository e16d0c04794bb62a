"""What became of numbered messages: what callers heard against what the broker delivers."""

import struct
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pulsar_fast import Result

SIZES = (24, 100, 400, 1000, 4000)  # bytes, in turn; all are multiples of 4
_HEAD = struct.Struct(">8sQ")  # producer, number


def content(producer: str, number: int) -> bytes:
    """The message of that number, which no other producer of another name sends."""
    head = _HEAD.pack(producer.encode(), number)
    size = SIZES[number % len(SIZES)]
    return head + number.to_bytes(4, "big") * ((size - len(head)) // 4)


@dataclass
class Fates:
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
    """Deliveries behind one with a higher number."""
    timeouts: int
    other_errors: Counter[Result]
    not_answered_once: int
    damaged: int
    """Deliveries that this producer did not send like that."""

    def complaints(self) -> list[str]:
        """What must not be, whatever the brokers did."""
        wrong = ("duplicates", "lost", "out_of_order", "other_errors", "not_answered_once", "damaged")
        return [f"{name}: {getattr(self, name)}" for name in wrong if getattr(self, name)]


def judge(
    producer: str, sent: int, fates: Fates, delivered: Iterable[bytes], *, may_time_out: bool
) -> Verdict:
    """Compare all that a producer sent, numbered from 0, with all that its topic holds, in its order."""
    deliveries: Counter[int] = Counter()
    damaged = out_of_order = 0
    highest = -1
    for message in delivered:
        number = _number(producer, message)
        if number is None or number >= sent:
            damaged += 1
            continue
        out_of_order += number < highest
        highest = max(highest, number)
        deliveries[number] += 1
    told = Counter(fates.results.values())
    expected = (Result.Ok, Result.Timeout) if may_time_out else (Result.Ok,)
    return Verdict(
        sent=sent,
        delivered_once=sum(times == 1 for times in deliveries.values()),
        duplicates=deliveries.total() - len(deliveries),
        lost=sum(
            result == Result.Ok and number not in deliveries for number, result in fates.results.items()
        ),
        out_of_order=out_of_order,
        timeouts=told[Result.Timeout],
        other_errors=Counter({result: told[result] for result in told if result not in expected}),
        not_answered_once=fates.repeated + len(set(range(sent)) ^ fates.results.keys()),
        damaged=damaged,
    )


def _number(producer: str, message: bytes) -> int | None:
    """That of a message of this producer; None if it is another one or not as it was sent."""
    if len(message) < _HEAD.size:
        return None
    _, number = _HEAD.unpack_from(message)
    # The content repeats its number in 32 bits.
    return number if number < 1 << 32 and message == content(producer, number) else None
