"""Waiting in tests: for a condition, within a bound that only a broken client comes to."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 10) -> None:
    """Raises `AssertionError` when so many seconds have passed without it."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true within {seconds:g} s"
        time.sleep(0.005)
