"""How long to wait before the next attempt."""

import random

__all__ = ["Backoff"]

_SHARE = 0.2  # of an outage that may pass, at its end, before the next attempt


class Backoff:
    """Delays of a fifth of what was waited already, between two bounds, with jitter (0 to 20 % shorter).

    So a broker that comes back is asked again after a fifth of its absence, at most. `reset` starts over.
    """

    def __init__(self, initial_ms: int, max_ms: int) -> None:
        self._initial = initial_ms / 1000
        self._max = max_ms / 1000
        self._waited = 0.0

    def next(self) -> float:
        """Seconds to wait now; the following ones are not shorter, but for jitter."""
        jitter = random.uniform(0.8, 1.0)  # nosec B311 # no secret hangs on it
        delay = min(max(self._initial, _SHARE * self._waited), self._max) * jitter
        self._waited += delay
        return delay

    def reset(self) -> None:
        """The last attempt was good for something: start over with short delays."""
        self._waited = 0.0
