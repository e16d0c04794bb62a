"""The core under random events in virtual time, with a network and a broker that are lists."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pulsar_fast._core import FrameError
from pulsar_fast.compression import codec_for
from pulsar_fast.enums import CompressionType
from pulsar_fast.exceptions import NotAllowedError
from pulsar_fast.result import Result
from tests.unit.harness import IDLE, NOWHERE, Heard, Rig, examples, frames_in, receipt


class Machine(RuleBasedStateMachine):
    """Any order of sends, partial writes, answers, lost connections and time, against a model of what may be seen.

    The model knows each message by its sequence id, and reads from the wire which frames were begun.
    """

    def __init__(self):
        super().__init__()
        self.link = None
        self.wires = []
        self.told = []
        self.heard = {}
        self.deadline = {}
        self.begun = {}  # raw bytes by lowest id, of frames that have been complete on some wire
        self.answered = set()  # lowest ids answered on this registration
        self.error = None

    @initialize(
        batching=st.booleans(),
        by_key=st.booleans(),
        max_messages=st.integers(1, 4),
        max_pending=st.sampled_from([0, 5, 20]),
        memory_limit=st.sampled_from([0, 3000]),
        persistent=st.booleans(),
        compression=st.sampled_from([CompressionType.NONE, CompressionType.LZ4]),
    )
    def start(self, persistent, compression, **options):
        self.persistent = persistent
        self.rig = Rig(timeout_ms=100, codec=codec_for(compression, None), **options)
        self.options = options

    @rule(
        size=st.sampled_from([0, 1, 50, 50, 700, 3000]),
        step=st.sampled_from([None, None, None, 1, 5]),
        key=st.sampled_from([None, "a", "b"]),
        alone=st.sampled_from([False, False, True]),
    )
    def send(self, size, step, key, alone):
        accumulator = self.rig.accumulator
        given = None if step is None else accumulator.last_sequence_id + step
        sequence_id = accumulator.last_sequence_id + (step or 1)
        before = self.rig.accounts()
        heard = Heard(lambda: self.told.append(sequence_id))
        self.rig.sender.send_async(
            b"%d " % sequence_id + b"x" * size,
            heard,
            partition_key=key,
            sequence_id=given,
            deliver_at=1 if alone else None,
        )
        if heard.result is None:
            assert accumulator.last_sequence_id == sequence_id
            self.heard[sequence_id] = heard
            self.deadline[sequence_id] = self.rig.now_ms + 100
        else:
            assert heard.result in (Result.ProducerQueueIsFull, Result.MemoryBufferIsFull)
            self.told.remove(sequence_id)
            assert accumulator.last_sequence_id == sequence_id - (step or 1)
            after = self.rig.accounts()
            assert (after["pending_messages"], after["bytes"]) == (
                before["pending_messages"],
                before["bytes"],
            )

    @rule()
    @precondition(lambda self: self.link is None)
    def connect(self):
        self.link = self.rig.connect(persistent=self.persistent)
        self.wires.append(self.link.wire)
        self.link.wire.room = 0
        self.answered = set()

    @rule(room=st.none() | st.integers(0, 2000), seal=st.booleans())
    @precondition(lambda self: self.link is not None)
    def write(self, room, seal):
        self.link.wire.room = room
        if seal:
            self.rig.accumulator.mark()
        blocked = not self.rig.write()
        assert not (blocked and room is None)
        self.link.wire.room = 0

    @rule(broken=st.booleans())
    @precondition(lambda self: self.link is not None)
    def lose(self, broken):
        """The registration ends, most often with its connection."""
        if broken:
            self.link.close()
        self.rig.detach()
        self.link = None

    def in_flight(self):
        return [frame for frame in self.link.frames if frame.send.sequence_id not in self.answered]

    @rule(draw=st.data())
    @precondition(lambda self: self.link is not None and self.in_flight())
    def answer(self, draw):
        frames = self.in_flight()
        frame = frames[0] if self.persistent else draw.draw(st.sampled_from(frames))
        waiting = [number for number in frame.ids if not self.heard[number].answers]
        lowest = frame.send.sequence_id
        late = self.rig.queue.late
        self.link.feed(receipt(lowest, 1, lowest))
        self.answered.add(lowest)
        for number in waiting:
            assert self.heard[number].result is Result.Ok
            assert self.heard[number].message_id.entry_id() == lowest
        batched = frame.metadata.HasField("num_messages_in_batch")
        indexes = [self.heard[number].message_id.batch_index() for number in waiting]
        assert indexes == [frame.ids.index(number) if batched else -1 for number in waiting]
        assert self.rig.queue.late == late + (not waiting)

    @rule(draw=st.data())
    @precondition(lambda self: self.link is not None and self.in_flight())
    def early_duplicate(self, draw):
        frame = draw.draw(st.sampled_from(self.in_flight()))
        waiting = [number for number in frame.ids if not self.heard[number].answers]
        self.link.feed(receipt(frame.send.sequence_id, NOWHERE, NOWHERE))
        self.answered.add(frame.send.sequence_id)
        for number in waiting:
            assert self.heard[number].result is Result.Ok
            assert self.heard[number].message_id.ledger_id() == -1

    @rule(draw=st.data())
    @precondition(lambda self: self.link is not None and self.in_flight())
    def refuse(self, draw):
        frame = draw.draw(st.sampled_from(self.in_flight()))
        waiting = [number for number in frame.ids if not self.heard[number].answers]
        assert self.rig.registration.is_intact(frame.ids[-1])
        self.rig.registration.fail_slot(frame.ids[-1], NotAllowedError("refused"))
        self.answered.add(frame.send.sequence_id)
        for number in waiting:
            assert self.heard[number].result is Result.NotAllowedError

    @rule(skipped=st.integers(1, 3))
    @precondition(lambda self: self.link is not None and self.persistent and len(self.in_flight()) > 1)
    def receipt_out_of_turn(self, skipped):
        frames = self.in_flight()
        told = list(self.told)
        with pytest.raises(FrameError):
            self.link.feed(receipt(frames[min(skipped, len(frames) - 1)].send.sequence_id))
        assert self.told == told
        self.lose(True)

    @rule(ms=st.integers(1, 60))
    def let_time_pass(self, ms):
        self.rig.tick(ms)
        self.rig.accumulator.mark()
        self.rig.expire()
        for number, heard in self.heard.items():
            if self.deadline[number] <= self.rig.now_ms:
                assert heard.answers
            elif heard.result is Result.Timeout:
                raise AssertionError("expired too early")

    def check_wire(self, wire):
        """Ids rise on a registration, and a frame is the same bytes wherever it was sent."""
        frames = list(frames_in(wire.written))
        ids = [number for frame in frames for number in frame.ids]
        assert ids == sorted(set(ids))
        for frame in frames:
            assert len(frame.ids) <= self.options["max_messages"]
            assert [int(content.split()[0]) for content in frame.contents] == frame.ids
            assert self.begun.setdefault(frame.send.sequence_id, frame.raw) == frame.raw

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        for wire in self.wires:
            self.check_wire(wire)
        self.rig.end()
        assert self.rig.accounts() == IDLE
        for heard in self.heard.values():
            assert len(heard.answers) == 1
        assert sorted(self.told) == sorted(self.heard)


TestRandomLife = Machine.TestCase
TestRandomLife.settings = examples(200)
