/* What the stand-in and the floor both need of Pulsar's wire format: big-endian sizes, varints, CRC32C. */
#ifndef WIRE_H
#define WIRE_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

/* Commands, by number. For these the BaseCommand field that holds the command has the number of its type. */
enum command {
    CONNECT = 2,
    CONNECTED = 3,
    PRODUCER = 5,
    SEND = 6,
    SEND_RECEIPT = 7,
    SUCCESS = 13,
    CLOSE_PRODUCER = 15,
    PRODUCER_SUCCESS = 17,
    PING = 18,
    PONG = 19,
    PARTITIONED_METADATA = 21,
    PARTITIONED_METADATA_RESPONSE = 22,
    LOOKUP = 23,
    LOOKUP_RESPONSE = 24,
};

enum { VARINT = 0, BYTES = 2, MAX_VARINT = 10, CHECKSUM_MAGIC = 0x0e01 };

static inline uint32_t get_u32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return be32toh(value);
}

static inline uint8_t *put_u32(uint8_t *at, uint32_t value)
{
    value = htobe32(value);
    memcpy(at, &value, sizeof value);
    return at + sizeof value;
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)value;
    return at;
}

static inline uint8_t *put_number(uint8_t *at, unsigned field, uint64_t value)
{
    return put_varint(put_varint(at, field << 3 | VARINT), value);
}

static inline uint8_t *put_bytes(uint8_t *at, unsigned field, const void *bytes, size_t size)
{
    at = put_varint(put_varint(at, field << 3 | BYTES), size);
    memcpy(at, bytes, size);
    return at + size;
}

/* A whole frame without payload: sizes, type, and the command's own fields. */
static inline uint8_t *put_command(uint8_t *at, enum command type, const void *fields, size_t size)
{
    uint8_t *command = at + 8;
    uint8_t *end = put_bytes(put_number(command, 1, type), type, fields, size);
    put_u32(at, (uint32_t)(end - at - 4));
    put_u32(at + 4, (uint32_t)(end - command));
    return end;
}

#ifdef __SSE4_2__

/* The instruction takes three cycles but a new one can start in each: three stretches are run side by side, and
   the tables move a checksum over the length of a stretch when they are joined. */
enum { STRETCH = 1024 };
static uint32_t crc_over_stretch[4][256];

static inline uint64_t crc_word(uint64_t crc, const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return _mm_crc32_u64(crc, word);
}

static inline uint32_t crc_skip_stretch(uint64_t crc)
{
    return crc_over_stretch[0][crc & 255] ^ crc_over_stretch[1][crc >> 8 & 255] ^
           crc_over_stretch[2][crc >> 16 & 255] ^ crc_over_stretch[3][crc >> 24 & 255];
}

static inline void crc32c_init(void)
{
    for (int bit = 0; bit < 32; bit++) {
        uint64_t crc = UINT64_C(1) << bit;
        for (int word = 0; word < STRETCH / 8; word++)
            crc = _mm_crc32_u64(crc, 0);
        for (int byte = 0; byte < 256; byte++)
            if (byte >> bit % 8 & 1)
                crc_over_stretch[bit / 8][byte] ^= (uint32_t)crc;
    }
}

static inline uint32_t crc32c_update(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 3 * STRETCH; at += 3 * STRETCH, size -= 3 * STRETCH) {
        uint64_t first = crc, second = 0, third = 0;
        for (const uint8_t *word = at; word < at + STRETCH; word += 8) {
            first = crc_word(first, word);
            second = crc_word(second, word + STRETCH);
            third = crc_word(third, word + 2 * STRETCH);
        }
        crc = crc_skip_stretch(crc_skip_stretch(first) ^ second) ^ (uint32_t)third;
    }
    for (; size >= 8; at += 8, size -= 8)
        crc = (uint32_t)crc_word(crc, at);
    for (; size; at++, size--)
        crc = _mm_crc32_u8(crc, *at);
    return crc;
}

#else

/* crc_tables[n][byte]: what a byte adds to the checksum when n more bytes follow it. */
static uint32_t crc_tables[8][256];

static inline void crc32c_init(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        crc_tables[0][byte] = crc;
    }
    for (int n = 1; n < 8; n++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_tables[n - 1][byte];
            crc_tables[n][byte] = crc >> 8 ^ crc_tables[0][crc & 255];
        }
}

static inline uint32_t crc32c_update(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        word = le64toh(word) ^ crc;
        crc = 0;
        for (int n = 0; n < 8; n++)
            crc ^= crc_tables[7 - n][word >> 8 * n & 255];
    }
    for (; size; at++, size--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *at) & 255];
    return crc;
}

#endif

static inline uint32_t crc32c(const uint8_t *at, size_t size)
{
    return ~crc32c_update(~0u, at, size);
}

#endif
