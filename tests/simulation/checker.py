"""What must always hold, checked from the bytes on the wire, from callbacks and from live counters."""

import threading
from collections import deque
from collections.abc import Callable

from pulsar_fast.result import Result
from tests import payloads
from tests.brokers.frames import Frame


class Record:
    """One message and what became of it."""

    __slots__ = (
        "begun",
        "called_ns",
        "counter",
        "dated",
        "handed_out",
        "ordered",
        "result",
        "sequence_id",
        "stored",
    )

    def __init__(self, counter: int, called_ns: int, dated: bool, ordered: bool) -> None:
        self.counter = counter
        self.called_ns = called_ns
        self.dated = dated  # its deadline counts from the call
        self.ordered = ordered  # it was sent before the one behind it
        self.result: Result | None = None
        self.sequence_id: int | None = None
        self.handed_out = False  # offered to a transport
        self.begun = False  # some of its frame was taken
        self.stored: list[int] = []  # entries that hold it


class Book:
    """The messages of one producer, in the order of the calls."""

    def __init__(self, checker: "Checker", key: int, timeout_ms: int, deduplicates: bool) -> None:
        self.key = key
        self.timeout_ns = timeout_ms * 1_000_000
        self.deduplicates = deduplicates
        self.records: list[Record] = []
        self.unanswered = 0
        self.given_up = 0
        self.frames: dict[int, bytes] = {}
        self.on_expired: Callable[[Record], None] = lambda record: None
        self._open: deque[Record] = deque()
        self._lock = threading.Lock()  # of the two lines that count
        self._checker = checker

    def next(self, *, dated: bool = True, ordered: bool = True) -> Record:
        """The record of a message that is about to be sent."""
        with self._lock:
            record = Record(len(self.records), self._checker.now_ns(), dated, ordered)
            self.records.append(record)
            self._open.append(record)
            self.unanswered += 1
        return record

    def give_up(self, record: Record) -> None:
        """Nobody waits for its answer any more, whatever becomes of it."""
        record.result = Result.Interrupted
        record.begun = True  # it may be sent later on
        with self._lock:
            self.unanswered -= 1
            self.given_up += 1

    def answered(self, record: Record, result: Result, position: tuple[int, int] | None) -> None:
        """A callback: `position` is entry and batch index of what was stored, None for a failure."""
        fail = self._checker.fail
        now = self._checker.now_ns()
        if record.result is not None:
            fail(f"message {self.key}/{record.counter} was answered twice: {record.result}, {result}")
            return
        record.result = result
        with self._lock:
            self.unanswered -= 1
        if result is Result.Ok:
            self._check_stored(record, position)
        elif result is Result.Timeout:
            due = record.called_ns + self.timeout_ns
            if not self.timeout_ns:
                fail(f"message {self.key}/{record.counter} expired without a deadline")
            elif now < due - self._checker.early_ns or (record.dated and now > due + self._checker.late_ns):
                fail(
                    f"message {self.key}/{record.counter} expired {(now - due) / 1e6:.1f} ms behind its deadline"
                )
            self.on_expired(record)

    def _check_stored(self, record: Record, position: tuple[int, int] | None) -> None:
        name = f"message {self.key}/{record.counter}"
        if not record.stored:
            self._checker.fail(f"{name} was acknowledged and is not stored")
        elif position is not None and position[0] == -1:
            if not self.deduplicates:
                self._checker.fail(f"{name} was called a duplicate on a topic without deduplication")
        elif position is not None and position[0] not in record.stored:
            self._checker.fail(f"{name} was stored at {record.stored}, and told to be at {position}")

    def check_deadlines(self) -> None:
        """The oldest message without an answer is not past its deadline."""
        while self._open and self._open[0].result is not None:
            self._open.popleft()
        if self._open and self._open[0].dated and self.timeout_ns:
            late = self._checker.now_ns() - self._open[0].called_ns - self.timeout_ns
            if late > self._checker.late_ns:
                self._checker.fail(
                    f"message {self.key}/{self._open[0].counter} has no answer {late / 1e6:.1f} ms behind its deadline"
                )

    def check_end(self, stored: list[int]) -> None:
        """At the very end: all are answered, and the topic holds what it should, in order."""
        fail = self._checker.fail
        for record in self.records:
            if record.result is None:
                fail(f"message {self.key}/{record.counter} was never answered")
        firsts = list(dict.fromkeys(stored))
        ordered = [counter for counter in firsts if self.records[counter].ordered]
        if ordered != sorted(ordered):
            fail(f"producer {self.key}: stored out of order: {stored}")
        if self.deduplicates and stored != firsts:
            fail(f"producer {self.key}: stored twice in spite of deduplication: {stored}")


