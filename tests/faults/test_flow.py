"""Peers that take or answer slowly, and what waits for them: batches, flush, room, memory."""

import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_fast import MemoryBufferIsFull, Result, Timeout
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.frames import encode
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.waiting import until

MakeProducer = Callable[..., Any]
NEVER_MS = 2**31 - 1


# --- peers that do not read


def test_a_peer_that_pings_and_does_not_read(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """The answers do not pile up."""
    producer = make_producer(batching_enabled=False, max_pending_messages=0)
    outcomes = Outcomes()
    broker.stop_reading()
    for name in range(12):
        producer.send_async(b"x" * 1_000_000, outcomes.of(name))
    with pytest.raises(Timeout):
        producer.flush(0.1)  # by then the loop has written all that the socket takes
    pings = encode(BaseCommand(type=BaseCommand.PING, ping={})) * 1000
    for _ in range(30):
        broker.send_bytes(pings)
    broker.resume_reading()
    outcomes.wait_for(12, timeout=10)
    producer.send(b"x")
    assert 1 <= len(broker.got(BaseCommand.PONG)) <= 3
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(broker.links) == 1


def test_a_broker_that_takes_much_may_not_say_as_much(make_client: Callable[..., Any]) -> None:
    """Receiving is bounded by what commands need, not by what a peer says of itself."""
    with ScriptedBroker(max_message_size=2**31 - 1) as broker:
        producer = make_client(broker.url).create_producer("t")
        broker.send_bytes(struct.pack(">II", 6_000_000, 5_999_996))
        until(lambda: "a frame of 6000000 bytes" in str(producer.stats().last_connection_error))
        producer.send(bytes(6_000_000))
        assert [len(payload) for payload in broker.payloads] == [6_000_000]


@pytest.mark.parametrize("sizes", [(1_900_000, 300_000, 100, 600_000), (3_000_000,) * 4, (10,) * 20])
def test_a_stalled_broker_beside_a_good_one(
    broker: ScriptedBroker, make_producer: MakeProducer, sizes: tuple[int, ...]
) -> None:
    """They share the memory limit; with the deadlines of the stalled one all who wait go on, whatever their size."""
    with broker.another() as stalled:
        broker.on_lookup().send_to(stalled.url, times=1)
        far = make_producer(
            "far", {"memory_limit_bytes": 4_000_000}, send_timeout_millis=500, max_pending_messages=0
        )
        good = make_producer("good", block_if_queue_full=True)
        stalled.stop_reading()
        for size in (200_000, 2_000, 20, 1):  # until there is no room for the smallest
            with pytest.raises(MemoryBufferIsFull):
                while True:
                    far.send_async(b"x" * size, None)
        outcomes = Outcomes()
        threads = [
            threading.Thread(target=good.send_async, args=(b"y" * size, outcomes.of(name)), daemon=True)
            for name, size in enumerate(sizes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()
        outcomes.wait_for(len(sizes))
        assert set(outcomes.results.values()) == {Result.Ok}
        assert sorted(map(len, broker.payloads)) == sorted(sizes)
        assert far.stats().pending_messages == 0
        stalled.resume_reading()
        far.send(b"x")
        assert good.stats().client_pending_bytes == 0
        assert far.stats().reconnects == good.stats().reconnects == 0
        far.close()


# --- when a batch leaves


@pytest.mark.parametrize("delay", [2500, 10_000, NEVER_MS])
def test_a_send_timeout_below_the_batch_delay(make_producer: MakeProducer, delay: int) -> None:
    """The batch leaves well before its messages would expire."""
    producer = make_producer(send_timeout_millis=2000, batching_max_publish_delay_ms=delay)
    outcomes = Outcomes()
    for name in range(3):
        producer.send_async(b"x", outcomes.of(name))
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Ok}


@pytest.mark.parametrize(
    "ends", ["flush", "close", "send", "a full batch", "a large message", "client.close"]
)
def test_a_batch_delay_without_end(
    broker: ScriptedBroker, make_producer: MakeProducer, make_client: Callable[..., Any], ends: str
) -> None:
    """Everything else that ends a batch still does."""
    client = make_client(broker.url)
    producer = client.create_producer(
        "t", send_timeout_millis=0, batching_max_publish_delay_ms=NEVER_MS, batching_max_messages=4
    )
    outcomes = Outcomes()
    for name in range(3):
        producer.send_async(b"x", outcomes.of(name))
    with pytest.raises(AssertionError, match="callbacks ran"):
        outcomes.wait_for(1, timeout=0.1)
    if ends == "flush":
        producer.flush()
    elif ends == "close":
        producer.close()
    elif ends == "client.close":
        client.close()
    elif ends == "send":
        producer.send(b"x")
    elif ends == "a full batch":
        producer.send_async(b"x", None)
    else:
        producer.send_async(b"x" * 200_000, None)
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(broker.sends[0].messages) in (3, 4)


# --- flush


@pytest.mark.parametrize("batching", [True, False])
def test_flush_ends_with_the_last_receipt_and_not_before(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool
) -> None:
    """What is sent after the call is not its concern."""
    producer = make_producer(batching_enabled=batching)
    outcomes = Outcomes()
    broker.hold_receipts()
    for name in range(3):
        producer.send_async(b"%d" % name, outcomes.of(name))
        broker.wait_for(lambda b, n=name: len(b.sends) == n + 1)
    flushed = threading.Event()
    flushing = threading.Thread(target=lambda: (producer.flush(), flushed.set()), daemon=True)
    flushing.start()
    with pytest.raises(Timeout):  # a later flush, so that the loop has the first one
        producer.flush(0.1)
    producer.send_async(b"later", None)
    broker.wait_for(lambda b: len(b.sends) == 4)
    for answered in range(1, 4):
        assert not flushed.wait(0.05)
        broker.release_receipts(1)
        outcomes.wait_for(answered)
    assert flushed.wait(5)
    assert producer.stats().pending_messages == 1
    broker.release_receipts()
    flushing.join(5)


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("fault", ["the connection is cut", "the broker closes the producer"])
def test_flush_through_a_reconnect(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool, fault: str
) -> None:
    producer = make_producer(batching_enabled=batching)
    outcomes = Outcomes()
    broker.hold_receipts()
    for name in range(3):
        producer.send_async(b"%d" % name, outcomes.of(name))
    broker.wait_for(lambda b: len(b.payloads) == 3)
    broker.release_receipts(1)
    flushing = threading.Thread(target=producer.flush, args=(5,), daemon=True)
    flushing.start()
    if fault == "the connection is cut":
        broker.cut_connections()
    else:
        broker.close_producer()
    broker.wait_for(lambda b: len(b.got(BaseCommand.PRODUCER)) == 2)
    broker.release_receipts()
    flushing.join(5)
    assert not flushing.is_alive()
    outcomes.wait_for(3, timeout=0)
    assert set(outcomes.results.values()) == {Result.Ok}
