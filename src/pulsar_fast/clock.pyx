"""Time: monotonic for every deadline, wall time for what goes on the wire."""


@cython.final
cdef class Clock:
    """The machine's clocks, or a virtual one once `freeze` was called.

    `now_ns()` is monotonic and coarse (within 4 ms on Linux): it is read once for each message.
    """

    def __cinit__(self):
        self.frozen_ns = -1
        self.frozen_wall_ms = 0

    cdef inline int64_t now(self) noexcept nogil:
        return pf_monotonic_ns() if self.frozen_ns < 0 else self.frozen_ns

    cdef inline int64_t precise(self) noexcept nogil:
        return pf_precise_ns() if self.frozen_ns < 0 else self.frozen_ns

    cdef inline int64_t wall(self) noexcept nogil:
        return pf_wall_ms() if self.frozen_ns < 0 else self.frozen_wall_ms

    def now_ns(self):
        """Monotonic nanoseconds, comparable with every deadline of this client."""
        return self.now()

    def freeze(self, int64_t monotonic_ns, int64_t wall_ms):
        """Stand still at the given times until the next call (for simulation)."""
        if monotonic_ns < 0:
            raise ValueError("monotonic_ns must not be negative")
        self.frozen_ns = monotonic_ns
        self.frozen_wall_ms = wall_ms
