/* A stand-in for a Pulsar broker: answers a producer at once, stores nothing, and checks what it gets.
 *
 * Listens on a free port of 127.0.0.1 and prints "port N". SIGUSR1 prints one JSON line of counters and resets
 * them; SIGTERM, or the end of its standard input (so also the end of its parent), prints it a last time and ends
 * the program.
 *
 * Every SEND gets a receipt, right or wrong: the counters are the verdict. The ids of a producer must start at 0
 * and go up by the number of messages; a frame that skips ids is a gap, one that goes back is a repeat. A frame
 * that cannot be parsed, or is cut off by the end of its connection, is malformed and ends the connection.
 *
 * Compiled with OVER_TLS it speaks TLS (and needs OpenSSL). */
#define _GNU_SOURCE
#include "wire.h"
#ifdef OVER_TLS
#include "tls.h"
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    PROTOCOL_VERSION = 20,
    MAX_MESSAGE = 5242880,
    MAX_FRAME = MAX_MESSAGE + 10240,
    MAX_NAME = 255,
    ENTRIES_PER_LEDGER = 50000,
    READ_BUFFER = 1 << 20, /* stays in the second-level cache, so that the checksum reads no memory */
    READ_ROOM = 1 << 18,   /* the least room for a read: below it the unread part moves to the front */
    WRITE_BUFFER = 1 << 12,
};

struct counters {
    uint64_t connections, frames, messages, payload_bytes;
    uint64_t bad_crc, gaps, repeats, malformed;
    double first_send, last_send;
};

struct buffer {
    uint8_t *bytes;
    size_t begin, end, capacity;
};

struct producer {
    uint64_t id, next_sequence;
};

struct connection {
    int fd;
    bool writing; /* receipts wait for room in the socket; nothing is read meanwhile */
    struct buffer in, out;
#ifdef OVER_TLS
    SSL *tls;
#endif
    struct producer *producers;
    size_t producer_count;
};

static struct counters counters;
static double cpu_at_reset;
static uint64_t entries, producers_named;
static int poller;
static char service_url[64];
#ifdef OVER_TLS
#define SCHEME "pulsar+ssl"
enum { URL_FIELD = 2 }; /* of an answer to a look-up */
static SSL_CTX *tls_context;
#else
#define SCHEME "pulsar"
enum { URL_FIELD = 1 };
#endif

