/* The floor: what the kernel alone costs a client.
 *
 * Frames one batch once and writes the same bytes over and over to one socket of the stand-in, one batch a write,
 * reading receipts as they come. No client that sends these bytes through a socket can cost less.
 *
 * usage: floor PORT SECONDS SIZE BATCH    (SIZE bytes a message, BATCH messages a frame)
 *
 * Prints one JSON line: messages, warm_up_messages, and cpu_seconds and wall_seconds until the last receipt. */
#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PRODUCER_ID = 0, MESSAGE_OVERHEAD = 64 };
static const double WARM_UP_SECONDS = 0.5;

struct frame {
    uint8_t *bytes, *sequence; /* sequence: where the command's id is, a varint of fixed width */
    size_t size;
};

static int server;
static uint8_t received[1 << 16];
static size_t received_size;

static void die(const char *what)
{
    if (errno)
        perror(what);
    else
        fprintf(stderr, "floor: %s\n", what);
    exit(1);
}

static double seconds(struct timeval time)
{
    return (double)time.tv_sec + 1e-6 * (double)time.tv_usec;
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
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/* ---- the frame ---- */

/* Padded to its greatest width: legal, and so the id can change in place. The checksum does not cover commands. */
static uint8_t *put_wide_varint(uint8_t *at, uint64_t value)
{
    for (int i = 0; i < MAX_VARINT - 1; i++, value >>= 7)
        *at++ = (uint8_t)(value | 0x80);
    *at++ = (uint8_t)(value & 0x7f);
    return at;
}

static uint8_t *put_message(uint8_t *at, uint64_t sequence, size_t size)
{
    uint8_t *metadata = at + 4, *end = put_number(metadata, 3, size);
    end = put_number(end, 8, sequence);
    put_u32(at, (uint32_t)(end - metadata));
    memset(end, 'x', size);
    return end + size;
}

static uint8_t *put_metadata(uint8_t *at, size_t batch)
{
    uint8_t *start = at + 4, *end = put_bytes(start, 1, "floor", 5);
    end = put_number(end, 2, 0);
    end = put_number(end, 3, (uint64_t)time(NULL) * 1000);
    end = put_number(end, 11, batch);
    put_u32(at, (uint32_t)(end - start));
    return end;
}

static struct frame build_frame(size_t size, size_t batch)
{
    struct frame frame = {.bytes = malloc(MESSAGE_OVERHEAD * 4 + batch * (size + MESSAGE_OVERHEAD))};
    if (!frame.bytes)
        die("memory");
    uint8_t fields[64], *end = put_number(fields, 1, PRODUCER_ID);
    *end++ = 2 << 3 | VARINT;
    size_t before_sequence = (size_t)(end - fields);
    end = put_wide_varint(end, 0);
    end = put_number(end, 3, batch);

    uint8_t *checksum = put_command(frame.bytes, SEND, fields, (size_t)(end - fields));
    frame.sequence = checksum - (end - fields) + before_sequence;
    uint8_t *covered = checksum + 6;
    end = put_metadata(covered, batch);
    for (size_t i = 0; i < batch; i++)
        end = put_message(end, i, size);
    checksum[0] = CHECKSUM_MAGIC >> 8;
    checksum[1] = CHECKSUM_MAGIC & 0xff;
    put_u32(checksum + 2, crc32c(covered, (size_t)(end - covered)));
    frame.size = (size_t)(end - frame.bytes);
    put_u32(frame.bytes, (uint32_t)(frame.size - 4));
    return frame;
}

/* ---- the socket ---- */

static void send_all(const uint8_t *at, size_t size)
{
    while (size) {
        ssize_t sent = send(server, at, size, MSG_NOSIGNAL);
        if (sent < 0)
            die("send");
        at += sent;
        size -= (size_t)sent;
    }
}

/* The frames that have arrived whole, all of which must be of one command. */
static uint64_t receive(enum command expected, bool wait)
{
    uint64_t frames = 0;
    errno = 0;
    ssize_t size = recv(server, received + received_size, sizeof received - received_size, wait ? 0 : MSG_DONTWAIT);
    if (size < 0 && errno == EAGAIN)
        return 0;
    if (size <= 0)
        die("the broker closed the connection");
    received_size += (size_t)size;
    const uint8_t *at = received, *end = received + received_size;
    for (; end - at >= 4 && end - at >= 4 + get_u32(at); at += 4 + get_u32(at), frames++)
        if (get_u32(at) < 6 || at[9] != expected)
            die("the broker sent something unexpected");
    received_size = (size_t)(end - at);
    memmove(received, at, received_size);
    return frames;
}

static void ask(enum command question, const uint8_t *fields, const uint8_t *end, enum command expected)
{
    uint8_t command[128];
    send_all(command, (size_t)(put_command(command, question, fields, (size_t)(end - fields)) - command));
    while (!receive(expected, true)) {
    }
}

static void open_producer(uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1;
    server = socket(AF_INET, SOCK_STREAM, 0);
    if (server < 0 || connect(server, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);

    uint8_t fields[64], *end = put_bytes(fields, 1, "floor", 5);
    ask(CONNECT, fields, put_number(end, 4, 20), CONNECTED);
    end = put_bytes(fields, 1, "persistent://public/default/floor", 33);
    end = put_number(end, 2, PRODUCER_ID);
    ask(PRODUCER, fields, put_number(end, 3, 1), PRODUCER_SUCCESS);
}

/* Sends for so long and waits for the last receipt: the number of frames. */
static uint64_t send_for(double duration, struct frame *frame, size_t batch, uint64_t *sequence)
{
    uint64_t sent = 0, acknowledged = 0;
    for (double end = now() + duration; now() < end; sent++, *sequence += batch) {
        put_wide_varint(frame->sequence, *sequence);
        send_all(frame->bytes, frame->size);
        acknowledged += receive(SEND_RECEIPT, false);
    }
    while (acknowledged < sent)
        acknowledged += receive(SEND_RECEIPT, true);
    return sent;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: floor PORT SECONDS SIZE BATCH\n");
        return 2;
    }
    double duration = atof(argv[2]);
    size_t size = strtoul(argv[3], NULL, 10), batch = strtoul(argv[4], NULL, 10);
    uint64_t sequence = 0;
    crc32c_init();
    struct frame frame = build_frame(size, batch);
    open_producer((uint16_t)atoi(argv[1]));

    uint64_t warm_up = send_for(WARM_UP_SECONDS, &frame, batch, &sequence) * batch;
    double cpu = cpu_seconds(), wall = now();
    uint64_t messages = send_for(duration, &frame, batch, &sequence) * batch;
    printf("{\"messages\": %lu, \"warm_up_messages\": %lu, \"cpu_seconds\": %.6f, \"wall_seconds\": %.6f}\n",
           messages, warm_up, cpu_seconds() - cpu, now() - wall);
    return 0;
}
