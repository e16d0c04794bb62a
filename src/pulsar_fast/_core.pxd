cimport cython
from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

# One module, so that everything inlines; each part declares its fields and functions in a file of its own.
include "clock.pxd"
include "crc32c.pxd"
include "wire.pxd"
include "hashing.pxd"
include "batch.pxd"
include "message_id.pxd"
include "completion.pxd"
include "accumulator.pxd"
include "sender.pxd"
include "routing.pxd"
include "latency.pxd"
include "pending_queue.pxd"
include "registration.pxd"
include "transport.pxd"
include "channel.pxd"
