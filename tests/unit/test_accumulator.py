"""What is accepted, what is refused, and that a refusal leaves no trace."""

import array
import gc
import sys
from datetime import timedelta

import pytest

from pulsar_fast._core import (
    Accumulator,
    Budget,
    BufferPool,
    Clock,
    Feed,
    PendingQueue,
    RoomWaiter,
    SendHandle,
    Verdict,
    Waker,
)
from pulsar_fast.exceptions import AlreadyClosed, MemoryBufferIsFull, MessageTooBig, ProducerQueueIsFull
from pulsar_fast.result import Result
from pulsar_fast.wire.messages import CommandSend
from tests.unit.harness import IDLE, Observer, Rig, TestSender, receipt

# --- contents


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda data: memoryview(bytearray(data)),
        lambda data: array.array("B", data),
        lambda data: memoryview(array.array("H", data)),
    ],
)
@pytest.mark.parametrize("batching", [True, False])
def test_a_buffer_is_sent_as_it_is_at_the_call(make, batching):
    with Rig(batching=batching) as rig:
        link = rig.connect()
        buffer = make(b"before")
        rig.send(buffer)
        buffer[:] = make(b"after!")
        rig.flush()
        assert [frame.contents for frame in link.frames] == [[b"before"]]


@pytest.mark.parametrize(
    "content", [b"bytes", type("Bytes", (bytes,), {})(b"bytes"), memoryview(b"_bytes_")[1:-1]]
)
def test_contents_that_cannot_change(content):
    with Rig() as rig:
        link = rig.connect()
        rig.send(content)
        rig.flush()
        assert [frame.contents for frame in link.frames] == [[b"bytes"]]


def test_a_bytearray_can_be_resized_after_the_call():
    with Rig() as rig:
        buffer = bytearray(b"x")
        rig.send(buffer)
        buffer.extend(b"y" * 1000)  # a held export would forbid it


def test_tombstones_and_empty_contents_differ():
    with Rig() as rig:
        link = rig.connect()
        for content in (None, b""):
            rig.send(content)
            rig.send(content, deliver_at=1)
        rig.flush()
        singles = [frame for frame in link.frames if not frame.metadata.HasField("num_messages_in_batch")]
        batched = [single for frame in link.frames if frame not in singles for single, _ in frame.entries]
        assert [frame.metadata.null_value for frame in singles] == [True, False]
        assert [single.null_value for single in batched] == [True, False]


@pytest.mark.parametrize("content", [memoryview(b"abcdef")[::2], memoryview(b"abcdef")[::-1]])
def test_a_buffer_with_holes_is_refused(content):
    with Rig() as rig, pytest.raises(ValueError, match="content must be a contiguous buffer"):
        rig.send(content)


@pytest.mark.parametrize("content", [1, 1.5, "text", [b"x"], {}, object(), True])
def test_other_contents_are_refused(content):
    with Rig() as rig, pytest.raises(TypeError, match=f"content must be .*{type(content).__name__}"):
        rig.send(content)


# --- arguments

LONE = "\ud800"
BAD_ARGUMENTS = [
    ("callback", 5, TypeError),
    ("callback", "text", TypeError),
    ("properties", [("a", "b")], TypeError),
    ("properties", "text", TypeError),
    ("properties", [], TypeError),
    ("properties", "", TypeError),
    ("properties", 0, TypeError),
    ("properties", {"a": 1}, TypeError),
    ("properties", {"a": None}, TypeError),
    ("properties", {1: "a"}, TypeError),
    ("properties", {"a": b"b"}, TypeError),
    ("properties", {"a": LONE}, ValueError),
    ("properties", {LONE: "a"}, ValueError),
    ("partition_key", 1, TypeError),
    ("partition_key", b"key", TypeError),
    ("partition_key", LONE, ValueError),
    ("ordering_key", 1, TypeError),
    ("ordering_key", b"key", TypeError),
    ("ordering_key", LONE, ValueError),
    ("sequence_id", -1, ValueError),
    ("sequence_id", 2**63, ValueError),
    ("sequence_id", 2**64, ValueError),
    ("sequence_id", 1.0, TypeError),
    ("sequence_id", "1", TypeError),
    ("sequence_id", True, TypeError),
    ("replication_clusters", "cluster", TypeError),
    ("replication_clusters", b"cluster", TypeError),
    ("replication_clusters", "", TypeError),
    ("replication_clusters", 5, TypeError),
    ("replication_clusters", 0, TypeError),
    ("replication_clusters", [1], TypeError),
    ("replication_clusters", ["a", None], TypeError),
    ("replication_clusters", [LONE], ValueError),
    ("replication_clusters", {"a": "b"}, TypeError),
    ("replication_clusters", (name for name in ["a"]), TypeError),  # would be used up by the first attempt
    ("disable_replication", 1, TypeError),
    ("disable_replication", "yes", TypeError),
    ("event_timestamp", -1, ValueError),
    ("event_timestamp", 2**63, ValueError),
    ("event_timestamp", 1.5, TypeError),
    ("event_timestamp", True, TypeError),
    ("deliver_at", -1, ValueError),
    ("deliver_at", 2**63, ValueError),
    ("deliver_at", "now", TypeError),
    ("deliver_after", 5, TypeError),
    ("deliver_after", timedelta(milliseconds=-1), ValueError),
]


