cdef enum:
    MOST_PIECES = 128          # of one gathered write
    MOST_OFFERS = 1024         # frames and commands in it: small ones share a piece
    MOST_BYTES = 1 << 20       # offered at once
    FAIR_SHARE = 256 << 10     # bytes of one producer in a write, while others wait
    MOST_COMPRESSED = 256 << 10  # bytes given to compression, after which the loop has a turn
    SMALL_FRAME = 2048         # bytes up to which frames are copied together: a piece costs more than the copy
    STAGING = 64 << 10
    INBOX = 64 << 10

# What a write offers: the rest of a frame or command that has begun, a command, or a new frame.
cdef struct Offer:
    size_t size
    Batch* batch               # NULL: a command
    PyObject* registration     # borrowed; of a new frame


cdef class Channel:
    # all of it belongs to the loop
    cdef readonly Transport transport      # None once closed
    cdef Clock clock
    cdef readonly int64_t last_alive       # monotonic ns of the last complete command that was no PING
    cdef dict registrations                # by producer id
    cdef Registration last_registration    # that had a receipt
    cdef list ready                        # registrations with frames to write, in turn
    cdef list stuck                        # registrations that found a batch that cannot be framed
    # write side
    cdef object commands                   # deque of bytes, which go first at the next frame boundary
    cdef size_t command_offset             # written bytes of the first one
    cdef Batch* begun                      # frame of which a part is written: held by this write
    cdef size_t begun_offset               # how much of it
    cdef PendingQueue begun_queue          # whose frame it is
    cdef char* staging
    cdef size_t staged
    cdef iovec[MOST_PIECES] pieces
    cdef int piece_count
    cdef Offer[MOST_OFFERS] offers
    cdef int offer_count
    cdef size_t offered
    cdef size_t compressed                 # bytes given to compression for this write
    # read side
    cdef char* inbox
    cdef size_t inbox_capacity
    cdef size_t inbox_start
    cdef size_t inbox_end
    cdef public size_t max_frame           # bytes; a longer one from the peer is an error

    cdef void gather(self) except *
    cdef int gather_registration(self, Registration registration, size_t limit) except -1
    cdef int add_frame(self, Batch* batch, size_t skip) except -1
    cdef void add_piece(self, const char* data, size_t size, bint copy) noexcept
    cdef int note_taken(self, size_t taken) except -1
    cdef int fail_stuck(self) except -1
    cdef int begin(self, Offer* offer, size_t taken) except -1
    cdef size_t finish_begun(self) noexcept
    cdef int make_room(self) except -1
    cdef int parse(self) except -1
    cdef int dispatch(self, const uint8_t* command, size_t size) except -1
