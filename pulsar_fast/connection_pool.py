"""The connections of a client, at most one to each broker."""

import asyncio
from collections.abc import Callable

from ._core import Clock
from .connection import BrokerAddress, Connection
from .dialer import Dial
from .exceptions import AlreadyClosed
from .log import Log
from .options import ClientOptions

__all__ = ["ConnectionPool"]


class ConnectionPool:
    """Opens connections when they are asked for; whoever asks meanwhile waits for the same one.

    Owned by the event loop. `on_reached(address)` hears of each new connection.
    """

    def __init__(
        self,
        dial: Dial,
        clock: Clock,
        options: ClientOptions,
        logger: Log,
        on_reached: Callable[[BrokerAddress], None],
    ) -> None:
        self._dial = dial
        self._clock = clock
        self._options = options
        self._logger = logger
        self._on_reached = on_reached
        self._opening: dict[BrokerAddress, asyncio.Task[Connection]] = {}
        self._open: dict[BrokerAddress, Connection] = {}
        self._closed = False

    async def get(self, address: BrokerAddress) -> Connection:
        """The connection to that broker, past its handshake. Raises what kept it from being opened."""
        if self._closed:
            raise AlreadyClosed("the client is closed")
        connection = self._open.get(address)
        if connection is not None:
            return connection
        opening = self._opening.get(address)
        if opening is None or opening.done():
            opening = asyncio.get_running_loop().create_task(self._connect(address))
            opening.add_done_callback(lambda task: self._opening_ended(address, task))
            self._opening[address] = opening
        # One that stops waiting must not take the connection from the others.
        return await asyncio.shield(opening)

    async def _connect(self, address: BrokerAddress) -> Connection:
        connection = await Connection.open(
            self._dial, address, self._clock, self._options, self._logger, self._on_lost
        )
        if self._closed:  # by a handler of the log, in the last moment
            connection.lose(AlreadyClosed("the client is closed"))
            raise AlreadyClosed("the client is closed")
        self._open[address] = connection
        self._on_reached(address)
        return connection

    def _opening_ended(self, address: BrokerAddress, task: asyncio.Task[Connection]) -> None:
        """It may have been cancelled before it began, by whoever cancels all tasks."""
        if self._opening.get(address) is task:
            del self._opening[address]
        if not task.cancelled():
            task.exception()  # seen, also if nobody waits for it any more

    def _on_lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]

    def abandon(self) -> None:
        """Close the sockets alone: there is no loop any more."""
        self._closed = True
        for connection in self._open.values():
            connection.close()

    def close(self) -> None:
        """Close all connections, the ones under way too."""
        self._closed = True
        for task in self._opening.values():
            task.cancel()
        for connection in list(self._open.values()):
            connection.lose(AlreadyClosed("the client is closed"))