/* ---- helpers ---- */

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void *need(void *memory)
{
    if (!memory)
        die("memory");
    return memory;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void reset_counters(void)
{
    counters = (struct counters){0};
    cpu_at_reset = cpu_seconds();
}

/* wall_seconds runs from the first to the last SEND, so that waiting for a client does not count. */
static void print_counters(void)
{
    printf("{\"connections\": %lu, \"frames\": %lu, \"messages\": %lu, \"payload_bytes\": %lu, \"bad_crc\": %lu, "
           "\"gaps\": %lu, \"repeats\": %lu, \"malformed\": %lu, \"cpu_seconds\": %.6f, \"wall_seconds\": %.6f}\n",
           counters.connections, counters.frames, counters.messages, counters.payload_bytes, counters.bad_crc,
           counters.gaps, counters.repeats, counters.malformed, cpu_seconds() - cpu_at_reset,
           counters.last_send - counters.first_send);
    fflush(stdout);
}

static struct buffer new_buffer(size_t capacity)
{
    return (struct buffer){.bytes = need(malloc(capacity)), .capacity = capacity};
}

/* Makes room for `size` more bytes at the end. */
static uint8_t *reserve(struct buffer *buffer, size_t size)
{
    if (buffer->begin == buffer->end)
        buffer->begin = buffer->end = 0;
    if (buffer->capacity - buffer->end < size) {
        size_t used = buffer->end - buffer->begin;
        memmove(buffer->bytes, buffer->bytes + buffer->begin, used);
        buffer->begin = 0;
        buffer->end = used;
        if (buffer->capacity - used < size) {
            buffer->capacity = 2 * (used + size);
            buffer->bytes = need(realloc(buffer->bytes, buffer->capacity));
        }
    }
    return buffer->bytes + buffer->end;
}

/* ---- reading protobuf ---- */

struct span {
    const uint8_t *at, *end;
};

struct field {
    uint64_t number, value; /* value: of a varint */
    struct span bytes;      /* of a length-delimited field */
};

static bool get_varint(struct span *from, uint64_t *value)
{
    *value = 0;
    for (unsigned shift = 0; shift < 7 * MAX_VARINT && from->at < from->end; shift += 7) {
        uint8_t byte = *from->at++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* Takes the next field off the span; the span must not be empty. */
static bool get_field(struct span *from, struct field *field)
{
    uint64_t tag, size;
    *field = (struct field){0};
    if (!get_varint(from, &tag) || tag >> 3 == 0)
        return false;
    field->number = tag >> 3;
    switch (tag & 7) {
    case 0:
        return get_varint(from, &field->value);
    case 1:
        size = 8;
        break;
    case 2:
        if (!get_varint(from, &size))
            return false;
        break;
    case 5:
        size = 4;
        break;
    default:
        return false;
    }
    if (size > (uint64_t)(from->end - from->at))
        return false;
    field->bytes = (struct span){from->at, from->at + size};
    from->at += size;
    return true;
}

/* Reads the fields that are numbers, by field number below `count`, and one that is bytes (none if it is 0). */
static bool get_fields(struct span from, uint64_t *numbers, unsigned count, unsigned bytes_field, struct span *bytes)
{
    struct field field;
    while (from.at < from.end) {
        if (!get_field(&from, &field))
            return false;
        if (field.number == bytes_field)
            *bytes = field.bytes;
        else if (field.number < count)
            numbers[field.number] = field.value;
    }
    return true;
}

/* ---- answering ---- */

static void answer(struct connection *c, enum command type, const uint8_t *fields, const uint8_t *end)
{
    size_t size = (size_t)(end - fields);
    uint8_t *at = reserve(&c->out, size + 8 + 4 * MAX_VARINT);
    c->out.end += (size_t)(put_command(at, type, fields, size) - at);
}

static bool on_connect(struct connection *c)
{
    uint8_t fields[64], *end = fields;
    end = put_bytes(end, 1, "stand-in", 8);
    end = put_number(end, 2, PROTOCOL_VERSION);
    end = put_number(end, 3, MAX_MESSAGE);
    answer(c, CONNECTED, fields, end);
    return true;
}

static bool on_partitioned_metadata(struct connection *c, struct span command)
{
    uint64_t numbers[3] = {0};
    uint8_t fields[64], *end = fields;
    if (!get_fields(command, numbers, 3, 0, NULL))
        return false;
    end = put_number(end, 1, 0); /* not partitioned */
    end = put_number(end, 2, numbers[2]);
    end = put_number(end, 3, 0); /* Success */
    answer(c, PARTITIONED_METADATA_RESPONSE, fields, end);
    return true;
}

static bool on_lookup(struct connection *c, struct span command)
{
    uint64_t numbers[3] = {0};
    uint8_t fields[128], *end = fields;
    if (!get_fields(command, numbers, 3, 0, NULL))
        return false;
    end = put_bytes(end, URL_FIELD, service_url, strlen(service_url));
    end = put_number(end, 3, 1); /* Connect */
    end = put_number(end, 4, numbers[2]);
    end = put_number(end, 5, 1); /* authoritative */
    answer(c, LOOKUP_RESPONSE, fields, end);
    return true;
}

static struct producer *find_producer(struct connection *c, uint64_t id)
{
    for (size_t i = 0; i < c->producer_count; i++)
        if (c->producers[i].id == id)
            return &c->producers[i];
    return NULL;
}

static bool on_producer(struct connection *c, struct span command)
{
    uint64_t numbers[4] = {0};
    struct span name = {0};
    char own_name[32];
    uint8_t fields[MAX_NAME + 64], *end = fields;
    if (!get_fields(command, numbers, 4, 4, &name) || name.end - name.at > MAX_NAME || find_producer(c, numbers[2]))
        return false;
    if (name.at == name.end) {
        int size = snprintf(own_name, sizeof own_name, "standin-%lu", producers_named++);
        name = (struct span){(uint8_t *)own_name, (uint8_t *)own_name + size};
    }
    c->producers = need(realloc(c->producers, (c->producer_count + 1) * sizeof *c->producers));
    c->producers[c->producer_count++] = (struct producer){.id = numbers[2]};
    end = put_number(end, 1, numbers[3]);
    end = put_bytes(end, 2, name.at, (size_t)(name.end - name.at));
    end = put_number(end, 3, UINT64_MAX); /* last_sequence_id -1 */
    answer(c, PRODUCER_SUCCESS, fields, end);
    return true;
}

static bool on_close_producer(struct connection *c, struct span command)
{
    uint64_t numbers[3] = {0};
    uint8_t fields[64];
    if (!get_fields(command, numbers, 3, 0, NULL))
        return false;
    struct producer *producer = find_producer(c, numbers[1]);
    if (producer)
        *producer = c->producers[--c->producer_count];
    answer(c, SUCCESS, fields, put_number(fields, 1, numbers[2]));
    return true;
}

static void send_receipt(struct connection *c, uint64_t producer, uint64_t sequence, uint64_t highest)
{
    uint8_t id[32], fields[96], *id_end = id, *end = fields;
    id_end = put_number(id_end, 1, 1 + entries / ENTRIES_PER_LEDGER);
    id_end = put_number(id_end, 2, entries % ENTRIES_PER_LEDGER);
    entries++;
    end = put_number(end, 1, producer);
    end = put_number(end, 2, sequence);
    end = put_bytes(end, 3, id, (size_t)(id_end - id));
    end = put_number(end, 4, highest);
    answer(c, SEND_RECEIPT, fields, end);
}

static void check_sequence(struct producer *producer, uint64_t first, uint64_t last)
{
    counters.gaps += first > producer->next_sequence;
    counters.repeats += first < producer->next_sequence;
    if (last >= producer->next_sequence)
        producer->next_sequence = last + 1;
}

/* `rest`: what follows the command: magic, checksum, then the size of the metadata, the metadata and the payload,
   which the checksum covers. */
static bool on_send(struct connection *c, struct span command, struct span rest)
{
    enum { PRODUCER_ID = 1, SEQUENCE = 2, NUM_MESSAGES = 3, HIGHEST = 6 };
    uint64_t numbers[HIGHEST + 1] = {[NUM_MESSAGES] = 1};
    if (!get_fields(command, numbers, HIGHEST + 1, 0, NULL))
        return false;
    struct producer *producer = find_producer(c, numbers[PRODUCER_ID]);
    uint64_t messages = numbers[NUM_MESSAGES], first = numbers[SEQUENCE];
    if (!producer || messages < 1 || messages > INT32_MAX)
        return false;
    if (rest.end - rest.at < 10 || get_u32(rest.at) >> 16 != CHECKSUM_MAGIC)
        return false;
    size_t covered = (size_t)(rest.end - rest.at) - 6, metadata = get_u32(rest.at + 6);
    if (metadata > covered - 4)
        return false;

    /* Clients that leave the highest id out number the messages of a batch one after another. */
    uint64_t last = numbers[HIGHEST] ? numbers[HIGHEST] : first + messages - 1;
    check_sequence(producer, first, last);
    counters.bad_crc += crc32c(rest.at + 6, covered) != get_u32(rest.at + 2);
    counters.messages += messages;
    counters.payload_bytes += covered - 4 - metadata;
    if (!counters.frames++)
        counters.first_send = now();
    send_receipt(c, numbers[PRODUCER_ID], first, last);
    return true;
}

/* ---- frames ---- */

static bool on_frame(struct connection *c, struct span frame)
{
    uint64_t type[2] = {0};
    struct span command = {0}, rest = frame, base;
    uint32_t size = get_u32(frame.at);
    if (size > frame.end - frame.at - 4)
        return false;
    rest.at += 4 + size;
    base = (struct span){frame.at + 4, rest.at};
    if (!get_fields(base, type, 2, 0, NULL) || !get_fields(base, NULL, 0, (unsigned)type[1], &command))
        return false;
    switch (type[1]) {
    case CONNECT:
        return on_connect(c);
    case PARTITIONED_METADATA:
        return on_partitioned_metadata(c, command);
    case LOOKUP:
        return on_lookup(c, command);
    case PRODUCER:
        return on_producer(c, command);
    case SEND:
        return on_send(c, command, rest);
    case CLOSE_PRODUCER:
        return on_close_producer(c, command);
    case PING:
        answer(c, PONG, frame.at, frame.at); /* no fields */
        return true;
    default: /* PONG and what a newer client may say */
        return true;
    }
}

/* Handles the whole frames read so far; false if one of them is malformed. */
static bool on_bytes(struct connection *c)
{
    uint64_t frames_before = counters.frames;
    struct buffer *in = &c->in;
    while (in->end - in->begin >= 4) {
        const uint8_t *at = in->bytes + in->begin + 4;
        size_t size = get_u32(at - 4);
        if (size < 4 || size > MAX_FRAME)
            return false;
        if (in->end - in->begin < 4 + size)
            break;
        if (!on_frame(c, (struct span){at, at + size}))
            return false;
        in->begin += 4 + size;
    }
    if (counters.frames != frames_before)
        counters.last_send = now();
    return true;
}

/* ---- sockets, with TLS or without ---- */

#ifdef OVER_TLS
static void begin_session(struct connection *c) { c->tls = new_tls(tls_context, c->fd); }
static void end_session(struct connection *c) { SSL_free(c->tls); }
static bool holds_more(struct connection *c) { return SSL_has_pending(c->tls); }
static ssize_t receive(struct connection *c, void *into, size_t size) { return tls_read(c->tls, into, size); }
static ssize_t transmit(struct connection *c, const void *from, size_t size) { return tls_write(c->tls, from, size); }
#else
static void begin_session(struct connection *c) { (void)c; }
static void end_session(struct connection *c) { (void)c; }
static bool holds_more(struct connection *c) { return (void)c, false; }
static ssize_t receive(struct connection *c, void *into, size_t size) { return read(c->fd, into, size); }
static ssize_t transmit(struct connection *c, const void *from, size_t size)
{
    return send(c->fd, from, size, MSG_NOSIGNAL);
}
#endif

static void watch(int fd, int operation, uint32_t events, void *owner)
{
    struct epoll_event event = {.events = events, .data.ptr = owner};
    if (epoll_ctl(poller, operation, fd, &event) < 0)
        die("epoll_ctl");
}

static void accept_connection(int listener)
{
    /* The size of the receive buffer is the kernel's to tune: it grows it far beyond what may be asked for. */
    int on = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0)
        return; /* the client has gone again */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct connection *c = need(calloc(1, sizeof *c));
    c->fd = fd;
    begin_session(c);
    c->in = new_buffer(READ_BUFFER);
    c->out = new_buffer(WRITE_BUFFER);
    counters.connections++;
    watch(fd, EPOLL_CTL_ADD, EPOLLIN, c);
}

static void close_connection(struct connection *c)
{
    end_session(c);
    close(c->fd);
    free(c->in.bytes);
    free(c->out.bytes);
    free(c->producers);
    free(c);
}

/* One read, everything in it handled, one write. False when the connection is over. */
static bool read_and_answer(struct connection *c)
{
    uint8_t *at = reserve(&c->in, READ_ROOM);
    ssize_t size = receive(c, at, c->in.capacity - c->in.end);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR;
    if (size == 0) {
        counters.malformed += c->in.begin != c->in.end;
        return false;
    }
    c->in.end += (size_t)size;
    if (!on_bytes(c)) {
        counters.malformed++;
        return false;
    }
    return true;
}

static bool write_answers(struct connection *c)
{
    struct buffer *out = &c->out;
    if (out->begin != out->end) {
        ssize_t size = transmit(c, out->bytes + out->begin, out->end - out->begin);
        if (size < 0 && errno != EAGAIN && errno != EINTR)
            return false;
        out->begin += size > 0 ? (size_t)size : 0;
    }
    bool writing = out->begin != out->end;
    if (writing != c->writing)
        watch(c->fd, EPOLL_CTL_MOD, writing ? EPOLLOUT : EPOLLIN, c);
    c->writing = writing;
    return true;
}

static void on_connection(struct connection *c)
{
    do {
        if ((!c->writing && !read_and_answer(c)) || !write_answers(c)) {
            close_connection(c);
            return;
        }
    } while (!c->writing && holds_more(c));
}

static int listen_on_loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, SOMAXCONN) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        die("listen on 127.0.0.1");
    snprintf(service_url, sizeof service_url, SCHEME "://127.0.0.1:%d", ntohs(address.sin_port));
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static int watch_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    if (fd < 0)
        die("signalfd");
    return fd;
}

