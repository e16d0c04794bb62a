"""Name resolution and TCP connections, both bounded in time."""

import asyncio
import errno
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from ._core import SocketTransport, Transport
from .bounds import TimeIsUp, within
from .exceptions import ConnectError

__all__ = ["Dial", "dial", "host_and_port"]

Dial = Callable[[str, int, float], Awaitable[Transport]]
"""Connects to a host and port within so many seconds, or raises `ConnectError` (or `OSError`: of this process)."""

_Address = tuple[int, Any]  # address family and socket address
_Resolve = Callable[[str, int], list[_Address]]


def _resolve(host: str, port: int) -> list[_Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


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
    """A TCP connection to `host`, any of its addresses, within `timeout` seconds.

    Raises `ConnectError` that names the host and what each of its addresses answered.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    try:
        addresses = await within(timeout, _resolve_beside(host, port))
    except TimeIsUp:
        raise ConnectError(f"the name {host!r} was not resolved within {timeout:g} s") from None
    except (OSError, UnicodeError) as error:
        raise ConnectError(f"the name {host!r} cannot be resolved: {_reason(error)}") from error
    failures: list[str] = []
    for index, (family, address) in enumerate(addresses):
        share = (deadline - loop.time()) / (len(addresses) - index)
        try:
            return SocketTransport(await _connect(family, address, share), loop)
        except OSError as error:
            failures.append(f"{address[0]}: {_reason(error)}")
        except TimeIsUp:
            failures.append(f"{address[0]}: no answer within {share:.1f} s")
    raise ConnectError(
        f"cannot connect to {host_and_port((host, port))} ({'; '.join(failures) or 'it has no address'})"
    )


async def _connect(family: int, address: Any, timeout: float) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        await within(timeout, loop.sock_connect(sock, address))
        if sock.getsockname() == sock.getpeername():
            # A free port of this machine may connect to itself; nobody listens there.
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except BaseException:
        sock.close()
        raise
    return sock


def _reason(error: OSError | UnicodeError) -> str:
    """The system's words; asyncio puts the address in front of them, which is named already."""
    if not isinstance(error, OSError):
        return str(error)
    if error.errno is None or isinstance(error, socket.gaierror):
        return str(error.strerror or error)
    return os.strerror(error.errno)
