"""Waiting with a bound, and for tasks that others may cancel."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["TimeIsUp", "ended", "within"]

_T = TypeVar("_T")


class TimeIsUp(Exception):
    """A bound has passed; whoever set it knows what to call that."""


async def within(seconds: float | None, work: Awaitable[_T]) -> _T:
    """What `work` gives, or `TimeIsUp` after so many seconds, with `work` cancelled; None waits for ever.

    Unlike `asyncio.wait_for` it never takes a cancellation for an answer (which older Pythons do when both come at
    once), and its error cannot be mistaken for one of `work`.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(
        lambda ended: ended.cancelled() or ended.exception()
    )  # seen, if nobody waits any more
    try:
        done, _ = await asyncio.wait([task], timeout=None if seconds is None else max(seconds, 0))
    except asyncio.CancelledError:
        task.cancel()
        raise
    if not done:
        task.cancel()
        raise TimeIsUp
    return task.result()


async def ended(task: "asyncio.Task[None]") -> bool:
    """Wait for a task of one's own, which goes on when the caller is cancelled; False if the task itself was.

    With `asyncio.shield` the two could not be told apart.
    """
    await asyncio.wait([task])
    if task.cancelled():
        return False
    task.result()
    return True
