"""The compiled core of pulsar_fast: everything that is done for each message, and what it must not be parted from.

Nothing here starts a thread, resolves a name, waits or knows asyncio's loop: those come from outside.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno, PyErr_SetObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_TYPE
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

cdef extern from "Python.h":
    PyObject* PyObject_Vectorcall(PyObject* callable, PyObject** arguments, size_t count, PyObject* names)
    PyObject* PyIter_Next(object iterator) except? NULL
    void PyErr_WriteUnraisable(PyObject* where)
    void Py_XINCREF(PyObject* object)

include "clock.pyx"
include "crc32c.pyx"
include "wire.pyx"
include "hashing.pyx"
include "batch.pyx"
include "message_id.pyx"
include "completion.pyx"
include "accumulator.pyx"
include "sender.pyx"
include "routing.pyx"
include "latency.pyx"
include "pending_queue.pyx"
include "registration.pyx"
include "transport.pyx"
include "channel.pyx"

DEBUG = bool(PULSAR_FAST_DEBUG)
