"""The three messages of the hot path, written and read by hand: CommandSend, message metadata, CommandSendReceipt.

Field numbers are those of Pulsar's binary protocol (`pulsar_fast.wire`); the tests prove the output equal to
protobuf's. Sizes are computed first and written after, so that one allocation serves.
"""

cdef enum:
    VARINT = 0
    FIXED64 = 1
    LENGTH_DELIMITED = 2
    FIXED32 = 5

cdef enum:
    MAGIC_CRC32C = 0x0E01
    COMMAND_SEND = 6
    COMMAND_SEND_RECEIPT = 7
    COMMAND_PING = 18


# --- writing

cdef char* put_varint(char* at, uint64_t value) noexcept nogil:
    while value >= 0x80:
        at[0] = <char>(value | 0x80)
        value >>= 7
        at += 1
    at[0] = <char>value
    return at + 1


cdef inline char* put_u16(char* at, uint32_t value) noexcept nogil:
    at[0] = <char>(value >> 8)
    at[1] = <char>value
    return at + 2


cdef inline char* put_u32(char* at, uint32_t value) noexcept nogil:
    return put_u16(put_u16(at, value >> 16), value)


cdef inline char* put_copy(char* at, const char* data, size_t size) noexcept nogil:
    if size:
        memcpy(at, data, size)
    return at + size


cdef inline uint32_t tag_of(uint32_t number, uint32_t kind) noexcept nogil:
    return number << 3 | kind


cdef inline size_t varint_field_size(uint32_t number, uint64_t value) noexcept nogil:
    return varint_size(tag_of(number, VARINT)) + varint_size(value)


cdef inline size_t bytes_field_size(uint32_t number, size_t size) noexcept nogil:
    return varint_size(tag_of(number, LENGTH_DELIMITED)) + varint_size(size) + size


cdef inline char* put_varint_field(char* at, uint32_t number, uint64_t value) noexcept nogil:
    return put_varint(put_varint(at, tag_of(number, VARINT)), value)


cdef inline char* put_bytes_field(char* at, uint32_t number, const char* data, size_t size) noexcept nogil:
    return put_copy(put_varint(put_varint(at, tag_of(number, LENGTH_DELIMITED)), size), data, size)


# --- scratch memory

cdef void scratch_open(Scratch* self) noexcept nogil:
    self.bytes = self.inline_bytes
    self.size = 0
    self.capacity = sizeof(self.inline_bytes)


cdef void scratch_close(Scratch* self) noexcept nogil:
    if self.bytes != self.inline_bytes:
        free(self.bytes)


cdef char* scratch_reserve(Scratch* self, size_t size) except NULL:
    """Room for `size` more bytes, counted as used."""
    cdef size_t needed = self.size + size
    cdef size_t capacity
    cdef char* grown
    if needed > self.capacity:
        capacity = max(needed, 2 * self.capacity)
        grown = <char*>malloc(capacity)
        if grown is NULL:
            raise MemoryError()
        memcpy(grown, self.bytes, self.size)
        scratch_close(self)
        self.bytes = grown
        self.capacity = capacity
    self.size = needed
    return self.bytes + needed - size


cdef int scratch_bytes_field(Scratch* self, uint32_t number, const char* data, size_t size) except -1:
    put_bytes_field(scratch_reserve(self, bytes_field_size(number, size)), number, data, size)
    return 0


cdef int scratch_varint_field(Scratch* self, uint32_t number, uint64_t value) except -1:
    put_varint_field(scratch_reserve(self, varint_field_size(number, value)), number, value)
    return 0


cdef int scratch_pair_field(
    Scratch* self, uint32_t number, const char* key, size_t key_size, const char* value, size_t value_size
) except -1:
    """A `KeyValue` message: key 1, value 2."""
    cdef size_t body = bytes_field_size(1, key_size) + bytes_field_size(2, value_size)
    cdef char* at = scratch_reserve(self, bytes_field_size(number, body))
    at = put_varint(put_varint(at, tag_of(number, LENGTH_DELIMITED)), body)
    put_bytes_field(put_bytes_field(at, 1, key, key_size), 2, value, value_size)
    return 0


