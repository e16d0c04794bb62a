"""A producer of the compiled core alone: no loop, no socket, a clock that stands still."""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import google_crc32c
from hypothesis import HealthCheck, settings

from pulsar_fast._core import (
    Accumulator,
    Budget,
    BufferPool,
    Channel,
    Clock,
    PendingQueue,
    Registration,
    Sender,
    Transport,
    Verdict,
    Waker,
)
from pulsar_fast.compression import Codec
from pulsar_fast.exceptions import (
    AlreadyClosed,
    MemoryBufferIsFull,
    MessageTooBig,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
)
from pulsar_fast.result import Result
from pulsar_fast.wire.messages import BaseCommand, CommandSend, MessageMetadata, SingleMessageMetadata
from tests.brokers.frames import decompressed

PRODUCER_ID = 7
START_NS = 1_000_000_000_000
START_MS = 1_700_000_000_000
NOWHERE = (1 << 64) - 1
"""The ledger and entry of a message that the broker did not store: -1 as it travels."""

IDLE = {
    "pending_messages": 0,
    "bytes": 0,
    "live_batches": 0,
    "pending_holds": 0,
    "write_holds": 0,
    "live_bytes": 0,
}


def examples(count: int) -> settings:
    """So many hypothesis examples, the same in every run; PULSAR_FAST_EXAMPLES is the percentage to try."""
    share = int(os.environ.get("PULSAR_FAST_EXAMPLES", "100"))
    return settings(
        max_examples=max(1, count * share // 100),
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],  # like the deadline a matter of the machine
    )


# --- bytes


def framed(command: bytes) -> bytes:
    """A command without payload, as it stands on the wire."""
    return struct.pack(">II", 4 + len(command), len(command)) + command


def receipt(
    sequence_id: int, ledger: int = 1, entry: int = 0, *, producer_id: int = PRODUCER_ID, highest: int = 0
) -> bytes:
    """A send receipt in its frame."""
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    command.send_receipt.producer_id = producer_id
    command.send_receipt.sequence_id = sequence_id
    command.send_receipt.message_id.ledgerId = ledger
    command.send_receipt.message_id.entryId = entry
    if highest:
        command.send_receipt.highest_sequence_id = highest
    return framed(command.SerializeToString())


@dataclass(frozen=True)
class Frame:
    """A payload frame, taken apart."""

    raw: bytes
    send: CommandSend
    metadata: MessageMetadata
    payload: bytes  # as it was sent, compressed or not

    @property
    def body(self) -> bytes:
        return decompressed(self.metadata, self.payload)

    @property
    def entries(self) -> list[tuple[SingleMessageMetadata, bytes]]:
        """The messages of a batch."""
        entries, at, body = [], 0, self.body
        while at < len(body):
            (size,) = struct.unpack_from(">I", body, at)
            single = SingleMessageMetadata.FromString(body[at + 4 : at + 4 + size])
            at += 4 + size + single.payload_size
            entries.append((single, body[at - single.payload_size : at]))
        assert at == len(body), "the entries of a batch do not add up to its payload"
        return entries

    @property
    def contents(self) -> list[bytes]:
        """The payloads of its messages."""
        if not self.metadata.HasField("num_messages_in_batch"):
            return [self.body]
        return [content for _, content in self.entries]

    @property
    def ids(self) -> list[int]:
        """The sequence ids of its messages."""
        if not self.metadata.HasField("num_messages_in_batch"):
            return [self.send.sequence_id]
        return [single.sequence_id for single, _ in self.entries]


def frames_in(data: bytes | bytearray) -> Iterator[Frame]:
    """The complete payload frames in what was written, each checked against its checksum."""
    data, at = bytes(data), 0
    while len(data) - at >= 4:
        (total,) = struct.unpack_from(">I", data, at)
        raw = data[at : at + 4 + total]
        if len(raw) < 4 + total:
            return
        at += 4 + total
        (size,) = struct.unpack_from(">I", raw, 4)
        command = BaseCommand.FromString(raw[8 : 8 + size])
        if command.type == BaseCommand.SEND:
            yield _taken_apart(raw, command.send, raw[8 + size :])


