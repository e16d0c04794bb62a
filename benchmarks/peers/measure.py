"""What the Python peers share: the command line, the sending loops, the measurement and its one line of JSON.

CPU is user + system time of the whole process, from the first message after a warm-up to the last receipt.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BURST = 10_000  # messages between two looks at the clock, and in one call of send_many
WARM_UP_SECONDS = 0.5
CALLBACK_SECONDS = 30.0

Callback = Callable[[Any, Any], None]
Send = Callable[[int], None]


def measure(
    connect: Callable[[str], Any],
    shapes: Sequence[str],
    begin: Callable[[], None] = lambda: None,
    after: Callable[[str], dict[str, float]] = lambda url: {},
) -> None:
    """Sends as the command line says and prints the result.

    Args:
        connect: makes the client for a service URL.
        shapes: the ways of sending this client offers.
        begin: called when the warm-up is over.
        after: measures something more, given the URL, behind the messages.
    """
    options = parse_arguments(shapes)
    client = connect(options.url)
    producer = client.create_producer(
        "persistent://public/default/benchmark",
        batching_enabled=True,
        batching_max_messages=options.batch,
        batching_max_allowed_size_in_bytes=131072,
        batching_max_publish_delay_ms=10,
        max_pending_messages=options.pending,
        block_if_queue_full=True,
    )
    callback, called_back = counter()
    send = sending_loop(producer, options.shape, options.size, callback)

    def send_and_settle(messages: int | None, seconds: float) -> int:
        already = called_back()
        count = send_messages(send, messages) if messages else send_for(send, seconds)
        producer.flush()
        if options.shape == "callback":
            wait_for(lambda: called_back() - already == count)
        return count

    warm_up = send_and_settle(None, WARM_UP_SECONDS)
    begin()
    rss, cpu, wall = rss_mb(), time.process_time(), time.perf_counter()
    count = send_and_settle(options.messages, options.seconds)
    result = {
        "messages": count,
        "warm_up_messages": warm_up,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - wall,
        "rss_start_mb": rss,
        "rss_end_mb": rss_mb(),
    }
    print(json.dumps(result | after(options.url)))
    client.close()


def parse_arguments(shapes: Sequence[str]) -> argparse.Namespace:
    """The options that all peers take."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--url", required=True, help="pulsar://host:port, or pulsar+ssl://")
    parser.add_argument("--shape", choices=shapes, default=shapes[0], help="how to send")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to send, after the warm-up")
    parser.add_argument("--messages", type=int, help="how many to send, instead of --seconds")
    parser.add_argument("--size", type=int, default=100, help="bytes of a message")
    parser.add_argument("--batch", type=int, default=1000, help="most messages of a batch")
    parser.add_argument("--pending", type=int, default=50_000, help="most messages pending")
    return parser.parse_args()


def counter() -> tuple[Callback, Callable[[], int]]:
    """A callback that counts its calls, and a function that returns the count."""
    count = 0

    def callback(result: Any, message_id: Any) -> None:
        nonlocal count
        count += 1

    return callback, lambda: count


def sending_loop(producer: Any, shape: str, size: int, callback: Callback) -> Send:
    """The loop that is measured: a function that sends so many messages of `size` bytes, at most a burst."""
    payload = b"x" * size
    burst = [payload] * BURST

    def send_each(count: int) -> None:
        send, argument = producer.send_async, callback if shape == "callback" else None
        for _ in range(count):
            send(payload, argument)

    def send_many(count: int) -> None:
        producer.send_many(burst if count == BURST else burst[:count])

    return send_many if shape == "send_many" else send_each


def send_messages(send: Send, count: int) -> int:
    """Sends `count` messages."""
    for start in range(0, count, BURST):
        send(min(BURST, count - start))
    return count


def send_for(send: Send, seconds: float) -> int:
    """Sends for so long and returns the number of messages."""
    count = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        send(BURST)
        count += BURST
    return count


def wait_for(done: Callable[[], bool]) -> None:
    """Returns when `done()` holds: a flush may end a moment before the last callback."""
    end = time.monotonic() + CALLBACK_SECONDS
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"callbacks are missing {CALLBACK_SECONDS:.0f} s after flush()")
        time.sleep(0.001)


def rss_mb() -> float:
    """Resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
