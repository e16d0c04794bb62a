ctypedef uint32_t (*ExtendFunction)(uint32_t crc, const uint8_t* data, size_t size) noexcept nogil

cdef uint32_t crc32c(uint32_t crc, const char* data, size_t size) except? 0xFFFFFFFF