# --- an entry of a batch: [u32 size][SingleMessageMetadata][payload]

cdef size_t single_metadata_size(const Fields* fields, size_t payload, uint64_t sequence_id) noexcept nogil:
    return (
        fields.head_size
        + 1 + varint_size(payload)
        + fields.tail_size
        + 1 + varint_size(sequence_id)
        + (2 if fields.null_value else 0)
    )


cdef char* put_single_metadata(
    char* at, const Fields* fields, size_t payload, uint64_t sequence_id
) noexcept nogil:
    at = put_copy(at, fields.head, fields.head_size)
    at = put_varint_field(at, 3, payload)
    at = put_copy(at, fields.tail, fields.tail_size)
    at = put_varint_field(at, 8, sequence_id)
    if fields.null_value:
        at = put_varint_field(at, 9, 1)
    return at


# --- a frame: [u32 total][u32 command size][BaseCommand][0x0e01][u32 crc][u32 metadata size][metadata][payload]

cdef size_t _send_size(const FrameHeader* header) noexcept nogil:
    cdef size_t size = varint_field_size(1, header.producer_id) + varint_field_size(2, header.sequence_id)
    if header.messages:
        size += varint_field_size(3, header.messages) + varint_field_size(6, header.highest_sequence_id)
    return size


cdef char* _put_send(char* at, const FrameHeader* header) noexcept nogil:
    at = put_varint_field(at, 1, header.producer_id)
    at = put_varint_field(at, 2, header.sequence_id)
    if header.messages:
        at = put_varint_field(at, 3, header.messages)
        at = put_varint_field(at, 6, header.highest_sequence_id)
    return at


cdef size_t event_time_size(const char* tail, size_t size) noexcept nogil:
    """What the event time takes that a tail may begin with."""
    cdef Cursor cursor
    cdef uint32_t number = 0, kind = 0
    cursor.at = <const uint8_t*>tail
    cursor.end = cursor.at + size
    if read_tag(&cursor, &number, &kind) < 0 or number != 12 or skip_field(&cursor, kind) < 0:
        return 0
    return <const char*>cursor.at - tail


cdef size_t compression_size(const FrameHeader* header) noexcept nogil:
    if header.compression == 0:
        return 0
    return varint_field_size(8, header.compression) + varint_field_size(9, header.uncompressed_size)


cdef size_t frame_metadata_size(const FrameHeader* header) noexcept nogil:
    cdef size_t size = (
        bytes_field_size(1, header.producer_name_size)
        + varint_field_size(2, header.sequence_id)
        + varint_field_size(3, header.publish_time_ms)
        + header.head_size
        + compression_size(header)
        + header.tail_size
    )
    if header.partition_key is not NULL:
        size += bytes_field_size(6, header.partition_key_size)
    if header.messages:
        size += varint_field_size(11, header.messages) + varint_field_size(24, header.highest_sequence_id)
    if header.schema_version_size:
        size += bytes_field_size(16, header.schema_version_size)
    if header.partition_key_is_base64:
        size += varint_field_size(17, 1)
    if header.ordering_key is not NULL:
        size += bytes_field_size(18, header.ordering_key_size)
    return size


cdef char* _put_frame_metadata(char* at, const FrameHeader* header) noexcept nogil:
    at = put_bytes_field(at, 1, header.producer_name, header.producer_name_size)
    at = put_varint_field(at, 2, header.sequence_id)
    at = put_varint_field(at, 3, header.publish_time_ms)
    at = put_copy(at, header.head, header.head_size)
    if header.partition_key is not NULL:
        at = put_bytes_field(at, 6, header.partition_key, header.partition_key_size)
    if header.compression:
        at = put_varint_field(at, 8, header.compression)
        at = put_varint_field(at, 9, header.uncompressed_size)
    if header.messages:
        at = put_varint_field(at, 11, header.messages)
    at = put_copy(at, header.tail, header.event_time_size)
    if header.schema_version_size:
        at = put_bytes_field(at, 16, header.schema_version, header.schema_version_size)
    if header.partition_key_is_base64:
        at = put_varint_field(at, 17, 1)
    at = put_copy(at, header.tail + header.event_time_size, header.tail_size - header.event_time_size)
    if header.ordering_key is not NULL:
        at = put_bytes_field(at, 18, header.ordering_key, header.ordering_key_size)
    if header.messages:
        at = put_varint_field(at, 24, header.highest_sequence_id)
    return at