@pytest.mark.parametrize(("name", "value", "kind"), BAD_ARGUMENTS)
def test_a_wrong_argument_is_named_and_nothing_is_taken(name, value, kind):
    for batching in (True, False):
        with Rig(batching=batching) as rig:
            rig.send(b"before")
            before = rig.accounts(), rig.accumulator.position, rig.accumulator.last_sequence_id
            arguments = {"content": b"x", "callback": None, name: value}
            with pytest.raises(kind, match=name) as caught:
                rig.sender.send_async(**arguments)
            assert type(caught.value) is kind
            assert (rig.accounts(), rig.accumulator.position, rig.accumulator.last_sequence_id) == before


def test_both_times_of_delivery():
    with Rig() as rig, pytest.raises(ValueError, match="deliver_at or deliver_after, not both"):
        rig.send(b"x", deliver_at=1, deliver_after=timedelta(1))


def test_replication_clusters_are_checked_though_replication_is_disabled():
    with Rig() as rig, pytest.raises(TypeError, match="replication_clusters"):
        rig.send(b"x", replication_clusters=[5], disable_replication=True)


def test_falsy_arguments_are_honoured():
    with Rig(batching=False) as rig:
        link = rig.connect()
        rig.send(b"x", sequence_id=5)
        rig.send(
            b"x",
            sequence_id=0,
            event_timestamp=0,
            deliver_at=0,
            partition_key="",
            ordering_key="",
            properties={"": ""},
        )
        rig.flush()
        metadata = link.frames[1].metadata
        for name in ("partition_key", "ordering_key", "event_time", "deliver_at_time"):
            assert metadata.HasField(name), name
        assert metadata.sequence_id == 0
        assert [(one.key, one.value) for one in metadata.properties] == [("", "")]


def test_none_means_the_default():
    with Rig() as rig:
        link = rig.connect()
        names = (
            "properties partition_key ordering_key sequence_id replication_clusters "
            "disable_replication event_timestamp deliver_at deliver_after"
        )
        rig.send(b"x", **dict.fromkeys(names.split()))
        rig.flush()
        [[(single, _)]] = [frame.entries for frame in link.frames]
        assert {descriptor.name for descriptor, _ in single.ListFields()} == {"payload_size", "sequence_id"}


# --- sequence ids


def ids_of(rig, link):
    rig.flush()
    return [frame.ids for frame in link.frames]


def test_automatic_ids_rise_by_one():
    with Rig(max_messages=2) as rig:
        link = rig.connect()
        for _ in range(5):
            rig.send()
        assert ids_of(rig, link) == [[0, 1], [2, 3], [4]]
        assert rig.accumulator.last_sequence_id == 4


def test_a_given_id_moves_the_counter():
    with Rig() as rig:
        link = rig.connect()
        for sequence_id in (None, 10, None, 100, None):
            rig.send(sequence_id=sequence_id)
        assert ids_of(rig, link) == [[0, 10, 11, 100, 101]]
        [frame] = link.frames
        assert (frame.send.sequence_id, frame.send.highest_sequence_id) == (0, 101)
        assert (frame.metadata.sequence_id, frame.metadata.highest_sequence_id) == (0, 101)


def test_a_replay_goes_alone_and_moves_nothing():
    with Rig() as rig:
        link = rig.connect()
        for sequence_id in (10, 11, 10, 3, None, None):
            rig.send(sequence_id=sequence_id)
        assert ids_of(rig, link) == [[10, 11], [10], [3], [12, 13]]
        assert [frame.send.HasField("num_messages") for frame in link.frames] == [True, False, False, True]
        assert link.frames[1].send == CommandSend(producer_id=7, sequence_id=10)


