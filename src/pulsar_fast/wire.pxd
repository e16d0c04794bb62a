# What a message carries besides its payload, already encoded but for what is known only under the lock.
# `head` and `tail` are the fields before and after the ones that are filled in later:
#   in a batch (SingleMessageMetadata):  head 1,2 | payload_size 3 | tail 5,6,7 | sequence_id 8, null_value 9
#   alone (MessageMetadata):             1,2,3 | head 4,6,7 | compression 8,9 | tail 12 | schema_version 16
#                                        | tail 17,18,19,25
cdef struct Fields:
    const char* head
    size_t head_size
    const char* tail
    size_t tail_size
    const char* key              # what key-based batching compares: the ordering key, else the partition key
    size_t key_size
    size_t keys_size             # of both keys, which a batch's metadata repeats
    int64_t sequence_id          # given by the caller, -1 for the next one
    bint has_key
    bint alone                   # encoded to travel outside of a batch
    bint null_value

# Growing scratch memory for one call; released by its caller in `finally`.
cdef struct Scratch:
    char* bytes
    size_t size
    size_t capacity
    char[1024] inline_bytes

cdef void scratch_open(Scratch* self) noexcept nogil
cdef void scratch_close(Scratch* self) noexcept nogil
cdef int scratch_bytes_field(Scratch* self, uint32_t number, const char* data, size_t size) except -1
cdef int scratch_varint_field(Scratch* self, uint32_t number, uint64_t value) except -1
cdef int scratch_pair_field(
    Scratch* self, uint32_t number, const char* key, size_t key_size, const char* value, size_t value_size
) except -1

cdef extern from "platform.h" nogil:
    int varint_size "pf_varint_size" (uint64_t value) noexcept

cdef char* put_varint(char* at, uint64_t value) noexcept nogil

cdef size_t single_metadata_size(const Fields* fields, size_t payload, uint64_t sequence_id) noexcept nogil
cdef char* put_single_metadata(
    char* at, const Fields* fields, size_t payload, uint64_t sequence_id
) noexcept nogil

# A frame up to its body: what `put_frame_header` writes.
cdef struct FrameHeader:
    uint64_t producer_id
    uint64_t sequence_id
    uint64_t highest_sequence_id
    uint64_t publish_time_ms
    int32_t messages             # 0 for a message outside of a batch
    const char* producer_name
    size_t producer_name_size
    const char* partition_key    # of a batch: its first message's, NULL when it has none
    size_t partition_key_size
    bint partition_key_is_base64
    const char* ordering_key
    size_t ordering_key_size
    const char* schema_version
    size_t schema_version_size
    const char* head             # of a message alone: Fields.head
    size_t head_size
    const char* tail             # and its Fields.tail
    size_t tail_size
    size_t event_time_size       # of the tail: what stands in front of the schema version
    uint32_t compression         # a CompressionType, 0: none
    uint32_t uncompressed_size   # of the payload, where there is a compression
    size_t payload_size

cdef size_t event_time_size(const char* tail, size_t size) noexcept nogil
cdef size_t compression_size(const FrameHeader* header) noexcept nogil
cdef size_t frame_metadata_size(const FrameHeader* header) noexcept nogil
cdef size_t frame_header_size(const FrameHeader* header) noexcept nogil
cdef char* put_frame_header(char* at, const FrameHeader* header) noexcept nogil
cdef int seal_frame_header(
    char* header, size_t header_size, size_t metadata_size, const char* body, size_t body_size
) except -1

# A bounded reader of one protobuf message.
cdef struct Cursor:
    const uint8_t* at
    const uint8_t* end

cdef int read_varint(Cursor* cursor, uint64_t* value) noexcept nogil
cdef int read_tag(Cursor* cursor, uint32_t* number, uint32_t* kind) noexcept nogil
cdef int read_bytes(Cursor* cursor, Cursor* into) noexcept nogil
cdef int skip_field(Cursor* cursor, uint32_t kind) noexcept nogil

cdef struct Receipt:
    uint64_t producer_id
    uint64_t sequence_id
    uint64_t highest_sequence_id
    uint64_t ledger_id
    uint64_t entry_id
    bint has_position

cdef int read_command(const uint8_t* command, size_t size, uint64_t* type, Receipt* receipt) noexcept nogil

# The first message of a batch, as far as its frame repeats it.
cdef struct SingleMetadata:
    const char* partition_key
    size_t partition_key_size
    bint partition_key_is_base64
    const char* ordering_key
    size_t ordering_key_size
    uint64_t sequence_id
    size_t size                  # of the whole entry, payload included

cdef int read_single(const char* at, size_t size, SingleMetadata* single) noexcept nogil
