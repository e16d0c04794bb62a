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
        cdef list chunks = []
        cdef size_t size, left = self.most
        for i in range(count):
            size = min(pieces[i].iov_len, left)
            chunks.append((<char*>pieces[i].iov_base)[:size])
            left -= size
            if left == 0:
                break
        return self.take(chunks)

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
        try:
            return self.socket.sendmsg(chunks)
        except BlockingIOError:
            return -1

    def give(self, size_t limit):
        try:
            return self.socket.recv(limit)
        except BlockingIOError:
            return None

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
