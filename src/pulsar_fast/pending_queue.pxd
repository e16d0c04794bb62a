@cython.final
cdef class PendingQueue:
    # all of it belongs to the loop
    cdef readonly Accumulator accumulator
    cdef BufferPool pool
    cdef Budget budget
    cdef BatchList batches         # not answered yet, in order of acceptance
    cdef Batch* unsent             # first one that the live registration has not begun; NULL: all begun
    cdef Registration registration  # the live one, or None
    cdef object result_ok          # Result.Ok
    cdef object observer           # hears of failures that nobody asked for: observer(count, error)
    cdef int32_t partition         # of the topic, for message ids
    cdef int64_t timeout_ns        # from acceptance, 0: none
    cdef list marks                # (position, future) of flushes under way
    cdef readonly LatencyHistogram latency
    cdef public int64_t last_sequence_id     # highest acknowledged one, or known to the broker at creation
    # counters, in messages but for `resent` (frames)
    cdef readonly int64_t acknowledged
    cdef readonly int64_t acknowledged_bytes
    cdef readonly int64_t failed
    cdef readonly int64_t expired
    cdef readonly int64_t duplicates
    cdef readonly int64_t dropped
    cdef readonly int64_t resent
    cdef public int64_t late                 # receipts that found no frame

    cdef void remove(self, Batch* batch) noexcept
    cdef void finish(self, Batch* batch, const Answer* answer) noexcept
    cdef void after_callbacks(self, int64_t started, int unheard, int64_t position, const Answer* answer) noexcept
    cdef void fail(self, Batch* batch, error) noexcept
    cdef void set_failure(self, Answer* answer, error) noexcept
    cdef void expire_prefix(self, Batch* batch, int32_t runs, int64_t messages, error) noexcept
    cdef void release(self, size_t size, int64_t messages) noexcept
    cdef int64_t low_position(self) noexcept
    cdef int check_marks(self, int64_t failed_from, error) except -1
