# A frame that the broker may still answer.
cdef struct Slot:
    int64_t lowest_id
    int64_t highest_id
    Batch* batch          # NULL: all its messages have expired, the slot waits for the late answer


cdef size_t message_size(Batch* batch) noexcept nogil
cdef int frame_is_intact(Batch* batch) except -1


@cython.final
cdef class Registration:
    # all of it belongs to the loop
    cdef readonly PendingQueue queue
    cdef readonly Channel channel
    cdef BufferPool pool
    cdef readonly uint64_t producer_id
    cdef readonly bytes producer_name
    cdef readonly bytes schema_version
    cdef readonly size_t max_message_size
    cdef readonly bint persistent      # receipts come in order
    cdef readonly bint stopped         # nothing more is begun on it; answers still count
    cdef bint is_ready                 # on the channel's list of registrations with frames to write
    cdef object too_big                # makes a MessageTooBig from a size and the limit
    cdef object codec                  # how bodies are compressed, None: not at all
    cdef object compress               # its function
    cdef Slot* slots                   # a ring: what has begun here and has no answer
    cdef size_t slot_capacity          # a power of two
    cdef size_t slot_head
    cdef size_t slot_count
    cdef size_t forgotten              # leading slots without a batch

    cdef Slot* slot_at(self, size_t index) noexcept
    cdef int add_slot(self, Batch* batch) except -1
    cdef void remove_slot(self, size_t index) noexcept
    cdef int describe(self, Batch* batch, FrameHeader* header) except -1
    cdef bint frame(self, Batch* batch) except -1
    cdef bint compress_body(self, Batch* batch, FrameHeader* header) except -1
    cdef void refuse(self, Batch* batch, error) noexcept
    cdef int fail_refused(self) except -1
    cdef int64_t highest_in_flight(self) noexcept
    cdef size_t find_refused(self, int64_t sequence_id) noexcept
    cpdef void offer(self) noexcept
    cdef int began(self, Batch* batch) except -1
    cdef void forget(self, Batch* batch) noexcept
    cdef int on_receipt(self, const Receipt* receipt) except -1
    cdef void complete_slot(self, size_t index, const Receipt* receipt, bint nowhere) noexcept
