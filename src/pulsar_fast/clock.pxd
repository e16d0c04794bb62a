cdef extern from "platform.h" nogil:
    int64_t pf_monotonic_ns() noexcept
    int64_t pf_precise_ns() noexcept
    int64_t pf_wall_ms() noexcept
    uint64_t pf_mulx(uint64_t left, uint64_t right) noexcept


@cython.final
cdef class Clock:
    cdef int64_t frozen_ns       # virtual monotonic time, -1 for the machine's; set by the loop alone
    cdef int64_t frozen_wall_ms  # virtual wall time, used while frozen_ns is set

    cdef int64_t now(self) noexcept nogil
    cdef int64_t precise(self) noexcept nogil
    cdef int64_t wall(self) noexcept nogil
