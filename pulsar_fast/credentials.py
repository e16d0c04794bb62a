"""Asking an `Authentication` for credentials: beside the loop, within bounds, and without telling secrets."""

import asyncio
import inspect
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .authentication import Authentication
from .exceptions import AuthenticationError

__all__ = ["NOBODY", "Authenticator", "Conversation", "Credentials"]

_SHARE = 0.9  # of the operation timeout: who waits for the connection must still hear why there is none
_HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")  # no line breaks above all, which would begin another header


@dataclass(frozen=True)
class Credentials:
    """What goes to a broker; can be shown, since it hides the data."""

    method: str
    data: bytes = field(repr=False)


NOBODY = Credentials("none", b"")


class Authenticator:
    """Begins the conversations of a client's connections. Owned by the event loop."""

    def __init__(self, authentication: Authentication | None, operation_timeout: float) -> None:
        self._authentication = authentication
        self._operation_timeout = operation_timeout
        self._calls = _Calls()

    def converse(self, host: str, patience: float | None = None) -> "Conversation":
        """`patience`: seconds that who waits for the connection has; None: the operation timeout."""
        if self._authentication is None:
            return _Anonymous()
        timeout = _SHARE * (self._operation_timeout if patience is None else patience)
        return Conversation(self._authentication, host, self._calls, timeout)


class Conversation:
    """What one connection says about who the client is. Owned by the event loop.

    Its methods raise `AuthenticationError`, with nothing chained to it that could hold a secret.
    """

    def __init__(self, authentication: Authentication, host: str, calls: "_Calls", timeout: float) -> None:
        self._authentication = authentication
        self._method = authentication.name
        self._host = host
        self._calls = calls
        self._timeout = timeout

    async def begin(self) -> Credentials:
        async def first() -> Any:
            return await self._made_by(self._speaker().initial_data)

        return await self._credentials(first)

    async def answer(self, challenge: bytes) -> Credentials:
        return await self._credentials(lambda: self._made_by(partial(self._authentication.answer, challenge)))

    async def headers(self) -> Credentials:
        """The lines of the head of an HTTP request, in place of `begin`."""

        async def lines() -> bytes:
            return _lines(await self._made_by(self._speaker().http_headers))

        return await self._credentials(lines)

    def _speaker(self) -> Authentication:
        self._authentication = self._authentication.for_host(self._host)
        return self._authentication

    async def _made_by(self, supply: Callable[[], Any]) -> Any:
        made = supply() if inspect.iscoroutinefunction(supply) else await self._calls.call(supply)
        return await made if inspect.isawaitable(made) else made

    async def _credentials(self, make: Callable[[], Any]) -> Credentials:
        """No frame of what is raised here has a secret among its variables."""
        asking = asyncio.get_running_loop().create_task(self._checked(make))
        asking.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # seen
        try:
            await asyncio.wait([asking], timeout=self._timeout)
        finally:
            late = not asking.done()
            asking.cancel()
        if late:
            raise self._error(f"there were none within {self._timeout:g} s")
        if asking.cancelled():
            raise self._error("what supplies them was cancelled")
        credentials = asking.result()
        if isinstance(credentials, str):
            raise self._error(credentials)
        return credentials

    async def _checked(self, make: Callable[[], Any]) -> Credentials | str:
        """What there is, or why there is none."""
        try:
            data = await make()
        except Exception as error:
            return _reason(error)
        if isinstance(data, bytes):
            return Credentials(self._method, data)
        return f"they must be bytes, not {type(data).__name__}"

    def _error(self, reason: str) -> AuthenticationError:
        return AuthenticationError(f"no credentials ({self._method}) for {self._host}: {reason}")


class _Anonymous(Conversation):
    def __init__(self) -> None:
        pass

    async def begin(self) -> Credentials:
        return NOBODY

    async def answer(self, challenge: bytes) -> Credentials:
        return NOBODY

    async def headers(self) -> Credentials:
        return NOBODY


class _Calls:
    """Runs functions that may block, one after the other, on a daemon thread that lives while there are any.

    One that never returns makes the later ones wait, instead of a heap of threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    async def call(self, function: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        outcome: list[Any] = []  # beside the future, which asyncio's debug mode would show

        def drop() -> None:
            """Nobody waits any more: a coroutine that the function has made is not to be awaited."""
            for made in outcome:
                if inspect.iscoroutine(made):
                    made.close()

        def settle() -> None:
            if ended.done():
                drop()
            else:
                ended.set_result(None)

        def run() -> None:
            if ended.done():
                return
            try:
                outcome.append(function())
            except BaseException as error:  # SystemExit too: it is not the loop's
                outcome.append(AuthenticationError(_reason(error)))
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:  # the loop has been closed meanwhile
                drop()

        self._add(run)
        try:
            await ended
        except asyncio.CancelledError:
            drop()
            raise
        if isinstance(outcome[0], AuthenticationError):
            raise outcome[0]
        return outcome[0]

    def _add(self, run: Callable[[], None]) -> None:
        with self._lock:
            self._waiting.append(run)
            if self._is_running:
                return
            try:
                threading.Thread(target=self._run, name="pulsar_fast credentials", daemon=True).start()
            except RuntimeError as error:  # the system has no thread left
                self._waiting.clear()
                raise AuthenticationError(str(error)) from None
            self._is_running = True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                run = self._waiting.popleft()
            run()


def _lines(headers: object) -> bytes:
    if not isinstance(headers, Mapping):
        raise AuthenticationError(
            f"the headers must be a mapping of str to str, not {type(headers).__name__}"
        )
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise AuthenticationError("a header has no proper name")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise AuthenticationError(f"the header {name} holds what is not printable ASCII")
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()


def _reason(error: BaseException) -> str:
    """What happened, without the text of an exception that may hold a secret."""
    if isinstance(error, AuthenticationError):
        return error.message
    words = f"{type(error).__name__}"
    if isinstance(error, OSError) and isinstance(error.errno, int):
        words += f" ({os.strerror(error.errno)})"
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None:
        words += f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"what supplies them raised {words}"