def _taken_apart(raw: bytes, send: CommandSend, rest: bytes) -> Frame:
    magic, crc, size = struct.unpack_from(">HII", rest)
    assert magic == 0x0E01
    assert crc == google_crc32c.value(rest[6:]), "the checksum of a frame is wrong"
    return Frame(raw, send, MessageMetadata.FromString(rest[10 : 10 + size]), rest[10 + size :])


# --- the ends of a connection


class Wire(Transport):
    """Keeps what is written, as far as there is room, and gives what was fed."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.room: int | None = None  # bytes it still takes; None: any number
        self.incoming: list[bytes] = []
        self.ended = False
        self.asked: list[int] = []  # how many bytes each read had room for
        self.closed = False

    def take(self, chunks: list[bytes]) -> int:
        data = b"".join(chunks)
        if self.room is not None:
            if self.room == 0:
                return -1
            data = data[: self.room]
            self.room -= len(data)
        self.written += data
        return len(data)

    def give(self, limit: int) -> bytes | None:
        self.asked.append(limit)
        if not self.incoming:
            return b"" if self.ended else None
        piece = self.incoming.pop(0)
        if len(piece) > limit:
            self.incoming.insert(0, piece[limit:])
        return piece[:limit]

    def close(self) -> None:
        self.closed = True


class Link(Channel):
    """A connection whose peer is the test."""

    def __init__(self, wire: Wire, clock: Clock) -> None:
        self.wire = wire
        self.heard: list[bytes] = []

    def on_command(self, command: bytes) -> None:
        self.heard.append(command)

    def feed(self, *pieces: bytes) -> bool:
        """Receive these pieces, one in each read at most."""
        self.wire.incoming.extend(piece for piece in pieces if piece)
        alive = True
        while self.wire.incoming and alive and self.transport is not None:
            alive = self.read()
        return alive

    @property
    def frames(self) -> list[Frame]:
        return list(frames_in(self.wire.written))


# --- the application's end


class Heard:
    """A callback that remembers what it was told, and what to do then."""

    def __init__(self, then: Callable[[], object] | None = None) -> None:
        self.answers: list[tuple[Result, Any]] = []
        self._then = then

    def __call__(self, result: Result, message_id: Any) -> None:
        self.answers.append((result, message_id))
        if self._then is not None:
            self._then()

    @property
    def result(self) -> Result | None:
        """What it was told, once at most; None: nothing yet."""
        assert len(self.answers) <= 1, f"a callback ran {len(self.answers)} times"
        return self.answers[0][0] if self.answers else None

    @property
    def message_id(self) -> Any:
        assert len(self.answers) == 1
        return self.answers[0][1]


class TestSender(Sender):
    """Waits for nothing: who needs room first is remembered in `turned_away`."""

    __test__ = False  # for pytest

    def __init__(self, accumulator: Accumulator, blocks: bool) -> None:
        self.turned_away: list[int] = []

    def _send_when_there_is_room(self, wanted: int, *arguments: object) -> None:
        self.turned_away.append(wanted)

    def _refusal(self, verdict: int, size: int) -> BaseException:
        if verdict == Verdict.ENDED:
            assert self._accumulator.refusal is not None
            return self._accumulator.refusal
        kinds = {
            Verdict.QUEUE_FULL: ProducerQueueIsFull,
            Verdict.MEMORY_FULL: MemoryBufferIsFull,
            Verdict.TOO_BIG: MessageTooBig,
        }
        return kinds[Verdict(verdict)](f"{size} bytes")


class Observer:
    def __init__(self) -> None:
        self.unheard: list[tuple[int, PulsarException]] = []
        self.held: list[float] = []

    def nobody_heard(self, count: int, error: PulsarException) -> None:
        self.unheard.append((count, error))

    def callbacks_held_loop(self, seconds: float) -> None:
        self.held.append(seconds)


class Rig:
    """One producer and everything below it. Leaving its `with` block ends it and checks that nothing is left."""

    def __init__(
        self,
        *,
        max_pending: int = 0,
        max_messages: int = 1000,
        max_bytes: int = 128 * 1024,
        batching: bool = True,
        by_key: bool = False,
        timeout_ms: int = 30_000,
        partition: int = -1,
        memory_limit: int = 0,
        blocks: bool = False,
        codec: Codec | None = None,
        shared: "Rig | None" = None,
    ) -> None:
        """`shared`: another producer of the same client, which outlives this one."""
        self.shared = shared is not None
        self.codec = codec
        self.clock: Clock = shared.clock if shared else Clock()
        self.pool: BufferPool = shared.pool if shared else BufferPool()
        self.budget: Budget = shared.budget if shared else Budget(memory_limit)
        self.wakes = 0
        self.waker = Waker(-1, self._woken)
        self.observer = Observer()
        self.now_ms = 0
        self.tick(0)
        self.accumulator = Accumulator(
            self.pool,
            self.budget,
            self.waker,
            self.clock,
            self,
            max_pending=max_pending,
            max_messages=max_messages,
            max_bytes=max_bytes,
            batching=batching,
            by_key=by_key,
            compresses=codec is not None,
        )
        self.queue = PendingQueue(
            self.accumulator,
            result_ok=Result.Ok,
            observer=self.observer,
            partition=partition,
            timeout_ns=timeout_ms * 1_000_000,
        )
        self.sender = TestSender(self.accumulator, blocks)
        self.links: list[Link] = []
        self.registration: Registration | None = None

    def _woken(self) -> None:
        self.wakes += 1

    def __enter__(self) -> "Rig":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if error is None and not self.shared:  # else its owner looks, who ends later
            assert self.accounts() == IDLE

    def end(self) -> None:
        """Close everything; what is pending fails with `AlreadyClosed`."""
        self.detach()
        for link in self.links:
            link.close()
        self.queue.fail_all(AlreadyClosed("the end of the test"))
        self.waker.take()

    # --- time

    def tick(self, ms: int) -> None:
        """Let so many milliseconds pass."""
        self.now_ms += ms
        self.clock.freeze(START_NS + self.now_ms * 1_000_000, START_MS + self.now_ms)

    def expire(self) -> None:
        self.queue.absorb()
        self.queue.expire(Timeout("too late"))

    # --- the application

    def send(self, content: Any = b"x", **arguments: Any) -> Heard:
        heard = Heard()
        self.sender.send_async(content, heard, **arguments)
        return heard

    def offer(self, target: object, content: Any = b"x") -> None:
        """Send for a `SendFuture` or `SendWaiter`."""
        wanted = self.sender._offer(
            None, target, content, None, None, None, None, None, False, None, None, None
        )
        assert wanted == 0

    # --- the loop

    def connect(
        self,
        link: Link | None = None,
        *,
        name: str = "p",
        max_message_size: int = 5 << 20,
        producer_id: int = PRODUCER_ID,
        schema_version: bytes = b"",
        persistent: bool = True,
    ) -> Link:
        """Hand everything pending over to a new registration, on a new connection unless one is given."""
        if link is None:
            link = Link(Wire(), self.clock)
            self.links.append(link)
        encoded = name.encode()
        self.accumulator.set_limits(max_message_size, len(encoded))
        registration = Registration(
            self.queue,
            link,
            producer_id,
            encoded,
            schema_version,
            max_message_size,
            persistent,
            lambda size, limit: MessageTooBig(f"{size} bytes, at most {limit}"),
            self.codec,
        )
        link.add_registration(registration)
        self.registration = registration
        self.queue.attach(registration)
        return link

    def detach(self) -> None:
        """The registration is over."""
        self.queue.detach()
        self.registration = None

    def write(self) -> bool:
        """Write what is sealed; False when the wire has no more room."""
        self.queue.absorb()
        assert self.registration is not None
        self.registration.offer()
        done: bool = self.registration.channel.write()
        return done

    def flush(self) -> bool:
        """Seal the open batch too, then write."""
        self.accumulator.mark()
        return self.write()

    def accounts(self) -> dict[str, int]:
        return {
            "pending_messages": self.accumulator.pending_messages,
            "bytes": self.budget.used,
            "live_batches": self.pool.live_batches,
            "pending_holds": self.pool.pending_holds,
            "write_holds": self.pool.write_holds,
            "live_bytes": self.pool.live_bytes,
        }
