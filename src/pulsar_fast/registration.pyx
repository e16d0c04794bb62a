"""The producer as one connection knows it: frames its batches, and matches answers to what it has begun."""

from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef enum:
    FIRST_SLOTS = 64


cdef size_t _covered_at(Batch* batch) noexcept nogil:
    """Where in a header its checksum begins to cover: at the size of the metadata."""
    return 8 + read_u32(batch.header + 4) + 2 + 4


cdef size_t message_size(Batch* batch) noexcept nogil:
    """Metadata and payload of a frame, which the broker's limit is about."""
    return batch.header_size - _covered_at(batch) - 4 + batch.body_size


cdef int frame_is_intact(Batch* batch) except -1:
    """Whether the bytes of a frame still agree with its checksum."""
    cdef char* covered = batch.header + _covered_at(batch)
    cdef uint32_t crc = crc32c(0, covered, batch.header + batch.header_size - covered)
    crc = crc32c(crc, batch.body, batch.body_size)
    return crc == read_u32(covered - 4)


class FrameError(ValueError):
    """The peer broke the protocol; the connection cannot go on."""


@cython.final
cdef class Registration:
    """One successful `Producer` command. Only the loop's thread uses it.

    `too_big(size, limit)` makes the error for a message that exceeds what this broker takes. `codec` compresses
    bodies: its `type`, `compress(memoryview)` and `failure(error)`, which makes a PulsarException of what that raised.
    """

    def __cinit__(
        self, PendingQueue queue not None, Channel channel not None, uint64_t producer_id, bytes producer_name not None,
        bytes schema_version not None, size_t max_message_size, bint persistent, too_big, codec=None,
    ):
        self.queue = queue
        self.channel = channel
        self.pool = queue.pool
        self.producer_id = producer_id
        self.producer_name = producer_name
        self.schema_version = schema_version
        self.max_message_size = max_message_size
        self.persistent = persistent
        self.too_big = too_big
        self.codec = codec
        self.compress = None if codec is None else codec.compress
        self.slots = <Slot*>malloc(FIRST_SLOTS * sizeof(Slot))
        if self.slots is NULL:
            raise MemoryError()
        self.slot_capacity = FIRST_SLOTS

    def __dealloc__(self):
        free(self.slots)

    # --- slots in flight

    cdef inline Slot* slot_at(self, size_t index) noexcept:
        return self.slots + ((self.slot_head + index) & (self.slot_capacity - 1))

    cdef int add_slot(self, Batch* batch) except -1:
        cdef Slot* larger
        cdef Slot* slot
        if self.slot_count == self.slot_capacity:
            larger = <Slot*>malloc(2 * self.slot_capacity * sizeof(Slot))
            if larger is NULL:
                raise MemoryError()
            for index in range(self.slot_count):
                larger[index] = self.slot_at(index)[0]
            free(self.slots)
            self.slots = larger
            self.slot_capacity *= 2
            self.slot_head = 0
        slot = self.slot_at(self.slot_count)
        slot.lowest_id = batch.lowest_id
        slot.highest_id = batch.highest_id
        slot.batch = batch
        self.slot_count += 1
        return 0

    cdef void remove_slot(self, size_t index) noexcept:
        if index < self.forgotten:
            self.forgotten -= 1
        while index:  # close the gap from the front: it is nearly always the first slot
            self.slot_at(index)[0] = self.slot_at(index - 1)[0]
            index -= 1
        self.slot_head = (self.slot_head + 1) & (self.slot_capacity - 1)
        self.slot_count -= 1

    def slots_in_flight(self):
        """How many frames the broker may still answer."""
        return self.slot_count

    # --- framing

    cdef int describe(self, Batch* batch, FrameHeader* header) except -1:
        cdef SingleMetadata first
        memset(header, 0, sizeof(FrameHeader))
        header.producer_id = self.producer_id
        header.sequence_id = batch.lowest_id
        header.highest_sequence_id = batch.highest_id
        header.publish_time_ms = batch.publish_time_ms
        header.producer_name = PyBytes_AS_STRING(self.producer_name)
        header.producer_name_size = PyBytes_GET_SIZE(self.producer_name)
        header.schema_version = PyBytes_AS_STRING(self.schema_version)
        header.schema_version_size = PyBytes_GET_SIZE(self.schema_version)
        if batch.alone:
            header.head = batch.bytes
            header.head_size = batch.alone_head
            header.tail = batch.bytes + batch.alone_head
            header.tail_size = batch.alone_tail
            header.event_time_size = event_time_size(header.tail, header.tail_size)
        else:
            if read_single(batch.bytes + batch.start, batch.end - batch.start, &first) < 0:
                raise RuntimeError("an entry of a batch cannot be read back")
            header.messages = batch.count
            header.partition_key = first.partition_key
            header.partition_key_size = first.partition_key_size
            header.partition_key_is_base64 = first.partition_key_is_base64
            header.ordering_key = first.ordering_key
            header.ordering_key_size = first.ordering_key_size
        return 0

    cdef bint frame(self, Batch* batch) except -1:
        """Write the frame around the body, once; False when there can be none, and `refusal` says why."""
        cdef FrameHeader header
        cdef size_t capacity = 0, metadata
        cdef char* after
        if batch.header is not NULL:
            return True
        if batch.refusal is not NULL:
            return False
        self.describe(batch, &header)
        batch.body = batch.bytes + batch.start
        batch.body_size = batch.end - batch.start
        if self.compress is not None and not self.compress_body(batch, &header):
            return False
        metadata = frame_metadata_size(&header)
        if metadata + batch.body_size > self.max_message_size:
            self.refuse(batch, self.too_big(metadata + batch.body_size, self.max_message_size))
            return False
        header.payload_size = batch.body_size
        batch.header_size = frame_header_size(&header)
        batch.header = self.pool.take(batch.header_size, &capacity)
        if batch.header is NULL:
            self.pool.drop_frame(batch)
            raise MemoryError()
        after = put_frame_header(batch.header, &header)
        if after != batch.header + batch.header_size:
            raise RuntimeError("a frame header is not as long as computed")
        seal_frame_header(batch.header, batch.header_size, metadata, batch.body, batch.body_size)
        return True

    cdef bint compress_body(self, Batch* batch, FrameHeader* header) except -1:
        """Put the body into fewer bytes, if that makes the frame smaller; False when it failed."""
        cdef size_t size = batch.body_size
        cdef bytes compressed
        view = PyMemoryView_FromMemory(<char*>batch.body, size, PyBUF_READ)
        self.channel.compressed += size
        try:
            try:
                compressed = bytes(self.compress(view))
            finally:
                view.release()  # a traceback may keep it
        except Exception as error:
            self.refuse(batch, self.codec.failure(error))
            return False
        header.compression = self.codec.type
        header.uncompressed_size = <uint32_t>size
        if PyBytes_GET_SIZE(compressed) + compression_size(header) >= size:
            header.compression = 0
            return True
        Py_INCREF(compressed)
        batch.compressed = <PyObject*>compressed
        batch.body = PyBytes_AS_STRING(compressed)
        batch.body_size = PyBytes_GET_SIZE(compressed)
        return True

    cdef void refuse(self, Batch* batch, error) noexcept:
        """There can be no frame: the batch fails in its turn, once what stands before it has begun."""
        self.pool.drop_frame(batch)
        Py_INCREF(error)
        batch.refusal = <PyObject*>error

    cdef int fail_refused(self) except -1:
        """Answer what has its turn and was refused. Whoever hears of it may do anything."""
        cdef Batch* batch = self.queue.unsent
        while not self.stopped and batch is not NULL and batch.refusal is not NULL:
            error = <object>batch.refusal
            self.queue.remove(batch)
            self.queue.fail(batch, error)
            batch = self.queue.unsent
        self.offer()
        return 0

    cdef int began(self, Batch* batch) except -1:
        """The first byte of a frame has been written: its bytes are fixed, and the broker may answer it."""
        if self.queue.unsent is not batch or self.stopped:
            raise RuntimeError("a frame begins out of its turn")
        self.add_slot(batch)
        batch.begun = True
        if batch.compressed is not NULL and batch.bytes is not NULL:
            self.pool.drop_original(batch)
        self.queue.unsent = batch.next
        return 0

    cdef void forget(self, Batch* batch) noexcept:
        """All messages of a frame have expired; its slot stays for the late answer."""
        # Deadlines rise along the slots, so the frame is nearly always the first that is not forgotten.
        cdef size_t index = self.forgotten
        while index < self.slot_count and self.slot_at(index).batch is not batch:
            index += 1
        if index < self.slot_count:
            self.slot_at(index).batch = NULL
            if index == self.forgotten:
                self.forgotten += 1

    cpdef void offer(self) noexcept:
        """There may be something to write: take part in the next writes of the channel."""
        if self.queue.unsent is not NULL and not self.stopped and not self.is_ready:
            self.is_ready = True
            self.channel.ready.append(self)

    def stop(self):
        """Begin nothing more; answers to what has begun still count."""
        self.stopped = True

    def end(self):
        """The registration is over: its channel knows it no longer."""
        self.stopped = True
        self.slot_count = self.forgotten = 0
        self.channel.remove_registration(self)

    # --- answers

    cdef int on_receipt(self, const Receipt* receipt) except -1:
        """Complete the slot with that id. Raises `FrameError` when something before it was lost."""
        cdef int64_t sequence_id = <int64_t>receipt.sequence_id
        cdef bint nowhere = not receipt.has_position or (
            receipt.ledger_id == <uint64_t>-1 and receipt.entry_id == <uint64_t>-1
        )
        cdef size_t index
        for index in range(self.slot_count):
            if self.slot_at(index).lowest_id == sequence_id:
                break
        else:
            if self.persistent and self.slot_count and receipt.sequence_id > <uint64_t>self.highest_in_flight():
                raise FrameError(
                    f"a receipt for sequence id {receipt.sequence_id}, which is above all that were sent"
                )
            self.queue.late += 1
            return 0
        if index and self.persistent and not nowhere:
            raise FrameError(
                f"a receipt for sequence id {sequence_id} while {self.slot_at(0).lowest_id} waits: frames were lost"
            )
        self.complete_slot(index, receipt, nowhere)
        return 0

    cdef int64_t highest_in_flight(self) noexcept:
        cdef int64_t highest = -1
        for index in range(self.slot_count):
            highest = max(highest, self.slot_at(index).highest_id)
        return highest

    cdef void complete_slot(self, size_t index, const Receipt* receipt, bint nowhere) noexcept:
        cdef Batch* batch = self.slot_at(index).batch
        cdef Answer answer
        self.remove_slot(index)
        if batch is NULL:
            self.queue.late += 1
            return
        if nowhere and self.persistent:
            self.queue.duplicates += batch.count - batch.answered
        elif nowhere:
            self.queue.dropped += batch.count - batch.answered
        answer.result = <PyObject*>self.queue.result_ok
        answer.error = NULL
        answer.ledger_id = -1 if nowhere else <int64_t>receipt.ledger_id
        answer.entry_id = -1 if nowhere else <int64_t>receipt.entry_id
        answer.partition = -1 if nowhere else self.queue.partition
        self.queue.remove(batch)
        self.queue.finish(batch, &answer)

    def has_slot(self, int64_t sequence_id):
        """Whether a frame with that highest sequence id waits for its answer (what a `SendError` names)."""
        return self.find_refused(sequence_id) < self.slot_count

    cdef size_t find_refused(self, int64_t sequence_id) noexcept:
        # The last one with that id: what the broker refuses of two is the repetition.
        cdef size_t index = self.slot_count
        while index:
            index -= 1
            if self.slot_at(index).highest_id == sequence_id:
                return index
        return self.slot_count

    def fail_slot(self, int64_t sequence_id, error not None):
        """The broker refused the frame with that highest sequence id: fail its messages, and only them."""
        cdef size_t index = self.find_refused(sequence_id)
        cdef Batch* batch
        if index == self.slot_count:
            self.queue.late += 1
            return
        batch = self.slot_at(index).batch
        self.remove_slot(index)
        if batch is NULL:
            self.queue.late += 1
        else:
            self.queue.remove(batch)
            self.queue.fail(batch, error)

    def release_slot(self, int64_t sequence_id):
        """The broker refused the frame with that highest sequence id, which stays pending for a resend."""
        cdef size_t index = self.find_refused(sequence_id)
        if index < self.slot_count:
            self.remove_slot(index)

    def is_intact(self, int64_t sequence_id):
        """Whether the bytes of the frame with that highest sequence id still agree with their checksum."""
        cdef size_t index = self.find_refused(sequence_id)
        if index == self.slot_count or self.slot_at(index).batch is NULL:
            return True
        return bool(frame_is_intact(self.slot_at(index).batch))