cdef size_t _command_size(const FrameHeader* header) noexcept nogil:
    return varint_field_size(1, COMMAND_SEND) + bytes_field_size(COMMAND_SEND, _send_size(header))


cdef size_t frame_header_size(const FrameHeader* header) noexcept nogil:
    return 4 + 4 + _command_size(header) + 2 + 4 + 4 + frame_metadata_size(header)


cdef char* put_frame_header(char* at, const FrameHeader* header) noexcept nogil:
    """Everything in front of the body but the checksum, which `seal_frame_header` fills in."""
    cdef size_t command = _command_size(header)
    cdef size_t metadata = frame_metadata_size(header)
    at = put_u32(at, <uint32_t>(4 + command + 2 + 4 + 4 + metadata + header.payload_size))
    at = put_u32(at, <uint32_t>command)
    at = put_varint_field(at, 1, COMMAND_SEND)
    at = put_varint(put_varint(at, tag_of(COMMAND_SEND, LENGTH_DELIMITED)), _send_size(header))
    at = _put_send(at, header)
    at = put_u16(at, MAGIC_CRC32C)
    at = put_u32(at, 0)
    at = put_u32(at, <uint32_t>metadata)
    return _put_frame_metadata(at, header)


cdef int seal_frame_header(
    char* header, size_t header_size, size_t metadata_size, const char* body, size_t body_size
) except -1:
    """Fill in the CRC32-C, which covers [metadata size][metadata][payload] and not the command."""
    cdef char* covered = header + header_size - metadata_size - 4
    cdef uint32_t crc = crc32c(0, covered, metadata_size + 4)
    put_u32(covered - 4, crc32c(crc, body, body_size))
    return 0


# --- reading, never past `end`

cdef int read_varint(Cursor* cursor, uint64_t* value) noexcept nogil:
    cdef uint64_t result = 0
    cdef uint8_t byte
    cdef int shift = 0
    while cursor.at < cursor.end and shift < 70:
        byte = cursor.at[0]
        cursor.at += 1
        if shift < 64:
            result |= <uint64_t>(byte & 0x7F) << shift
        if not byte & 0x80:
            value[0] = result
            return 0
        shift += 7
    return -1


cdef int read_tag(Cursor* cursor, uint32_t* number, uint32_t* kind) noexcept nogil:
    cdef uint64_t tag = 0
    if read_varint(cursor, &tag) < 0 or tag > 0xFFFFFFFFU or tag < 8:
        return -1
    number[0] = <uint32_t>tag >> 3
    kind[0] = <uint32_t>tag & 7
    return 0


cdef int read_bytes(Cursor* cursor, Cursor* into) noexcept nogil:
    cdef uint64_t size = 0
    if read_varint(cursor, &size) < 0 or size > <uint64_t>(cursor.end - cursor.at):
        return -1
    into.at = cursor.at
    into.end = cursor.at + size
    cursor.at = into.end
    return 0


cdef int skip_field(Cursor* cursor, uint32_t kind) noexcept nogil:
    cdef uint64_t ignored = 0
    cdef Cursor body
    cdef size_t fixed
    if kind == VARINT:
        return read_varint(cursor, &ignored)
    if kind == LENGTH_DELIMITED:
        return read_bytes(cursor, &body)
    if kind != FIXED64 and kind != FIXED32:
        return -1
    fixed = 8 if kind == FIXED64 else 4
    if <size_t>(cursor.end - cursor.at) < fixed:
        return -1
    cursor.at += fixed
    return 0


cdef int _read_position(Cursor position, Receipt* receipt) noexcept nogil:
    cdef uint32_t number = 0, kind = 0
    cdef int missing = 3
    while position.at < position.end:
        if read_tag(&position, &number, &kind) < 0:
            return -1
        if number == 1 and kind == VARINT:
            if read_varint(&position, &receipt.ledger_id) < 0:
                return -1
            missing &= ~1
        elif number == 2 and kind == VARINT:
            if read_varint(&position, &receipt.entry_id) < 0:
                return -1
            missing &= ~2
        elif skip_field(&position, kind) < 0:
            return -1
    receipt.has_position = True
    return -1 if missing else 0


