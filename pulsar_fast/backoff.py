"""How long to wait before the next attempt."""

import random

__all__ = ["Backoff"]

_EAGER_FOR = 2.0  # seconds of waiting: most outages are a broker that restarts, or a topic that moves
_EAGER_DELAY = 0.2  # seconds between attempts until then, so that nobody notices a short outage for longer


class Backoff:
    """Doubling delays with jitter (0 to 20 % shorter), up to a bound; `reset` starts over.

    Until two seconds have been waited, doubling does not go beyond 200 ms.
    """

    def __init__(self, initial_ms: int, max_ms: int) -> None:
        self._initial = initial_ms / 1000
        self._max = max_ms / 1000
        self._next = self._initial
        self._waited = 0.0

    def next(self) -> float:
        """Seconds to wait now; the following ones are longer."""
        delay = self._next
        self._waited += delay
        bound = self._max if self._waited >= _EAGER_FOR else max(_EAGER_DELAY, self._initial)
        self._next = min(2 * delay, bound, self._max)
        return delay * random.uniform(0.8, 1.0)

    def reset(self) -> None:
        """The last attempt was good for something: start over with short delays."""
        self._next = self._initial
        self._waited = 0.0
