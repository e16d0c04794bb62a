"""How bytes reach the peer: the one place that says when they are free.

`offer` returns how many of the offered bytes it has taken over: those are free, the rest is not and will be offered
again. Nothing is kept of what was not taken.
"""


cdef class Transport:
    """The seam. A subclass in Python implements `take(chunks) -> int` and `give(limit) -> bytes | None`.

    `take` returns how many bytes it took (-1: none now), `give` returns received bytes, b"" at the end of the
    stream, None when there are none now.
    """

    cdef Py_ssize_t offer(self, iovec* pieces, int count) except -2:
        return self.take([(<char*>pieces[i].iov_base)[:pieces[i].iov_len] for i in range(count)])

    cdef Py_ssize_t receive(self, char* into, size_t size) except -2:
        cdef bytes received = self.give(size)
        if received is None:
            return PF_WOULD_BLOCK
        if len(received) > <Py_ssize_t>size:
            raise ValueError("the transport gave more bytes than were asked for")
        memcpy(into, PyBytes_AS_STRING(received), PyBytes_GET_SIZE(received))
        return PyBytes_GET_SIZE(received)

    def take(self, list chunks):
        raise NotImplementedError

    def give(self, size_t limit):
        raise NotImplementedError

    def close(self):
        """Let go of everything below; nothing is offered or received afterwards."""


@cython.final
cdef class SocketTransport(Transport):
    """Plain TCP: gathered writes on a non-blocking socket, which it owns."""

    def __cinit__(self, socket not None):
        self.socket = socket
        self.fd = socket.fileno()

    cdef Py_ssize_t offer(self, iovec* pieces, int count) except -2:
        cdef Py_ssize_t taken = pf_send(self.fd, pieces, count)
        if taken == PF_FAILED:
            PyErr_SetFromErrno(OSError)
        return taken

    cdef Py_ssize_t receive(self, char* into, size_t size) except -2:
        cdef Py_ssize_t received = pf_receive(self.fd, into, size)
        if received == PF_FAILED:
            PyErr_SetFromErrno(OSError)
        return received

    def close(self):
        self.fd = -1
        self.socket.close()