/* False when the signal asks to end. */
static bool on_signal(int signals)
{
    struct signalfd_siginfo info;
    if (read(signals, &info, sizeof info) != sizeof info || info.ssi_signo == SIGTERM)
        return false;
    print_counters();
    reset_counters();
    return true;
}

static bool input_ended(void)
{
    char scratch[256];
    return read(STDIN_FILENO, scratch, sizeof scratch) <= 0;
}

int main(void)
{
    crc32c_init();
#ifdef OVER_TLS
    tls_context = new_tls_context();
    signal(SIGPIPE, SIG_IGN);
#endif
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0)
        die("epoll_create1");
    int input = STDIN_FILENO, signals = watch_signals(), listener = listen_on_loopback();
    watch(signals, EPOLL_CTL_ADD, EPOLLIN, &signals);
    watch(listener, EPOLL_CTL_ADD, EPOLLIN, &listener);
    /* A file or /dev/null cannot be watched and says nothing about a parent: then only SIGTERM ends us. */
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &input};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, input, &event) < 0 && errno != EPERM)
        die("standard input");

    reset_counters();
    for (bool running = true; running;) {
        struct epoll_event events[64];
        int count = epoll_wait(poller, events, 64, -1);
        for (int i = 0; i < count; i++) {
            void *owner = events[i].data.ptr;
            if (owner == &listener)
                accept_connection(listener);
            else if (owner == &signals)
                running = on_signal(signals) && running;
            else if (owner == &input)
                running = !input_ended() && running;
            else
                on_connection(owner);
        }
    }
    print_counters();
    return 0;
}
