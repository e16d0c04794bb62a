"""The hashes of keys that Pulsar's clients know, from 0 to 2**31 - 1."""


cdef uint32_t hash_key(int kind, const char* key, size_t size) noexcept nogil:
    """Of a key in UTF-8."""
    cdef uint32_t hash
    if kind == JAVA_STRING_HASH:
        hash = _java_string_hash(<const uint8_t*>key, size)
    elif kind == MURMUR3_32_HASH:
        hash = _murmur3_32_hash(<const uint8_t*>key, size)
    else:
        hash = <uint32_t>_boost_hash(<const uint8_t*>key, size)
    return hash & 0x7FFFFFFF


cdef uint32_t _java_string_hash(const uint8_t* key, size_t size) noexcept nogil:
    """`String.hashCode`: over the units of UTF-16."""
    cdef uint32_t hash = 0
    cdef uint32_t point
    cdef size_t i = 0
    while i < size:
        if key[i] < 0x80:
            point = key[i]
            i += 1
        elif key[i] < 0xE0:
            point = (key[i] & 0x1F) << 6 | (key[i + 1] & 0x3F)
            i += 2
        elif key[i] < 0xF0:
            point = (key[i] & 0x0F) << 12 | (key[i + 1] & 0x3F) << 6 | (key[i + 2] & 0x3F)
            i += 3
        else:
            point = (
                (key[i] & 0x07) << 18 | (key[i + 1] & 0x3F) << 12 | (key[i + 2] & 0x3F) << 6 | (key[i + 3] & 0x3F)
            ) - 0x10000
            hash = 31 * hash + (0xD800 + (point >> 10))
            point = 0xDC00 + (point & 0x3FF)
            i += 4
        hash = 31 * hash + point
    return hash


cdef inline uint32_t _rotated(uint32_t value, int by) noexcept nogil:
    return value << by | value >> (32 - by)


cdef inline uint32_t _murmur_mixed(uint32_t word) noexcept nogil:
    return _rotated(word * 0xCC9E2D51U, 15) * 0x1B873593U


cdef uint32_t _murmur3_32_hash(const uint8_t* key, size_t size) noexcept nogil:
    """MurmurHash3_x86_32 with seed 0."""
    cdef uint32_t hash = 0
    cdef uint32_t tail = 0
    cdef size_t whole = size & ~<size_t>3
    cdef size_t i
    for i in range(0, whole, 4):
        hash = _rotated(hash ^ _murmur_mixed(_le(key + i, 4)), 13) * 5 + 0xE6546B64U
    tail = <uint32_t>_le(key + whole, size - whole)
    hash ^= _murmur_mixed(tail)
    hash ^= <uint32_t>size
    hash = (hash ^ hash >> 16) * 0x85EBCA6BU
    hash = (hash ^ hash >> 13) * 0xC2B2AE35U
    return hash ^ hash >> 16


cdef inline uint64_t _le(const uint8_t* at, size_t size) noexcept nogil:
    """Up to eight bytes, the first one lowest."""
    cdef uint64_t value = 0
    cdef size_t i
    for i in range(size):
        value |= <uint64_t>at[i] << (8 * i)
    return value


cdef uint64_t _boost_hash(const uint8_t* key, size_t size) noexcept nogil:
    """`boost::hash<std::string>` since Boost 1.81, which the official Python client routes by."""
    cdef uint64_t step = 0x9E3779B97F4A7C15U
    cdef uint64_t factor = 0xDF442D22CE4859B9U
    cdef uint64_t word = pf_mulx(step, factor)
    cdef uint64_t hash = word ^ size
    cdef uint64_t last = 0
    cdef size_t left = size & 7
    cdef size_t i
    cdef const uint8_t* tail = key + size - left
    for i in range(0, size - left, 8):
        word += step
        hash ^= pf_mulx(_le(key + i, 8) + word, factor)
    if left >= 4:
        last = _le(tail + left - 4, 4) << (8 * (left - 4)) | _le(tail, 4)
    elif left:
        i = (left - 1) & 2
        last = <uint64_t>tail[i] << (8 * i) | <uint64_t>tail[left >> 1] << (8 * (left >> 1)) | tail[0]
    word += step
    hash ^= pf_mulx(last + word, factor)
    return pf_mulx(hash + word, factor)


def hash_of_key(int kind, str key not None):
    """The hash of a partition key, from 0 to 2**31 - 1; `kind` is one of `HashingScheme`."""
    cdef bytes encoded = key.encode()
    return hash_key(kind, PyBytes_AS_STRING(encoded), PyBytes_GET_SIZE(encoded))