def test_ids_start_after_what_the_broker_knows():
    with Rig() as rig:
        rig.accumulator.start_after(41)
        rig.accumulator.start_after(7)
        link = rig.connect()
        rig.send()
        assert ids_of(rig, link) == [[42]]


def test_the_highest_id_has_no_successor():
    with Rig() as rig:
        link = rig.connect()
        rig.send(sequence_id=2**63 - 1)
        with pytest.raises((OverflowError, ValueError)):
            rig.send()
        assert ids_of(rig, link) == [[2**63 - 1]]


def test_a_message_alone_keeps_its_place():
    with Rig() as rig:
        link = rig.connect()
        for arguments in (
            {},
            {"deliver_at": 5},
            {},
            {"replication_clusters": ["c"]},
            {"disable_replication": True},
            {},
        ):
            rig.send(**arguments)
        rig.send(b"x" * 200_000)
        rig.send()
        assert ids_of(rig, link) == [[0], [1], [2], [3], [4], [5], [6], [7]]


# --- limits


@pytest.mark.parametrize("batching", [True, False])
def test_a_full_queue(batching):
    with Rig(max_pending=3, batching=batching) as rig:
        heard = [rig.send() for _ in range(5)]
        assert [one.result for one in heard] == [None] * 3 + [Result.ProducerQueueIsFull] * 2
        assert str(heard[-1].message_id) == "(-1,-1,-1,-1)"
        assert rig.accumulator.pending_messages == 3
        with pytest.raises(ProducerQueueIsFull):
            rig.sender.send_async(b"x", None)
        link = rig.connect()
        rig.write()  # sealed by who found no room
        assert sum(len(frame.contents) for frame in link.frames) == 3
        for frame in link.frames:
            link.feed(receipt(frame.send.sequence_id))
        assert rig.accounts() == IDLE
        assert rig.send().result is None


@pytest.mark.parametrize("batching", [True, False])
def test_a_full_memory(batching):
    with Rig(memory_limit=1000, batching=batching) as rig:
        heard = [rig.send(b"x" * 300) for _ in range(4)]
        assert [one.result for one in heard] == [None] * 3 + [Result.MemoryBufferIsFull]
        assert rig.budget.used <= 1000
        assert rig.send(b"x" * 10).result is None
        with pytest.raises(MemoryBufferIsFull):
            rig.sender.send_async(b"x" * 300, None)


def test_memory_is_one_account_for_all_producers_of_a_client():
    with Rig(memory_limit=1000) as first, Rig(shared=first) as second:
        first.send(b"x" * 600)
        assert second.send(b"x" * 600).result is Result.MemoryBufferIsFull
        link = first.connect()
        first.flush()
        link.feed(receipt(0))
        assert second.send(b"x" * 600).result is None
        first.end()
        second.end()


@pytest.mark.parametrize("batching", [True, False])
def test_the_largest_message(batching):
    limit = 100_000
    with Rig(batching=batching) as rig:
        link = rig.connect(max_message_size=limit)
        room = limit - len(b"\x0a\x01p\x10\x00\x18") - 6  # name, id and time
        assert rig.send(b"x" * room).result is None
        assert rig.send(b"x" * (room + 1)).result is Result.MessageTooBig
        with pytest.raises(MessageTooBig):
            rig.sender.send_async(b"x" * limit, None)
        rig.flush()
        [frame] = link.frames
        assert len(frame.metadata.SerializeToString()) + len(frame.payload) == limit


def test_properties_count_for_the_size():
    with Rig() as rig:
        rig.connect(max_message_size=10_000)
        assert rig.send(b"x" * 5000, properties={"k": "v" * 5000}).result is Result.MessageTooBig
        assert rig.send(b"x" * 5000, properties={"k": "v" * 4000}).result is None


def test_no_batch_exceeds_what_the_broker_takes():
    with Rig(max_bytes=1 << 20) as rig:
        link = rig.connect(name="n" * 300, max_message_size=20_000)
        for _ in range(100):
            rig.send(b"x" * 900, partition_key="k" * 200, ordering_key="o" * 200)
        rig.flush()
        for frame in link.frames:
            assert len(frame.metadata.SerializeToString()) + len(frame.payload) <= 20_000
        assert len(link.frames) < 12


