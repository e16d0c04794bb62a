"""The asyncio client and producer against real brokers."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

import pulsar_fast
from pulsar_fast.asyncio import Client, MessageId, Producer, Result
from tests.brokers.peek import peek
from tests.brokers.readback import Received, Subscription

pytestmark = pytest.mark.broker
on_apache = pytest.mark.parametrize("service_url", ["apache"], indirect=True)

Subscribe = Callable[[str], Subscription]
ReadBack = Callable[[str, int], list[Received]]
T = TypeVar("T")

NEVER_MS = 60_000  # a batch that nothing else seals waits longer than `run` does


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on a loop of its own."""

    async def bounded() -> T:
        return await asyncio.wait_for(main(), 12)

    return asyncio.run(bounded())


@asynccontextmanager
async def producing(service_url: str, topic: str, **options: Any) -> AsyncIterator[Producer]:
    async with (
        Client(service_url, operation_timeout_seconds=10) as client,
        await client.create_producer(topic, **options) as producer,
    ):
        yield producer


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def data(messages: list[Received]) -> list[bytes]:
    """What was stored, in order; pulsar-lite may deliver a stored message more than once."""
    return list({message.message_id: message.data for message in messages}.values())


def place(message_id: MessageId) -> tuple[int, int, int, int]:
    """A message id as `Received` shows it."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()


# Sending


def test_await_send(service_url: str, topic: str, read_back: ReadBack) -> None:
    async def main() -> list[MessageId]:
        async with producing(service_url, topic, batching_max_publish_delay_ms=1) as producer:
            assert producer.is_connected()
            assert producer.topic() == topic
            return [
                await producer.send(b"0", properties={"a": "ü"}, partition_key="key", event_timestamp=1),
                await producer.send(b"1", sequence_id=10),
                await producer.send(None),
            ]

    ids = run(main)
    received = read_back(topic, 3)
    assert [message.message_id for message in received] == [place(message_id) for message_id in ids]
    assert data(received) == [b"0", b"1", b""]
    assert (received[0].properties, received[0].partition_key) == ({"a": "ü"}, "key")
    assert received[0].event_timestamp == 1
    assert received[2].null_value


def test_gather(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    async def main() -> list[MessageId]:
        async with producing(service_url, topic, max_pending_messages=0) as producer:
            return await asyncio.gather(*(producer.send(content) for content in numbered(10_000)))

    ids = run(main)
    received = subscription.read_all()
    assert data(received) == numbered(10_000)
    stored = dict.fromkeys(message.message_id for message in received)
    assert [place(message_id) for message_id in ids] == list(stored)


@pytest.mark.parametrize(
    "wrap",
    [
        asyncio.create_task,
        asyncio.ensure_future,
        asyncio.shield,
        lambda sending: asyncio.wait_for(sending, 10),
        lambda sending: asyncio.gather(sending),
    ],
    ids=["create_task", "ensure_future", "shield", "wait_for", "gather"],
)
def test_what_send_returns_goes_wherever_a_coroutine_does(
    service_url: str, topic: str, wrap: Callable[[Any], Awaitable[Any]]
) -> None:
    async def main() -> None:
        async with producing(service_url, topic) as producer:
            result = await wrap(producer.send(b""))
            assert isinstance(result[0] if isinstance(result, list) else result, MessageId)
            with pytest.raises(pulsar_fast.MessageTooBig):
                await wrap(producer.send(bytes(6 << 20)))

    run(main)


def test_calls_keep_their_order_awaited_or_not(service_url: str, topic: str, read_back: ReadBack) -> None:
    async def main() -> None:
        async with producing(service_url, topic, batching_max_publish_delay_ms=1) as producer:
            first = producer.send(b"0")
            producer.send_async(b"1", None)
            second = producer.send(b"2")
            producer.send_many([b"3", b"4"])
            third = producer.send(b"5")
            await third
            await second
            await first

    run(main)
    assert data(read_back(topic, 6)) == numbered(6)


def test_flush_covers_what_nobody_awaits(service_url: str, topic: str) -> None:
    async def main() -> None:
        async with producing(
            service_url, topic, batching_max_publish_delay_ms=NEVER_MS, max_pending_messages=0
        ) as producer:
            sendings = [producer.send(content) for content in numbered(3000)]
            await producer.flush(timeout=10)
            assert all(sending.done() for sending in sendings)
            assert producer.stats().pending_messages == 0
            with pytest.raises(pulsar_fast.Timeout):
                producer.send_async(b"", None)
                await producer.flush(timeout=0)

    run(main)


def test_callbacks_run_on_the_loop(service_url: str, topic: str) -> None:
    answers: list[tuple[Result, asyncio.AbstractEventLoop]] = []

    async def main() -> asyncio.AbstractEventLoop:
        async with producing(service_url, topic) as producer:
            for _ in range(100):
                producer.send_async(
                    b"", lambda result, _: answers.append((result, asyncio.get_running_loop()))
                )
            await producer.flush()
        return asyncio.get_running_loop()

    loop = run(main)
    assert answers == [(Result.Ok, loop)] * 100


def test_a_refused_message_that_nobody_awaits_is_told(
    service_url: str, topic: str, loop_errors: list[dict[str, Any]]
) -> None:
    async def main() -> None:
        async with producing(service_url, topic) as producer:
            producer.send(bytes(6 << 20))
            await producer.send(b"")

    run(main)
    (error,) = loop_errors
    assert isinstance(error["exception"], pulsar_fast.MessageTooBig)
    loop_errors.clear()


def test_the_loop_goes_on_while_messages_are_sent(service_url: str, topic: str) -> None:
    """In debug mode asyncio complains about callbacks of more than 100 ms."""
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(record.getMessage())

    async def main() -> None:
        asyncio.get_running_loop().set_debug(True)
        async with producing(service_url, topic, block_if_queue_full=True) as producer:
            for content in numbered(2000):
                producer.send_async(content, None)
                if len(content) == 3:
                    await asyncio.sleep(0)
            await asyncio.gather(*(producer.send(content) for content in numbered(200)))
            await producer.send_many(numbered(2000))

    listener = Listener(logging.WARNING)
    logging.getLogger("asyncio").addHandler(listener)
    try:
        run(main)
    finally:
        logging.getLogger("asyncio").removeHandler(listener)
    assert complaints == []


# Many at once


def test_send_many(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(service_url, topic, block_if_queue_full=True) as producer:
            handle = producer.send_many(numbered(5000))  # more than there is room for
            last = producer.send(b"5000")
            assert await handle == handle.count == 5000
            await producer.flush()
            assert handle.first is not None
            assert handle.last is not None
            assert handle.first < handle.last < await last
            assert handle.errors == {}
            assert await producer.send_many([]) == 0

    run(main)
    assert data(subscription.read_all()) == numbered(5001)


def test_send_many_bad_elements_fail_at_their_index(
    service_url: str, topic: str, read_back: ReadBack
) -> None:
    async def main() -> None:
        async with producing(service_url, topic) as producer:
            elements: list[Any] = [b"0", "text", bytearray(b"2"), bytes(6 << 20), None]
            handle = producer.send_many(elements)
            with pytest.raises(TypeError, match="str"):
                await handle
            kinds = {index: type(error) for index, error in handle.errors.items()}
            assert kinds == {1: TypeError, 3: pulsar_fast.MessageTooBig}

    run(main)
    assert data(read_back(topic, 3)) == [b"0", b"2", b""]


def test_send_many_of_an_input_that_raises(service_url: str, topic: str, subscribe: Subscribe) -> None:
    """What was accepted is sent; the exception carries the handle."""
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(service_url, topic) as producer:
            with pytest.raises(KeyError, match="the input") as caught:
                producer.send_many(raising_after(50))
            assert await caught.value.handle == 50  # type: ignore[attr-defined]

    run(main)
    assert data(subscription.read_all()) == numbered(50)


def test_send_many_of_an_input_that_raises_later(service_url: str, topic: str, subscribe: Subscribe) -> None:
    """The call has returned when there is room for the rest: the handle raises, and the others are sent."""
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(service_url, topic) as producer:
            handle = producer.send_many(raising_after(5000))
            with pytest.raises(KeyError, match="the input"):
                await handle
            assert handle.errors.keys() == {5000}

    run(main)
    assert data(subscription.read_all()) == numbered(5000)


def raising_after(count: int) -> Iterator[bytes]:
    yield from numbered(count)
    raise KeyError("the input")


# Room


def test_a_full_queue_refuses(service_url: str, topic: str) -> None:
    async def main() -> None:
        async with producing(
            service_url, topic, max_pending_messages=3, batching_max_publish_delay_ms=NEVER_MS
        ) as producer:
            sendings = [producer.send(b"") for _ in range(4)]
            answers = await asyncio.gather(*sendings, return_exceptions=True)
            assert [type(answer) for answer in answers] == [*[MessageId] * 3, pulsar_fast.ProducerQueueIsFull]

    run(main)


def test_a_full_queue_awaits_room(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(
            service_url,
            topic,
            max_pending_messages=10,
            block_if_queue_full=True,
            batching_max_publish_delay_ms=NEVER_MS,
        ) as producer:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            sendings = [producer.send(content) for content in numbered(1000)]
            assert producer.stats().pending_messages == 10
            await asyncio.gather(*sendings, producer.flush())
            ticking.cancel()
            assert ticks >= 100, "the loop was blocked"

    run(main)
    assert data(subscription.read_all()) == numbered(1000)


def test_flush_covers_what_waits_for_room(service_url: str, topic: str) -> None:
    async def main() -> None:
        async with producing(
            service_url, topic, max_pending_messages=2, block_if_queue_full=True
        ) as producer:
            sendings = [producer.send(b"") for _ in range(20)]
            await producer.flush()
            assert [sending.done() for sending in sendings] == [True] * 20

    run(main)


def test_cancelled_while_waiting_for_room_it_is_not_sent(
    service_url: str, topic: str, subscribe: Subscribe
) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(
            service_url,
            topic,
            max_pending_messages=2,
            block_if_queue_full=True,
            batching_max_publish_delay_ms=NEVER_MS,
        ) as producer:
            sendings = [producer.send(content) for content in numbered(6)]
            assert sendings[3].cancel()
            task = asyncio.create_task(sendings[4])
            await asyncio.sleep(0)
            task.cancel()
            for cancelled in (sendings[3], task):
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
            await asyncio.gather(*(sendings[index] for index in (0, 1, 2, 5)), producer.flush())
            assert producer.stats().pending_messages == 0
            assert producer.stats().client_pending_bytes == 0

    run(main)
    assert data(subscription.read_all()) == [b"0", b"1", b"2", b"5"]


def test_thousands_cancelled_while_waiting_for_room(
    service_url: str, topic: str, subscribe: Subscribe
) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(
            service_url, topic, max_pending_messages=1, block_if_queue_full=True
        ) as producer:
            first, *others, last = (producer.send(content) for content in numbered(3000))
            for sending in others:
                sending.cancel()
            await first
            await last

    run(main)
    assert data(subscription.read_all()) == [b"0", b"2999"]


def test_close_wakes_those_who_wait_for_room(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(
            service_url, topic, max_pending_messages=2, block_if_queue_full=True
        ) as producer:
            sendings = [producer.send(content) for content in numbered(5)]
            await producer.close()
            answers = await asyncio.gather(*sendings, return_exceptions=True)
            assert [type(answer) for answer in answers] == [
                *[MessageId] * 2,
                *[pulsar_fast.AlreadyClosed] * 3,
            ]

    run(main)
    assert data(subscription.read_all()) == numbered(2)


def test_cancelled_later_it_is_sent(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        async with producing(service_url, topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(producer.send(b"sent"), 0.01)
            assert producer.stats().pending_messages == 1

    run(main)
    assert data(subscription.read_all()) == [b"sent"]


def test_a_message_above_the_whole_memory_limit(service_url: str, topic: str) -> None:
    async def main() -> None:
        async with Client(service_url, memory_limit_bytes=10_000) as client:
            producer = await client.create_producer(topic, block_if_queue_full=True)
            started = time.monotonic()
            with pytest.raises(pulsar_fast.MemoryBufferIsFull):
                await producer.send(bytes(10_001))
            await asyncio.gather(*(producer.send(bytes(4_000)) for _ in range(20)))
            assert time.monotonic() - started < 5

    run(main)


# Ends, and other loops


def test_close_sends_what_is_pending(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    async def main() -> None:
        client = Client(service_url)
        producer = await client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS)
        other = await client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS)
        sending = producer.send(b"0")
        await producer.close()
        assert sending.done()
        with pytest.raises(pulsar_fast.AlreadyClosed):
            await producer.send(b"")
        await producer.close()
        other.send_async(b"1", None)
        await client.close()
        await client.close()
        with pytest.raises(pulsar_fast.AlreadyClosed):
            await client.create_producer(topic)

    run(main)
    assert data(subscription.read_all()) == [b"0", b"1"]


def test_shutdown_fails_what_is_pending(service_url: str, topic: str) -> None:
    async def main() -> None:
        client = Client(service_url)
        producer = await client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS)
        sending, handle = producer.send(b""), producer.send_many([b""])
        client.shutdown()
        for pending in (sending, handle, producer.send(b"")):
            with pytest.raises(pulsar_fast.AlreadyClosed):
                await pending

    run(main)


def test_another_loop_is_refused(service_url: str, topic: str) -> None:
    async def main() -> None:
        async with Client(service_url) as client:
            producer = await client.create_producer(topic)

            async def elsewhere() -> None:
                for call in (
                    lambda: producer.send(b""),
                    lambda: producer.send_many([b""]),
                ):
                    with pytest.raises(RuntimeError, match="another event loop"):
                        call()
                for work in (
                    producer.flush,
                    producer.close,
                    client.close,
                    lambda: client.create_producer(topic),
                ):
                    with pytest.raises(RuntimeError, match="another event loop"):
                        await work()

            await asyncio.to_thread(asyncio.run, elsewhere())
            await producer.send(b"still works")

    run(main)


def test_what_the_broker_stores_is_batched(service_url: str, topic: str) -> None:
    async def main() -> None:
        async with producing(service_url, topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
            for content in numbered(5):
                producer.send_async(content, None)
            await producer.flush()

    run(main)
    (entry,) = peek(service_url, topic, 1)
    assert [payload for _, payload in entry.messages()] == numbered(5)


@on_apache
def test_partitions(service_url: str, apache_broker: Any, topic: str) -> None:
    apache_broker.admin.put(f"/persistent/{topic.removeprefix('persistent://')}/partitions", 2)

    async def main() -> None:
        async with Client(service_url) as client:
            partitions = await client.get_topic_partitions(topic)
            assert partitions == [f"{topic}-partition-0", f"{topic}-partition-1"]
            async with await client.create_producer(topic) as producer:
                assert {(await producer.send(b"")).partition() for _ in range(2)} == {0, 1}
            async with await client.create_producer(partitions[1]) as producer:
                assert (await producer.send(b"")).partition() == 1

    run(main)
