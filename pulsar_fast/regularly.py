"""Work that is done again and again beside everything else."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from .log import Log

__all__ = ["Regularly"]


class Regularly:
    """Begins `work` so many seconds from now, and again as long after it has ended. Owned by the event loop.

    A timer waits, not a task: whoever cancels all tasks of the loop ends what is under way, and not what comes after.
    """

    def __init__(
        self,
        seconds: float,
        work: Callable[[], Coroutine[Any, Any, None]],
        begin: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        logger: Log,
    ) -> None:
        """`begin` makes a task, which somebody else may cancel at the end."""
        self._seconds = seconds
        self._work = work
        self._begin = begin
        self._logger = logger
        self.stopped = False
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._go)

    def stop(self) -> None:
        """Begin nothing more, and cancel what is under way."""
        self.stopped = True
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _go(self) -> None:
        self._task = self._begin(self._do())
        self._task.add_done_callback(self._ended)

    async def _do(self) -> None:
        try:
            await self._work()
        except Exception:  # a bug: it must not end the work for good
            self._logger.exception("regular work failed")

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self.stopped:
            self._timer = task.get_loop().call_later(self._seconds, self._go)
