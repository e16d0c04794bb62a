"""How bytes reach the peer: the one place that says when they are free.

`offer` returns how many of the offered bytes it has taken over: those are free, the rest is not and will be offered
again. Nothing is kept of what was not taken.
"""


def begin_connecting(int family, str host not None, uint16_t port, uint32_t scope_id=0):
    """The descriptor of a new TCP socket (non-blocking, with TCP_NODELAY) that connects to an address in numbers.

    It is connected once it is writable and SO_ERROR says 0. Raises `OSError` for what fails at once.
    """
    cdef int fd = pf_begin_connecting(family, host.encode(), port, scope_id)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    return fd


cdef enum:
    _MOST_CHUNKS = 8
    _READ_SIZE = 65536


cdef class Transport:
    """The seam. A subclass in Python implements `take(chunks) -> int` and `give(limit) -> bytes | None`.

    `take` returns how many bytes it took (-1: none now), `give` returns received bytes, b"" at the end of the
    stream, None when there are none now. `most` bounds what a `take` is offered. Below a connection it also tells
    when to call them: `watch_reading(call)`, `watch_writing(call)` and `stop_watching_writing()`; what was asked
    for ends with `close`.
    """

    def __cinit__(self, *args, **kwargs):
        self.most = <size_t>-1

    cdef Py_ssize_t offer(self, iovec* pieces, int count) except -2:
        """All of it as one chunk, copied once."""
        cdef size_t size, left, total = 0
        for i in range(count):
            total += pieces[i].iov_len
        left = total = min(total, self.most)
        cdef bytes chunk = PyBytes_FromStringAndSize(NULL, total)
        cdef char* at = PyBytes_AS_STRING(chunk)
        for i in range(count):
            size = min(pieces[i].iov_len, left)
            memcpy(at, pieces[i].iov_base, size)
            at += size
            left -= size
        return self.take([chunk])

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

    def watch_reading(self, call):
        """Call `call()` on the loop whenever there is something to receive."""
        raise NotImplementedError

    def watch_writing(self, call):
        """Call `call()` on the loop whenever there is room for more, until told to stop."""
        raise NotImplementedError

    def stop_watching_writing(self):
        raise NotImplementedError

    def close(self):
        """Let go of everything below; nothing is offered or received afterwards."""


@cython.final
cdef class SocketTransport(Transport):
    """Plain TCP: gathered writes on a non-blocking socket, which it owns, watched by an asyncio loop."""

    def __cinit__(self, socket not None, loop not None):
        self.socket = socket
        self.loop = loop
        self.forks = _forks
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

    # The same for a layer above in Python.

    def take(self, list chunks):
        cdef iovec pieces[_MOST_CHUNKS]
        cdef int count = 0
        cdef bytes chunk
        for chunk in chunks[:_MOST_CHUNKS]:
            pieces[count].iov_base = PyBytes_AS_STRING(chunk)
            pieces[count].iov_len = PyBytes_GET_SIZE(chunk)
            count += 1
        return self.offer(pieces, count)

    def give(self, size_t limit):
        cdef char[_READ_SIZE] buffer
        cdef Py_ssize_t received = self.receive(buffer, min(limit, <size_t>_READ_SIZE))
        return None if received < 0 else buffer[:received]

    def watch_reading(self, call):
        self.loop.add_reader(self.fd, call)

    def watch_writing(self, call):
        self.loop.add_writer(self.fd, call)

    def stop_watching_writing(self):
        self.loop.remove_writer(self.fd)

    def close(self):
        # A forked child shares what the loop's selector watches with its parent.
        if self.forks == _forks and not self.loop.is_closed():
            self.loop.remove_reader(self.fd)
            self.loop.remove_writer(self.fd)
        self.fd = -1
        self.socket.close()
