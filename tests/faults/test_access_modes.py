"""Exclusive access to a topic: what is asked for, waiting for it, and losing it."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import AuthorizationError, ProducerAccessMode, ProducerBusy, ProducerFenced
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers import frames
from tests.brokers.frames import Frame
from tests.faults.conftest import QUICK
from tests.faults.scripted_broker import ScriptedBroker

MakeProducer = Callable[..., Any]
MODES = list(ProducerAccessMode)
WAITING = {"access_mode": ProducerAccessMode.WaitForExclusive}


@pytest.mark.parametrize("mode", MODES)
def test_what_is_asked_for(broker: ScriptedBroker, make_producer: MakeProducer, mode: Any) -> None:
    make_producer("t", access_mode=mode).send(b"x")
    command = broker.got(BaseCommand.PRODUCER)[0].command.producer
    assert command.producer_access_mode == int(mode)
    assert command.HasField("producer_access_mode") == (mode is not ProducerAccessMode.Shared)
    assert not command.HasField("topic_epoch")


def answer_with_epoch(broker: ScriptedBroker, epoch: int) -> None:
    def answer(frame: Frame) -> None:
        broker.registered(frame)  # notes that the producer may send
        frame.link.send(frames.registered(frame, "mine", topic_epoch=epoch))

    broker.on_producer().do(answer)


def test_the_epoch_of_the_topic_is_repeated(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    answer_with_epoch(broker, 7)
    producer = make_producer("t", producer_name="mine", access_mode=ProducerAccessMode.Exclusive)
    broker.forget_rules()
    for _ in range(2):  # the second answer names none, which changes nothing
        broker.close_producer()
        producer.send(b"x")
    epochs = [
        (frame.command.producer.HasField("topic_epoch"), frame.command.producer.topic_epoch)
        for frame in broker.got(BaseCommand.PRODUCER)
    ]
    assert epochs == [(False, 0), (True, 7), (True, 7)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [(ServerError.ProducerBusy, ProducerBusy), (ServerError.ProducerFenced, ProducerFenced)],
)
def test_refused_at_once(
    broker: ScriptedBroker, make_producer: MakeProducer, code: int, kind: type[Exception]
) -> None:
    broker.on_producer().answer_error(code, "somebody has it")
    with pytest.raises(kind, match="somebody has it"):
        make_producer("t", access_mode=ProducerAccessMode.Exclusive)
    assert len(broker.got(BaseCommand.PRODUCER)) == 1


def test_fenced_on_a_reconnect(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", access_mode=ProducerAccessMode.Exclusive)
    broker.on_producer().answer_error(ServerError.ProducerFenced, "taken over")
    broker.hold_receipts()
    sent = threading.Event()
    producer.send_async(b"x", lambda result, _: sent.set())
    broker.wait_for(lambda b: b.sends)
    broker.cut_connections()
    assert sent.wait(10)
    with pytest.raises(ProducerFenced, match="taken over"):
        producer.send(b"y")
    assert len(broker.got(BaseCommand.PRODUCER)) == 2


# --- waiting for it


def queue_up(broker: ScriptedBroker) -> list[Frame]:
    """Producers are told to wait; these are their commands."""
    waiting: list[Frame] = []

    def answer(frame: Frame) -> None:
        waiting.append(frame)
        frame.link.send(frames.registered(frame, "mine", ready=False))

    broker.on_producer().do(answer)
    return waiting


def grant(broker: ScriptedBroker, frame: Frame) -> None:
    with broker.changed:
        frame.link.send(broker.registered(frame))


def create_beside(make_producer: MakeProducer, options: dict[str, Any]) -> tuple[threading.Thread, list[Any]]:
    made: list[Any] = []

    def create() -> None:
        try:
            made.append(make_producer("t", {"operation_timeout_seconds": 0.2}, **options))
        except Exception as error:
            made.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    return thread, made


def test_longer_than_the_operation_timeout(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    waiting = queue_up(broker)
    thread, made = create_beside(make_producer, {**WAITING, "producer_name": "mine"})
    broker.wait_for(lambda b: waiting)
    thread.join(0.7)  # meanwhile a bound of 0.2 s has passed
    assert thread.is_alive()
    assert broker.got(BaseCommand.CLOSE_PRODUCER) == []
    grant(broker, waiting[0])
    thread.join(10)
    made[0].send(b"x")
    assert len(broker.got(BaseCommand.PRODUCER)) == 1


@pytest.mark.parametrize("ending", ["cut", "close"])
def test_the_queue_is_lost(broker: ScriptedBroker, make_producer: MakeProducer, ending: str) -> None:
    """It queues up again."""
    waiting = queue_up(broker)
    thread, made = create_beside(make_producer, {**WAITING, "producer_name": "mine"})
    broker.wait_for(lambda b: waiting)
    if ending == "cut":
        broker.cut_connections()
    else:
        broker.close_producer()
    broker.wait_for(lambda b: len(waiting) == 2)
    grant(broker, waiting[1])
    thread.join(10)
    made[0].send(b"x")


def test_the_client_is_closed_meanwhile(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    waiting = queue_up(broker)
    client = make_client(broker.url)
    thread, made = create_beside(
        lambda topic, _, **options: client.create_producer(topic, **options), WAITING
    )
    broker.wait_for(lambda b: waiting)
    client.close()
    thread.join(10)
    assert isinstance(made[0], pulsar_fast.AlreadyClosed)
    broker.wait_for(lambda b: len(b.got(BaseCommand.CLOSE_PRODUCER)) == 1)


def test_cancelled_with_asyncio(broker: ScriptedBroker) -> None:
    async def main() -> None:
        waiting = queue_up(broker)
        async with pulsar_fast.asyncio.Client(broker.url, **QUICK) as client:
            creating = asyncio.ensure_future(client.create_producer("t", **WAITING))
            await asyncio.to_thread(broker.wait_for, lambda b: waiting)
            creating.cancel()
            await asyncio.wait([creating])
            await asyncio.to_thread(broker.wait_for, lambda b: b.got(BaseCommand.CLOSE_PRODUCER))
            broker.forget_rules()
            producer = await client.create_producer("t")
            await producer.send(b"x")

    asyncio.run(main())


def test_a_broker_that_says_nothing_is_not_waited_for(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    broker.on_producer().say_nothing(times=1)
    producer = make_producer("t", {"operation_timeout_seconds": 0.2}, **WAITING)
    producer.send(b"x")
    assert len(broker.got(BaseCommand.PRODUCER)) == 2
    assert len(broker.got(BaseCommand.CLOSE_PRODUCER)) == 1


def test_waiting_on_all_partitions(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    broker.partitions = 3
    waiting = queue_up(broker)
    thread, made = create_beside(make_producer, {**WAITING, "lazy_start_partitioned_producers": True})
    broker.wait_for(lambda b: len(waiting) == 1)
    broker.forget_rules()
    grant(broker, waiting[0])
    thread.join(10)
    made[0].send(b"x")
    assert len(broker.got(BaseCommand.PRODUCER)) == 3, "access to all of them"


def test_two_that_wait_do_not_wait_for_each_other(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    """They ask for the partitions in the same order: whoever has the first one gets the others."""
    broker.partitions = 4
    first_asked = set()
    for _ in range(12):
        waiting = queue_up(broker)
        client = make_client(broker.url)
        thread, _ = create_beside(
            lambda topic, _, client=client, **options: client.create_producer(topic, **options), WAITING
        )
        broker.wait_for(lambda b: waiting)  # noqa: B023
        first_asked.add(waiting[0].command.producer.topic)
        client.close()
        thread.join(10)
        broker.forget_rules()
    assert first_asked == {"persistent://public/default/t-partition-0"}


def test_one_partition_is_refused_while_another_waits(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    broker.partitions = 3

    def answer(frame: Frame) -> None:
        if frame.command.producer.topic.endswith("-0"):
            frame.link.send(broker.registered(frame))
        elif frame.command.producer.topic.endswith("-1"):
            frame.link.send(frames.registered(frame, "mine", ready=False))
        else:
            frame.link.send(frames.error_answer(frame, ServerError.AuthorizationError, "not this one"))

    broker.on_producer().do(answer)
    with pytest.raises(AuthorizationError, match="not this one"):
        make_producer("t", **WAITING)
    broker.wait_for(lambda b: len(b.got(BaseCommand.CLOSE_PRODUCER)) == 2)