cdef int _read_receipt_body(Cursor body, Receipt* receipt) noexcept nogil:
    cdef uint32_t number = 0, kind = 0
    cdef Cursor position
    cdef int missing = 3
    while body.at < body.end:
        if read_tag(&body, &number, &kind) < 0:
            return -1
        if number == 1 and kind == VARINT:
            if read_varint(&body, &receipt.producer_id) < 0:
                return -1
            missing &= ~1
        elif number == 2 and kind == VARINT:
            if read_varint(&body, &receipt.sequence_id) < 0:
                return -1
            missing &= ~2
        elif number == 3 and kind == LENGTH_DELIMITED:
            if read_bytes(&body, &position) < 0 or _read_position(position, receipt) < 0:
                return -1
        elif number == 4 and kind == VARINT:
            if read_varint(&body, &receipt.highest_sequence_id) < 0:
                return -1
        elif skip_field(&body, kind) < 0:
            return -1
    return -1 if missing else 0


cdef int read_command(const uint8_t* command, size_t size, uint64_t* type, Receipt* receipt) noexcept nogil:
    """Parse a BaseCommand as far as its type (0 when it has none), and wholly if it is a SendReceipt."""
    cdef Cursor cursor
    cdef Cursor body
    cdef uint32_t number = 0, kind = 0
    cdef bint has_body = False
    type[0] = 0
    cursor.at = command
    cursor.end = command + size
    while cursor.at < cursor.end:
        if read_tag(&cursor, &number, &kind) < 0:
            return -1
        if number == 1 and kind == VARINT:
            if read_varint(&cursor, type) < 0:
                return -1
            if type[0] != COMMAND_SEND_RECEIPT:
                return 0
        elif number == COMMAND_SEND_RECEIPT and kind == LENGTH_DELIMITED:
            if read_bytes(&cursor, &body) < 0:
                return -1
            has_body = True
        elif skip_field(&cursor, kind) < 0:
            return -1
    if type[0] != COMMAND_SEND_RECEIPT:
        return 0
    memset(receipt, 0, sizeof(Receipt))
    return _read_receipt_body(body, receipt) if has_body else -1


cdef int read_single(const char* at, size_t size, SingleMetadata* single) noexcept nogil:
    """Parse an entry of one of our own batches (its size is bounded all the same)."""
    cdef Cursor cursor
    cdef Cursor field
    cdef uint32_t number = 0, kind = 0, metadata
    cdef uint64_t payload = 0, base64 = 0
    memset(single, 0, sizeof(SingleMetadata))
    if size < 4:
        return -1
    metadata = (
        <uint32_t><uint8_t>at[0] << 24 | <uint32_t><uint8_t>at[1] << 16
        | <uint32_t><uint8_t>at[2] << 8 | <uint32_t><uint8_t>at[3]
    )
    if metadata > size - 4:
        return -1
    cursor.at = <const uint8_t*>at + 4
    cursor.end = cursor.at + metadata
    while cursor.at < cursor.end:
        if read_tag(&cursor, &number, &kind) < 0:
            return -1
        if number == 2 or number == 7:
            if read_bytes(&cursor, &field) < 0:
                return -1
            if number == 2:
                single.partition_key = <const char*>field.at
                single.partition_key_size = field.end - field.at
            else:
                single.ordering_key = <const char*>field.at
                single.ordering_key_size = field.end - field.at
        elif number == 3:
            if read_varint(&cursor, &payload) < 0:
                return -1
        elif number == 6:
            if read_varint(&cursor, &base64) < 0:
                return -1
            single.partition_key_is_base64 = base64 != 0
        elif number == 8:
            if read_varint(&cursor, &single.sequence_id) < 0:
                return -1
        elif skip_field(&cursor, kind) < 0:
            return -1
    if payload > size - 4 - metadata:
        return -1
    single.size = 4 + metadata + payload
    return 0
