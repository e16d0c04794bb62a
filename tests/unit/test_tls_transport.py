"""TLS over a transport that is a pair of lists, with a server that is driven by hand."""

import asyncio
import ssl
from pathlib import Path

import pytest

from pulsar_fast._core import Transport
from pulsar_fast.exceptions import ConnectError
from pulsar_fast.options import ClientOptions
from pulsar_fast.tls import BURST, TlsDialer, TlsTransport
from tests.certificates import Authority


class Below(Transport):
    """Takes as much as there is `room` for; gives what the server has said."""

    def __init__(self, server: ssl.SSLContext) -> None:
        self.room = 1 << 30
        self.error: OSError | None = None
        self.closed = False
        self.watches_writing = False
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.server = server.wrap_bio(self.incoming, self.outgoing, server_side=True)

    def take(self, chunks: list[bytes]) -> int:
        if self.error is not None:
            raise self.error
        data = b"".join(chunks)[: self.room]
        self.room -= len(data)
        self.incoming.write(data)
        return len(data) or -1

    def give(self, limit: int) -> bytes | None:
        return self.outgoing.read(limit) or None

    def watch_reading(self, call) -> None:
        self.readable = call

    def watch_writing(self, call) -> None:
        self.writable, self.watches_writing = call, True

    def stop_watching_writing(self) -> None:
        self.watches_writing = False

    def close(self) -> None:
        self.closed = True

    def heard(self) -> bytes:
        parts = []
        try:
            while part := self.server.read(1 << 20):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)

    def has_heard_the_end(self) -> bool:
        try:
            return self.server.read(1) == b""
        except ssl.SSLWantReadError:
            return False


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def below(authority: Authority) -> Below:
    return Below(authority.issue("server", ("localhost",)).server())


@pytest.fixture
def transport(below: Below, authority: Authority) -> TlsTransport:
    async def dialled() -> TlsTransport:
        async def dial(host: str, port: int, timeout: float) -> Transport:
            return below

        task = asyncio.ensure_future(
            TlsDialer(ClientOptions(tls_trust_certs_file_path=authority.path), dial)("localhost", 1, 5)
        )
        while not task.done():
            await asyncio.sleep(0)
            try:
                below.server.do_handshake()
            except ssl.SSLWantReadError:
                pass
            if below.outgoing.pending:
                below.readable()
        return await task

    transport = asyncio.run(dialled())
    below.server.do_handshake()
    return transport


def test_bytes_go_both_ways(below: Below, transport: TlsTransport) -> None:
    assert transport.take([b"one", b"two"]) == 6
    assert below.heard() == b"onetwo"
    assert transport.give(100) is None
    below.server.write(b"x" * 100_000)
    assert transport.give(70_000) == b"x" * 70_000, "given in records, so that the rest waits for a wake-up"
    assert transport.give(70_000) == b"x" * 30_000
    assert transport.give(70_000) is None


def test_nothing_is_taken_while_ciphertext_waits(below: Below, transport: TlsTransport) -> None:
    assert transport.most == BURST
    below.room = 1000
    assert transport.take([bytes(BURST)]) == BURST
    assert below.watches_writing
    assert transport.take([b"more"]) == -1
    below.room = 1 << 20
    below.writable()
    assert not below.watches_writing
    assert below.heard() == bytes(BURST)
    assert transport.take([b"more"]) == 4


def test_who_wants_to_write_is_told_once_the_ciphertext_is_gone(
    below: Below, transport: TlsTransport
) -> None:
    calls = []
    below.room = 1000
    transport.take([bytes(5000)])
    transport.watch_writing(lambda: calls.append(1))
    below.room = 1000
    below.writable()
    assert calls == []
    below.room = 1 << 20
    below.writable()
    assert calls == [1]
    assert below.watches_writing
    transport.stop_watching_writing()
    assert not below.watches_writing


def test_the_end_behind_the_last_bytes_is_told_at_once(below: Below, transport: TlsTransport) -> None:
    """Nothing more comes from below, so nothing else would wake the reader."""
    got = []
    transport.watch_reading(lambda: got.append(transport.give(100)))
    below.server.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        below.server.unwrap()
    below.readable()
    assert got == [b"last", b""]


def test_damage_is_told_behind_what_came_before_it(below: Below, transport: TlsTransport) -> None:
    below.server.write(b"good")
    below.outgoing.write(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert transport.give(100) == b"good"
    for _ in range(2):
        with pytest.raises(ConnectionError, match="bad record"):
            transport.give(100)


def test_a_failure_below_reaches_the_reader(below: Below, transport: TlsTransport) -> None:
    errors = []

    def read() -> None:
        try:
            transport.give(100)
        except OSError as error:
            errors.append(error)

    transport.watch_reading(read)
    below.room = 10
    transport.take([b"x"])
    below.error = ConnectionResetError(104, "reset")
    below.writable()
    assert errors
    assert set(errors) == {below.error}
    assert not below.watches_writing, "it would be called without end"


def test_closing_says_goodbye(below: Below, transport: TlsTransport) -> None:
    transport.close()
    assert below.closed
    assert below.has_heard_the_end()


def test_closing_does_not_break_into_a_record(below: Below, transport: TlsTransport) -> None:
    below.room = 10
    transport.take([bytes(100)])
    below.room = 1000
    transport.close()
    assert below.closed
    assert below.room == 1000


def test_a_handshake_that_is_given_up_leaves_nothing_open(below: Below, authority: Authority) -> None:
    async def dial(host: str, port: int, timeout: float) -> Transport:
        return below

    async def run() -> None:
        dialer = TlsDialer(ClientOptions(tls_trust_certs_file_path=authority.path), dial)
        with pytest.raises(ConnectError, match=r"no TLS with localhost:1 within 0\.01 s"):
            await dialer("localhost", 1, 0.01)
        assert below.closed
        below.closed = False
        task = asyncio.ensure_future(dialer("localhost", 1, 5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert below.closed

    asyncio.run(run())
