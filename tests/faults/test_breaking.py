"""Windows between two events that are hard to hit, and what must not be left behind in them."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pulsar_fast import Result
from pulsar_fast.asyncio import Client
from pulsar_fast.connection import Connection
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.frames import Frame, refusal
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker

MakeProducer = Callable[..., Any]
PRODUCER, CLOSE = BaseCommand.PRODUCER, BaseCommand.CLOSE_PRODUCER
TERMINATED = 15


def run(broker: ScriptedBroker, scene: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        async with Client(broker.url, **{**QUICK, **options}) as client:
            await scene(client)

    asyncio.run(whole())


def names(broker: ScriptedBroker) -> list[set[int]]:
    """The producers that the broker knows, by connection."""
    return [set(link.producers) for link in broker.links]


def test_closing_while_it_registers_anew_leaves_no_producer_behind(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    """The broker may still create it, on a connection that others go on to use."""
    producer, other = make_producer("t"), make_producer("other")
    (registered, _) = broker.got(PRODUCER)
    broker.on_producer().say_nothing(times=1)
    broker.close_producer(registered)
    broker.wait_for(lambda b: len(b.got(PRODUCER)) == 3)
    producer.close()
    broker.wait_for(lambda b: len(b.got(CLOSE)) == 1)
    other.send(b"on the same connection")
    assert len(broker.links) == 1


@pytest.mark.parametrize("after_turns", range(8))
def test_a_creation_cancelled_right_behind_its_answer_leaves_no_producer_behind(
    broker: ScriptedBroker, after_turns: int
) -> None:
    """It is registered, and its caller will never have it in its hands."""

    async def scene(client: Client) -> None:
        other = await client.create_producer("other")
        creation = asyncio.ensure_future(client.create_producer("t"))
        core = client._here()
        while not all(producer.is_connected for producer in core._producers) or len(core._producers) < 2:
            await asyncio.sleep(0)
        for _ in range(after_turns):
            await asyncio.sleep(0)
        creation.cancel()
        with suppress(asyncio.CancelledError):
            await (await creation).close()
        await asyncio.to_thread(broker.wait_for, lambda b: names(b) == [{1}])
        await other.send(b"on the same connection")
        await other.close()

    run(broker, scene)


def test_a_producer_that_has_failed_is_not_left_behind(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    """As long as the broker knows a producer, nobody deletes the topic."""
    producer, other = make_producer("t"), make_producer("other")
    outcomes = Outcomes()
    broker.on_send().answer_bytes(lambda frame: refusal(frame, TERMINATED, "as scripted"), times=1)
    producer.send_async(b"refused", outcomes.of("refused"))
    outcomes.wait_for(1)
    broker.wait_for(lambda b: names(b) == [{2}])
    other.send(b"on the same connection")


class _NoException(BaseException):
    """As Ctrl-C is none."""


def test_whatever_an_input_raises_ends_its_handle(broker: ScriptedBroker) -> None:
    """In the elements that had to wait for room, which are taken behind other answers."""

    def elements() -> Iterator[bytes]:
        yield b"1"
        yield b"2"
        raise _NoException

    async def scene(client: Client) -> None:
        producer = await client.create_producer("t", max_pending_messages=1)
        handle = producer.send_many(elements())
        with pytest.raises(_NoException):
            await asyncio.wait_for(asyncio.ensure_future(_of(handle)), 5)
        assert [index for index, _ in handle.message_ids()] == [0, 1]
        await producer.close()

    run(broker, scene)


async def _of(sent: Any) -> Any:
    return await sent


def test_the_last_elements_of_an_awaited_input_do_not_wait_for_the_batch_delay(
    broker: ScriptedBroker,
) -> None:
    async def scene(client: Client) -> None:
        producer = await client.create_producer(
            "t", max_pending_messages=1, send_timeout_millis=0, batching_max_publish_delay_ms=60_000
        )
        assert await asyncio.wait_for(_of(producer.send_many([b"1", b"2"])), 5) == 2
        await producer.close()

    run(broker, scene)


def test_a_deadline_holds_in_an_open_batch_for_what_has_waited_for_room(broker: ScriptedBroker) -> None:
    """It is older than its batch, whose delay would end behind the deadline."""
    told: list[tuple[Result, float]] = []

    async def scene(client: Client) -> None:
        producer = await client.create_producer(
            "t",
            max_pending_messages=1,
            block_if_queue_full=True,
            send_timeout_millis=4000,
            batching_max_publish_delay_ms=60_000,
        )
        broker.on_send().say_nothing()
        producer.send_async(b"in flight", lambda result, _: told.append((result, 0)))
        await asyncio.sleep(0.1)
        called = time.monotonic()
        producer.send_async(b"waits", lambda result, _: told.append((result, time.monotonic() - called)))
        while len(told) < 2:
            await asyncio.sleep(0.01)
        await producer.close()

    run(broker, scene)
    assert [result for result, _ in told] == [Result.Timeout, Result.Timeout]
    assert told[1][1] < 5  # and at nearly 6 the delay of its batch ends


def test_a_cancelled_send_keeps_nobody_waiting_for_room(broker: ScriptedBroker) -> None:
    """It wants more than there is for long, and what was behind it does not."""

    async def scene(client: Client) -> None:
        stalled = await client.create_producer("stalled", send_timeout_millis=0)
        producer = await client.create_producer("t", block_if_queue_full=True, send_timeout_millis=0)
        broker.hold_receipts()
        stalled.send_async(bytes(5000), None)
        waiting = asyncio.ensure_future(_of(producer.send(bytes(8000))))
        await asyncio.sleep(0)
        behind = asyncio.ensure_future(_of(producer.send(b"behind it")))
        waiting.cancel()
        await asyncio.to_thread(broker.wait_for, lambda b: b"behind it" in b.payloads)
        broker.release_receipts()
        await behind
        await stalled.close()
        await producer.close()

    run(broker, scene, memory_limit_bytes=10_000)


def test_a_connection_that_ends_with_its_handshake_is_forgotten(broker: ScriptedBroker) -> None:
    """A timer would keep it, with its buffers, for two keep-alive intervals more."""

    def connect_and_break_the_protocol(frame: Frame) -> None:
        with broker.changed:
            broker.usual_answer(frame)
            frame.link.send(bytes([255]) * 16)

    broker.on_connect().do(connect_and_break_the_protocol, times=5)

    async def scene(client: Client) -> None:
        await (await client.create_producer("t")).close()
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Connection) and one.lost]

    run(broker, scene)
