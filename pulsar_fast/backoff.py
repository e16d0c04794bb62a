"""How long to wait before the next attempt."""

import random

__all__ = ["Backoff"]


class Backoff:
    """Doubling delays with jitter (0 to 20 % shorter), up to a bound; `reset` starts over."""

    def __init__(self, initial_ms: int, max_ms: int) -> None:
        self._initial = initial_ms / 1000
        self._max = max_ms / 1000
        self._next = self._initial

    def next(self) -> float:
        """Seconds to wait now; the following ones are longer."""
        delay = self._next
        self._next = min(2 * delay, self._max)
        return delay * random.uniform(0.8, 1.0)

    def reset(self) -> None:
        """The last attempt was good for something: start over with short delays."""
        self._next = self._initial
