"""Connections and registrations that end, refuse, stall or lie: nothing lost, doubled, mixed up or waited for."""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

import pulsar_fast
import pulsar_fast.asyncio
from pulsar_fast import AlreadyClosed, MemoryBufferIsFull, MessageTooBig, Result, Timeout
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import Frame, encode, error_answer, refusal
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.waiting import until

MakeProducer = Callable[..., Any]
PRODUCER, SEND, CLOSE = BaseCommand.PRODUCER, BaseCommand.SEND, BaseCommand.CLOSE_PRODUCER


def describing(name: int, size: int = 40) -> bytes:
    """A payload that shows whether it is whole: its name, over and over."""
    return (b"%08d." % name * (size // 9 + 1))[:size]


def assert_whole(payload: bytes) -> None:
    assert payload == describing(int(payload[:8]), len(payload)), "bytes of several messages are mixed"


def send_all(producer: Any, outcomes: Outcomes, names: Any, size: int = 40) -> None:
    for name in names:
        producer.send_async(describing(name, size), outcomes.of(name))


def ids(frames: list[Frame]) -> list[int]:
    return [message.sequence_id for frame in frames for message in frame.messages]


def on_link(broker: ScriptedBroker, number: int) -> list[Frame]:
    return [frame for frame in broker.sends if frame.link is broker.links[number]]


# --- resending


def test_what_has_no_receipt_is_resent_first_and_unchanged(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(batching_enabled=False)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(10))
    broker.wait_for(lambda b: len(b.sends) == 10)
    broker.release_receipts(4)
    outcomes.wait_for(4)
    broker.cut_connections()
    broker.wait_for(lambda b: len(b.sends) == 16)
    send_all(producer, outcomes, [10])
    broker.release_receipts()
    outcomes.wait_for(11)
    assert [frame.raw for frame in on_link(broker, 1)[:6]] == [frame.raw for frame in on_link(broker, 0)[4:]]
    assert ids(on_link(broker, 1)) == [*range(4, 11)]
    assert outcomes.names == [*range(11)]
    assert set(outcomes.results.values()) == {Result.Ok}
    assert producer.stats().resent == 6


def test_a_reconnect_before_the_first_receipt_keeps_the_ids(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer()
    outcomes = Outcomes()
    broker.after(frames=1).cut_connection()
    broker.last_sequence_id = 41  # of an earlier life: counts at the first registration only
    send_all(producer, outcomes, [0])
    outcomes.wait_for(1)
    send_all(producer, outcomes, [1])
    outcomes.wait_for(2)
    assert ids(broker.sends) == [0, 0, 1]
    assert producer.last_sequence_id() == 1


def test_the_brokers_last_id_counts_at_first(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    broker.last_sequence_id = 41
    make_producer().send(b"x")
    assert ids(broker.sends) == [42]


@pytest.mark.parametrize("reset", [False, True])
def test_one_outage_is_one_reconnect(
    broker: ScriptedBroker, make_producer: MakeProducer, reset: bool
) -> None:
    producer = make_producer(batching_enabled=False, max_pending_messages=0)
    outcomes = Outcomes()
    broker.after(frames=50).cut_connection(reset=reset)
    send_all(producer, outcomes, range(2000))
    outcomes.wait_for(2000)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert ids(on_link(broker, 1))[-1] == 1999
    assert len(broker.got(PRODUCER)) == len(broker.links) == 2
    assert producer.stats().reconnects == 1


@pytest.mark.parametrize("cut", [False, True], ids=["close", "close and end of stream"])
def test_closed_by_the_broker(broker: ScriptedBroker, make_producer: MakeProducer, cut: bool) -> None:
    producer = make_producer()
    neighbour = make_producer("neighbour")
    producer.send(b"0")

    def close(frame: Frame) -> None:
        frame.link.send(broker.closing(frame))
        if cut:
            frame.link.close()

    broker.after(frames=1).do(close, times=1)
    producer.send(b"1")
    neighbour.send(b"2")
    assert broker.payloads == [b"0", b"1", b"1", b"2"]
    assert len(broker.links) == (2 if cut else 1)
    assert producer.stats().reconnects == 1
    assert neighbour.stats().reconnects == int(cut)
    assert len(broker.got(PRODUCER)) == (4 if cut else 3)
    assert not broker.got(CLOSE), "the broker's own CloseProducer needs no answer"


@pytest.mark.parametrize("first", [True, False], ids=["at creation", "at a reconnect"])
def test_closed_right_behind_the_registration(
    broker: ScriptedBroker, make_producer: MakeProducer, first: bool
) -> None:
    def register_and_close(frame: Frame) -> None:
        frame.link.send(broker.registered(frame) + broker.closing(frame))

    producer = None
    if not first:
        producer = make_producer()
        broker.close_producer()
    broker.on_producer().do(register_and_close, times=2)
    producer = producer or make_producer()
    producer.send(b"x")
    assert set(broker.payloads) == {b"x"}
    assert len(broker.links) == 1


def test_refused_right_behind_the_registration(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """The frame is resent inside the handoff, and its refusal comes before anything else can run."""
    producer = make_producer()
    outcomes = Outcomes()
    broker.after(frames=1).cut_connection()

    def register_and_refuse(frame: Frame) -> None:
        refused = broker.sends[0]
        frame.link.send(broker.registered(frame) + refusal(refused, ServerError.PersistenceError))

    broker.on_producer().do(register_and_refuse, times=1)
    send_all(producer, outcomes, [0])
    outcomes.wait_for(1)
    assert outcomes.results == {0: Result.Ok}
    producer.send(describing(1))


@pytest.mark.parametrize("reset", [False, True])
def test_cut_right_behind_the_registration(broker: ScriptedBroker, reset: bool) -> None:
    """Both are there when the client reads, since its loop is held meanwhile."""

    async def run() -> None:
        async with pulsar_fast.asyncio.Client(broker.url, **QUICK) as client:
            producer = await client.create_producer("t", batching_enabled=False)

            def register_and_cut(frame: Frame) -> None:
                frame.link.send(broker.registered(frame))
                frame.link.close(reset=reset)

            for _ in range(3):
                registered = len(broker.got(PRODUCER))
                broker.on_producer().do(register_and_cut, times=1)
                broker.close_producer()
                sent = producer.send(b"x" * 100_000)  # something to write at the handoff
                while len(broker.got(PRODUCER)) == registered:
                    await asyncio.sleep(0)
                broker.wait_for(lambda b: not b.links[-1].is_open)
                await asyncio.wait_for(sent, 5)

    asyncio.run(run())


def test_cut_at_every_byte_of_the_answers(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url, initial_backoff_interval_ms=1, max_backoff_interval_ms=5)
    producer = client.create_producer("t")
    producer.send(b"x")
    producer.close()
    for cut in itertools.count(1):
        broker.cut_next_connection_after(cut)
        broker.cut_connections()
        before = len(broker.sends)
        producer = client.create_producer("t")
        producer.send(b"x")
        whole = len(broker.sends) == before + 1 and broker.links[-1].bytes_left is not None
        producer.close()
        if whole:
            break
        assert cut < 1000
    assert cut > 50, "the answers that were cut are not those meant"


def test_answers_that_dribble_in(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    broker.dribble(1)
    producer = make_producer()
    outcomes = Outcomes()
    for name in range(20):
        producer.send_async(describing(name), outcomes.of(name))
        producer.flush()
    assert outcomes.names == [*range(20)]
    assert len(broker.links) == 1


def test_moved_again_and_again(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """Unloaded under traffic, with two look-ups refused each time; the neighbour never notices."""
    producer = make_producer("moving", max_pending_messages=0)
    neighbour = make_producer("neighbour")
    moving = broker.got(PRODUCER)[0]
    outcomes = Outcomes()
    for round_ in range(10):
        send_all(producer, outcomes, range(round_ * 100, round_ * 100 + 100))
        broker.on_producer().answer_error(ServerError.ServiceNotReady, times=2)
        broker.close_producer(moving)
        neighbour.send(b"%08d." % 0)
        broker.wait_for(lambda b, n=3 * round_ + 5: len(b.got(PRODUCER)) >= n)
        producer.flush()
    outcomes.wait_for(1000)
    assert outcomes.names == [*range(1000)]
    assert set(outcomes.results.values()) == {Result.Ok}
    moved = [
        frame
        for frame in broker.sends
        if frame.command.send.producer_id == moving.command.producer.producer_id
    ]
    assert sorted(set(ids(moved))) == [*range(1000)]
    assert neighbour.stats().reconnects == 0
    assert len(broker.links) == 1


def test_a_named_successor_is_asked_at_once(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    slow = {"initial_backoff_interval_ms": 5000, "max_backoff_interval_ms": 5000}
    producer = make_producer(client=slow)
    lookups = len(broker.got(BaseCommand.LOOKUP))
    with broker.another() as successor:
        broker.close_producer(assigned=successor.url)
        started = time.monotonic()
        producer.send(b"x")
        assert time.monotonic() - started < 2
        assert successor.payloads == [b"x"]
        assert not successor.got(BaseCommand.LOOKUP)
        assert len(broker.got(BaseCommand.LOOKUP)) == lookups
        producer.close()


@pytest.mark.parametrize("url", ["pulsar://127.0.0.1:1", "nonsense", "pulsar+ssl://127.0.0.1:6651"])
def test_a_successor_that_is_not_there(broker: ScriptedBroker, make_producer: MakeProducer, url: str) -> None:
    producer = make_producer()
    broker.close_producer(assigned=url)
    producer.send(b"x")
    assert broker.payloads == [b"x"]


@pytest.mark.parametrize("url", ["", "nonsense", "pulsar+ssl://127.0.0.1:6651"])
def test_a_lookup_that_names_no_usable_broker_is_repeated(
    broker: ScriptedBroker, make_producer: MakeProducer, url: str
) -> None:
    producer = make_producer(send_timeout_millis=3000)
    broker.on_lookup().send_to(url, times=2)
    broker.close_producer()
    producer.send(b"x")
    assert broker.payloads == [b"x"]


# --- errors on reconnecting


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (ServerError.TopicTerminatedError, Result.TopicTerminated),
        (ServerError.ProducerFenced, Result.ProducerFenced),
        (ServerError.TopicNotFound, Result.TopicNotFound),
        (ServerError.IncompatibleSchema, Result.IncompatibleSchema),
        (ServerError.InvalidTopicName, Result.InvalidTopicName),
    ],
)
def test_final_errors_end_the_producer(
    broker: ScriptedBroker, make_producer: MakeProducer, code: int, result: Result
) -> None:
    producer = make_producer()
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(5))
    broker.wait_for(lambda b: b.sends)
    broker.on_producer().answer_error(code, "for ever")
    broker.close_producer()
    outcomes.wait_for(5)
    assert set(outcomes.results.values()) == {result}
    with pytest.raises(pulsar_fast.PulsarException, match="for ever") as caught:
        producer.send(b"later")
    assert caught.value.result is result
    asked = len(broker.got(PRODUCER))
    producer.close()
    assert len(broker.got(PRODUCER)) == asked == 2
    assert producer.stats().pending_messages == producer.stats().client_pending_bytes == 0


@pytest.mark.parametrize(
    "code",
    sorted(
        {*ServerError.values(), 99}
        - {
            ServerError.TopicTerminatedError,
            ServerError.ProducerFenced,
            ServerError.TopicNotFound,
            ServerError.IncompatibleSchema,
            ServerError.InvalidTopicName,
            ServerError.ProducerBlockedQuotaExceededException,
        }
    ),
)
def test_other_errors_are_retried(broker: ScriptedBroker, make_producer: MakeProducer, code: int) -> None:
    producer = make_producer()
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(3))
    broker.wait_for(lambda b: b.sends)
    broker.on_producer().answer_error(code, times=3)
    broker.close_producer()
    broker.wait_for(lambda b: len(b.got(PRODUCER)) == 5)
    broker.wait_for(lambda b: len(b.sends) == 2)
    broker.release_receipts()
    with pytest.raises(AssertionError, match="callbacks ran"):  # the receipt of the first try came late
        outcomes.wait_for(4, timeout=0)
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(broker.links) == 1


def test_quota_with_exceptions_fails_what_is_pending(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(send_timeout_millis=20_000, max_pending_messages=3, block_if_queue_full=True)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(3))
    broker.wait_for(lambda b: b.sends or None)
    blocked = threading.Thread(target=lambda: send_all(producer, outcomes, [3]), daemon=True)
    blocked.start()
    broker.on_producer().answer_error(ServerError.ProducerBlockedQuotaExceededException)
    broker.close_producer()
    outcomes.wait_for(4)
    blocked.join(5)
    assert set(outcomes.results.values()) == {Result.ProducerBlockedQuotaExceededException}
    broker.release_receipts()
    broker.forget_rules()
    producer.send(b"there is room again")


def test_quota_with_holding_waits(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer()
    outcomes = Outcomes()
    broker.on_producer().answer_error(ServerError.ProducerBlockedQuotaExceededError, times=5)
    broker.close_producer()
    send_all(producer, outcomes, range(3))
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Ok}


# --- refused sends

REFUSED_ALONE = {ServerError.NotAllowedError: Result.NotAllowedError}


@pytest.mark.parametrize("code", sorted({*ServerError.values(), 99}))
def test_a_refused_send_concerns_one_producer(
    broker: ScriptedBroker, make_producer: MakeProducer, code: int
) -> None:
    producer = make_producer("refused", batching_enabled=False)
    neighbour = make_producer("neighbour")
    outcomes, others = Outcomes(), Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(5))
    broker.wait_for(lambda b: len(b.sends) == 5)
    send_all(neighbour, others, [100])
    broker.wait_for(lambda b: len(b.sends) == 6)
    broker.send_error(code, at=broker.sends[2])
    if code == ServerError.TopicTerminatedError:
        outcomes.wait_for(5)
        assert set(outcomes.results.values()) == {Result.TopicTerminated}
        with pytest.raises(pulsar_fast.TopicTerminated):
            producer.send(b"later")
        broker.release_receipts()
    elif code == ServerError.NotAllowedError:
        outcomes.wait_for(1)
        broker.release_receipts()
        outcomes.wait_for(5)
        assert {name: result for name, result in outcomes.results.items() if result is not Result.Ok} == {
            2: Result.NotAllowedError
        }
        assert not broker.got(CLOSE)
    else:
        broker.wait_for(lambda b: len(b.got(PRODUCER)) == 3 and len(b.sends) == 11)
        broker.release_receipts()
        outcomes.wait_for(5)
        assert set(outcomes.results.values()) == {Result.Ok}
        assert outcomes.names == [*range(5)]
        assert len(broker.got(CLOSE)) == 1, "the broker would have answered with the same old producer"
        assert ids(broker.sends[6:11]) == [*range(5)]
    others.wait_for(1)
    neighbour.send(b"%08d." % 0)
    assert neighbour.stats().reconnects == 0
    assert len(broker.links) == 1


def test_answers_before_the_barrier_still_count(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """Frames stored before CloseProducer is answered are not sent again."""
    producer = make_producer(batching_enabled=False)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(4))
    broker.wait_for(lambda b: len(b.sends) == 4)

    def store_first(frame: Frame) -> None:
        for number in (0, 1):
            frame.link.send(broker.receipt(broker.sends[number]))
        broker.usual_answer(frame)

    broker.on_close_producer().do(store_first, times=1)
    broker.send_error(ServerError.PersistenceError, at=broker.sends[2])
    broker.wait_for(lambda b: len(b.sends) == 6)
    broker.release_receipts()
    outcomes.wait_for(4)
    assert ids(broker.sends[4:]) == [2, 3]
    assert set(outcomes.results.values()) == {Result.Ok}


# --- receipts


def test_receipts_that_nobody_waits_for(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(batching_enabled=False, send_timeout_millis=100)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(3))
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Timeout}
    first = broker.sends[0]
    broker.release_receipts()
    broker.send_bytes(broker.receipt(first))  # repeated, with nothing in flight
    stranger = BaseCommand.FromString(broker.receipt(first)[8:])
    stranger.send_receipt.producer_id = 4711
    broker.send_bytes(encode(stranger))
    producer.send(b"%08d." % 3)
    assert producer.stats().late == 4
    assert len(broker.links) == 1


@pytest.mark.parametrize("which", ["later frame", "unknown id"])
def test_a_receipt_ahead_of_the_first_frame_means_loss(
    broker: ScriptedBroker, make_producer: MakeProducer, which: str
) -> None:
    producer = make_producer(batching_enabled=False)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(3))
    broker.wait_for(lambda b: len(b.sends) == 3)
    ahead = BaseCommand.FromString(broker.receipt(broker.sends[2])[8:])
    if which == "unknown id":
        ahead.send_receipt.sequence_id = 1000
    broker.send_bytes(encode(ahead))
    broker.wait_for(lambda b: len(b.links) == 2 and len(b.sends) == 6)
    broker.release_receipts()
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert ids(on_link(broker, 1)) == [0, 1, 2]


def test_receipts_at_the_very_deadline(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(send_timeout_millis=5, batching_max_publish_delay_ms=0)
    outcomes = Outcomes()
    jitter = random.Random(1)
    for round_ in range(400):
        broker.hold_receipts()
        edge = time.monotonic() + 0.005 + jitter.uniform(-0.001, 0.001)
        send_all(producer, outcomes, range(3 * round_, 3 * round_ + 3))
        while time.monotonic() < edge:  # this is the moment, not a condition
            time.sleep(0.0002)
        broker.release_receipts()
    outcomes.wait_for(1200)
    assert set(outcomes.results.values()) <= {Result.Ok, Result.Timeout}
    stats = producer.stats()
    assert (stats.pending_messages, stats.client_pending_bytes) == (0, 0)
    assert stats.acknowledged + stats.failed == 1200
    assert len(broker.links) == 1


def test_ids_of_the_caller_and_duplicates(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(batching_max_publish_delay_ms=1000)
    outcomes = Outcomes()
    for name in (5, 7, 12):
        producer.send_async(describing(name), outcomes.of(name), sequence_id=name)
    producer.flush()
    (frame,) = broker.sends
    assert (frame.command.send.sequence_id, frame.command.send.highest_sequence_id) == (5, 12)
    assert ids([frame]) == [5, 7, 12]
    assert producer.last_sequence_id() == 12
    broker.violations.clear()
    for link in broker.links:  # a replay may go back
        link.last_ids = dict.fromkeys(link.last_ids, -1)
    broker.on_send().answer_bytes(lambda frame: broker.receipt(frame, duplicate=True), times=1)
    message_id = producer.send(describing(7), sequence_id=7)
    assert (message_id.ledger_id(), message_id.entry_id()) == (-1, -1)
    assert producer.last_sequence_id() == 12
    assert producer.stats().duplicates == 1
    producer.send(b"%08d." % 13)
    assert ids(broker.sends)[-1] == 13


# --- order


def test_a_message_that_goes_alone_does_not_overtake(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(batching_max_publish_delay_ms=1000)
    outcomes = Outcomes()
    producer.send_async(describing(0), outcomes.of(0))
    producer.send_async(describing(1), outcomes.of(1), deliver_after=timedelta(minutes=1))
    producer.send_async(describing(2), outcomes.of(2))
    producer.send_async(describing(3, 200_000), outcomes.of(3))
    producer.send_async(describing(4), outcomes.of(4), disable_replication=True)
    producer.flush()
    assert ids(broker.sends) == [0, 1, 2, 3, 4]
    assert [len(frame.messages) for frame in broker.sends] == [1, 1, 1, 1, 1]
    assert outcomes.names == [0, 1, 2, 3, 4]


def test_ids_are_drawn_in_the_order_of_the_wire(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(max_pending_messages=0)
    count = 2000

    def send(thread: int) -> None:
        for number in range(count):
            producer.send_async(b"%d %d" % (thread, number), None)

    threads = [threading.Thread(target=send, args=(number,), daemon=True) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(20)
    assert ids(broker.sends) == [*range(16 * count)]
    numbers: dict[bytes, list[int]] = {}
    for payload in broker.payloads:
        thread_name, number = payload.split()
        numbers.setdefault(thread_name, []).append(int(number))
    assert len(numbers) == 16
    assert all(order == [*range(count)] for order in numbers.values())


# --- a broker that does not read


def test_a_deadline_never_touches_a_frame_that_has_begun(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    hasty = make_producer("hasty", batching_enabled=False, send_timeout_millis=150)
    patient = make_producer("patient")
    outcomes = Outcomes()
    for round_ in range(3):
        broker.stop_reading()
        first = 100 * round_
        send_all(hasty, outcomes, range(first, first + 10), size=1_000_000)
        outcomes.wait_for(20 * round_ + 10)
        send_all(hasty, outcomes, range(first + 10, first + 20), size=500_000 + round_)  # into freed memory
        broker.resume_reading()
        patient.send(describing(first))
        outcomes.wait_for(20 * round_ + 20)
        assert {outcomes.results[first + number] for number in range(10)} == {Result.Timeout}
    for payload in broker.payloads:
        assert_whole(payload)
    begun = [payload for payload in broker.payloads if len(payload) == 1_000_000]
    assert 3 <= len(begun) < 30, "frames that have begun are finished, the others never go out"
    assert len(broker.links) == 1
    assert hasty.stats().client_pending_bytes == 0


def test_closing_never_touches_a_frame_that_has_begun(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    leaving = make_producer("leaving", batching_enabled=False)
    staying = make_producer("staying", batching_enabled=False)
    outcomes, others = Outcomes(), Outcomes()
    broker.stop_reading()
    send_all(leaving, outcomes, range(10), size=1_000_000)
    leaving.close(timeout=0.2)
    outcomes.wait_for(10)
    assert set(outcomes.results.values()) == {Result.AlreadyClosed}
    send_all(staying, others, range(100, 110), size=1_000_000)
    broker.resume_reading()
    others.wait_for(10)
    assert set(others.results.values()) == {Result.Ok}
    for payload in broker.payloads:
        assert_whole(payload)
    assert 1 <= len(broker.payloads) - 10 < 10, "frames that have begun are finished, the others never go out"
    assert len(broker.links) == 1
    assert staying.stats().client_pending_bytes == 0


def test_a_broker_that_stops_reading_for_long(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    limit = 8_000_000
    client = {"memory_limit_bytes": limit, "keep_alive_interval_seconds": 0.2}
    producer = make_producer(client=client, batching_enabled=False, block_if_queue_full=True)
    outcomes = Outcomes()
    broker.stop_reading()
    sender = threading.Thread(
        target=lambda: send_all(producer, outcomes, range(30), size=500_000), daemon=True
    )
    sender.start()
    used = []
    while not (error := producer.stats().last_connection_error):
        used.append(producer.stats().client_pending_bytes)
        time.sleep(0.005)
        assert len(used) < 1000, "the silence was not noticed"
    assert "said nothing" in error
    assert max(used) <= limit
    broker.resume_reading()
    outcomes.wait_for(30, timeout=15)
    sender.join()
    assert set(outcomes.results.values()) == {Result.Ok}
    assert outcomes.names == [*range(30)]
    for payload in broker.payloads:
        assert_whole(payload)


def test_pings_of_the_broker_are_no_sign_of_life(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(client={"keep_alive_interval_seconds": 0.15})
    broker.on_ping().say_nothing(times=10)
    ping = encode(BaseCommand(type=BaseCommand.PING, ping={}))
    deadline = time.monotonic() + 3
    while len(broker.links) == 1:
        assert time.monotonic() < deadline, "the dead connection was kept"
        broker.send_bytes(ping)
        time.sleep(0.02)
    assert len(broker.got(BaseCommand.PONG)) >= 5
    producer.send(b"x")
    assert "said nothing" in producer.stats().last_connection_error


def test_an_answered_ping_keeps_an_idle_connection(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    make_producer(client={"keep_alive_interval_seconds": 0.05})
    broker.wait_for(lambda b: len(b.got(BaseCommand.PING)) == 10)
    assert len(broker.links) == 1


# --- a broker that is away


def test_producers_share_their_attempts_to_reach_a_broker(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    client = make_client(broker.url, initial_backoff_interval_ms=50, max_backoff_interval_ms=50)
    producers = [client.create_producer(f"t{number}") for number in range(20)]
    broker.on_connect().cut_connection(times=6)
    broker.cut_connections()
    for producer in producers:
        producer.send(b"x")
    _, *attempts = [link.accepted_at for link in broker.links]
    assert len(attempts) == 7
    assert attempts[-1] - attempts[0] > 5 * 0.05, "one back-off after each failure, for all of them"


def test_deadlines_hold_while_the_broker_is_away(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(send_timeout_millis=400)
    broker.go_down()
    outcomes = Outcomes()
    started = time.monotonic()
    send_all(producer, outcomes, range(10))
    outcomes.wait_for(10)
    assert 0.35 < time.monotonic() - started < 1.5
    assert set(outcomes.results.values()) == {Result.Timeout}
    broker.come_back()
    producer.send(b"%08d." % 11)


def test_a_blocking_send_while_the_broker_is_away(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(send_timeout_millis=400, max_pending_messages=2, block_if_queue_full=True)
    broker.go_down()
    started = time.monotonic()
    with pytest.raises(Timeout, match=r"refused|closed|lost"):
        producer.send(b"x")
    assert 0.35 < time.monotonic() - started < 1.5
    outcomes = Outcomes()
    send_all(producer, outcomes, range(5))  # the last three wait for room
    outcomes.wait_for(5)
    assert set(outcomes.results.values()) == {Result.Timeout}
    with pytest.raises(Timeout):
        producer.send_async(b"x", None) or producer.flush()
    assert producer.stats().pending_messages == 0


def test_flush_and_close_while_the_broker_is_away(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(client={"operation_timeout_seconds": 1}, send_timeout_millis=20_000)
    broker.go_down()
    outcomes = Outcomes()
    send_all(producer, outcomes, range(3))
    started = time.monotonic()
    with pytest.raises(Timeout, match=r"flush.*0\.2 s"):
        producer.flush(0.2)
    producer.close()
    assert time.monotonic() - started < 2.5
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.AlreadyClosed}


def test_close_waits_for_what_was_accepted_also_through_a_reconnect(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(batching_max_publish_delay_ms=1000)
    outcomes = Outcomes()
    broker.after(frames=1).cut_connection()
    send_all(producer, outcomes, range(100))
    producer.close()
    outcomes.wait_for(100)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert len(broker.got(CLOSE)) == 1


def test_asyncio_close_while_the_broker_is_away(broker: ScriptedBroker) -> None:
    async def run() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **{**QUICK, "operation_timeout_seconds": 1})
        producer = await client.create_producer("t")
        broker.go_down()
        sends = [producer.send(b"x") for _ in range(3)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(producer.close(), 0.2)
        started = time.monotonic()
        await client.close()
        assert time.monotonic() - started < 2
        for send in sends:
            with pytest.raises(AlreadyClosed):
                await send
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


# --- giving up at the moment of an answer


def test_the_operation_timeout_comes_just_before_a_refusal(broker: ScriptedBroker) -> None:
    """The refusal must not undo the timeout."""
    options = {
        "operation_timeout_seconds": 0.3,
        "initial_backoff_interval_ms": 100,
        "max_backoff_interval_ms": 100,
    }

    async def run() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **options)
        broker.on_producer().answer_error(ServerError.ServiceNotReady, times=1)
        broker.on_producer().say_nothing()
        loop = asyncio.get_running_loop()
        creation = asyncio.ensure_future(client.create_producer("t"))
        # The loop is held until the timeout is due; behind its timer comes one that brings the answer.
        loop.call_later(0.25, time.sleep, 0.08)
        loop.call_later(
            0.32,
            lambda: broker.send_bytes(
                error_answer(broker.got(PRODUCER)[-1], ServerError.ServiceNotReady, "late")
            ),
        )
        with pytest.raises(pulsar_fast.ServiceUnitNotReady):
            await asyncio.wait_for(creation, 2)
        await client.close()

    asyncio.run(run())


def test_closing_comes_with_a_refusal(broker: ScriptedBroker) -> None:
    """The reconnect ends, although what it waited for arrives just then."""

    async def run() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        producer = await client.create_producer("t")
        broker.on_producer().answer_error(ServerError.ServiceNotReady)
        broker.close_producer()
        while len(broker.got(PRODUCER)) < 2:
            await asyncio.sleep(0)
        time.sleep(0.05)  # holds the loop until the answer is there
        await producer.close()
        asked = len(broker.got(PRODUCER))
        await asyncio.sleep(0.3)  # time enough for further attempts
        assert len(broker.got(PRODUCER)) == asked
        await client.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


# --- flush


@pytest.mark.parametrize("batching", [True, False])
def test_flush_waits_for_the_last_receipt(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool
) -> None:
    producer = make_producer(batching_enabled=batching)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(3))
    broker.wait_for(lambda b: len(b.payloads) == 3)
    with pytest.raises(Timeout):  # nothing is open any more, but there are frames in flight
        producer.flush(0.1)
    broker.release_receipts()
    producer.flush(5)
    assert outcomes.names == [0, 1, 2]


def test_flush_raises_what_its_messages_met(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(batching_enabled=False, send_timeout_millis=200)
    broker.hold_receipts()
    outcomes = Outcomes()
    send_all(producer, outcomes, range(3))
    with pytest.raises(Timeout, match=r"no receipt for 0\.2 s"):
        producer.flush(5)


# --- limits


def test_the_memory_limit_recovers(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(
        client={"memory_limit_bytes": 1_000_000}, send_timeout_millis=400, block_if_queue_full=True
    )
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, range(2), size=450_000)
    threads = [
        threading.Thread(target=send_all, args=(producer, outcomes, [number], size), daemon=True)
        for number, size in enumerate((900_000, 300_000, 100, 600_000), start=2)
    ]
    for thread in threads:
        thread.start()
    with pytest.raises(MemoryBufferIsFull):
        producer.send(b"x" * 2_000_000)
    until(lambda: {0, 1} <= outcomes.results.keys())  # their deadline makes room
    broker.release_receipts()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    outcomes.wait_for(6)
    assert outcomes.results[0] is outcomes.results[1] is Result.Timeout
    producer.send(b"%08d." % 7)
    assert producer.stats().client_pending_bytes == 0


@pytest.mark.parametrize("size", [2048, 1025, 1024, 1023, 900])
def test_a_message_above_the_batch_limit_goes_at_once(
    broker: ScriptedBroker, make_producer: MakeProducer, size: int
) -> None:
    producer = make_producer(batching_max_allowed_size_in_bytes=1024, batching_max_publish_delay_ms=600)
    outcomes = Outcomes()
    started = time.monotonic()
    send_all(producer, outcomes, [1], size=size)
    outcomes.wait_for(1)
    if size > 1000:
        assert time.monotonic() - started < 0.5
    assert outcomes.results == {1: Result.Ok}


def test_a_message_above_the_default_batch_limit(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    make_producer().send(describing(1, 200_000))
    assert broker.payloads == [describing(1, 200_000)]


def test_only_what_is_too_big_fails(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer()
    outcomes = Outcomes()
    send_all(producer, outcomes, [0])
    send_all(producer, outcomes, [1], size=6_000_000)
    send_all(producer, outcomes, [2])
    outcomes.wait_for(3)
    assert outcomes.results == {0: Result.Ok, 1: Result.MessageTooBig, 2: Result.Ok}
    assert broker.payloads == [describing(0), describing(2)]
    assert len(broker.links) == 1


@pytest.mark.parametrize("batching", [True, False])
def test_sizes_around_the_brokers_limit(make_client: Callable[..., Any], batching: bool) -> None:
    with ScriptedBroker(max_message_size=2048) as broker:
        producer = make_client(broker.url).create_producer("t", batching_enabled=batching)
        delivered = []
        for size in range(1850, 2060):
            with suppress(MessageTooBig):
                producer.send(b"x" * size, properties={"k": "v"} if size % 2 else None)
                delivered.append(size)
        for frame in broker.sends:
            command_size = int.from_bytes(frame.raw[4:8], "big")
            assert len(frame.raw) - (8 + command_size + 10) <= 2048
        assert [len(payload) for payload in broker.payloads] == delivered
        assert len(delivered) > 50
        assert len(delivered) < 210
        producer.close()


def test_a_successor_that_takes_less(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(batching_enabled=False)
    outcomes = Outcomes()
    broker.hold_receipts()
    send_all(producer, outcomes, [0])
    send_all(producer, outcomes, [1], size=5000)
    send_all(producer, outcomes, [2])
    broker.wait_for(lambda b: len(b.sends) == 3)
    with broker.another(max_message_size=1000) as successor:
        broker.close_producer(assigned=successor.url)
        outcomes.wait_for(3)
        assert outcomes.results == {0: Result.Ok, 1: Result.MessageTooBig, 2: Result.Ok}
        assert successor.payloads == [describing(0), describing(2)]
        producer.close()


def test_the_schema_version_of_the_time(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    broker.schema_version = b"v1"
    producer = make_producer()
    outcomes = Outcomes()
    broker.after(frames=1).cut_connection()
    broker.schema_version = b"v2"
    send_all(producer, outcomes, [0])
    outcomes.wait_for(1)
    send_all(producer, outcomes, [1])
    outcomes.wait_for(2)
    assert [frame.metadata.schema_version for frame in broker.sends] == [b"v1", b"v1", b"v2"]


def test_keys_and_no_key_in_one_window(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(batching_max_publish_delay_ms=1000)
    outcomes = Outcomes()
    for name, key in enumerate([None, "", "a", "a", None, "", "b"]):
        producer.send_async(describing(name), outcomes.of(name), partition_key=key)
    producer.flush()
    assert outcomes.names == [*range(7)]
    keys = [
        [
            (single.metadata.HasField("partition_key"), single.metadata.partition_key)
            for single in frame.messages
        ]
        for frame in broker.sends
    ]
    assert all(len(set(batch)) == 1 for batch in keys)
