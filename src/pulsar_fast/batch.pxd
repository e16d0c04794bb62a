cdef extern from "debug.h" nogil:
    int PULSAR_FAST_DEBUG
    void pf_touch(const char* memory) noexcept
    void pf_poison(void* memory, size_t size) noexcept
    void pf_unpoison(void* memory, size_t size) noexcept
    void PF_CHECK(bint condition, const char* message) noexcept


# Consecutive messages that share who is to hear of them and when they were accepted.
cdef struct Run:
    PyObject* target       # owned reference: callback, SendWaiter, SendFuture or SendHandle; NULL: nobody asked
    int64_t accepted       # monotonic ns at which send was called
    int64_t index          # of its first message within a SendHandle
    int32_t count


# Messages of one frame to be. Its fields belong to the accumulator while it is open or sealed, then to the loop.
# The bytes are held by count: at most once by the pending queue, and once by each connection that has begun to
# write them; the last one to let go gives them back (`BufferPool.free_if_unheld`).
cdef struct Batch:
    Batch* previous
    Batch* next
    char* bytes            # entries of a batch, or metadata and payload of a message alone; NULL: sent compressed
    size_t capacity
    size_t start           # where what is sent begins in `bytes`; moves when an expired prefix is cut
    size_t end
    char* header           # the frame up to the body, NULL until framed
    size_t header_size
    const char* body       # what follows the header: from `start` on, or `compressed`
    size_t body_size
    PyObject* compressed   # owned bytes, NULL: as it is
    PyObject* refusal      # owned exception: why there can be no frame
    Run* runs
    size_t run_capacity    # bytes
    int32_t run_count
    int32_t first_run      # runs before this one have been answered
    int32_t count          # messages in the body
    int32_t answered       # of these: completed before the frame was (expired)
    int64_t lowest_id
    int64_t highest_id
    int64_t position       # of the first message not answered, in the order of acceptance
    int64_t publish_time_ms
    int64_t opened         # monotonic ns of the first append
    size_t charge          # bytes to give back to the budget
    size_t key_size        # key of all its messages, where that matters: it stands first in `bytes`
    size_t alone_head      # of a message alone: bytes of Fields.head, which stand first
    size_t alone_tail      # and of Fields.tail behind them
    bint has_key
    bint alone             # one message outside of a batch
    bint begun             # written in part at least: its bytes are fixed
    bint pending_hold
    int32_t write_holds    # one for each connection that has begun it and not finished


cdef enum:
    SMALLEST_CLASS = 8     # 256 bytes
    LARGEST_CLASS = 18     # 256 KB; larger ones are not kept
    KEPT_BATCHES = 4096


@cython.final
cdef class BufferPool:
    cdef void* free_buffers[LARGEST_CLASS + 1]  # linked through their first bytes; whoever holds the GIL
    cdef size_t kept             # bytes in free_buffers
    cdef size_t keep_at_most     # bytes
    cdef void* free_batches      # likewise
    cdef int free_batch_count
    cdef readonly int64_t live_batches    # batches in use
    cdef readonly int64_t pending_holds   # buffers held by pending queues
    cdef readonly int64_t write_holds     # buffers held by begun writes
    cdef readonly size_t live_bytes       # memory handed out

    cdef char* take(self, size_t size, size_t* capacity) noexcept
    cdef void give_back(self, char* buffer, size_t capacity) noexcept
    cdef Batch* new_batch(self, size_t size) noexcept
    cdef bint grow(self, Batch* batch, size_t size) noexcept
    cdef void fit(self, Batch* batch) noexcept
    cdef bint add_run(self, Batch* batch, PyObject* target, int64_t accepted, int64_t index) noexcept
    cdef void drop_frame(self, Batch* batch) noexcept
    cdef void drop_original(self, Batch* batch) noexcept
    cdef void hold_for_pending(self, Batch* batch) noexcept
    cdef void hold_for_write(self, Batch* batch) noexcept
    cdef size_t let_go_of_pending(self, Batch* batch) noexcept
    cdef size_t let_go_of_write(self, Batch* batch) noexcept
    cdef size_t free_if_unheld(self, Batch* batch) noexcept
    cdef void discard(self, Batch* batch) noexcept


cdef struct BatchList:
    Batch* first
    Batch* last

cdef void list_append(BatchList* self, Batch* batch) noexcept nogil
cdef void list_remove(BatchList* self, Batch* batch) noexcept nogil
