"""CRC32-C by google-crc32c: its native function by address, its Python function where that is missing."""

import ctypes

import google_crc32c

cdef ExtendFunction _extend = NULL
_library = None  # keeps the shared library, and so the address, alive


def _resolve_native():
    """Find `crc32c_extend` in the library behind google-crc32c's own extension, and check its standard vector."""
    global _library, _extend
    cdef ExtendFunction found
    try:
        _library = ctypes.CDLL(google_crc32c._crc32c.__file__)
        address = ctypes.cast(_library.crc32c_extend, ctypes.c_void_p).value
    except (AttributeError, OSError):
        return
    found = <ExtendFunction><size_t>address
    if found(0, b"123456789", 9) == 0xE3069283:
        _extend = found


_resolve_native()


cdef uint32_t crc32c(uint32_t crc, const char* data, size_t size) except? 0xFFFFFFFF:
    if _extend is not NULL:
        return _extend(crc, <const uint8_t*>data, size)
    return google_crc32c.extend(crc, data[:size])


def crc32c_of(bytes data not None, uint32_t crc=0):
    """CRC32-C of `data`, continued from `crc` (the same function that frames use)."""
    return crc32c(crc, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def crc32c_is_native():
    """Whether frames are checked by the native function."""
    return _extend is not NULL
