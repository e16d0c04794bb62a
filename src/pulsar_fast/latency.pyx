"""Latency of messages, from the first append of their batch to the receipt, within 6 %."""


cdef inline int _bucket_of(uint64_t microseconds) noexcept nogil:
    cdef int power = 0
    if microseconds < 16:
        return <int>microseconds
    while microseconds >= 32:
        microseconds >>= 1
        power += 1
    return min((power + 1) * 16 + <int>(microseconds - 16), LATENCY_BUCKETS - 1)


cdef double _bucket_ms(int bucket) noexcept nogil:
    """Upper end of a bucket, in ms."""
    if bucket < 16:
        return (bucket + 1) / 1000.0
    return (<double>((bucket % 16) + 17) * (<uint64_t>1 << (bucket // 16 - 1))) / 1000.0


@cython.final
cdef class LatencyHistogram:
    cdef void add(self, int64_t nanoseconds, int64_t messages) noexcept:
        self.counts[_bucket_of(max(nanoseconds, 0) // 1000)] += messages

    def add_all(self, LatencyHistogram other not None):
        """Count what another one has counted, too."""
        for bucket in range(LATENCY_BUCKETS):
            self.counts[bucket] += other.counts[bucket]

    def percentile(self, double fraction):
        """Latency in ms that `fraction` (0 to 1) of all messages did not exceed; 0.0 when there were none."""
        cdef int64_t total = 0, below = 0
        for bucket in range(LATENCY_BUCKETS):
            total += self.counts[bucket]
        if total == 0:
            return 0.0
        for bucket in range(LATENCY_BUCKETS):
            below += self.counts[bucket]
            if below >= fraction * total:
                return _bucket_ms(bucket)
        return _bucket_ms(LATENCY_BUCKETS - 1)
