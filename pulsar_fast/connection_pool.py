"""The connections of a client, one or a few to each broker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ._core import Clock, fresh_copy
from .connection import BrokerAddress, Connection
from .credentials import Authenticator
from .dialer import Dial
from .exceptions import ConnectError, PulsarException
from .log import Log
from .options import ClientOptions

__all__ = ["ConnectionPool"]

_T = TypeVar("_T")
_Slot = tuple[BrokerAddress, int]
"""The place of a connection: which broker it goes to, and which of the connections there it is."""


class ConnectionPool:
    """Opens connections when they are asked for; whoever asks meanwhile waits for the same one.

    After a failure the next attempt at the same place begins an initial back-off later, whoever asks: the producers
    of a client that wait for a broker share their attempts.

    What nobody uses any more is closed after a while. Owned by the event loop. `on_reached(address)` hears of
    each new connection.
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
        self.authenticator = Authenticator(options.authentication, options.operation_timeout_seconds)
        self._on_reached = on_reached
        self._opening: dict[_Slot, asyncio.Task[Connection]] = {}
        self._open: dict[_Slot, Connection] = {}
        self._failed_at: dict[_Slot, float] = {}  # by the loop's time, until one has been opened
        self._idle_timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[PulsarException] = (
            asyncio.get_running_loop().create_future()
        )  # gets why it was closed

    async def get(self, address: BrokerAddress, user: int = 0) -> Connection:
        """The connection of that user to that broker, past its handshake; always the same one while it lives.

        A broker that still knows a producer on one connection refuses it on another. Raises what kept the
        connection from being opened, or why the pool was closed.
        """
        self._check_open()
        slot = address, user % self._options.connections_per_broker
        connection = self._open.get(slot)
        if connection is not None:
            return connection
        opening = self._opening.get(slot)
        if opening is None or opening.done():
            opening = asyncio.get_running_loop().create_task(self._open_in_time(slot))
            opening.add_done_callback(lambda task: self._opening_ended(slot, task))
            self._opening[slot] = opening
        # One that stops waiting must not take the connection from the others, as awaiting the task itself would.
        either: list[asyncio.Future[Any]] = [opening, self._over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        self._check_open()
        return opening.result()

    async def unless_closed(self, work: Awaitable[_T]) -> _T:
        """What `work` gives. It is given up when the pool is closed, which raises why."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(
            lambda ended: ended.cancelled() or ended.exception()
        )  # seen, also when given up
        either: list[asyncio.Future[Any]] = [task, self._over]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            task.cancel()
        self._check_open()
        return task.result()

    def _check_open(self) -> None:
        if self._over.done():
            raise fresh_copy(self._over.result())

    async def probe(self, address: BrokerAddress) -> None:
        """Open a connection beside all others and close it. Raises what keeps it from being opened."""
        connection = await self._connect(address, lambda connection: None)
        connection.lose(ConnectError("it has shown that it can be opened"))

    async def _open_in_time(self, slot: _Slot) -> Connection:
        loop = asyncio.get_running_loop()
        if slot in self._failed_at:
            earliest = self._failed_at[slot] + self._options.initial_backoff_interval_ms / 1000
            await asyncio.sleep(earliest - loop.time())
        try:
            connection = await self._connect(slot[0], lambda connection: self._on_lost(slot, connection))
        except Exception:
            self._failed_at[slot] = loop.time()
            raise
        if self._over.done():  # by a handler of the log, in the last moment
            connection.lose(self._over.result())
            self._check_open()
        self._failed_at.pop(slot, None)
        self._open[slot] = connection
        self._watch_idle()
        self._on_reached(slot[0])
        return connection

    async def _connect(self, address: BrokerAddress, on_lost: Callable[[Connection], None]) -> Connection:
        return await Connection.open(
            self._dial,
            address,
            self._clock,
            self._options,
            self._logger,
            self.authenticator.converse(address.physical[0]),
            on_lost,
        )

    def _opening_ended(self, slot: _Slot, task: asyncio.Task[Connection]) -> None:
        """It may have been cancelled before it began, by whoever cancels all tasks."""
        if self._opening.get(slot) is task:
            del self._opening[slot]
        if not task.cancelled():
            task.exception()  # seen, also if nobody waits for it any more

    def _on_lost(self, slot: _Slot, connection: Connection) -> None:
        if self._open.get(slot) is connection:
            del self._open[slot]

    def _watch_idle(self) -> None:
        """Look from time to time while there are connections."""
        longest = self._options.connection_max_idle_seconds
        if longest is not None and self._open and self._idle_timer is None:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(longest / 4, self._close_idle, longest)

    def _close_idle(self, longest: float) -> None:
        self._idle_timer = None
        for connection in list(self._open.values()):
            if connection.idle_seconds() >= longest:
                connection.lose(ConnectError(f"nobody has used it for {longest:g} s"))
        self._watch_idle()

    def abandon(self) -> None:
        """Close the sockets alone: there is no loop any more."""
        for connection in self._open.values():
            connection.close()

    def close(self, error: PulsarException) -> None:
        """Close all connections, the ones under way too: whoever uses them or waits for one gets the error."""
        if self._over.done():
            return
        self._over.set_result(error)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for task in self._opening.values():
            task.cancel()
        for connection in list(self._open.values()):
            connection.lose(error)
