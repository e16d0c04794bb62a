"""Sends that the broker refuses: one frame, one producer, again and again, and while the producer closes."""

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pulsar_fast import AlreadyClosed, NotAllowedError, Result
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import Frame, refusal
from tests.faults.memory import damage
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker

MakeProducer = Callable[..., Any]
PRODUCER = BaseCommand.PRODUCER


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("damaged", [True, False])
@pytest.mark.parametrize("batching", [True, False])
def test_a_checksum_error_for_a_frame_that_is_damaged_in_memory(
    broker: ScriptedBroker, make_producer: MakeProducer, damaged: bool, batching: bool
) -> None:
    """Only then its messages fail; what arrived damaged of an intact one is sent again."""
    producer = make_producer("refused", batching_enabled=batching)
    neighbour = make_producer("neighbour")
    outcomes = Outcomes()
    broker.hold_receipts()
    marks = [os.urandom(32) for _ in range(3)]
    for name, mark in enumerate(marks):
        producer.send_async(mark, outcomes.of(name))
        broker.wait_for(lambda b, n=name: len(b.sends) == n + 1)
    if damaged:
        damage(marks[1])
    broker.send_error(ServerError.ChecksumError, at=broker.sends[1])
    if damaged:
        outcomes.wait_for(1)
    else:
        broker.wait_for(lambda b: len(b.sends) == 6)
    broker.release_receipts()
    outcomes.wait_for(3)
    assert outcomes.results == {0: Result.Ok, 1: Result.ChecksumError if damaged else Result.Ok, 2: Result.Ok}
    assert producer.stats().reconnects == (0 if damaged else 1)
    assert producer.stats().client_pending_bytes == 0
    neighbour.send(b"x")
    assert neighbour.stats().reconnects == 0
    assert len(broker.links) == 1


@pytest.mark.parametrize("code", [-1, 27, 2**31 - 1])
def test_a_send_refused_with_a_number_that_nobody_knows(
    broker: ScriptedBroker, make_producer: MakeProducer, code: int
) -> None:
    producer = make_producer()
    broker.on_send().answer_error(code, times=1)
    producer.send(b"x")
    assert broker.payloads == [b"x", b"x"]
    assert producer.stats().reconnects == 1
    assert str(code) in producer.stats().last_connection_error
    assert len(broker.links) == 1


def refuse_every(broker: ScriptedBroker, nth: int, *codes: int) -> None:
    numbers = itertools.count(1)

    def answer(frame: Frame) -> None:
        number = next(numbers)
        if number % nth:
            broker.usual_answer(frame)
        else:
            frame.link.send(refusal(frame, codes[number // nth % len(codes)]))

    broker.on_send().do(answer)


@pytest.mark.parametrize("closes", [False, True], ids=["to the end", "closed meanwhile"])
def test_starting_over_again_and_again_under_load(
    broker: ScriptedBroker, make_producer: MakeProducer, closes: bool
) -> None:
    """Frames are refused in both ways; what failed is sent again by its callback."""
    producer = make_producer("refused", max_pending_messages=0, batching_max_messages=5)
    neighbour = make_producer("neighbour")
    refuse_every(broker, 7, ServerError.PersistenceError, ServerError.NotAllowedError, 99)
    outcomes = Outcomes()

    def resend(payload: bytes) -> Callable[..., None]:
        answered = outcomes.of(payload)

        def callback(result: Result, message_id: Any) -> None:
            if result is Result.NotAllowedError:
                producer.send_async(payload, callback)
            else:
                answered(result, message_id)

        return callback

    def work(thread: int) -> None:
        for number in range(150):
            payload = b"%d %d" % (thread, number)
            producer.send_async(payload, resend(payload))

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(8)]
    for thread in threads:
        thread.start()
    if closes:
        broker.wait_for(lambda b: len(b.got(PRODUCER)) >= 4)
        producer.close(timeout=0.05)
    for thread in threads:
        thread.join(20)
    outcomes.wait_for(1200, timeout=20)
    stored = {name for name, result in outcomes.results.items() if result is Result.Ok}
    assert stored <= set(broker.payloads)
    if closes:
        assert set(outcomes.results.values()) <= {Result.Ok, Result.AlreadyClosed}
        with pytest.raises(AlreadyClosed):
            producer.send(b"later")
    else:
        assert len(stored) == 1200
        for _ in range(100):  # one outage may have covered nearly all refusals
            with suppress(NotAllowedError):
                producer.send(b"more")
        assert producer.stats().reconnects >= 3
    broker.forget_rules()
    neighbour.send(b"x")
    assert neighbour.stats().reconnects == 0
    assert len(broker.links) == 1
    assert producer.stats().pending_messages == producer.stats().client_pending_bytes == 0


def test_closing_at_the_moment_of_a_refusal(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """The barrier of the refusal and the farewell of the close meet in both orders."""
    for round_ in range(60):
        producer = make_producer(batching_enabled=False)
        outcomes = Outcomes()
        broker.hold_receipts()
        names = [b"%d %d" % (round_, number) for number in range(3)]
        for name in names:
            producer.send_async(name, outcomes.of(name))
        broker.wait_for(lambda b, last=names[-1]: last in b.payloads)
        (refused,) = [frame for frame in broker.sends if frame.messages[0].payload == names[1]]
        closing = threading.Thread(target=producer.close, args=(0.2,), daemon=True)
        if round_ % 2:
            closing.start()
            time.sleep(round_ * 1e-5)  # this is the moment, not a condition
            broker.send_error(ServerError.PersistenceError, at=refused)
        else:
            broker.send_error(ServerError.PersistenceError, at=refused)
            time.sleep(round_ * 1e-5)
            closing.start()
        broker.release_receipts()
        closing.join(5)
        assert not closing.is_alive()
        outcomes.wait_for(3)
        assert set(outcomes.results.values()) <= {Result.Ok, Result.AlreadyClosed}
        assert not producer.is_connected()
    assert len(broker.links) == 1