def test_an_ended_producer():
    with Rig() as rig:
        before = rig.send()
        rig.accumulator.end(AlreadyClosed("closed"))
        rig.accumulator.end(ProducerQueueIsFull("the first refusal stays"))
        assert rig.send().result is Result.AlreadyClosed
        with pytest.raises(AlreadyClosed, match="closed"):
            rig.sender.send_async(b"x", None)
        rig.accumulator.refuse_with(MessageTooBig("changed"))
        assert rig.send().result is Result.MessageTooBig
        link = rig.connect()
        rig.flush()
        link.feed(receipt(0))
        assert before.result is Result.Ok


# --- references


OUTCOMES = ["success", "alone", "failure", "expiry", "full", "too big", "closed", "wrong"]


def reach(outcome, send):
    """Make one message end that way."""
    with Rig(max_pending=1 if outcome == "full" else 0) as rig:
        link = rig.connect(max_message_size=1000)
        if outcome == "full":
            rig.sender.send_async(b"first", None)
        if outcome == "closed":
            rig.accumulator.end(AlreadyClosed("closed"))
        arguments = {"success": {}, "alone": {"deliver_at": 5}, "wrong": {"sequence_id": -1}}.get(outcome, {})
        try:
            send(rig, **arguments)
        except ValueError:
            assert outcome == "wrong"
        if outcome == "expiry":
            rig.tick(30_000)
            rig.expire()
        elif outcome in ("success", "alone", "failure"):
            rig.flush()
            if outcome == "failure":
                rig.registration.fail_slot(0, AlreadyClosed("refused"))
            else:
                link.feed(receipt(0))
        rig.end()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_references_come_back(outcome):
    payload = bytearray(b"x" * (2000 if outcome == "too big" else 30))
    name, key, value = (f"{what} {id(payload)}" for what in ("name", "key", "value"))
    properties = {key: value}
    told = []

    def callback(result, message_id):
        told.append(result)

    watched = [payload, name, key, value, properties, callback]

    def counts():
        gc.collect()
        return [sys.getrefcount(one) for one in watched]

    def send(rig, **arguments):
        rig.sender.send_async(payload, callback, properties=properties, partition_key=name, **arguments)

    reach(outcome, send)  # what is cached by the first use
    before = counts()
    for _ in range(3):
        reach(outcome, send)
    assert counts() == before
    assert len(told) == (0 if outcome == "wrong" else 4)


def test_nothing_grows_over_many_messages():
    """In live objects and in memory handed out."""

    def round_trips(count):
        with Rig(max_messages=10) as rig:
            link = rig.connect()
            for start in range(0, count, 10):
                for _ in range(10):
                    rig.send(b"x" * 100, properties={"a": "b"}, partition_key="k")
                rig.write()
                link.wire.written.clear()
                link.feed(receipt(start))
            assert rig.accounts() == IDLE

    round_trips(100)
    gc.collect()
    before = sys.getallocatedblocks()
    round_trips(5000)
    gc.collect()
    assert sys.getallocatedblocks() - before < 200


# --- waiting for room


class Waiter:
    """A sender that waits; `woken` counts how often it was told to look."""

    def __init__(self, rig, size=1):
        self.woken = 0
        self.rig = rig
        self.room = RoomWaiter(size, self.wake)
        rig.accumulator.wait_for_room(self.room)

    def wake(self):
        self.woken += 1

    @property
    def granted(self):
        assert self.woken == self.room.granted
        return self.room.granted


def pending(rig, count, size=1):
    """So many messages in flight; gives them free one after another."""
    link = rig.connect()
    for _ in range(count):
        rig.send(b"x" * size, deliver_at=1)
    rig.flush()
    return (link.feed(receipt(number)) for number in range(count))


def test_room_is_granted_in_order_of_arrival():
    with Rig(max_pending=3) as rig:
        answers = pending(rig, 3)
        waiters = [Waiter(rig) for _ in range(3)]
        for granted in range(3):
            assert [waiter.granted for waiter in waiters] == [True] * granted + [False] * (3 - granted)
            next(answers)
        assert [waiter.granted for waiter in waiters] == [True] * 3
        assert rig.accumulator.pending_messages == 3
        for waiter in waiters:
            rig.accumulator.stop_waiting(waiter.room)


