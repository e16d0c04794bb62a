"""The same lives over real sockets and in real time: an asyncio application, or one of threads."""

import asyncio
import concurrent.futures
import contextlib
import contextvars
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pulsar_fast import Client as ThreadedClient
from pulsar_fast._core import SendHandle, Transport
from pulsar_fast.asyncio import Client
from pulsar_fast.client_core import ClientCore
from pulsar_fast.dialer import dial
from pulsar_fast.tls import TlsDialer
from tests.brokers.frames import Frame
from tests.simulation.application import Application
from tests.simulation.checker import Checker
from tests.simulation.cluster import Link, Registered, Told
from tests.simulation.coverage import Coverage
from tests.simulation.identity import contexts
from tests.simulation.life import HOSTS, Life
from tests.simulation.script import Script, write
from tests.simulation.surroundings import Surroundings

_LATE_SECONDS = 10.0  # that an answer may come behind a deadline on a busy machine: only a lost one is later
_SMALL_BUFFER = 4096  # bytes of the kernel's buffers, so that a stalled peer is soon felt


class SocketWire(asyncio.Protocol):
    """The broker's end of a TCP connection."""

    room = 1 << 20
    is_inside_a_frame = False  # cannot be seen from here

    def __init__(self, life: "SocketLife", host: int) -> None:
        self._life = life
        self._host = host
        self._link: Link | None = None
        self._pieces: deque[bytes] = deque()
        self.piece_size: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._life.wires.add(self)
        cluster = self._life.cluster
        if cluster.is_up(self._host) and not cluster.is_dark(self._host):
            self._link = cluster.connected(self._host, self)
        elif not cluster.is_dark(self._host):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        link = self._link
        if link is not None:
            self._life.guard(lambda: link.on_bytes(data))

    def connection_lost(self, error: Exception | None) -> None:
        self._life.wires.discard(self)
        if self._link is not None:
            self._link.on_closed()

    def send(self, data: bytes, tag: Told | None = None) -> None:
        if tag is not None:
            self._life.on_told(tag)
        if self._transport.is_closing():
            return
        if self.piece_size is None and not self._pieces:
            self._transport.write(data)
            return
        size = self.piece_size or len(data)
        self._pieces += (data[start : start + size] for start in range(0, len(data), size))
        self._write_piece()

    def _write_piece(self) -> None:
        if self._pieces and not self._transport.is_closing():
            self._transport.write(self._pieces.popleft())
            self._life.loop.call_later(0.0002, self._write_piece)

    def close_behind(self) -> None:
        self._transport.close()

    def end(self, *, reset: bool) -> None:
        if reset:
            self._transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self._transport.abort()

    def stall(self, stalled: bool) -> None:
        if self._transport.is_closing():
            return
        if stalled:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def when_inside(self, call: Callable[[], object]) -> None:
        self._life.loop.call_later(0.02, call)


class SocketLife(Life):
    """A life on the running loop; several can go on at once."""

    application: type[Application] = Application

    def __init__(self, script: Script, coverage: Coverage) -> None:
        checker = Checker(time.monotonic_ns, {_wall_offset_ms()}, _LATE_SECONDS)
        checker.early_ns = 10_000_000
        loop = asyncio.get_running_loop()
        super().__init__(script, coverage, loop, checker, [], self.application)
        self.app.slack = _LATE_SECONDS
        self.app.is_alone = False
        self.wires: set[SocketWire] = set()  # whose connections are not over

    def on_frame(self, registered: Registered, frame: Frame) -> None:
        self.checker.wall_offsets_ms.add(_wall_offset_ms())  # somebody may set the machine's clock
        super().on_frame(registered, frame)

    async def run(self) -> None:
        """Raises `Broken` when a rule is broken."""
        async with contextlib.AsyncExitStack() as stack:
            ports = []
            context = contexts()[1] if self.is_over_tls else None
            for host in range(len(HOSTS)):
                server = await self.loop.create_server(
                    lambda host=host: SocketWire(self, host), "127.0.0.1", 0, ssl=context
                )
                stack.push_async_callback(self._close, server)
                server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
                ports.append(server.sockets[0].getsockname()[1])
            self.cluster.urls += [f"{self.scheme}://127.0.0.1:{port}" for port in ports]
            try:
                await self._live(f"{self.scheme}://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}")
            except Exception as error:
                self.checker.fail(f"{type(error).__name__}: {error}")
        self.verdict()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        for wire in list(self.wires):
            wire.end(reset=True)
        ends = self.loop.time() + _LATE_SECONDS
        while self.wires and self.loop.time() < ends:
            await asyncio.sleep(0.005)

    async def _live(self, url: str) -> None:
        client = Client(url, **self.options())
        service = client._source.first
        dial = TlsDialer(service.options, _dial_small) if self.is_over_tls else _dial_small
        client._core = ClientCore(replace(service, dial=dial))
        client._loop = self.loop
        self.app.use(client, client._core)
        try:
            await self.live(self._surroundings(), pace=0.5)
        finally:
            await self.shut_down()

    def _surroundings(self) -> Surroundings:
        return Surroundings(self.loop, self.cluster, self.app, self.proof, lambda by_ms: None)

    def is_busy(self) -> Any:
        core = self.app.core
        return core is not None and (not core.is_released or core._producers)


def _wall_offset_ms() -> int:
    return (time.time_ns() - time.monotonic_ns()) // 1_000_000


async def _dial_small(host: str, port: int, timeout: float) -> Transport:
    transport = await dial(host, port, timeout)
    transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SMALL_BUFFER)  # type: ignore[attr-defined]
    return transport


class ThreadedApplication(Application):
    """The same calls from a pool of threads, through the synchronous API."""

    keeps_order = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.threads = concurrent.futures.ThreadPoolExecutor(12, thread_name_prefix="application")

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        context = contextvars.copy_context()
        return await self.loop.run_in_executor(
            self.threads, lambda: context.run(function, *arguments, **named)
        )

    async def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self.call(function, *arguments)

    async def wait_for(self, handle: SendHandle) -> None:
        await self.call(handle.result)


class ThreadedLife(SocketLife):
    """A life whose application is threads, and whose client has a loop of its own."""

    application = ThreadedApplication

    async def _live(self, url: str) -> None:
        client = await self.app.call(lambda: ThreadedClient(url, **self.options()))
        self.app.use(client, client._core)
        try:
            await self.live(self._surroundings(), pace=0.5)
        finally:
            await self.shut_down()
            assert isinstance(self.app, ThreadedApplication)
            self.app.threads.shutdown()


def live_on_sockets(kind: type[SocketLife], steps: int, at_once: int = 8) -> Coverage:
    """Lives over real sockets until so many events have been delivered. Raises `Broken`."""
    coverage = Coverage()

    async def some(first_seed: int) -> None:
        await asyncio.gather(*(kind(write(first_seed + number), coverage).run() for number in range(at_once)))

    seed = 0
    while coverage.steps < steps:
        asyncio.run(some(seed))
        seed += at_once
    return coverage
