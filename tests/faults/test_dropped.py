"""Objects that are dropped, brought back to life, or outlive their loop: every message is answered, nothing hangs."""

import asyncio
import gc
import sys
import warnings
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import AlreadyClosed, Client, Result, TopicNotFound
from pulsar_fast.wire.messages import ServerError
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker

pytestmark = pytest.mark.filterwarnings("ignore:.*was not closed:ResourceWarning")


class Saver:
    """Part of a cycle; brings what it holds back to life when the cycle is collected."""

    def __init__(self, held: Any, saved: list[Any]) -> None:
        self.held = held
        self.saved = saved
        self.cycle = self

    def __del__(self) -> None:
        self.saved.append(self.held)


def test_a_producer_that_comes_back_to_life(broker: ScriptedBroker) -> None:
    """It has been closed, and says so."""
    saved: list[Any] = []
    outcomes = Outcomes()
    with Client(broker.url, **QUICK) as client:
        saver = Saver(client.create_producer("t"), saved)
        saver.held.send_async(b"x", outcomes.of(0))
        del saver
        gc.collect()
        outcomes.wait_for(1)
        assert outcomes.results == {0: Result.Ok}
        (producer,) = saved
        producer.close()
        with pytest.raises(AlreadyClosed):
            producer.send(b"y")
        assert not producer.is_connected()
        other = client.create_producer("t")
        other.send(b"z")
    assert broker.payloads == [b"x", b"z"]


def test_a_client_that_comes_back_to_life(broker: ScriptedBroker) -> None:
    saved: list[Any] = []
    saver = Saver(Client(broker.url, **QUICK), saved)
    del saver
    gc.collect()
    (client,) = saved
    with pytest.raises(AlreadyClosed):
        client.create_producer("t")
    client.close()


@pytest.mark.parametrize("first", ["producer", "client"])
def test_answers_after_the_end_of_the_loop(broker: ScriptedBroker, first: str) -> None:
    """Each message is answered once, when what is left of the client is dropped."""
    outcomes = Outcomes()
    broker.hold_receipts()

    async def scene() -> tuple[dict[str, Any], Any, Any]:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        producer = await client.create_producer("t", max_pending_messages=6, block_if_queue_full=True)
        for name in range(3):
            producer.send_async(b"x", outcomes.of(name))
        handle = producer.send_many([b"x", b"y"])
        send = producer.send(b"x")
        while not broker.sends:
            await asyncio.sleep(0.001)
        return {"client": client, "producer": producer}, send, handle

    loop = asyncio.new_event_loop()
    held, send, handle = loop.run_until_complete(scene())
    loop.close()
    del held[first]
    held.clear()
    gc.collect()
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.AlreadyClosed}
    assert isinstance(send.exception(), AlreadyClosed)
    assert handle.is_done()
    assert {type(error) for error in handle.errors.values()} == {AlreadyClosed}
    assert len(handle.errors) == 2


def test_dropped_again_and_again(broker: ScriptedBroker) -> None:
    """Without `close()`: everything arrives, and nothing is left (the guards of every test look)."""
    outcomes = Outcomes()
    for name in range(30):
        drop_after_sending(broker, outcomes.of(name))
    gc.collect()
    outcomes.wait_for(30)
    assert set(outcomes.results.values()) == {Result.Ok}
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


def drop_after_sending(broker: ScriptedBroker, callback: Any) -> None:
    client = Client(broker.url, **QUICK)
    client.create_producer("t").send_async(b"x", callback)


def test_dropped_while_warnings_are_errors(broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """They close all the same."""
    warnings.simplefilter("error", ResourceWarning)
    raised: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: raised.append(event.exc_type))
    outcomes = Outcomes()
    drop_after_sending(broker, outcomes.of(0))
    asyncio.run(drop_asyncio_after_sending(broker, outcomes.of(1)))
    gc.collect()
    outcomes.wait_for(2)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert raised == [ResourceWarning] * 4
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


async def drop_asyncio_after_sending(broker: ScriptedBroker, callback: Any) -> None:
    client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
    (await client.create_producer("t")).send_async(b"x", callback)
    del client
    while any(link.is_open for link in broker.links):
        await asyncio.sleep(0.005)


def test_creations_that_fail_again_and_again(broker: ScriptedBroker) -> None:
    for _ in range(30):
        with Client(broker.url, **QUICK) as client:
            broker.on_lookup().cut_connection(times=1)
            broker.on_producer().answer_error(ServerError.TopicNotFound, times=1)
            with pytest.raises(TopicNotFound):
                client.create_producer("t")
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))
