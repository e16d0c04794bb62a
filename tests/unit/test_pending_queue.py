"""Answers, deadlines and handoffs: what becomes of what was accepted."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pulsar_fast._core import FrameError
from pulsar_fast.exceptions import AlreadyClosed, NotAllowedError, Timeout
from pulsar_fast.result import Result
from tests.unit.harness import IDLE, NOWHERE, START_NS, Heard, Rig, frames_in, receipt


def sent_alone(rig, count, size=10):
    """So many frames in flight."""
    heard = [rig.send(bytes([65 + number % 26]) * size, deliver_at=1) for number in range(count)]
    rig.flush()
    return heard


def results(heard):
    return [one.result for one in heard]


# --- answers


def test_a_receipt_completes_its_frame():
    with Rig() as rig:
        link = rig.connect()
        heard = [rig.send() for _ in range(3)]
        rig.flush()
        link.feed(receipt(0, 4, 5, highest=2))
        assert results(heard) == [Result.Ok] * 3
        assert [str(one.message_id) for one in heard] == ["(4,5,-1,0)", "(4,5,-1,1)", "(4,5,-1,2)"]
        assert rig.accounts() == IDLE
        assert rig.queue.acknowledged == 3
        assert rig.queue.last_sequence_id == 2
        assert rig.registration.slots_in_flight() == 0


def test_the_last_sequence_id_never_goes_back():
    with Rig() as rig:
        link = rig.connect()
        for sequence_id in (100, 5):
            rig.send(sequence_id=sequence_id)
            rig.flush()
            link.feed(receipt(sequence_id))
            assert rig.queue.last_sequence_id == 100


def test_a_receipt_out_of_turn_means_that_something_was_lost():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 3)
        with pytest.raises(FrameError, match="a receipt for sequence id 1 while 0 waits"):
            link.feed(receipt(1))
        assert results(heard) == [None] * 3


def test_an_early_duplicate_completes_only_its_frame():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 3)
        link.feed(receipt(1, NOWHERE, NOWHERE))
        assert results(heard) == [None, Result.Ok, None]
        assert str(heard[1].message_id) == "(-1,-1,-1,-1)"
        assert (rig.queue.duplicates, rig.queue.dropped, rig.queue.late) == (1, 0, 0)
        link.feed(receipt(0), receipt(2))
        assert results(heard) == [Result.Ok] * 3
        assert rig.queue.duplicates == 1


@pytest.mark.parametrize("sequence_id", [0, 4])
def test_a_receipt_below_all_is_late(sequence_id):
    with Rig() as rig:
        rig.accumulator.start_after(9)
        link = rig.connect()
        heard = sent_alone(rig, 2)
        link.feed(receipt(sequence_id))
        assert results(heard) == [None, None]
        assert rig.queue.late == 1


@pytest.mark.parametrize("sequence_id", [12, 2**40, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_receipt_above_all_is_an_error(sequence_id):
    with Rig() as rig:
        rig.accumulator.start_after(9)
        link = rig.connect()
        heard = sent_alone(rig, 2)
        with pytest.raises(FrameError, match="above all that were sent"):
            link.feed(receipt(sequence_id))
        assert results(heard) == [None, None]


def test_an_id_inside_of_a_batch_is_no_slot():
    with Rig() as rig:
        link = rig.connect()
        heard = [rig.send() for _ in range(3)]
        rig.flush()
        link.feed(receipt(1))
        assert results(heard) == [None] * 3
        assert rig.queue.late == 1


def test_a_receipt_with_nothing_in_flight_is_late():
    with Rig() as rig:
        link = rig.connect()
        link.feed(receipt(5))
        assert rig.queue.late == 1


def test_receipts_of_non_persistent_topics_come_in_any_order():
    with Rig() as rig:
        link = rig.connect(persistent=False)
        heard = sent_alone(rig, 4)
        link.feed(receipt(2, 0, 0), receipt(99, 0, 0))
        assert results(heard) == [None, None, Result.Ok, None]
        link.feed(receipt(3, NOWHERE, NOWHERE))
        assert (rig.queue.dropped, rig.queue.duplicates, rig.queue.late) == (1, 0, 1)
        assert heard[3].result is Result.Ok
        link.feed(receipt(0, 0, 0), receipt(1, 0, 0))
        assert results(heard) == [Result.Ok] * 4


def test_every_message_of_a_dropped_batch_counts():
    with Rig() as rig:
        link = rig.connect(persistent=False)
        for _ in range(5):
            rig.send()
        rig.flush()
        link.feed(receipt(0, NOWHERE, NOWHERE))
        assert rig.queue.dropped == 5


def test_a_replay_in_flight_twice_is_answered_in_order():
    with Rig() as rig:
        link = rig.connect()
        heard = [rig.send(sequence_id=5), rig.send(sequence_id=6), rig.send(sequence_id=5)]
        rig.flush()
        link.feed(receipt(5, 1, 1), receipt(5, NOWHERE, NOWHERE))
        assert [one.message_id.entry_id() for one in (heard[0], heard[1], heard[2])] == [1, 1, -1]


def test_a_refused_frame_fails_alone():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 3)
        assert rig.registration.has_slot(1)
        assert not rig.registration.has_slot(3)
        rig.registration.fail_slot(1, NotAllowedError("too large"))
        assert results(heard) == [None, Result.NotAllowedError, None]
        assert not rig.registration.has_slot(1)
        rig.registration.fail_slot(1, NotAllowedError("again"))
        assert rig.queue.late == 1
        link.feed(receipt(0), receipt(2))
        assert rig.queue.failed == 1


def test_a_refusal_names_the_highest_id_of_a_batch():
    with Rig() as rig:
        rig.connect()
        heard = [rig.send() for _ in range(3)]
        rig.flush()
        assert not rig.registration.has_slot(0)
        rig.registration.fail_slot(2, NotAllowedError("no"))
        assert results(heard) == [Result.NotAllowedError] * 3


def test_an_intact_frame_is_known():
    with Rig() as rig:
        rig.connect(schema_version=b"v")
        sent_alone(rig, 1)
        for _ in range(3):
            rig.send(b"x", properties={"a": "b"}, ordering_key="k")
        rig.flush()
        assert rig.registration.is_intact(0)
        assert rig.registration.is_intact(3)
        assert rig.registration.is_intact(99)


def test_answers_count_after_a_stop_and_nothing_is_begun():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 2)
        rig.registration.stop()
        heard += sent_alone(rig, 1)
        assert len(link.frames) == 2
        link.feed(receipt(0), receipt(1))
        assert results(heard) == [Result.Ok, Result.Ok, None]


def test_nothing_is_heard_of_a_registration_that_has_ended():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 2)
        rig.detach()
        link.feed(receipt(0), receipt(99))
        assert results(heard) == [None, None]


def test_many_slots_in_flight():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 1000)
        link.feed(*[receipt(number, 1, number) for number in range(500)])
        heard += sent_alone(rig, 700)
        assert rig.registration.slots_in_flight() == 1200
        link.feed(*[receipt(number, 1, number) for number in range(500, 1700)])
        assert [one.message_id.entry_id() for one in heard] == list(range(1700))


# --- partial writes


@pytest.mark.parametrize("outcome", ["receipt", "expiry", "close"])
def test_a_half_written_frame_holds_its_buffer(outcome):
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 5000
        heard = rig.send(b"x" * 10_000, deliver_at=1)
        assert not rig.flush()
        assert rig.accounts()["write_holds"] == 1
        if outcome == "receipt":  # of a broker that lies
            link.feed(receipt(0))
            assert heard.result is Result.Ok
        elif outcome == "expiry":
            rig.tick(30_000)
            rig.expire()
            assert heard.result is Result.Timeout
        else:
            link.close()
            assert rig.accounts()["write_holds"] == 0
            return
        assert rig.accumulator.pending_messages == 0
        assert rig.accounts()["live_batches"] == 1
        assert rig.budget.used > 10_000
        rig.send(b"y" * 10_000, deliver_at=1)  # takes no buffer that is in use
        link.wire.room = None
        assert rig.flush()
        assert [frame.payload for frame in link.frames] == [b"x" * 10_000, b"y" * 10_000]
        assert rig.accounts()["write_holds"] == 0


def test_commands_go_first_at_the_next_frame_boundary():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 50
        sent_alone(rig, 3, size=100)
        link.send_command(b"<command>")
        link.send_command(b"<another>")
        link.wire.room = None
        rig.write()
        first, second, third = frames_in(link.wire.written.replace(b"<command><another>", b""))
        assert bytes(link.wire.written) == first.raw + b"<command><another>" + second.raw + third.raw


def test_a_half_written_command_is_finished_first():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 4
        link.send_command(b"<command>")
        assert not link.write()
        link.send_command(b"<another>")
        sent_alone(rig, 1)
        link.wire.room = None
        assert rig.write()
        assert bytes(link.wire.written).startswith(b"<command><another>")


def test_a_frame_is_finished_on_its_connection_after_its_registration():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 60
        heard = sent_alone(rig, 2, size=100)
        rig.detach()
        link.wire.room = None
        assert link.write()
        assert [frame.payload for frame in link.frames] == [b"A" * 100]
        rig.connect(link)
        rig.write()
        first, again, second = link.frames
        assert first.raw == again.raw
        assert second.payload == b"B" * 100
        link.feed(receipt(0), receipt(1))
        assert results(heard) == [Result.Ok] * 2


def test_a_resend_on_the_same_connection_comes_behind_the_rest_of_the_frame():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 60
        heard = sent_alone(rig, 2, size=100)
        rig.detach()
        rig.connect(link)
        for room in (10, 0, 33, 90, 20):
            link.wire.room = room
            rig.write()
        link.wire.room = None
        assert rig.write()
        assert [frame.payload[:1] for frame in link.frames] == [b"A", b"A", b"B"]
        link.feed(receipt(0), receipt(1))
        assert results(heard) == [Result.Ok] * 2


def half_written_on_two_connections():
    """The old connection lives on with the rest of the frame; the new one begins its resend."""
    rig = Rig()
    old = rig.connect()
    old.wire.room = 5000
    rig.send(b"x" * 20_000, deliver_at=1)
    rig.flush()
    rig.detach()
    new = rig.connect()
    new.wire.room = 9000
    rig.write()
    assert rig.accounts()["write_holds"] == 2
    old.wire.room = None
    assert old.write()
    assert rig.accounts()["write_holds"] == 1
    rig.tick(30_000)
    rig.expire()
    assert rig.accounts()["live_batches"] == 1, "the buffer is free while a write still needs it"
    rig.send(b"y" * 20_000, deliver_at=1)
    new.wire.room = None
    rig.flush()
    assert [frame.payload[:1] for frame in new.frames] == [b"x", b"y"]
    rig.end()
    assert rig.accounts() == IDLE


def test_a_frame_half_written_on_two_connections_is_held_by_both():
    play_apart(half_written_on_two_connections)


def play_apart(scene):
    """Play a scene in a process of its own, since memory is at stake."""
    script = f"from tests.unit import test_pending_queue; test_pending_queue.{scene.__name__}()"
    root = Path(__file__).parents[2]
    child = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=30
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_producers_of_one_connection_take_turns():
    with Rig() as first, Rig(shared=first) as second:
        link = first.connect(producer_id=1)
        second.connect(link, producer_id=2)
        for _ in range(20):
            first.send(b"a" * 100_000, deliver_at=1)
            second.send(b"b" * 100_000, deliver_at=1)
        first.queue.absorb()
        second.queue.absorb()
        first.registration.offer()
        second.registration.offer()
        link.wire.room = 1_500_000
        assert not link.write()
        counts = [sum(frame.send.producer_id == number for frame in link.frames) for number in (1, 2)]
        assert min(counts) >= 4
        link.wire.room = None
        assert link.write()
        for number in (1, 2):
            ids = [frame.send.sequence_id for frame in link.frames if frame.send.producer_id == number]
            assert ids == list(range(20))


# --- deadlines


def test_what_was_not_begun_is_cut_out_and_never_sent():
    with Rig() as rig:
        link = rig.connect()
        early = [rig.send(b"early", properties={"a": "b"}, partition_key="first") for _ in range(3)]
        rig.tick(10_000)
        late = [rig.send(b"late", partition_key="second") for _ in range(2)]
        rig.tick(20_000)
        rig.accumulator.mark()
        rig.expire()
        assert results(early + late) == [Result.Timeout] * 3 + [None] * 2
        assert rig.accumulator.pending_messages == 2
        rig.write()
        [frame] = link.frames
        assert frame.contents == [b"late"] * 2
        assert frame.ids == [3, 4]
        assert (frame.send.sequence_id, frame.send.highest_sequence_id, frame.send.num_messages) == (3, 4, 2)
        assert (frame.metadata.sequence_id, frame.metadata.num_messages_in_batch) == (3, 2)
        assert frame.metadata.partition_key == "second"
        link.feed(receipt(3, 1, 1))
        assert [str(one.message_id) for one in late] == ["(1,1,-1,0)", "(1,1,-1,1)"]
        assert (rig.queue.expired, rig.queue.failed, rig.queue.acknowledged) == (3, 3, 2)


def test_a_frame_made_but_not_begun_is_made_again_without_what_expired():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 0
        rig.send(b"early")
        rig.tick(1)
        rig.send(b"late")
        rig.flush()  # framed and offered, none of it taken
        rig.tick(29_999)
        rig.expire()
        link.wire.room = None
        rig.write()
        assert [frame.contents for frame in link.frames] == [[b"late"]]


def test_a_message_not_begun_leaves_the_queue():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 0
        heard = [*sent_alone(rig, 2)]
        rig.tick(1)
        heard += sent_alone(rig, 1)
        rig.tick(29_999)
        rig.expire()
        assert results(heard) == [Result.Timeout] * 2 + [None]
        link.wire.room = None
        rig.write()
        assert [frame.ids for frame in link.frames] == [[2]]


def test_a_begun_frame_stays_while_one_of_its_messages_lives():
    with Rig(timeout_ms=100) as rig:
        link = rig.connect()
        heard = []
        for _ in range(3):
            heard.append(rig.send())
            rig.tick(10)
        rig.flush()
        rig.tick(70)
        rig.expire()
        assert results(heard) == [Result.Timeout, None, None]
        rig.tick(10)
        rig.expire()
        assert results(heard) == [Result.Timeout, Result.Timeout, None]
        link.feed(receipt(0, 6, 7))
        assert str(heard[2].message_id) == "(6,7,-1,2)"
        assert (rig.queue.expired, rig.queue.late, rig.queue.acknowledged) == (2, 0, 1)


def test_the_slot_of_an_expired_frame_waits_for_its_late_answer():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 2)
        rig.tick(1000)
        heard += sent_alone(rig, 1)
        rig.tick(29_000)
        rig.expire()
        assert results(heard) == [Result.Timeout] * 2 + [None]
        assert rig.registration.slots_in_flight() == 3
        with pytest.raises(FrameError, match="while 0 waits"):
            link.feed(receipt(2))
        link.feed(receipt(0), receipt(1), receipt(2))
        assert heard[2].result is Result.Ok
        assert rig.queue.late == 2
        assert rig.registration.slots_in_flight() == 0


def test_a_refusal_of_an_expired_frame_is_late():
    with Rig() as rig:
        rig.connect()
        sent_alone(rig, 1)
        rig.tick(30_000)
        rig.expire()
        assert rig.registration.has_slot(0)
        assert rig.registration.is_intact(0)
        rig.registration.fail_slot(0, NotAllowedError("no"))
        assert rig.queue.late == 1


def test_an_expired_part_of_a_frame_is_resent_with_it():
    with Rig(timeout_ms=100) as rig:
        link = rig.connect()
        heard = [rig.send(b"a")]
        rig.tick(50)
        heard.append(rig.send(b"b"))
        rig.flush()
        rig.tick(50)
        rig.expire()
        link.close()
        rig.detach()
        again = rig.connect()
        rig.write()
        assert again.wire.written == link.wire.written
        again.feed(receipt(0, 1, 2))
        assert results(heard) == [Result.Timeout, Result.Ok]
        assert str(heard[1].message_id) == "(1,2,-1,1)"


def test_an_expired_frame_is_not_resent():
    with Rig() as rig:
        link = rig.connect()
        sent_alone(rig, 1)
        rig.tick(30_000)
        rig.expire()
        link.close()
        rig.detach()
        again = rig.connect()
        rig.write()
        assert again.wire.written == b""


def test_deadlines_are_told():
    with Rig(timeout_ms=100) as rig:
        rig.queue.absorb()
        assert rig.queue.next_deadline() is None
        assert rig.queue.last_deadline() is None
        rig.send()
        rig.tick(30)
        rig.send()
        rig.accumulator.mark()
        rig.queue.absorb()
        assert rig.queue.next_deadline() == START_NS + 100_000_000
        assert rig.queue.last_deadline() == START_NS + 130_000_000
        rig.tick(70)
        rig.expire()
        assert rig.queue.next_deadline() == START_NS + 130_000_000


def test_without_a_timeout_nothing_expires():
    with Rig(timeout_ms=0) as rig:
        heard = rig.send()
        rig.accumulator.mark()
        rig.tick(10**9)
        rig.expire()
        assert heard.result is None
        assert rig.queue.next_deadline() is None


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("by_key", [True, False])
def test_many_messages_expire_one_by_one(begun, by_key):
    with Rig(timeout_ms=100, by_key=by_key) as rig:
        link = rig.connect()
        heard = []
        for number in range(50):
            heard.append(rig.send(b"%d" % number, partition_key="k", properties={"n": "v" * number}))
            rig.tick(1)
        if begun:
            rig.flush()
        rig.accumulator.mark()
        rig.tick(49)
        for number in range(20):
            rig.tick(1)
            rig.expire()
            assert results(heard) == [Result.Timeout] * (number + 1) + [None] * (49 - number)
        rig.write()
        [frame] = link.frames
        assert frame.ids == list(range(0 if begun else 20, 50))
        link.feed(receipt(frame.send.sequence_id, 1, 1))
        assert [one.message_id.batch_index() for one in heard[20:]] == list(
            range(20 if begun else 0, 50 if begun else 30)
        )


def shut_down_while_messages_expire():
    with Rig(timeout_ms=100) as rig:
        link = rig.connect()
        heard = [Heard(lambda: shut_down(rig)), Heard(), Heard()]
        for one in heard:
            rig.sender.send_async(b"x", one)
        rig.tick(1)
        heard.append(rig.send())
        rig.flush()
        rig.tick(99)
        rig.expire()
        assert results(heard) == [Result.Timeout] * 3 + [Result.AlreadyClosed]
        link.close()


def shut_down_during_a_handoff():
    with Rig(batching=False) as rig:
        heard = [Heard(lambda: shut_down(rig)), Heard(), Heard()]
        link = rig.connect()
        for one, size in zip(heard, (5000, 10, 20), strict=True):
            rig.sender.send_async(b"x" * size, one)
        rig.flush()
        lose(rig, link)
        rig.connect(max_message_size=1000)
        assert results(heard) == [Result.MessageTooBig] + [Result.AlreadyClosed] * 2


def shut_down_among_receipts():
    with Rig(batching=False) as rig:
        heard = [Heard(lambda: shut_down(rig)), Heard(), Heard()]
        link = rig.connect()
        for one in heard:
            rig.sender.send_async(b"x", one)
        rig.flush()
        link.feed(receipt(0) + receipt(1) + receipt(2))
        assert results(heard) == [Result.Ok] + [Result.AlreadyClosed] * 2


def shut_down(rig):
    """What `Client.shutdown()` of the asyncio API does, in a callback."""
    for link in rig.links:
        link.close()
    rig.detach()
    rig.queue.fail_all(AlreadyClosed("shut down"))


@pytest.mark.parametrize(
    "scene", [shut_down_while_messages_expire, shut_down_during_a_handoff, shut_down_among_receipts]
)
def test_a_callback_may_end_everything(scene):
    play_apart(scene)


# --- handoff


def lose(rig, link):
    link.close()
    rig.detach()


def test_a_handoff_repeats_what_was_begun_before_anything_newer():
    with Rig(max_messages=2) as rig:
        link = rig.connect()
        heard = [rig.send(b"%d" % number) for number in range(6)]
        rig.write()
        rig.clock.freeze(START_NS, 5)
        lose(rig, link)
        heard += [rig.send(b"new") for _ in range(2)]
        again = rig.connect(name="another name", schema_version=b"1")
        rig.write()
        assert again.wire.written.startswith(link.wire.written)
        assert [frame.ids for frame in again.frames] == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert [frame.metadata.producer_name for frame in again.frames] == ["p", "p", "p", "another name"]
        assert rig.queue.resent == 3
        again.feed(*[receipt(number) for number in (0, 2, 4, 6)])
        assert results(heard) == [Result.Ok] * 8


def test_what_was_not_begun_is_framed_for_the_new_registration():
    with Rig() as rig:
        link = rig.connect(name="old")
        link.wire.room = 0
        rig.send(deliver_at=1)
        rig.flush()
        lose(rig, link)
        again = rig.connect(name="new", producer_id=9)
        rig.write()
        [frame] = again.frames
        assert (frame.metadata.producer_name, frame.send.producer_id) == ("new", 9)
        assert rig.queue.resent == 0


def test_a_half_written_frame_is_resent_whole():
    with Rig() as rig:
        link = rig.connect()
        link.wire.room = 100
        sent_alone(rig, 3, size=100)
        lose(rig, link)
        again = rig.connect()
        rig.write()
        assert [frame.payload[:1] for frame in again.frames] == [b"A", b"B", b"C"]
        assert again.wire.written.startswith(link.wire.written)
        assert rig.queue.resent == 1


def test_what_the_new_broker_does_not_take_fails_and_the_rest_goes():
    with Rig(batching=False) as rig:
        link = rig.connect()
        heard = [rig.send(b"x" * size) for size in (10, 5000, 20)]
        rig.flush()
        lose(rig, link)
        heard += [rig.send(b"x" * size) for size in (6000, 30)]
        rig.queue.absorb()
        again = rig.connect(max_message_size=1000)
        rig.write()
        assert results(heard) == [None, Result.MessageTooBig, None, Result.MessageTooBig, None]
        assert [frame.ids for frame in again.frames] == [[0], [2], [4]]
        again.feed(receipt(0), receipt(2), receipt(4))
        assert rig.accounts() == IDLE


@pytest.mark.parametrize("state", ["sealed", "open"])
def test_the_new_limit_holds_for_what_the_loop_has_not_taken_over_yet(state):
    with Rig() as rig:
        link = rig.connect()
        lose(rig, link)
        heard = [rig.send(b"x" * 500) for _ in range(10)]
        if state == "sealed":
            rig.accumulator.mark()
        again = rig.connect(max_message_size=3000)
        rig.flush()
        for frame in again.frames:
            assert len(frame.metadata.SerializeToString()) + len(frame.payload) <= 3000
        sent = sum(len(frame.contents) for frame in again.frames)
        assert results(heard).count(Result.MessageTooBig) == 10 - sent


def test_nothing_is_begun_without_a_registration():
    with Rig() as rig:
        link = rig.connect()
        registration = rig.registration
        rig.detach()
        rig.send(deliver_at=1)
        rig.queue.absorb()
        registration.offer()
        link.write()
        assert link.wire.written == b""


def test_a_second_handoff_repeats_the_same_bytes():
    with Rig() as rig:
        links = []
        sent = sent_alone
        rig.connect().close()
        rig.detach()
        links.append(rig.connect())
        sent(rig, 5)
        for _ in range(3):
            lose(rig, links[-1])
            links.append(rig.connect())
            rig.write()
        assert len({bytes(link.wire.written) for link in links}) == 1
        assert rig.queue.resent == 15


# --- failing


def test_fail_all_takes_what_is_open_too():
    with Rig() as rig:
        link = rig.connect()
        heard = sent_alone(rig, 2)
        heard += [rig.send() for _ in range(2)]
        lose(rig, link)
        rig.queue.fail_all(AlreadyClosed("closed"))
        assert results(heard) == [Result.AlreadyClosed] * 4
        assert rig.accounts() == IDLE


@pytest.mark.parametrize("batching", [True, False])
def test_fail_all_leaves_what_callbacks_send(batching):
    """Or a callback that sends again what has failed would keep the loop for ever."""
    with Rig(batching=batching) as rig:
        told = []

        def again(result, message_id):
            told.append(result)
            if len(told) < 100:
                rig.sender.send_async(b"again", again)

        rig.sender.send_async(b"first", again)
        rig.queue.fail_all(AlreadyClosed("quota"))
        assert told == [Result.AlreadyClosed]
        assert rig.accumulator.pending_messages == 1
        told += [None] * 100


def test_failures_that_nobody_asked_for_are_observed():
    with Rig() as rig:
        error = AlreadyClosed("closed")
        for _ in range(3):
            rig.sender.send_async(b"x", None)
        heard = rig.send()
        rig.queue.fail_all(error)
        assert rig.observer.unheard == [(3, error)]
        assert heard.result is Result.AlreadyClosed
        rig.sender.send_async(b"x", None)
        rig.accumulator.mark()
        rig.tick(30_000)
        rig.expire()
        assert [(count, type(one)) for count, one in rig.observer.unheard[1:]] == [(1, Timeout)]


def test_callbacks_that_hold_the_loop_are_observed():
    with Rig() as rig:
        link = rig.connect()
        rig.sender.send_async(b"x", Heard(lambda: rig.tick(250)))
        rig.send()
        rig.flush()
        link.feed(receipt(0))
        assert rig.observer.held == [0.25]


# --- flush


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def flushed(rig, loop):
    mark = loop.create_future()
    rig.queue.when_complete(rig.accumulator.mark(), mark)
    return mark


def test_a_flush_waits_for_what_came_before_it(loop):
    with Rig() as rig:
        link = rig.connect()
        assert flushed(rig, loop).result() is None
        sent_alone(rig, 2)
        first = flushed(rig, loop)
        sent_alone(rig, 1)
        second = flushed(rig, loop)
        link.feed(receipt(0))
        assert not first.done()
        link.feed(receipt(1))
        assert first.result() is None
        assert not second.done()
        link.feed(receipt(2))
        assert second.result() is None


def test_a_flush_waits_also_when_answers_come_out_of_order(loop):
    with Rig() as rig:
        link = rig.connect(persistent=False)
        sent_alone(rig, 3)
        mark = flushed(rig, loop)
        link.feed(receipt(2), receipt(1))
        assert not mark.done()
        link.feed(receipt(0))
        assert mark.result() is None


def test_a_flush_tells_the_first_error(loop):
    with Rig() as rig:
        rig.connect()
        sent_alone(rig, 3)
        mark = flushed(rig, loop)
        sent_alone(rig, 1)
        later = NotAllowedError("behind the mark")
        rig.registration.fail_slot(3, later)
        errors = [NotAllowedError(str(number)) for number in range(3)]
        for number in (1, 0, 2):
            assert not mark.done()
            rig.registration.fail_slot(number, errors[number])
        assert mark.result() is errors[1]


def test_a_flush_hears_of_messages_that_expire(loop):
    with Rig() as rig:
        rig.connect()
        rig.send()
        rig.tick(10)
        rig.send()
        mark = flushed(rig, loop)
        rig.tick(29_990)
        rig.expire()
        assert not mark.done()
        rig.tick(10)
        rig.expire()
        assert isinstance(mark.result(), Timeout)


def test_a_cancelled_flush_is_forgotten(loop):
    with Rig() as rig:
        link = rig.connect()
        sent_alone(rig, 1)
        mark = flushed(rig, loop)
        mark.cancel()
        link.feed(receipt(0))
        assert mark.cancelled()


@pytest.mark.parametrize("schema_version", [b"12345678", b"v" * 2_000_000])
def test_a_frame_is_judged_by_its_own_bytes(schema_version):
    """Not by what a later registration would write around them."""
    with Rig() as rig:
        link = rig.connect()
        rig.send(b"x" * 100)
        rig.flush()
        lose(rig, link)
        rig.connect(schema_version=schema_version, max_message_size=200)
        rig.write()
        assert rig.registration.is_intact(0)
        assert rig.queue.resent == 1


def test_many_frames_that_expire_at_once():
    """Each is found where it is expected, not by looking through all of them."""
    with Rig(batching=False, timeout_ms=100) as rig:
        link = rig.connect()
        heard = [rig.send() for _ in range(3000)]
        rig.flush()
        rig.tick(100)
        rig.expire()
        assert {one.result for one in heard} == {Result.Timeout}
        link.feed(*[receipt(number) for number in range(3000)])
        assert rig.queue.late == 3000
        assert rig.registration.slots_in_flight() == 0
