"""The background thread that runs the event loop of a synchronous client."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ._core import fork_count, mark_loop_thread, refuse_to_block, unmark_loop_thread
from .client_core import ClientCore
from .exceptions import AlreadyClosed, Timeout

__all__ = ["LoopThread", "on_loop"]

_T = TypeVar("_T")

EXIT_SECONDS = 4.0
"""How long interpreter exit waits for what is pending, over all clients."""


class LoopThread:
    """Runs one `ClientCore` on a loop of its own. Its methods may be called from any other thread."""

    _running: "set[LoopThread]" = set()

    def __init__(self, make_core: Callable[[], ClientCore]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="pulsar_fast loop", daemon=True)
        self._forks = fork_count()
        # Of the next line, so that no work comes behind the end. A destructor may run while it is held.
        self._lock = threading.RLock()
        self._ended = False
        try:
            self._thread.start()
        except RuntimeError:  # the system has no thread left
            self._loop.close()
            raise
        try:
            self.core = self.call("creating a client", on_loop(make_core))
        except BaseException:
            self.stop()
            raise
        self._running.add(self)

    def check_process(self) -> None:
        """The loop runs only in the process that started it."""
        if fork_count() != self._forks:
            raise RuntimeError(
                "this client was created before os.fork() and cannot be used in the child process: "
                "create the client after the fork"
            )

    def call(self, what: str, work: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine on the loop and wait for it, at most `timeout` seconds; signals interrupt the wait.

        `what` names it in errors. Raises `RuntimeError` on the loop's own thread and after a fork, `Timeout` when
        the time is up, and whatever the coroutine raises. An interrupted or late coroutine is cancelled.
        """
        try:
            self.check_process()
            refuse_to_block(what)
            future = self._submit(work)
        except BaseException:
            work.close()
            raise
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise AlreadyClosed("the client was closed meanwhile") from None
        except concurrent.futures.TimeoutError:
            if future.done():  # in the last moment, or with an error that is a kind of TimeoutError
                return future.result()
            future.cancel()
            raise Timeout(f"{what} took longer than {timeout:g} s") from None
        except BaseException:
            future.cancel()
            raise

    def _submit(self, work: Coroutine[Any, Any, _T]) -> "concurrent.futures.Future[_T]":
        with self._lock:
            if self._ended:
                raise AlreadyClosed("the client is closed")
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _end(self) -> None:
        """Accept no more work; the loop ends once it has begun what it has."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._loop.call_soon_threadsafe(self._loop.stop)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop without waiting for it."""
        try:
            self._submit(work)
        except AlreadyClosed:
            work.close()

    def stop(self, timeout: float | None = None) -> None:
        """End the loop and wait for its thread, at most `timeout` seconds; idempotent."""
        self._end()
        self._thread.join(timeout)
        self._running.discard(self)

    def begin_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a last coroutine and then end the loop, without waiting for either."""

        async def last() -> None:
            try:
                await work
            finally:
                self._running.discard(self)
                self._end()

        self.begin(last())

    @classmethod
    def close_all(cls) -> None:
        """At interpreter exit: give what is pending a bounded chance, then end everything."""
        ends = time.monotonic() + EXIT_SECONDS
        threads = [thread for thread in list(cls._running) if thread._forks == fork_count()]
        futures = []
        for thread in threads:
            work = thread.core.close()
            try:
                futures.append(thread._submit(work))
            except AlreadyClosed:
                work.close()
        concurrent.futures.wait(futures, EXIT_SECONDS * 0.8)
        for thread in threads:
            with contextlib.suppress(AlreadyClosed, Timeout):
                left = max(ends - time.monotonic(), 0.01)
                thread.call("shutting down", on_loop(thread.core.shut_down), left)
            thread.stop(max(ends - time.monotonic(), 0.01))


atexit.register(LoopThread.close_all)


async def on_loop(function: Callable[[], _T]) -> _T:
    """A plain function as a coroutine, to run it on the loop."""
    return function()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    mark_loop_thread(threading.get_ident())
    try:
        loop.run_forever()
    finally:
        unmark_loop_thread(threading.get_ident())
        loop.run_until_complete(_settle_rest())
        loop.close()


async def _settle_rest() -> None:
    """Cancel what is left, and let everybody who waits for it hear of its end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)
