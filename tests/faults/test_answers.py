"""Receipts that are late, repeated, foreign, skipped, reordered or ahead, and answers that come with the deadline."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pulsar_fast import Result, Timeout
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.frames import encode
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.waiting import until

MakeProducer = Callable[..., Any]
WINDOW = 6


def changed(receipt: bytes, **fields: int) -> bytes:
    command = BaseCommand.FromString(receipt[8:])
    for name, value in fields.items():
        setattr(command.send_receipt, name, value)
    return encode(command)


class Window:
    """So many frames of one message that wait for their receipts."""

    def __init__(self, broker: ScriptedBroker, producer: Any) -> None:
        self.broker = broker
        self.outcomes = Outcomes()
        before = len(broker.sends)
        broker.hold_receipts()
        for name in range(WINDOW):
            producer.send_async(b"%d" % name, self.outcomes.of(name))
        broker.wait_for(lambda b: len(b.sends) == before + WINDOW)
        self.frames = broker.sends[before:]

    def receipt(self, position: int, **fields: int) -> None:
        self.broker.send_bytes(changed(self.broker.receipt(self.frames[position]), **fields))

    def receipts(self, start: int, end: int) -> None:
        for position in range(start, end):
            self.receipt(position)

    def is_resent_from(self, position: int) -> None:
        """On a new connection, which is answered like any other."""
        resent = WINDOW - position
        self.broker.wait_for(lambda b: len(b.links) == 2 and len(b.sends) == WINDOW + resent)
        again = [frame.messages[0].payload for frame in self.broker.sends[WINDOW:]]
        assert again == [b"%d" % name for name in range(position, WINDOW)]
        self.broker.release_receipts()  # the old ones, on the closed connection, and the new ones

    def all_are_stored(self) -> None:
        self.outcomes.wait_for(WINDOW)
        assert self.outcomes.names == [*range(WINDOW)]
        assert set(self.outcomes.results.values()) == {Result.Ok}


@pytest.mark.parametrize("position", range(WINDOW))
class TestEveryPosition:
    def test_repeated(self, broker: ScriptedBroker, make_producer: MakeProducer, position: int) -> None:
        producer = make_producer(batching_enabled=False)
        window = Window(broker, producer)
        window.receipts(0, position + 1)
        window.receipts(0, position + 1)
        window.receipt(position)
        window.receipts(position + 1, WINDOW)
        window.all_are_stored()
        assert len(broker.links) == 1
        until(lambda: producer.stats().late == position + 2)

    def test_foreign(self, broker: ScriptedBroker, make_producer: MakeProducer, position: int) -> None:
        producer = make_producer(batching_enabled=False)
        neighbour = make_producer("neighbour")
        window = Window(broker, producer)
        window.receipts(0, position)
        window.receipt(position, producer_id=4711)
        window.receipt(position, producer_id=2)  # of a producer that has sent nothing
        window.receipt(position, producer_id=2**64 - 1, sequence_id=2**64 - 1)
        window.receipts(position, WINDOW)
        window.all_are_stored()
        broker.release_receipts()
        neighbour.send(b"x")
        assert len(broker.links) == 1

    def test_late(self, broker: ScriptedBroker, make_producer: MakeProducer, position: int) -> None:
        producer = make_producer(batching_enabled=False, send_timeout_millis=600)
        window = Window(broker, producer)
        window.receipts(0, position)
        window.outcomes.wait_for(WINDOW)
        in_time = [*range(position)]
        stored = [name for name, result in window.outcomes.results.items() if result is Result.Ok]
        assert stored == in_time
        window.receipts(position, WINDOW)
        broker.release_receipts()  # each a second time
        producer.send(b"x")
        assert producer.stats().late == WINDOW - position + WINDOW
        assert len(broker.links) == 1

    def test_skipped(self, broker: ScriptedBroker, make_producer: MakeProducer, position: int) -> None:
        window = Window(broker, make_producer(batching_enabled=False))
        window.receipts(0, position)
        if position < WINDOW - 1:
            window.receipt(position + 1)
            window.is_resent_from(position)
        else:
            window.receipt(position)
        window.all_are_stored()

    def test_reordered(self, broker: ScriptedBroker, make_producer: MakeProducer, position: int) -> None:
        """The last comes before the one of each position: what waits in front of it may be lost."""
        window = Window(broker, make_producer(batching_enabled=False))
        window.receipts(0, position)
        window.receipt(WINDOW - 1)
        if position < WINDOW - 1:
            window.is_resent_from(position)
        window.all_are_stored()

    @pytest.mark.parametrize("ahead", [1, 1000, 2**63 - 1], ids=["next", "far", "farthest"])
    def test_ahead_of_all_that_was_sent(
        self, broker: ScriptedBroker, make_producer: MakeProducer, position: int, ahead: int
    ) -> None:
        window = Window(broker, make_producer(batching_enabled=False))
        window.receipts(0, position)
        window.receipt(position, sequence_id=min(WINDOW - 1 + ahead, 2**63 - 1))
        window.is_resent_from(position)
        window.all_are_stored()


@pytest.mark.parametrize("batching", [True, False])
def test_ten_thousand_answers_at_the_very_deadline(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool
) -> None:
    """Before, at and behind it in turn: each message has one answer, and nothing stays."""
    producer = make_producer(
        batching_enabled=batching, send_timeout_millis=4, batching_max_publish_delay_ms=0
    )
    answers: Counter[int] = Counter()
    results: Counter[Result] = Counter()

    def answered(name: int) -> Callable[..., None]:
        def callback(result: Result, _message_id: Any) -> None:
            answers[name] += 1
            results[result] += 1

        return callback

    rounds, size = 500, 20
    for round_ in range(rounds):
        broker.hold_receipts()
        edge = time.monotonic() + 0.0025 + 0.003 * (round_ % 50) / 50
        for name in range(round_ * size, (round_ + 1) * size):
            producer.send_async(b"x", answered(name))
        while time.monotonic() < edge:  # this is the moment, not a condition
            time.sleep(0.0001)
        broker.release_receipts()
    with suppress(Timeout):  # of the messages
        producer.flush(5)
    assert [count for name, count in answers.items() if count != 1] == []
    assert len(answers) == rounds * size
    assert set(results) == {Result.Ok, Result.Timeout}, "the edge was not met"
    stats = producer.stats()
    assert (stats.pending_messages, stats.client_pending_bytes) == (0, 0)
    assert (stats.acknowledged, stats.expired) == (results[Result.Ok], results[Result.Timeout])
    assert len(broker.links) == 1
