"""Somebody cancels every task of the loop, as test frameworks do: an error or a recovery, never an endless wait."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from pulsar_fast import Authentication, AutoClusterFailover, PulsarException, ServiceInfo
from pulsar_fast.asyncio import Client
from pulsar_fast.wire.messages import BaseCommand
from tests.faults.conftest import QUICK
from tests.faults.scripted_broker import ScriptedBroker

Scene = Callable[[Client], Awaitable[Any]]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def ends(work: Awaitable[Any], after_turns: int, then: Callable[[], None] = lambda: None) -> Any:
    """Await it while another task cancels all others but this one, after so many turns of the loop."""
    waiting = asyncio.current_task()

    async def cancel_all() -> None:
        await turns(after_turns)
        for task in asyncio.all_tasks() - {waiting, asyncio.current_task()}:
            task.cancel()
        then()

    canceller = asyncio.ensure_future(cancel_all())
    try:
        return await work
    except (PulsarException, asyncio.CancelledError) as error:
        return error
    finally:
        await canceller


def run(broker: ScriptedBroker, scene: Scene) -> None:
    """The client works after the scene, ends, and leaves no task."""

    async def whole() -> None:
        client = Client(broker.url, **{**QUICK, "operation_timeout_seconds": 0.5})
        kept = await scene(client)  # a producer that is dropped warns
        producer = await asyncio.wait_for(client.create_producer("afterwards"), 5)
        await asyncio.wait_for(producer.send(b"afterwards"), 5)
        await asyncio.wait_for(client.close(), 5)
        del kept
        await turns(5)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())
    assert b"afterwards" in broker.payloads


@pytest.mark.parametrize("after_turns", [*range(12), 40])
def test_creating(broker: ScriptedBroker, after_turns: int) -> None:
    """From the first moment on: while the connection is opened, while it is looked up, while it registers."""

    async def scene(client: Client) -> Any:
        return await ends(client.create_producer("t"), after_turns)

    run(broker, scene)


@pytest.mark.parametrize("after_turns", [*range(8), 40])
def test_a_connection_that_several_wait_for(broker: ScriptedBroker, after_turns: int) -> None:
    async def scene(client: Client) -> Any:
        creations = asyncio.gather(
            *(client.create_producer(f"t{number}") for number in range(5)), return_exceptions=True
        )
        return await ends(creations, after_turns)

    run(broker, scene)


@pytest.mark.parametrize("after_turns", [*range(5), 40])
def test_flushing(broker: ScriptedBroker, after_turns: int) -> None:
    async def scene(client: Client) -> Any:
        producer = await client.create_producer("t")
        broker.hold_receipts()
        sent = producer.send(b"x")
        await ends(producer.flush(), after_turns, then=broker.release_receipts)
        await asyncio.wait_for(sent, 5)
        await asyncio.wait_for(producer.flush(), 5)
        return producer

    run(broker, scene)


@pytest.mark.parametrize("after_turns", [*range(5), 40])
@pytest.mark.parametrize("answered", [True, False])
def test_closing_a_producer(broker: ScriptedBroker, after_turns: int, answered: bool) -> None:
    async def scene(client: Client) -> Any:
        producer = await client.create_producer("t")
        broker.hold_receipts()
        sent = producer.send(b"x")
        await ends(producer.close(), after_turns, then=broker.release_receipts if answered else lambda: None)
        await asyncio.wait_for(producer.close(), 5)
        broker.release_receipts()
        assert sent.done()
        with suppress(PulsarException):
            await sent
        assert not producer.is_connected()
        return producer

    run(broker, scene)


@pytest.mark.parametrize("after_turns", [*range(5), 40])
def test_closing_the_client(broker: ScriptedBroker, after_turns: int) -> None:
    """A second call finishes what the first one could not."""

    async def scene(_client: Client) -> Any:
        client = Client(broker.url, **{**QUICK, "operation_timeout_seconds": 0.5})
        producer = await client.create_producer("t")
        broker.hold_receipts()
        sent = producer.send(b"x")
        await ends(client.close(), after_turns)
        await asyncio.wait_for(client.close(), 5)
        broker.release_receipts()
        assert sent.done()
        with suppress(PulsarException):
            await sent
        return producer

    run(broker, scene)


@pytest.mark.parametrize("after_turns", [*range(5), 40])
def test_reconnecting(broker: ScriptedBroker, after_turns: int) -> None:
    async def scene(client: Client) -> Any:
        producer = await client.create_producer("t")
        broker.cut_connections()
        sent = producer.send(b"x")
        while producer.is_connected():
            await asyncio.sleep(0)
        await ends(sent, after_turns)
        await asyncio.wait_for(producer.flush(), 5)
        assert len(broker.got(BaseCommand.PRODUCER)) == 2
        return producer

    run(broker, scene)


def test_answering_a_challenge(broker: ScriptedBroker) -> None:
    """The connection whose challenge stays without an answer ends, and its messages go over the next one."""

    class Pensive(Authentication):
        name = "pensive"
        asked = 0

        async def initial_data(self) -> bytes:
            return b""

        async def answer(self, challenge: bytes) -> bytes:
            self.asked += 1
            await asyncio.sleep(5)
            return b""

    async def scene() -> None:
        pensive = Pensive()
        async with Client(broker.url, authentication=pensive, **QUICK) as client:
            producer = await client.create_producer("t")
            broker.challenge()
            while not pensive.asked:
                await asyncio.sleep(0.005)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await turns(3)
            await producer.send(b"x")
            assert producer.stats().reconnects == 1

    asyncio.run(scene())
    assert broker.payloads == [b"x"]
    assert len(broker.links) == 2


def test_closing_again_and_again_ends_within_the_first_bound(broker: ScriptedBroker) -> None:
    async def scene(client: Client) -> Any:
        producer = await client.create_producer("t")
        broker.hold_receipts()
        sent = producer.send(b"x")
        closing = asyncio.ensure_future(producer.close())
        keep = {closing, asyncio.current_task()}
        for _ in range(60):
            await asyncio.sleep(0.1)
            if closing.done():
                break
            for task in asyncio.all_tasks() - keep:
                task.cancel()
        assert closing.done(), "each time that its task was cancelled it had 0.5 s anew"
        broker.release_receipts()
        with suppress(PulsarException):
            await sent
        return producer

    run(broker, scene)


def test_work_that_is_done_regularly(broker: ScriptedBroker) -> None:
    """Fail-over and the look for new partitions go on, whatever was under way."""

    async def main(other: ScriptedBroker) -> None:
        clusters = AutoClusterFailover(
            ServiceInfo(broker.url), [ServiceInfo(other.url)], check_interval_ms=10
        )
        async with Client(clusters, **QUICK) as client:
            producer = await client.create_producer(
                "t", send_timeout_millis=5000, partitions_update_interval_seconds=0.01
            )
            for _ in range(20):
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0.003)
            asked = len(broker.got(BaseCommand.PARTITIONED_METADATA))
            await asyncio.to_thread(
                broker.wait_for, lambda b: len(b.got(BaseCommand.PARTITIONED_METADATA)) > asked
            )
            broker.go_down()
            await producer.send(b"x")

    broker.partitions = 2
    with ScriptedBroker() as other:
        other.partitions = 2
        asyncio.run(main(other))
        assert other.payloads == [b"x"]
