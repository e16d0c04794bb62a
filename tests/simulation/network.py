"""Virtual time, and a network that is made of lists: a client runs on them as on a real loop and real sockets."""

import asyncio
import math
import selectors
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_fast._core import Clock, Transport
from pulsar_fast.exceptions import ConnectError
from tests.tls_server import TlsServer

START_NS = 1_000_000_000_000
START_MS = 1_700_000_000_000


class Stuck(AssertionError):
    """Nothing is left that could ever happen, and somebody still waits."""


class VirtualTime:
    """Passes only when it is told to; the wall clock can be set apart from it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.now_ns = START_NS
        self.wall_offset_ms = START_MS - START_NS // 1_000_000
        self.wall_offsets_ms = {self.wall_offset_ms}
        self.advance(0)

    def advance(self, seconds: float) -> None:
        self.now_ns += math.ceil(seconds * 1e9)
        self.clock.freeze(self.now_ns, self.wall_ms)

    @property
    def wall_ms(self) -> int:
        return self.now_ns // 1_000_000 + self.wall_offset_ms

    def set_wall_clock(self, by_ms: int) -> None:
        self.wall_offset_ms += by_ms
        self.wall_offsets_ms.add(self.wall_offset_ms)
        self.advance(0)


class _VirtualSelector(selectors.DefaultSelector):
    """Looks at real descriptors (the loop's own, and the one that wakes it), and passes the time instead of waiting."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__()
        self._time = time

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Stuck("nothing is left that could ever happen")
        self._time.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose time passes at once."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        super().__init__(_VirtualSelector(time))
        self._clock_resolution = 1e-10  # seconds by which timers may fire early; time passes by 1e-9 at least

    def time(self) -> float:
        return self._time.now_ns / 1e9


class Line(Transport):
    """The client's end of a connection. What it takes reaches the other end after a while, unless that is stalled.

    A unit is what should not be cut: a frame. What an `Observed` transport above sees is told to `on_delivered(tag)`,
    of each answer when its last byte is handed to the client, to `on_begun(raw)`, of each frame as it is when its
    first byte is taken, and to `on_refused(raws)`, of frames for which there was no room.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, latency: float) -> None:
        self._loop = loop
        self._latency = latency
        self.on_bytes: Callable[[bytes], None] = lambda data: None
        self.on_closed: Callable[[], None] = lambda: None
        self.on_delivered: Callable[[Any], None] = lambda tag: None
        self.on_begun: Callable[[bytes], None] = lambda raw: None
        self.on_refused: Callable[[list[bytes]], None] = lambda raws: None
        self._when_inside: Callable[[], object] = lambda: None
        self.room = 1 << 20
        self.piece_size: int | None = None
        self.stalled = False
        self._outgoing = bytearray()
        self._taken = 0
        self._next_unit = 0  # offset at which the next unit of the client begins
        self._on_its_way: deque[bytes | None] = deque()  # None: the end
        self._incoming = bytearray()
        self._given = self._arrived = 0
        self._tags: deque[tuple[int, Any]] = deque()
        self._end: Exception | None = None
        self._ended = False
        self._closed = False
        self._on_readable: Callable[[], object] | None = None
        self._on_writable: Callable[[], object] | None = None

    # --- what the client does with it

    def take(self, chunks: list[bytes]) -> int:
        if self._ended:
            raise BrokenPipeError(32, "Broken pipe")
        offered = b"".join(chunks)
        taken = min(max(self.room - len(self._outgoing), 0), len(offered))
        at = self._next_unit - self._taken
        while at < taken:
            at += self.size_of_unit(offered, at)
        self._next_unit = self._taken + at
        self._taken += taken
        if taken < len(offered) and self.is_inside_a_frame:
            inside, self._when_inside = self._when_inside, lambda: None
            inside()
        if not taken:
            return -1
        self._outgoing += offered[:taken]
        self._loop.call_later(self._latency, self._deliver_outgoing)
        return taken

    def size_of_unit(self, data: bytes, at: int) -> int:
        """Bytes of the unit that begins there."""
        return size_of_frame(data, at)

    def when_inside(self, call: Callable[[], object]) -> None:
        """Call it the next time that a unit is taken in part."""
        self._when_inside = call

    @property
    def is_inside_a_frame(self) -> bool:
        """Whether the client has written a part of a unit and not yet the rest."""
        return self._taken < self._next_unit

    def give(self, limit: int) -> bytes | None:
        if not self._incoming:
            if not self._ended:
                return None
            if self._end is not None:
                raise self._end
            return b""
        data = bytes(self._incoming[:limit])
        del self._incoming[:limit]
        return data

    def watch_reading(self, call: Callable[[], object]) -> None:
        self._on_readable = call

    def watch_writing(self, call: Callable[[], object]) -> None:
        self._on_writable = call
        self._loop.call_soon(self._tell_writable)

    def stop_watching_writing(self) -> None:
        self._on_writable = None

    def close(self) -> None:
        self._closed = True
        self._on_readable = self._on_writable = None
        if not self._loop.is_closed():
            self._loop.call_later(self._latency, self._tell_closed)

    def _tell_closed(self) -> None:
        if self._outgoing and not self.stalled:
            self._deliver_outgoing()
        self.on_closed()

    # --- what the other end does with it

    def send(self, data: bytes, tag: Any = None) -> None:
        """Bytes for the client; `tag` is told once the last of them is handed over."""
        if self._ended or self._closed:
            return
        self._arrived += len(data)
        if tag is not None:
            self._tags.append((self._arrived, tag))
        self.transmit(data)

    def handed_over(self, size: int) -> None:
        """So many bytes of answers have come out above."""
        self._given += size
        while self._tags and self._tags[0][0] <= self._given:
            self.on_delivered(self._tags.popleft()[1])

    def transmit(self, data: bytes) -> None:
        size = self.piece_size or max(len(data), 1)
        for start in range(0, len(data), size):
            self._on_its_way.append(data[start : start + size])
            self._loop.call_later(self._latency, self._arrive)

    def _arrive(self) -> None:
        """The next piece, in the order in which they were sent."""
        if self._ended:
            return
        piece = self._on_its_way.popleft()
        if piece is None:
            self.end(reset=False)
            return
        self._incoming += piece
        self._tell_readable()

    def _tell_readable(self) -> None:
        if self._on_readable is not None and (self._incoming or self._ended):
            self._on_readable()
            if self._on_readable is not None and (self._incoming or self._ended):
                self._loop.call_soon(self._tell_readable)

    def close_behind(self) -> None:
        """The connection ends behind what has been sent."""
        self._on_its_way.append(None)
        self._loop.call_later(self._latency, self._arrive)

    def end(self, *, reset: bool) -> None:
        """The connection is over for the client: after what has arrived, or at once with an error."""
        if self._ended:
            return
        self._ended = True
        if reset:
            self._incoming.clear()
            self._end = ConnectionResetError(104, "Connection reset by peer")
        self._tell_readable()

    def stall(self, stalled: bool) -> None:
        self.stalled = stalled
        if not stalled:
            self._deliver_outgoing()
            self._tell_writable()

    def _deliver_outgoing(self) -> None:
        if self.stalled or not self._outgoing:
            return
        data = bytes(self._outgoing)
        self._outgoing.clear()
        self.reach_broker(data)
        self._tell_writable()

    def reach_broker(self, data: bytes) -> None:
        self.on_bytes(data)

    def _tell_writable(self) -> None:
        if self._on_writable is not None and (self._ended or len(self._outgoing) < self.room):
            self._on_writable()
            if self._on_writable is not None and len(self._outgoing) < self.room:
                self._loop.call_soon(self._tell_writable)  # it only pauses


class TlsLine(Line):
    """The broker at the other end speaks TLS: room, pieces and cuts are of ciphertext, and a unit is a record."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency: float, context: ssl.SSLContext) -> None:
        super().__init__(loop, latency)
        self._tls = TlsServer(context)

    def size_of_unit(self, data: bytes, at: int) -> int:
        return int.from_bytes(data[at + 3 : at + 5], "big") + 5

    def transmit(self, data: bytes) -> None:
        self._tls.encrypt(data)
        super().transmit(self._tls.take())

    def reach_broker(self, data: bytes) -> None:
        inside = self._tls.decrypt(data)
        super().transmit(self._tls.take())
        if inside:
            super().reach_broker(inside)

    def close_behind(self) -> None:
        self._tls.say_goodbye()
        super().transmit(self._tls.take())
        super().close_behind()


class Observed(Transport):
    """What the protocol talks to: passes everything on to a transport, and tells its line what it sees."""

    def __init__(self, below: Transport, line: Line) -> None:
        self._below = below
        self._line = line
        self._taken = 0
        self._next_frame = 0  # offset at which the next frame begins
        self.watch_reading = below.watch_reading  # type: ignore[method-assign]
        self.watch_writing = below.watch_writing  # type: ignore[method-assign]
        self.stop_watching_writing = below.stop_watching_writing  # type: ignore[method-assign]
        self.close = below.close  # type: ignore[method-assign]

    def take(self, chunks: list[bytes]) -> int:
        """Is offered whole frames, whatever the one below takes at most."""
        offered = b"".join(chunks)
        taken = self._below.take([offered[: self._below.most]])
        begun, refused = self._frames_at(offered, max(taken, 0))
        for raw in begun:
            self._line.on_begun(raw)
        if refused:
            self._line.on_refused(refused)
        self._taken += max(taken, 0)
        return taken

    def _frames_at(self, offered: bytes, taken: int) -> tuple[list[bytes], list[bytes]]:
        """The frames that begin in what is offered: those of which something is taken, and the others."""
        begun: list[bytes] = []
        refused: list[bytes] = []
        at = self._next_frame - self._taken
        while at < len(offered):
            raw = offered[at : at + size_of_frame(offered, at)]
            if at < taken:
                begun.append(raw)
                self._next_frame = self._taken + at + len(raw)
            else:
                refused.append(raw)
            at += len(raw)
        return begun, refused

    def give(self, limit: int) -> bytes | None:
        data = self._below.give(limit)
        if data:
            self._line.handed_over(len(data))
        return data


def size_of_frame(data: bytes, at: int) -> int:
    """Bytes of the frame that begins there."""
    return 4 + int.from_bytes(data[at : at + 4], "big")


class Network:
    """Who listens where. A host that does not listen refuses; a dark one never answers."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, latency: float, context: ssl.SSLContext | None
    ) -> None:
        self._loop = loop
        self.latency = latency
        self._context = context  # of brokers that speak TLS
        self.accept: Callable[[str, Line], bool] = lambda host, line: False
        self.is_dark: Callable[[str], bool] = lambda host: False

    async def dial(self, host: str, port: int, timeout: float) -> Line:
        await asyncio.sleep(self.latency)
        if self.is_dark(host):
            await asyncio.sleep(timeout)
            raise ConnectError(f"cannot connect to {host}:{port} (no answer)")
        if self._context is None:
            line = Line(self._loop, self.latency)
        else:
            line = TlsLine(self._loop, self.latency, self._context)
        if not self.accept(host, line):
            raise ConnectError(f"cannot connect to {host}:{port} (refused)")
        return line
