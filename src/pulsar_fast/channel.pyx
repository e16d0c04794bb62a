"""One connection's bytes: gathers frames and commands into writes, and cuts what comes in into commands."""

import collections


cdef inline uint32_t read_u32(const char* at) noexcept nogil:
    cdef const uint8_t* byte = <const uint8_t*>at
    return <uint32_t>byte[0] << 24 | <uint32_t>byte[1] << 16 | <uint32_t>byte[2] << 8 | <uint32_t>byte[3]


cdef class Channel:
    """The wire side of a connection, without a loop, a clock or a socket of its own.

    A subclass implements `on_command(bytes)`, which gets every command but send receipts. Frames are pulled from
    the pending queues at the moment of writing, so that what has not begun stays where it is when a connection
    ends. Only the loop's thread uses it.
    """

    def __cinit__(self, Transport transport, Clock clock not None, *args, **kwargs):
        self.transport = transport
        self.clock = clock
        self.last_alive = clock.now()
        self.registrations = {}
        self.ready = []
        self.stuck = []
        self.commands = collections.deque()
        self.max_frame = (5 << 20) + (10 << 10)
        self.staging = <char*>malloc(STAGING)
        self.inbox = <char*>malloc(INBOX)
        self.inbox_capacity = INBOX
        if self.staging is NULL or self.inbox is NULL:
            raise MemoryError()

    def __dealloc__(self):
        PF_CHECK(self.begun is NULL, "a channel is dropped with a frame half written")
        free(self.staging)
        free(self.inbox)

    def add_registration(self, Registration registration not None):
        self.registrations[registration.producer_id] = registration

    def remove_registration(self, Registration registration not None):
        if self.registrations.get(registration.producer_id) is registration:
            del self.registrations[registration.producer_id]
        if self.last_registration is registration:
            self.last_registration = None

    def send_command(self, bytes frame not None):
        """Queue a command in front of all frames that have not begun (call `write` next)."""
        if self.transport is not None:
            self.commands.append(frame)

    # --- writing

    def write(self):
        """Write as much as the transport takes; True when all is written.

        False when it would block, or when compression has held the loop for long enough: call it again once there is
        room.
        """
        cdef Py_ssize_t taken
        cdef bint pauses
        while self.transport is not None:
            self.gather()
            if self.offered == 0 and not self.stuck:
                return True
            taken = self.transport.offer(self.pieces, self.piece_count) if self.offered else 0
            pauses = taken < <Py_ssize_t>self.offered or self.compressed >= MOST_COMPRESSED
            if taken > 0:
                self.note_taken(taken)
            if self.stuck:
                self.fail_stuck()
            if pauses:
                return False
        return True

    cdef void gather(self) except *:
        """Lay out what to offer: the rest of what has begun, commands, then frames of each producer in turn."""
        cdef size_t skip = self.command_offset
        cdef Registration registration
        self.piece_count = self.offer_count = 0
        self.offered = self.staged = self.compressed = 0
        if self.begun is not NULL:
            self.add_frame(self.begun, self.begun_offset)
        for command in self.commands:
            if self.piece_count >= MOST_PIECES - 2 or self.offered > MOST_BYTES:
                return
            self.add_piece(PyBytes_AS_STRING(command) + skip, PyBytes_GET_SIZE(command) - skip, False)
            self.offers[self.offer_count].size = PyBytes_GET_SIZE(command) - skip
            self.offers[self.offer_count].batch = NULL
            self.offers[self.offer_count].registration = NULL
            self.offer_count += 1
            skip = 0
        for _ in range(len(self.ready)):
            registration = <Registration>self.ready.pop(0)
            registration.is_ready = False
            if registration.stopped:
                continue
            self.gather_registration(registration, FAIR_SHARE if self.ready else MOST_BYTES)
            registration.offer()
            if (
                self.offered >= MOST_BYTES or self.piece_count >= MOST_PIECES - 2
                or self.compressed >= MOST_COMPRESSED
            ):
                return

    cdef int gather_registration(self, Registration registration, size_t limit) except -1:
        cdef Batch* batch = registration.queue.unsent
        cdef size_t until = min(self.offered + limit, <size_t>MOST_BYTES)
        while (
            batch is not NULL and self.offered < until
            and self.piece_count < MOST_PIECES - 2 and self.offer_count < MOST_OFFERS
            and self.compressed < MOST_COMPRESSED
        ):
            if not registration.frame(batch):
                self.stuck.append(registration)
                break
            self.add_frame(batch, 0)
            self.offers[self.offer_count - 1].registration = <PyObject*>registration
            batch = batch.next
        return 0

    cdef int add_frame(self, Batch* batch, size_t skip) except -1:
        """Offer a frame but for its first `skip` bytes."""
        cdef size_t size = batch.header_size + batch.body_size
        cdef bint copy = size <= SMALL_FRAME and self.staged + size <= STAGING
        if PULSAR_FAST_DEBUG and batch.begun:
            pf_touch(batch.body)  # since no sanitizer looks into the checksum's library
            PF_CHECK(frame_is_intact(batch), "a frame that has begun is not what it was")
        self.offers[self.offer_count].size = size - skip
        self.offers[self.offer_count].batch = batch
        self.offers[self.offer_count].registration = NULL
        self.offer_count += 1
        if skip < batch.header_size:
            self.add_piece(batch.header + skip, batch.header_size - skip, copy)
            skip = batch.header_size
        skip -= batch.header_size
        self.add_piece(batch.body + skip, batch.body_size - skip, copy)
        return 0

    cdef void add_piece(self, const char* data, size_t size, bint copy) noexcept:
        cdef iovec* last
        if size == 0:
            return
        self.offered += size
        if copy:
            memcpy(self.staging + self.staged, data, size)
            data = self.staging + self.staged
            self.staged += size
            if self.piece_count:
                last = self.pieces + self.piece_count - 1
                if <char*>last.iov_base + last.iov_len == data:
                    last.iov_len += size
                    return
        self.pieces[self.piece_count].iov_base = <void*>data
        self.pieces[self.piece_count].iov_len = size
        self.piece_count += 1

    cdef int note_taken(self, size_t taken) except -1:
        """What the transport took has begun; what it took whole is free of the write."""
        cdef Offer* offer = self.offers
        cdef Offer* end = self.offers + self.offer_count
        cdef PendingQueue finished = None
        cdef size_t freed = 0
        while offer < end and taken:
            if offer.batch is not NULL and offer.batch is self.begun and taken >= offer.size:
                finished = self.begun_queue
                freed = self.finish_begun()
            else:
                self.begin(offer, min(taken, offer.size))
            taken -= min(taken, offer.size)
            offer += 1
        if freed:
            finished.release(freed, 0)  # last, since senders that go on may do anything
        return 0

    cdef int fail_stuck(self) except -1:
        """Nothing is laid out any more, so that those who hear of it may do anything."""
        while self.stuck:
            (<Registration>self.stuck.pop()).fail_refused()
        return 0

    cdef int begin(self, Offer* offer, size_t taken) except -1:
        if offer.batch is NULL:
            self.command_offset += taken
            if taken == offer.size:
                self.commands.popleft()
                self.command_offset = 0
        elif offer.batch is self.begun:
            self.begun_offset += taken
        else:
            (<Registration>offer.registration).began(offer.batch)
            if taken < offer.size:
                self.begun = offer.batch
                self.begun_offset = taken
                self.begun_queue = (<Registration>offer.registration).queue
                self.begun_queue.pool.hold_for_write(self.begun)
        return 0

    cdef size_t finish_begun(self) noexcept:
        """The write lets go of the frame that it had begun; returns the bytes that are free by that."""
        cdef BufferPool pool = self.begun_queue.pool
        cdef Batch* batch = self.begun
        self.begun = NULL
        self.begun_queue = None
        return pool.let_go_of_write(batch)

    def close(self):
        """Abandon what has begun and close the transport. Registrations end by their owners."""
        cdef PendingQueue queue = self.begun_queue
        cdef size_t freed = 0
        if self.transport is None:
            return
        transport, self.transport = self.transport, None
        if self.begun is not NULL:
            freed = self.finish_begun()
        self.commands.clear()
        self.ready.clear()
        transport.close()
        if freed:
            queue.release(freed, 0)

    # --- reading

    def read(self):
        """Take in what the transport has; False at the end of the stream.

        Raises `FrameError` when the peer breaks the protocol, `OSError` when the connection is lost.
        """
        cdef Py_ssize_t received
        cdef size_t room
        while self.transport is not None:
            self.make_room()
            room = self.inbox_capacity - self.inbox_end
            received = self.transport.receive(self.inbox + self.inbox_end, room)
            if received < 0:
                return True
            if received == 0:
                return False
            self.inbox_end += received
            self.parse()
            if <size_t>received < room:
                return True
        return True

    cdef int make_room(self) except -1:
        """Room for the frame that is coming in, growing only as its bytes do arrive."""
        cdef size_t held = self.inbox_end - self.inbox_start
        cdef char* other
        cdef size_t capacity = self.inbox_capacity
        if held == capacity:
            capacity = max(capacity, min(2 * capacity, self.max_frame + 4))
        elif held == 0 and capacity > INBOX:
            capacity = INBOX
        if capacity != self.inbox_capacity:
            other = <char*>malloc(capacity)
            if other is NULL:
                raise MemoryError()
            memcpy(other, self.inbox + self.inbox_start, held)
            free(self.inbox)
            self.inbox = other
            self.inbox_capacity = capacity
        elif self.inbox_start:
            memmove(self.inbox, self.inbox + self.inbox_start, held)
        self.inbox_start = 0
        self.inbox_end = held
        return 0

    cdef int parse(self) except -1:
        cdef const char* at
        cdef size_t total, command
        while self.transport is not None and self.inbox_end - self.inbox_start >= 8:
            at = self.inbox + self.inbox_start
            total = read_u32(at)
            command = read_u32(at + 4)
            if total > self.max_frame or total < 4 or command > total - 4:
                raise FrameError(
                    f"a frame of {total} bytes with a command of {command} "
                    f"(at most {self.max_frame}; first bytes {at[:8]!r})"
                )
            if self.inbox_end - self.inbox_start < 4 + total:
                return 0
            # Dispatch may close the channel, but never touches the inbox.
            self.inbox_start += 4 + total
            self.dispatch(<const uint8_t*>at + 8, command)
        return 0

    cdef int dispatch(self, const uint8_t* command, size_t size) except -1:
        cdef Receipt receipt
        cdef uint64_t type = 0
        cdef Registration registration
        if read_command(command, size, &type, &receipt) < 0:
            raise FrameError("a command that is no valid protobuf message")
        if type != COMMAND_PING:
            self.last_alive = self.clock.now()
        if type != COMMAND_SEND_RECEIPT:
            self.on_command((<const char*>command)[:size])
            return 0
        registration = self.last_registration
        if registration is None or registration.producer_id != receipt.producer_id:
            registration = self.registrations.get(receipt.producer_id)
            if registration is None:
                return 0
            self.last_registration = registration
        return registration.on_receipt(&receipt)

    def on_command(self, bytes command):
        """One command that is no send receipt, as its protobuf bytes."""
        raise NotImplementedError
