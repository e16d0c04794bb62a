cdef enum:
    LATENCY_BUCKETS = 512    # 16 for each power of two of microseconds, up to 2**32 µs


@cython.final
cdef class LatencyHistogram:
    cdef int64_t[LATENCY_BUCKETS] counts   # messages by bucket; the loop's

    cdef void add(self, int64_t nanoseconds, int64_t messages) noexcept