def test_a_small_message_does_not_overtake_a_large_one():
    with Rig(memory_limit=1000) as rig:
        answers = pending(rig, 4, 200)  # and a few bytes each
        large, small = Waiter(rig, 500), Waiter(rig, 50)
        assert not large.granted
        assert not small.granted
        next(answers)
        assert not large.granted
        assert not small.granted
        next(answers)
        assert large.granted
        assert small.granted
        assert rig.budget.used <= 1000
        rig.accumulator.stop_waiting(large.room)
        rig.accumulator.stop_waiting(small.room)


def test_nobody_overtakes_who_waits():
    with Rig(memory_limit=1000) as rig:
        answers = pending(rig, 1, 700)
        waiter = Waiter(rig, 500)
        assert rig.send(b"x").result is Result.MemoryBufferIsFull
        next(answers)
        assert waiter.granted
        assert rig.send(b"x").result is None
        rig.accumulator.stop_waiting(waiter.room)


def test_a_reservation_is_used_up_by_its_message():
    with Rig(max_pending=1, memory_limit=1000) as rig:
        answers = pending(rig, 1)
        waiter = Waiter(rig, 300)
        next(answers)
        assert rig.accumulator.pending_messages == 1
        assert rig.budget.used == 300
        wanted = rig.sender._offer(
            waiter.room,
            lambda *answer: None,
            b"x" * 200,
            None,
            None,
            None,
            None,
            None,
            False,
            None,
            None,
            None,
        )
        assert wanted == 0
        assert not waiter.room.granted
        assert rig.accumulator.pending_messages == 1
        assert 200 < rig.budget.used < 300


@pytest.mark.parametrize("size", [0, 1, 127, 128, 20_000, 200_000])
@pytest.mark.parametrize("batching", [True, False])
def test_what_a_sender_wants_is_enough(size, batching):
    """The bytes that a sender is told to reserve hold its message, whatever form that takes."""
    content, properties = b"x" * size, {"a": "b" * 100}
    with Rig(max_pending=1, blocks=True, batching=batching) as rig:
        rig.send()
        rig.sender.send_async(content, None, properties, "key", event_timestamp=2**62)
        [wanted] = rig.sender.turned_away
        rig.queue.fail_all(AlreadyClosed("makes room"))
        waiter = Waiter(rig, wanted)
        assert waiter.granted
        assert rig.budget.used == wanted
        more = rig.sender._offer(
            waiter.room, None, content, properties, "key", None, None, None, False, 2**62, None, None
        )
        assert more == 0
        assert size < rig.budget.used <= wanted


def test_a_reservation_goes_back_when_the_message_is_refused():
    with Rig(max_pending=2) as rig:
        waiter = Waiter(rig, 300)
        with pytest.raises(TypeError):
            rig.sender._offer(
                waiter.room, None, "text", None, None, None, None, None, False, None, None, None
            )
        assert rig.accounts() == IDLE


def test_who_stops_waiting_makes_room():
    with Rig(max_pending=1) as rig:
        first, second, third = Waiter(rig), Waiter(rig), Waiter(rig)
        rig.accumulator.stop_waiting(second.room)
        assert first.granted
        rig.accumulator.stop_waiting(first.room)
        assert third.granted
        rig.accumulator.stop_waiting(third.room)
        assert rig.accounts() == IDLE


def test_who_stops_waiting_makes_room_for_other_producers_too():
    with Rig(memory_limit=1000) as first, Rig(shared=first) as second:
        one, other = Waiter(first, 800), Waiter(second, 800)
        assert one.granted
        assert not other.granted
        first.accumulator.stop_waiting(one.room)
        try:
            assert other.granted
        finally:
            second.accumulator.stop_waiting(other.room)


def test_bytes_of_one_producer_make_room_for_another():
    with Rig(memory_limit=1000) as first, Rig(shared=first) as second:
        answers = pending(first, 1, 700)
        waiters = [Waiter(second, 500), Waiter(first, 400), Waiter(second, 100)]
        assert [waiter.granted for waiter in waiters] == [False] * 3
        next(answers)
        assert [waiter.granted for waiter in waiters] == [True] * 3
        for waiter, rig in zip(waiters, (second, first, second), strict=True):
            rig.accumulator.stop_waiting(waiter.room)


def test_a_message_above_the_whole_limit_never_waits():
    with Rig(memory_limit=1000) as rig, pytest.raises(MemoryError, match="memory_limit_bytes=1000"):
        rig.accumulator.wait_for_room(RoomWaiter(1001, lambda: None))


