# How the partition of a key is found; the numbers are those of `HashingScheme`.
cdef enum HashingKind:
    MURMUR3_32_HASH = 0
    BOOST_HASH = 1
    JAVA_STRING_HASH = 2

cdef uint32_t hash_key(int kind, const char* key, size_t size) noexcept nogil
