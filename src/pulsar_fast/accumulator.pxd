# What became of an attempt to accept a message.
cpdef enum Verdict:
    ACCEPTED = 0
    ENDED = 1              # the producer is closed or failed
    QUEUE_FULL = 2         # no permit for one more message
    MEMORY_FULL = 3        # no room for its bytes
    TOO_BIG = 4            # larger than the broker takes
    MUST_GO_ALONE = 5      # encode it again, to travel outside of a batch
    OUT_OF_MEMORY = 6
    IDS_EXHAUSTED = 7      # the highest sequence id has been given
    ELEMENT_REFUSED = 8    # an element of `send_many` whose error is noted already


@cython.final
cdef class Budget:
    """Bytes of all messages of a client that are not free yet."""
    cdef readonly size_t limit   # bytes, 0: no limit; fixed
    cdef readonly size_t used    # bytes; whoever holds the GIL
    cdef list waiting            # accumulators whose senders wait for bytes, in order of arrival

    cdef bint has_room(self, size_t size) noexcept
    cdef void give_back(self, size_t size) noexcept


@cython.final
cdef class Waker:
    """Wakes the loop, at most once while a wake-up is under way."""
    cdef int fd                  # eventfd or pipe; -1: use `call`
    cdef object call             # instead of an fd, where the loop cannot watch one
    cdef list dirty              # accumulators with news for the loop; appended by any thread, emptied by the loop
    cdef bint under_way

    cdef void notify(self, Accumulator accumulator) noexcept


@cython.final
cdef class RoomWaiter:
    """One sender that waits for room; granted in order of arrival."""
    cdef readonly size_t size    # bytes reserved when granted
    cdef readonly bint marks     # reserves nothing, but takes its turn
    cdef bint dated              # the message's deadline counts from the call, not from its acceptance
    cdef int64_t called          # monotonic ns of `wait_for_room`
    cdef readonly bint granted   # the accumulator has reserved one message and `size` bytes for it
    cdef object wake             # called without arguments once granted or ended, by whichever thread made room

    cdef void wake_up(self) noexcept


@cython.final
cdef class Accumulator:
    # Settings, fixed at creation.
    cdef BufferPool pool
    cdef Budget budget
    cdef Waker waker
    cdef Clock clock
    cdef readonly object owner       # the loop's side of the producer, handed out by the waker
    cdef int64_t max_pending         # messages, 0: no limit
    cdef int32_t max_messages        # in a batch
    cdef size_t max_bytes            # in a batch
    cdef bint batching
    cdef bint by_key                 # messages with different keys never share a batch
    cdef bint compresses             # so that what is sent may be smaller than what is accepted
    cdef readonly unsigned long forks     # forks seen by this process when it was created
    # Limits of the broker, set by the loop at each handoff.
    cdef readonly size_t max_message_size     # payload and metadata
    cdef size_t name_field_size      # what the producer's name takes in the metadata of a frame
    cdef size_t alone_limit          # payload and metadata of a message alone, as it is accepted
    cdef size_t batch_limit          # bytes of a batch's body
    # Under the lock: any application thread, one at a time.
    cdef Batch* open_batch
    cdef BatchList sealed
    cdef size_t expected_size        # of the next batch, from the last one
    cdef readonly int64_t last_sequence_id    # last one issued, -1 for none yet
    cdef readonly int64_t position            # messages accepted so far
    cdef readonly int64_t pending_messages    # permits taken
    cdef bint dirty                  # on the waker's list
    cdef public bint timer_armed     # the loop looks at the open batch by itself; set by the loop
    cdef list waiters                # RoomWaiters, in order of arrival
    cdef bint granting               # a thread is in `grant`; it looks again before it leaves
    cdef int64_t turn                # how often whoever goes round the partitions has had reason to go on
    cdef int64_t last_accepted       # monotonic ns; times of acceptance never go back, so deadlines rise
    cdef readonly object refusal     # why nothing more is accepted: an exception, None while open

    cdef Verdict append(
        self, const char* payload, size_t size, const Fields* fields, PyObject* target, int64_t index,
        RoomWaiter reserved
    ) noexcept
    cdef Verdict check_room(self, size_t size) noexcept
    cdef size_t entry_size(self, const Fields* fields, size_t size, int64_t sequence_id) noexcept
    cdef Verdict admit(self, size_t size, RoomWaiter reserved) noexcept
    cdef void put_entry(
        self, Batch* batch, const char* payload, size_t size, const Fields* fields, int64_t sequence_id
    ) noexcept
    cdef Verdict append_to_batch(
        self, const char* payload, size_t size, const Fields* fields, PyObject* target, int64_t index,
        RoomWaiter reserved
    ) noexcept
    cdef Verdict append_alone(
        self, const char* payload, size_t size, const Fields* fields, PyObject* target, int64_t index,
        RoomWaiter reserved
    ) noexcept
    cdef bint fits_open_batch(self, const Fields* fields, size_t size) noexcept
    cdef bint has_space(self, Batch* batch, size_t entry) noexcept
    cdef bint has_run(self, Batch* batch, PyObject* target, int64_t accepted, int64_t index) noexcept
    cdef void drop_if_empty(self) noexcept
    cdef bint start_batch(self, const Fields* fields, size_t size) noexcept
    cdef void count_message(
        self, Batch* batch, int64_t sequence_id, size_t size, RoomWaiter reserved
    ) noexcept
    cdef void seal_open(self) noexcept
    cdef void tell_loop(self) noexcept
    cdef int64_t next_sequence_id(self, const Fields* fields) noexcept
    cdef int64_t time_of_acceptance(self, RoomWaiter reserved) noexcept
    cdef void grant(self) noexcept
    cdef bint grant_next(self) noexcept
