"""Connecting to a name that has several addresses, on loopback."""

import asyncio
import os
import re
import select
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest

from pulsar_fast import ConnectError
from pulsar_fast._core import begin_connecting
from pulsar_fast.dialer import dial

Address = tuple[str, int]


@contextmanager
def listening(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        try:
            listener.bind((host, 0))
        except OSError as error:
            pytest.skip(f"{host} cannot be bound here: {error}")
        listener.listen()
        yield listener


@contextmanager
def mute() -> Iterator[Address]:
    """An address that answers no further connection, since its queue is full."""
    with listening() as listener:
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        try:
            yield listener.getsockname()[:2]
        finally:
            for filler in fillers:
                filler.close()


@pytest.fixture
def dead() -> Iterator[Address]:
    """Nobody listens there."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[Address]:
    """The addresses of every name, in the order of the resolver."""
    addresses: list[Address] = []

    def resolve(*_args: Any, **_options: Any) -> list[Any]:
        family = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(family[":" in it[0]], socket.SOCK_STREAM, 6, "", it) for it in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return addresses


def descriptors() -> set[str]:
    """Those that are open (on Linux)."""
    return set(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else set()


@pytest.fixture(autouse=True)
def _nothing_stays_open() -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


def seconds_to_dial(timeout: float = 10) -> tuple[float, Address]:
    """How long it took, by the loop's clock, and who was reached; the connection is closed again."""

    async def connect() -> tuple[float, Address]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with closing(await dial("some-name", 6650, timeout)) as transport:
            return loop.time() - started, transport.socket.getpeername()[:2]  # type: ignore[attr-defined]

    return asyncio.run(connect())


def connections(listener: socket.socket) -> int:
    """How many have come in by now."""
    count = 0
    while select.select([listener], [], [], 0)[0]:
        listener.accept()[0].close()
        count += 1
    return count


def option_of_a_connection(number: int) -> int:
    """Of TCP."""

    async def option() -> int:
        with closing(await dial("some-name", 6650, 10)) as transport:
            sock: socket.socket = transport.socket  # type: ignore[attr-defined]
            return sock.getsockopt(socket.IPPROTO_TCP, number)

    return asyncio.run(option())


def test_small_writes_are_not_held_back(named: list[Address]) -> None:
    with listening() as listener:
        named[:] = [listener.getsockname()]
        assert option_of_a_connection(socket.TCP_NODELAY) != 0


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="there is no such option")
def test_unacknowledged_bytes_do_not_wait_for_ever(named: list[Address]) -> None:
    with listening() as listener:
        named[:] = [listener.getsockname()]
        assert option_of_a_connection(socket.TCP_USER_TIMEOUT) == 120_000


def test_a_mute_address_costs_a_head_start(named: list[Address]) -> None:
    with mute() as silent, listening() as listener:
        named[:] = [silent, silent, listener.getsockname()]
        seconds, reached = seconds_to_dial()
        assert reached == listener.getsockname()
        assert 0.45 < seconds < 5


def test_the_next_one_starts_when_one_is_refused(named: list[Address], dead: Address) -> None:
    with mute() as silent, listening() as listener:
        named[:] = [silent, *[dead] * 30, listener.getsockname()]
        seconds, reached = seconds_to_dial()
        assert reached == listener.getsockname()
        assert seconds < 5


def test_nobody_else_is_asked_when_the_first_one_answers(named: list[Address]) -> None:
    with listening() as first, listening() as second:
        named[:] = [first.getsockname(), second.getsockname()]
        assert seconds_to_dial()[1] == first.getsockname()
        assert (connections(first), connections(second)) == (1, 0)


def test_a_short_timeout_leaves_every_address_its_turn(named: list[Address]) -> None:
    with mute() as silent, listening() as listener:
        named[:] = [*[silent] * 5, listener.getsockname()]
        assert seconds_to_dial(timeout=1)[1] == listener.getsockname()


def test_families_take_turns_and_every_answer_is_told(named: list[Address], dead: Address) -> None:
    port = dead[1]
    with listening("::1"):  # or there is no IPv6 here
        pass
    named[:] = [("::1", port), ("::1", port), ("127.0.0.1", port), ("127.0.0.2", port), ("127.0.0.3", port)]
    with pytest.raises(ConnectError, match="cannot connect to some-name:6650") as caught:
        seconds_to_dial()
    told = re.findall(r"([0-9a-f.:]+): Connection refused", str(caught.value))
    assert told == ["::1", "127.0.0.1", "::1", "127.0.0.2", "127.0.0.3"]


def test_silence_is_told_too(named: list[Address], dead: Address) -> None:
    with mute() as silent:
        named[:] = [silent, ("127.0.0.2", dead[1])]
        with pytest.raises(
            ConnectError, match=r"127\.0\.0\.2: Connection refused; 127\.0\.0\.1: no answer within 0\.3 s"
        ):
            seconds_to_dial(timeout=0.3)


def test_a_family_that_the_system_does_not_have(
    named: list[Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_ipv6(family: int, *address: Any) -> int:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return begin_connecting(family, *address)

    with listening() as listener:
        named[:] = [("::1", 1), listener.getsockname()]
        monkeypatch.setattr("pulsar_fast.dialer.begin_connecting", without_ipv6)
        assert seconds_to_dial()[1] == listener.getsockname()
        named.pop()
        with pytest.raises(ConnectError, match="::1: Address family not supported"):
            seconds_to_dial()


def test_a_name_without_an_address(named: list[Address]) -> None:
    with pytest.raises(ConnectError, match=r"some-name:6650 .*no address"):
        seconds_to_dial()


@pytest.mark.parametrize("after", [0.1, 0.4])
def test_given_up_under_way(named: list[Address], after: float) -> None:
    """Everything is closed when the call ends, not some turns of the loop later."""

    async def give_up() -> None:
        before = descriptors()
        task = asyncio.create_task(dial("some-name", 6650, 10))
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(task), after)
        under_way = descriptors()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert descriptors() == before != under_way or not before
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with mute() as silent:
        named[:] = [silent, silent]
        asyncio.run(give_up())
