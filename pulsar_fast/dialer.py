"""Name resolution and TCP connections, both bounded in time."""

import asyncio
import errno
import itertools
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ._core import SocketTransport, Transport, begin_connecting
from .bounds import TimeIsUp, within
from .exceptions import ConnectError

__all__ = ["Dial", "connect", "dial", "host_and_port"]

Dial = Callable[[str, int, float], Awaitable[Transport]]
"""Connects to a host and port within so many seconds, or raises `ConnectError` (or `OSError`: of this process)."""

_HEAD_START = 0.25  # seconds before the next address of a name is tried beside the ones before it

_Address = tuple[int, Any]  # address family and socket address
_Resolve = Callable[[str, int], list[_Address]]


def _resolve(host: str, port: int) -> list[_Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


def _in_numbers(host: str, port: int) -> list[_Address]:
    """The address that a host is, if it needs no resolving. Keeps the GIL, as `getaddrinfo` does not."""
    for family, rest in ((socket.AF_INET, ()), (socket.AF_INET6, (0, 0))):
        try:
            socket.inet_pton(family, host)
        except (OSError, ValueError):
            continue
        return [(family, (host, port, *rest))]
    return []


async def _resolve_beside(host: str, port: int) -> list[_Address]:
    """All addresses of a name, asked for on a daemon thread.

    The executor's threads are joined at interpreter exit, and a resolver that hangs would hold that up.
    Raises `OSError` also when the system has no thread left.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[_Address]] = loop.create_future()

    def tell(setter: Callable[[Any], None], value: object) -> None:
        if not found.done():
            setter(value)

    def ask() -> None:
        try:
            answer = (found.set_result, _resolve(host, port))
        except (OSError, UnicodeError) as error:  # a name that is no name: empty or too long labels
            answer = (found.set_exception, error)  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(tell, *answer)
        except RuntimeError:
            pass  # the loop has been closed meanwhile

    try:
        threading.Thread(target=ask, name=f"pulsar_fast resolver {host}", daemon=True).start()
    except RuntimeError as error:
        raise OSError(str(error)) from error
    return await found


def host_and_port(address: tuple[str, int]) -> str:
    """As in a URL: an IPv6 literal in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def dial(host: str, port: int, timeout: float) -> Transport:
    """A transport over `connect`, which says more."""
    return SocketTransport(await connect(host, port, timeout), asyncio.get_running_loop())


async def connect(host: str, port: int, timeout: float) -> socket.socket:
    """A TCP connection to `host`, to whichever of its addresses answers first, within `timeout` seconds.

    Raises `ConnectError` that names the host and what each of its addresses answered.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    try:
        addresses = _in_numbers(host, port) or await within(timeout, _resolve_beside(host, port))
    except TimeIsUp:
        raise ConnectError(f"the name {host!r} was not resolved within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:
        raise ConnectError(f"the name {host!r} cannot be resolved: {_reason(error)}") from error
    failures: list[str] = []
    sock = await _first_to_answer(_interleaved(addresses), deadline - loop.time(), failures)
    if sock is None:
        answers = "; ".join(failures) or "it has no address"
        raise ConnectError(f"cannot connect to {host_and_port((host, port))} ({answers})")
    return sock


def _interleaved(addresses: list[_Address]) -> list[_Address]:
    """Families in turn, beginning with the one that the system prefers; within a family in its order."""
    families: dict[int, list[_Address]] = {}
    for address in addresses:
        families.setdefault(address[0], []).append(address)
    turns = itertools.zip_longest(*families.values())
    return [address for turn in turns for address in turn if address is not None]


async def _first_to_answer(
    addresses: list[_Address], timeout: float, failures: list[str]
) -> socket.socket | None:
    """Race connections to all addresses, in the manner of RFC 8305; the losers are closed.

    The next address starts when one has failed, or after a head start for those before it. None if no address
    takes the connection; `failures` then tells of each.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + timeout
    head_start = min(_HEAD_START, timeout / max(len(addresses), 1))
    waiting = iter(addresses)
    racing: dict[asyncio.Future[socket.socket], _Connecting] = {}
    try:
        while True:
            starter = next(waiting, None)
            if starter is not None:
                connecting = _Connecting(loop, *starter)
                racing[connecting.ended] = connecting
            elif not racing or loop.time() >= ends:
                failures += [f"{late}: no answer within {timeout:.1f} s" for late in racing.values()]
                return None
            left = ends - loop.time() if starter is None else head_start
            answered, _ = await asyncio.wait(
                racing, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED
            )
            for ended in answered:
                connecting = racing.pop(ended)
                try:
                    return ended.result()
                except OSError as error:
                    failures.append(f"{connecting}: {_reason(error)}")
    finally:
        for connecting in racing.values():
            connecting.close()


class _Connecting:
    """A connection to one address under way; `ended` gets its socket, or an `OSError`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, family: int, address: Any) -> None:
        self._loop = loop
        self._address = address
        self._sock: socket.socket | None = None
        self.ended: asyncio.Future[socket.socket] = loop.create_future()
        try:
            self._begin(family)
        except OSError as error:
            self._fail(error)

    def __str__(self) -> str:
        return str(self._address[0])

    def _begin(self, family: int) -> None:
        host, port, *rest = self._address
        scope_id = rest[1] if rest else 0
        descriptor = begin_connecting(family, host.partition("%")[0], port, scope_id)
        sock = self._sock = socket.socket(family, socket.SOCK_STREAM, fileno=descriptor)
        self._loop.add_writer(sock, self._on_writable, sock)

    def _on_writable(self, sock: socket.socket) -> None:
        self._loop.remove_writer(sock)
        try:
            self._end(sock, sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        except OSError as error:
            self._fail(error)

    def _end(self, sock: socket.socket, error: int) -> None:
        if error:
            raise OSError(error, os.strerror(error))
        if sock.getsockname() == sock.getpeername():
            # A free port of this machine may connect to itself; nobody listens there.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self.ended.set_result(sock)

    def _fail(self, error: OSError) -> None:
        self.close()
        self.ended.set_exception(error)
        self.ended.exception()  # seen, also if another one has won meanwhile

    def close(self) -> None:
        """Take no part any more."""
        if self._sock is not None and self._sock.fileno() >= 0:
            self._loop.remove_writer(self._sock)
            self._sock.close()


def _reason(error: OSError | UnicodeError) -> str:
    """The system's words; asyncio puts the address in front of them, which is named already."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error.strerror or error)
    return os.strerror(error.errno)