class Checker:
    """The books of all producers of a life. A broken rule is noted, since callbacks cannot raise."""

    def __init__(self, now_ns: Callable[[], int], wall_offsets_ms: set[int], late_seconds: float) -> None:
        self.now_ns = now_ns
        self.late_ns = int(late_seconds * 1e9)  # that an answer may come behind a deadline
        self.early_ns = 0  # and before it, where the client's clock is a coarse one
        self._started_ns = now_ns()
        self.wall_offsets_ms = wall_offsets_ms  # all that the wall clock ever had from the monotonic one
        self.violations: list[str] = []
        self.books: dict[int, Book] = {}

    def fail(self, text: str) -> None:
        self.violations.append(text)

    def open_book(self, timeout_ms: int, *, deduplicates: bool) -> Book:
        book = Book(self, len(self.books) + 1, timeout_ms, deduplicates)
        self.books[book.key] = book
        return book

    def records_of(self, frame: Frame) -> list[tuple[Book, Record]]:
        """Whose messages a frame holds."""
        found = []
        for message in frame.messages:
            key, counter = payloads.read(message.payload)
            book = self.books[key]
            assert counter < len(book.records), f"message {key}/{counter} was never sent"
            found.append((book, book.records[counter]))
        return found

    def frame_begins(self, frame: Frame) -> None:
        """The first byte of a frame was taken by a transport."""
        for book, record in self.records_of(frame):
            if record.result is not None and not record.begun:
                self.fail(
                    f"message {book.key}/{record.counter} is sent though it was answered with {record.result}"
                )
        for _, record in self.records_of(frame):
            record.begun = True

    def frame_arrived(self, frame: Frame, name: str, last_id: int, limit: int) -> None:
        """A whole frame has reached a broker, behind one that ended with `last_id`."""
        owners = self.records_of(frame)
        book = owners[0][0]
        ids = [message.sequence_id for message in frame.messages]
        assert all(owner is book for owner, _ in owners), "a frame with messages of several producers"
        assert [last_id, *ids] == sorted({last_id, *ids}), f"ids {ids} behind {last_id}"
        assert (ids[0], ids[-1]) == (frame.lowest_id, frame.highest_id), (
            "a command with other ids than its messages"
        )
        assert frame.command.send.num_messages == len(ids), "a command with a wrong count"
        assert frame.metadata.producer_name == name, f"a frame of {frame.metadata.producer_name} at {name}"
        assert self._was_the_time(frame.metadata.publish_time), "a publish time that was never the time"
        assert frame.message_size <= limit, f"{frame.message_size} bytes for a broker that takes {limit}"
        assert book.frames.setdefault(frame.lowest_id, frame.raw) == frame.raw, "a resend changes the bytes"
        for (_, record), sequence_id in zip(owners, ids, strict=True):
            assert record.sequence_id in (None, sequence_id), "a message changes its sequence id"
            record.sequence_id = sequence_id
            record.begun = True

    def _was_the_time(self, wall_ms: int) -> bool:
        early_ms = self.early_ns // 1_000_000
        earliest, latest = self._started_ns // 1_000_000, self.now_ns() // 1_000_000
        return any(
            earliest - early_ms <= wall_ms - offset <= latest + early_ms for offset in self.wall_offsets_ms
        )

    def stored(self, frame: Frame, number: int) -> None:
        for _, record in self.records_of(frame):
            record.stored.append(number)
