"""Whatever the peer sends: commands, or a clear error."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast._core import FrameError
from pulsar_fast.wire.messages import BaseCommand
from tests.unit.harness import Rig, examples, framed, receipt

MAX_FRAME = (5 << 20) + (10 << 10)
INBOX = 64 << 10
PING = BaseCommand(type=BaseCommand.PING, ping={}).SerializeToString()
PONG = BaseCommand(type=BaseCommand.PONG, pong={}).SerializeToString()


def success(size=0):
    """A command of about `size` bytes that is no receipt."""
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    command.producer_success.request_id = 1
    command.producer_success.producer_name = "n" * size
    return command.SerializeToString()


def cut(stream, sizes):
    pieces = []
    for size in sizes:
        pieces.append(stream[:size])
        stream = stream[size:]
    return [*pieces, stream]


chunking = st.lists(st.integers(0, 200) | st.integers(0, 70_000), max_size=30)
sound = st.one_of(
    st.sampled_from([framed(PING), framed(PONG)]),
    st.integers(0, 300).map(success).map(framed),
    st.builds(receipt, st.integers(0, 12), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.builds(receipt, st.integers(0, 2**64 - 1), producer_id=st.integers(0, 8)),
)


@examples(100)
@given(st.lists(st.sampled_from([0, 10, 100, 5000, 70_000, 200_000]), max_size=8), chunking)
def test_commands_come_out_whole_and_in_order(sizes, chunks):
    commands = [success(size) for size in sizes]
    with Rig() as rig:
        link = rig.connect()
        assert link.feed(*cut(b"".join(map(framed, commands)), chunks))
        assert link.heard == commands


@examples(100)
@given(st.binary(max_size=100), st.binary(max_size=300))
def test_a_payload_behind_a_command_is_skipped(command, payload):
    """As of a frame that carries a message: only its command counts."""
    body = success() if not command else PONG
    frame = struct.pack(">II", 4 + len(body) + len(payload), len(body)) + body + payload
    with Rig() as rig:
        link = rig.connect()
        assert link.feed(frame, framed(PING))
        assert link.heard == [body, PING]


def feed_anything(rig, pieces):
    """Whatever it is, it is handled or refused, and holds no more memory than has arrived."""
    link = rig.connect()
    for _ in range(5):
        rig.send(b"x" * 10)
        rig.flush()
    arrived = sum(map(len, pieces))
    with contextlib.suppress(FrameError):
        link.feed(*pieces)
    assert max(link.wire.asked, default=0) <= 2 * max(arrived, INBOX)
    return link


@examples(300)
@given(st.lists(st.binary(max_size=60), max_size=6))
def test_noise(pieces):
    with Rig() as rig:
        feed_anything(rig, pieces)


@examples(300)
@given(st.lists(st.integers(0, 40), min_size=2, max_size=2), st.binary(max_size=40), chunking)
def test_noise_behind_plausible_lengths(lengths, body, chunks):
    total, command = lengths
    with Rig() as rig:
        feed_anything(rig, cut(struct.pack(">II", total, command) + body, chunks))


@examples(300)
@given(st.lists(sound, max_size=8), st.data(), chunking)
def test_damaged_streams(frames, draw, chunks):
    stream = bytearray(b"".join(frames))
    for _ in range(draw.draw(st.integers(0, 4))):
        if stream:
            at = draw.draw(st.integers(0, len(stream) - 1))
            kind = draw.draw(st.integers(0, 2))
            if kind == 0:
                stream[at] = draw.draw(st.integers(0, 255))
            elif kind == 1:
                del stream[at : at + draw.draw(st.integers(1, 9))]
            else:
                stream[at:at] = draw.draw(st.binary(min_size=1, max_size=9))
    with Rig() as rig:
        feed_anything(rig, cut(bytes(stream), chunks))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(struct.pack(">II", MAX_FRAME + 1, 4), id="longer than allowed"),
        pytest.param(struct.pack(">II", 2**32 - 1, 4), id="4 GB"),
        pytest.param(struct.pack(">II", 0, 0), id="shorter than its own length field"),
        pytest.param(struct.pack(">II", 3, 0), id="three bytes"),
        pytest.param(struct.pack(">II", 10, 7), id="command longer than its frame"),
        pytest.param(struct.pack(">II", 10, 2**32 - 1), id="command of 4 GB"),
        pytest.param(b"HTTP/1.1 400 Bad Request", id="an HTTP server"),
    ],
)
def test_impossible_lengths_are_refused(head):
    with Rig() as rig:
        link = rig.connect()
        with pytest.raises(FrameError, match=r"a frame of \d+ bytes"):
            link.feed(head)


def test_the_error_shows_the_limit_and_the_first_bytes():
    with Rig() as rig:
        link = rig.connect()
        link.max_frame = 100_000
        with pytest.raises(FrameError, match=r"1213486160 bytes.*at most 100000.*b'HTTP/1\.1'"):
            link.feed(b"HTTP/1.1 400")


def test_the_longest_frame_is_taken():
    with Rig() as rig:
        link = rig.connect()
        frame = framed(success(MAX_FRAME - 20))
        assert MAX_FRAME - 10 <= len(frame) - 4 <= MAX_FRAME
        frame = struct.pack(">I", MAX_FRAME) + frame[4:] + bytes(MAX_FRAME + 4 - len(frame))
        assert link.feed(frame, framed(PING))
        assert [len(command) for command in link.heard] == [len(success(MAX_FRAME - 20)), len(PING)]


def test_a_length_alone_takes_no_memory():
    with Rig() as rig:
        link = rig.connect()
        link.feed(struct.pack(">II", MAX_FRAME, MAX_FRAME - 4), *[b"x" * 10] * 100)
        assert max(link.wire.asked) <= INBOX


def test_memory_for_a_large_frame_is_given_back():
    with Rig() as rig:
        link = rig.connect()
        large = framed(success(1 << 20))
        arrived = 0
        for piece in cut(large, [50_000] * 20):
            link.wire.asked.clear()
            link.feed(piece)
            arrived += len(piece)
            assert max(link.wire.asked) <= max(2 * arrived, INBOX)
        assert len(link.heard) == 1
        link.wire.asked.clear()
        link.feed(framed(PING))
        assert link.wire.asked[0] == INBOX


def test_the_end_of_the_stream():
    with Rig() as rig:
        link = rig.connect()
        assert link.feed(framed(PING)[:5])
        link.wire.ended = True
        assert link.read() is False
        assert link.heard == []


@pytest.mark.parametrize("command", [b"", b"\x08", b"\x08\xff", b"\x0a\x7f", b"\xff" * 12])
def test_a_command_that_is_no_protobuf_never_counts_as_a_receipt(command):
    with Rig() as rig:
        link = rig.connect()
        heard = rig.send(b"x")
        rig.flush()
        with contextlib.suppress(FrameError):
            link.feed(framed(command))
        assert heard.result is None


def test_only_complete_commands_other_than_ping_are_signs_of_life():
    with Rig() as rig:
        link = rig.connect()
        start = link.last_alive
        rig.tick(10)
        link.feed(framed(PING), framed(PONG)[:-1])
        assert link.last_alive == start
        rig.tick(10)
        link.feed(framed(PONG)[-1:])
        assert link.last_alive == start + 20_000_000


def test_nothing_is_handled_behind_a_close():
    """A handler may close the connection in the middle of what was read."""
    with Rig() as rig:
        link = rig.connect()
        link.on_command = lambda command: (link.heard.append(command), link.close())
        link.feed(framed(PONG) + framed(PING) + receipt(0))
        assert link.heard == [PONG]
        assert link.wire.closed
        assert link.transport is None
        assert link.read() is True
        assert link.write() is True


def test_an_error_of_a_handler_goes_through_and_reading_can_go_on():
    with Rig() as rig:
        link = rig.connect()

        def fail(command):
            link.heard.append(command)
            if command == PONG:
                raise RuntimeError("handler")

        link.on_command = fail
        with pytest.raises(RuntimeError, match="handler"):
            link.feed(framed(PONG) + framed(PING))
        link.feed(framed(PING))
        assert link.heard == [PONG, PING, PING]