def test_the_end_wakes_all_who_wait():
    with Rig(max_pending=1) as rig:
        rig.send()
        waiters = [Waiter(rig) for _ in range(3)]
        rig.accumulator.end(AlreadyClosed("closed"))
        assert [waiter.woken for waiter in waiters] == [1] * 3
        assert not any(waiter.room.granted for waiter in waiters)
        assert Waiter(rig).woken == 1


# --- waking the loop


def test_the_loop_is_woken_once():
    with Rig(max_messages=2) as rig:
        for _ in range(7):
            rig.send()
        assert rig.wakes == 1
        assert rig.waker.take() == [rig]
        assert rig.waker.take() == []
        rig.send()
        assert rig.wakes == 2


def test_an_open_batch_wakes_the_loop_only_until_its_timer_runs():
    with Rig() as rig:
        rig.send()
        rig.waker.take()
        rig.accumulator.timer_armed = True
        rig.send()
        assert rig.wakes == 1
        rig.accumulator.mark()
        assert rig.wakes == 2


def test_a_waker_that_fails_does_not_fail_the_sender(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    pool, clock = BufferPool(), Clock()

    def fail():
        raise RuntimeError("no loop")

    waker = Waker(-1, fail)
    accumulator = Accumulator(
        pool,
        Budget(0),
        waker,
        clock,
        None,
        max_pending=0,
        max_messages=10,
        max_bytes=1000,
        batching=True,
        by_key=False,
    )
    TestSender(accumulator, False).send_async(b"x", None)
    queue = PendingQueue(accumulator, result_ok=Result.Ok, observer=Observer(), partition=-1, timeout_ns=0)
    queue.fail_all(AlreadyClosed("the end"))
    assert [str(one.exc_value) for one in unraisable] == ["no loop"]


def test_a_batch_is_due_after_its_delay():
    with Rig() as rig:
        link = rig.connect()
        delay = 10_000_000
        assert rig.accumulator.seal_if_due(delay, 0) == -1
        rig.send()
        rig.tick(4)
        rig.send()
        assert rig.accumulator.seal_if_due(delay, 0) == 6_000_000
        rig.write()
        assert link.frames == []
        rig.tick(6)
        assert rig.accumulator.seal_if_due(delay, 0) == -1
        rig.write()
        assert [len(frame.contents) for frame in link.frames] == [2]


def test_mark_seals_and_counts():
    with Rig() as rig:
        link = rig.connect()
        assert rig.accumulator.mark() == 0
        rig.send()
        rig.send(deliver_at=1)
        rig.send()
        assert rig.accumulator.mark() == 3
        assert rig.accumulator.mark() == 3
        rig.write()
        assert len(link.frames) == 3


def test_the_verdicts_are_known_to_the_facades():
    assert {verdict.name for verdict in Verdict} >= {
        "ACCEPTED",
        "ENDED",
        "QUEUE_FULL",
        "MEMORY_FULL",
        "TOO_BIG",
    }


# --- many at once


def feed(rig, payloads, **arguments):
    handle = SendHandle(rig.accumulator.mark)
    names = ("properties", "partition_key", "ordering_key", "event_timestamp", "replication_clusters")
    values = [arguments.get(name) for name in names]
    return handle, Feed(rig.sender, payloads, handle, *values, arguments.get("disable_replication", False))


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        one
        for one in BAD_ARGUMENTS
        if one[0] in ("properties", "partition_key", "ordering_key", "event_timestamp")
    ]
    + [one for one in BAD_ARGUMENTS if one[0] in ("replication_clusters", "disable_replication")],
)
def test_wrong_arguments_for_many(name, value, kind):
    with Rig() as rig:
        taken = iter([b"x"])
        with pytest.raises(kind, match=name):
            feed(rig, taken, **{name: value})
        assert list(taken) == [b"x"]
        assert rig.accounts() == IDLE


@pytest.mark.parametrize("payloads", [b"bytes", "text", bytearray(b"x"), memoryview(b"x")])
def test_one_message_is_not_many(payloads):
    with Rig() as rig, pytest.raises(TypeError, match="payloads must be an iterable"):
        feed(rig, payloads)


