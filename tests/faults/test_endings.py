"""How the broker ends a registration, and commands beside it that the client must take or ignore."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_fast import Result
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.frames import Frame, encode
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker

MakeProducer = Callable[..., Any]
PRODUCER, CLOSE = BaseCommand.PRODUCER, BaseCommand.CLOSE_PRODUCER


@pytest.fixture
def successor(broker: ScriptedBroker) -> Iterator[ScriptedBroker]:
    with broker.another() as successor:
        yield successor


@pytest.mark.parametrize("reset", [False, True], ids=["end of stream", "reset"])
@pytest.mark.parametrize("assigned", [False, True], ids=["looked up", "assigned"])
@pytest.mark.parametrize("in_flight", [0, 1, 500])
def test_close_producer_and_then_the_end_of_the_connection(
    broker: ScriptedBroker,
    successor: ScriptedBroker,
    make_producer: MakeProducer,
    reset: bool,
    assigned: bool,
    in_flight: int,
) -> None:
    """Two events of one outage: one reconnect, to the broker that was named."""
    producer = make_producer(batching_enabled=False)
    outcomes = Outcomes()
    broker.hold_receipts()
    for name in range(in_flight):
        producer.send_async(b"%d" % name, outcomes.of(name))
    broker.wait_for(lambda b: len(b.sends) == in_flight)
    (registered,) = broker.got(PRODUCER)
    with broker.changed:  # nothing of the client comes in between
        broker.close_producer(registered, assigned=successor.url if assigned else "")
        registered.link.close(reset=reset)
    broker.release_receipts()
    producer.send(b"last")
    outcomes.wait_for(in_flight)
    assert set(outcomes.results.values()) <= {Result.Ok}
    assert outcomes.names == [*range(in_flight)]
    assert producer.stats().reconnects == 1
    new = successor if assigned else broker
    assert new.payloads[-in_flight - 1 :] == [*(b"%d" % name for name in range(in_flight)), b"last"]
    assert len(broker.got(PRODUCER)) + len(successor.got(PRODUCER)) == 2
    assert (len(broker.links), len(successor.links)) == ((1, 1) if assigned else (2, 0))
    assert not broker.got(CLOSE)
    producer.close()


@pytest.mark.parametrize("reset", [False, True], ids=["end of stream", "reset"])
def test_the_successor_ends_too(
    broker: ScriptedBroker, successor: ScriptedBroker, make_producer: MakeProducer, reset: bool
) -> None:
    """The broker that was named takes the producer and is gone at once: looked up, and found at the first again."""
    producer = make_producer()
    outcomes = Outcomes()

    def register_and_leave(frame: Frame) -> None:
        frame.link.send(successor.registered(frame))
        frame.link.close(reset=reset)

    successor.on_producer().do(register_and_leave, times=1)
    broker.close_producer(assigned=successor.url)
    for name in range(100):
        producer.send_async(b"%d" % name, outcomes.of(name))
    outcomes.wait_for(100)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(successor.got(PRODUCER)) == 1
    assert len(broker.got(PRODUCER)) == 2
    assert producer.stats().reconnects <= 2


def topic_migrated(frame: Frame | None) -> bytes:
    command = BaseCommand(type=BaseCommand.TOPIC_MIGRATED)
    command.topicMigrated.resource_id = frame.command.producer.producer_id + 1000 if frame else 1000
    command.topicMigrated.resource_type = 0
    command.topicMigrated.brokerServiceUrl = "pulsar://127.0.0.1:1"
    return encode(command)


def auth_challenge(_frame: Frame | None) -> bytes:
    command = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
    command.authChallenge.server_version = "scripted"
    return encode(command)


def all_numbers_that_nobody_knows(_frame: Frame | None) -> bytes:
    known = set(BaseCommand.Type.values())
    numbers = [number for number in (*range(1, 100), 2**31 - 1, -1) if number not in known]
    return b"".join(encode(BaseCommand(type=number)) for number in numbers)


def commands_of_a_client(_frame: Frame | None) -> bytes:
    """What no broker sends: whole commands, so that the stream can go on."""
    connect = BaseCommand(type=BaseCommand.CONNECT)
    connect.connect.client_version = "not a broker"
    lookup = BaseCommand(type=BaseCommand.LOOKUP)
    lookup.lookupTopic.topic = "t"
    lookup.lookupTopic.request_id = 1
    return encode(connect) + encode(lookup)


BESIDE = [topic_migrated, auth_challenge, all_numbers_that_nobody_knows, commands_of_a_client]


@pytest.mark.parametrize("make", BESIDE)
def test_commands_beside_the_conversation_never_break_it(
    broker: ScriptedBroker, make_producer: MakeProducer, make: Callable[[Frame | None], bytes]
) -> None:
    """Right behind the handshake and the registration, idle, and between a frame and its receipt."""
    broker.on_connect().do(lambda frame: (broker.usual_answer(frame), frame.link.send(make(None))), times=1)
    broker.on_producer().do(
        lambda frame: frame.link.send(make(frame) + broker.registered(frame) + make(frame)), times=1
    )
    producer = make_producer(batching_enabled=False)
    (registered,) = broker.got(PRODUCER)
    outcomes = Outcomes()
    broker.on_send().do(
        lambda frame: frame.link.send(make(registered) + broker.receipt(frame) + make(registered))
    )
    for name in range(50):
        broker.send_bytes(make(registered))
        producer.send_async(b"%d" % name, outcomes.of(name))
    outcomes.wait_for(50)
    assert outcomes.names == [*range(50)]
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(broker.links) == 1
    assert producer.stats().reconnects == 0


@pytest.mark.parametrize("make", BESIDE)
@pytest.mark.parametrize("reset", [False, True], ids=["end of stream", "reset"])
def test_commands_beside_the_conversation_and_then_its_end(
    broker: ScriptedBroker, make_producer: MakeProducer, make: Callable[[Frame | None], bytes], reset: bool
) -> None:
    """As of a cluster that moves away, or credentials that nobody renewed."""
    producer = make_producer(batching_enabled=False)
    (registered,) = broker.got(PRODUCER)
    outcomes = Outcomes()

    def tell_and_leave(frame: Frame) -> None:
        frame.link.send(make(registered))
        frame.link.close(reset=reset)

    broker.after(frames=10).do(tell_and_leave, times=1)
    for name in range(50):
        producer.send_async(b"%d" % name, outcomes.of(name))
    outcomes.wait_for(50)
    assert outcomes.names == [*range(50)]
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(broker.links) == len(broker.got(PRODUCER)) == 2
    assert producer.stats().reconnects == 1
