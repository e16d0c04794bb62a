/* The few system calls that the loop makes often. They never block and are short, so callers keep the GIL: giving it
 * up can cost a whole switch interval (5 ms) when another thread is busy. */
#ifndef PULSAR_FAST_PLATFORM_H
#define PULSAR_FAST_PLATFORM_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 /* the interpreter ignores SIGPIPE */
#endif

#define PF_WOULD_BLOCK (-1)
#define PF_FAILED (-2)

/* Both halves of a 128-bit product, folded. */
static inline uint64_t pf_mulx(uint64_t left, uint64_t right) {
    unsigned __int128 product = (unsigned __int128)left * right;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Bytes of a varint, one for each seven bits: (9n + 64) / 64 is that for n from 1 to 64. */
static inline int pf_varint_size(uint64_t value) { return (9 * (64 - __builtin_clzll(value | 1)) + 64) / 64; }

static inline ssize_t pf_outcome(ssize_t result) {
    if (result >= 0) return result;
    return (errno == EAGAIN || errno == EWOULDBLOCK) ? PF_WOULD_BLOCK : PF_FAILED;
}

static inline ssize_t pf_send(int fd, struct iovec *pieces, int count) {
    struct msghdr message;
    ssize_t result;
    memset(&message, 0, sizeof message);
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    do {
        result = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (result < 0 && errno == EINTR);
    return pf_outcome(result);
}

static inline ssize_t pf_receive(int fd, void *into, size_t size) {
    ssize_t result;
    do {
        result = recv(fd, into, size, MSG_DONTWAIT);
    } while (result < 0 && errno == EINTR);
    return pf_outcome(result);
}

static inline int pf_open_socket(int family) {
#ifdef SOCK_NONBLOCK
    return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
#else
    int fd = socket(family, SOCK_STREAM, 0);
    if (fd >= 0) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    return fd;
#endif
}

/* Milliseconds that bytes may wait for the peer's acknowledgement, or for room at the peer. Longer than keep-alive takes
 * to give a dead peer up, since the kernel would also end a connection whose peer is only slow to read. */
#define PF_USER_TIMEOUT 120000

static inline int pf_set_options(int fd) {
    int one = 1;
#ifdef TCP_USER_TIMEOUT
    unsigned timeout = PF_USER_TIMEOUT;
    if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout) != 0) return -1;
#endif
    return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* A non-blocking TCP socket on its way to an address in numbers, or -errno. */
static inline int pf_begin_connecting(int family, const char *host, uint16_t port, uint32_t scope_id) {
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
    int fd, error;
    memset(&address, 0, sizeof address);
    address.any.sa_family = family;
    if (family == AF_INET6) {
        address.v6.sin6_port = htons(port);
        address.v6.sin6_scope_id = scope_id;
    } else {
        address.v4.sin_port = htons(port);
    }
    if (inet_pton(family, host, family == AF_INET6 ? (void *)&address.v6.sin6_addr : (void *)&address.v4.sin_addr) != 1)
        return -EINVAL;
    fd = pf_open_socket(family);
    if (fd < 0) return -errno;
    if (pf_set_options(fd) == 0 &&
        (connect(fd, &address.any, family == AF_INET6 ? sizeof address.v6 : sizeof address.v4) == 0 ||
         errno == EINPROGRESS))
        return fd;
    error = errno;
    close(fd);
    return -error;
}

/* An eventfd takes eight bytes, a pipe any number; a full one is awake already. */
static inline void pf_wake(int fd) {
    uint64_t one = 1;
    ssize_t ignored = write(fd, &one, sizeof one);
    (void)ignored;
}

#if defined(CLOCK_MONOTONIC_COARSE)
#define PF_COARSE CLOCK_MONOTONIC_COARSE /* 5 ns a call instead of 25, within 4 ms */
#else
#define PF_COARSE CLOCK_MONOTONIC
#endif

static inline int64_t pf_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
static inline int64_t pf_monotonic_ns(void) { return pf_clock(PF_COARSE); }
static inline int64_t pf_precise_ns(void) { return pf_clock(CLOCK_MONOTONIC); }
static inline int64_t pf_wall_ms(void) { return pf_clock(CLOCK_REALTIME) / 1000000; }

#endif