def test_many_share_their_fields():
    with Rig(by_key=True) as rig:
        link = rig.connect()
        arguments = {
            "properties": {"a": "b"},
            "partition_key": "k",
            "ordering_key": "o",
            "event_timestamp": 7,
        }
        handle, feeding = feed(rig, [b"1", None, bytearray(b"3"), b"x" * 200_000], **arguments)
        assert feeding.run() == 0
        rig.flush()
        batch, single = link.frames
        assert batch.contents == [b"1", b"", b"3"]
        for metadata in [*(one for one, _ in batch.entries), single.metadata]:
            assert metadata.partition_key == "k"
            assert metadata.ordering_key == b"o"
            assert metadata.event_time == 7
            assert [(one.key, one.value) for one in metadata.properties] == [("a", "b")]
        assert [one.null_value for one, _ in batch.entries] == [False, True, False]
        assert handle.count == 4


# --- what is taken is given back, whatever goes wrong


@pytest.mark.parametrize("problem", ["ended", "an id that has no successor", "an input that raises"])
def test_a_reservation_that_a_feed_cannot_use(problem):
    with Rig(max_pending=1) as rig:
        answers = pending(rig, 1)

        def payloads():
            yield b"x"
            raise KeyError("in the input")

        handle = SendHandle(rig.accumulator.mark)
        feed = Feed(rig.sender, payloads(), handle, None, None, None, None, None, False)
        waiter = Waiter(rig, feed.run())
        next(answers)
        assert waiter.granted
        if problem == "ended":
            rig.accumulator.end(AlreadyClosed("closed"))
        elif problem == "an id that has no successor":
            rig.accumulator.start_after(2**63 - 1)
        with pytest.raises((AlreadyClosed, OverflowError, KeyError)):
            feed.run(waiter.room)
        handle._end_input()
        sent = problem == "an input that raises"
        assert rig.accumulator.pending_messages == sent


def test_an_element_above_the_whole_limit_is_an_error_at_its_index():
    with Rig(memory_limit=1000) as rig:
        handle = SendHandle(rig.accumulator.mark)
        feed = Feed(rig.sender, [b"a", b"x" * 5000, b"b"], handle, None, None, None, None, None, False)
        assert feed.run() == 0
        assert [type(error) for error in handle.errors.values()] == [MemoryBufferIsFull]
        assert list(handle.errors) == [1]
        assert rig.accumulator.pending_messages == 2


def test_an_element_that_waits_is_what_it_was():
    with Rig(max_pending=1) as rig:
        link = rig.connect()
        rig.send(b"first")
        content = bytearray(b"before")
        handle = SendHandle(rig.accumulator.mark)
        feed = Feed(rig.sender, [content], handle, None, None, None, None, None, False)
        waiter = Waiter(rig, feed.run())
        content[:] = b"after, and longer" * 1000
        rig.flush()
        link.feed(receipt(0))
        assert feed.run(waiter.room) == 0
        rig.flush()
        assert [frame.contents for frame in link.frames] == [[b"first"], [b"before"]]


def test_who_fails_to_wake_keeps_nobody_else_asleep(monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    def fail():
        raise RuntimeError("in wake")

    with Rig(max_pending=1) as rig:
        rig.send()
        rig.accumulator.wait_for_room(RoomWaiter(1, fail))
        waiter = Waiter(rig)
        rig.accumulator.end(AlreadyClosed("closed"))
        assert waiter.woken == 1
    assert [str(one.exc_value) for one in unraisable] == ["in wake"]


def test_others_do_not_take_what_a_producer_waits_for():
    with Rig(memory_limit=1000) as first, Rig(shared=first) as second:
        answers = pending(first, 1, 900)
        waiter = Waiter(first, 800)
        assert second.send(b"x").result is Result.MemoryBufferIsFull
        next(answers)
        assert waiter.granted
        assert second.send(b"x").result is None
        first.accumulator.stop_waiting(waiter.room)


def test_a_long_property_keeps_no_key_from_a_batch():
    with Rig(by_key=True) as rig:
        link = rig.connect()
        for _ in range(3):
            rig.send(partition_key="k", properties={"p": "x" * 2000})
        rig.flush()
        assert [len(frame.contents) for frame in link.frames] == [3]


def test_nobody_stands_behind_a_producer_that_has_ended():
    with Rig(memory_limit=1000) as first, Rig(shared=first) as second:
        answers = pending(first, 1, 700)
        waiter = Waiter(second, 500)
        second.accumulator.end(AlreadyClosed("closed"))
        assert waiter.woken == 1
        assert first.send(b"x").result is None
        next(answers)
