"""Virtual time, and a network that is made of lists: a client runs on them as on a real loop and real sockets."""

import asyncio
import math
import selectors
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from pulsar_fast._core import Clock, Transport
from pulsar_fast.exceptions import ConnectError

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

    def time(self) -> float:
        return self._time.now_ns / 1e9


class SimulatedTransport(Transport):
    """The client's end of a connection. What it takes reaches the other end after a while, unless that is stalled.

    `on_delivered(tag)` hears of each answer when its last byte is handed to the client, `on_begun(raw)` of each
    frame as it is when its first byte is taken, `on_refused(raws)` of frames for which there was no room.
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
        self.taken = 0
        self._next_frame = 0  # offset at which the next frame of the client begins
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
        begun, refused = self._frames_at(offered, taken)
        for raw in begun:
            self.on_begun(raw)
        if taken < len(offered):
            self.on_refused(refused)
            if self.taken + taken < self._next_frame:
                inside, self._when_inside = self._when_inside, lambda: None
                inside()
        if not taken:
            return -1
        self._outgoing += offered[:taken]
        self.taken += taken
        self._loop.call_later(self._latency, self._deliver_outgoing)
        return taken

    def _frames_at(self, offered: bytes, taken: int) -> tuple[list[bytes], list[bytes]]:
        """The frames that begin in what is offered: those of which something is taken, and the others."""
        begun: list[bytes] = []
        refused: list[bytes] = []
        at = self._next_frame - self.taken
        while at < len(offered):
            (size,) = struct.unpack_from(">I", offered, at)
            raw = offered[at : at + 4 + size]
            if at < taken:
                begun.append(raw)
                self._next_frame = self.taken + at + len(raw)
            else:
                refused.append(raw)
            at += 4 + size
        return begun, refused

    def when_inside(self, call: Callable[[], object]) -> None:
        """Call it the next time that a frame is taken in part."""
        self._when_inside = call

    @property
    def is_inside_a_frame(self) -> bool:
        """Whether the client has written a part of a frame and not yet the rest."""
        return self.taken < self._next_frame

    def give(self, limit: int) -> bytes | None:
        if not self._incoming:
            if not self._ended:
                return None
            if self._end is not None:
                raise self._end
            return b""
        data = bytes(self._incoming[:limit])
        del self._incoming[:limit]
        self._given += len(data)
        while self._tags and self._tags[0][0] <= self._given:
            self.on_delivered(self._tags.popleft()[1])
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
        size = self.piece_size or len(data)
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
            self._tags.clear()
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
        self.on_bytes(data)
        self._tell_writable()

    def _tell_writable(self) -> None:
        if self._on_writable is not None and (self._ended or len(self._outgoing) < self.room):
            self._on_writable()


class Network:
    """Who listens where. A host that does not listen refuses; a dark one never answers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, latency: float) -> None:
        self._loop = loop
        self.latency = latency
        self.accept: Callable[[str, SimulatedTransport], bool] = lambda host, transport: False
        self.is_dark: Callable[[str], bool] = lambda host: False

    async def dial(self, host: str, port: int, timeout: float) -> Transport:
        await asyncio.sleep(self.latency)
        if self.is_dark(host):
            await asyncio.sleep(timeout)
            raise ConnectError(f"cannot connect to {host}:{port} (no answer)")
        transport = SimulatedTransport(self._loop, self.latency)
        if not self.accept(host, transport):
            raise ConnectError(f"cannot connect to {host}:{port} (refused)")
        return transport
