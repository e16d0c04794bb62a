cdef extern from "platform.h" nogil:
    struct iovec:
        void* iov_base
        size_t iov_len
    Py_ssize_t PF_WOULD_BLOCK
    Py_ssize_t PF_FAILED
    Py_ssize_t pf_send(int fd, iovec* pieces, int count) noexcept
    Py_ssize_t pf_receive(int fd, void* into, size_t size) noexcept
    void pf_wake(int fd) noexcept
    int pf_begin_connecting(int family, const char* host, uint16_t port, uint32_t scope_id) noexcept


cdef class Transport:
    cdef public size_t most   # bytes of a `take`: what is offered to Python is copied
    cdef Py_ssize_t offer(self, iovec* pieces, int count) except -2
    cdef Py_ssize_t receive(self, char* into, size_t size) except -2


@cython.final
cdef class SocketTransport(Transport):
    cdef readonly object socket   # keeps the descriptor; the loop's
    cdef object loop              # where the descriptor is watched
    cdef int fd                   # -1 once closed
    cdef unsigned long forks      # seen by the process that made it
