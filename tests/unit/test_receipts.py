"""Send receipts are read as protobuf reads them, however they arrive."""

import struct

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast._core import FrameError
from pulsar_fast.result import Result
from pulsar_fast.wire.messages import BaseCommand
from tests.unit.harness import NOWHERE, PRODUCER_ID, Rig, examples, framed, receipt

SEQUENCE_ID = 5
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


# --- protobuf by hand, so that what its own classes never write can be written


def varint(value, at_least=1):
    """`value` in as many bytes as it needs, or more."""
    encoded = bytearray()
    while value >= 0x80 or len(encoded) < at_least - 1:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(encoded) + bytes([value])


def wire_field(number, kind, value):
    if kind == VARINT:
        body = varint(value)
    elif kind == BYTES:
        body = varint(len(value)) + value
    else:
        body = struct.pack("<Q" if kind == FIXED64 else "<I", value)
    return varint(number << 3 | kind) + body


def fields_of(numbers):
    """Any field with one of these numbers."""
    return st.one_of(
        st.builds(wire_field, numbers, st.just(VARINT), st.integers(0, 2**64 - 1)),
        st.builds(wire_field, numbers, st.just(FIXED64), st.integers(0, 2**64 - 1)),
        st.builds(wire_field, numbers, st.just(FIXED32), st.integers(0, 2**32 - 1)),
        st.builds(wire_field, numbers, st.just(BYTES), st.binary(max_size=20)),
    )


unknown = fields_of(st.sampled_from([5, 15, 16, 2047, 2048, 2**29 - 1]))
unknown_commands = fields_of(st.sampled_from([100, 2047, 2048, 2**29 - 1]))
uint64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 127, 128, 2**31, 2**63 - 1, 2**63, NOWHERE])


def numbers(number, values):
    return st.builds(wire_field, st.just(number), st.just(VARINT), values)


def joined(*parts):
    """Some fields, repeated, left out and in any order."""
    return st.lists(st.one_of(*parts), max_size=6).map(b"".join)


positions = st.builds(
    lambda *parts: b"".join(parts),
    joined(unknown, numbers(1, uint64), numbers(3, uint64)),
    numbers(1, uint64),
    numbers(2, uint64) | st.just(b""),
    joined(unknown, numbers(2, uint64), numbers(4, uint64), numbers(5, uint64)),
)
extras = joined(
    unknown,
    numbers(1, st.just(PRODUCER_ID) | uint64),
    numbers(2, st.just(SEQUENCE_ID) | uint64),
    numbers(4, uint64),
    fields_of(st.integers(1, 4)).filter(lambda field: field[0] & 7 != VARINT and field[0] != 3 << 3 | BYTES),
)
bodies = st.builds(
    lambda first, *parts: first + b"".join(parts),
    extras,
    numbers(1, st.just(PRODUCER_ID)) | st.just(b""),
    st.just(b"") | positions.map(lambda body: wire_field(3, BYTES, body)),
    numbers(2, st.just(SEQUENCE_ID)),
    extras,
)
commands = st.builds(
    lambda body, *others: command_with(body, *others),
    bodies,
    joined(unknown_commands),
    joined(unknown_commands),
)


def command_with(body, before=b"", after=b""):
    return wire_field(1, VARINT, BaseCommand.SEND_RECEIPT) + before + wire_field(7, BYTES, body) + after


# --- what ours and protobuf's parser say


def ours(pieces):
    """What became of the message with `SEQUENCE_ID`, which is in flight."""
    with Rig(batching=False) as rig:
        link = rig.connect(persistent=False)
        heard = rig.send(b"x", sequence_id=SEQUENCE_ID)
        rig.flush()
        try:
            assert link.feed(*pieces)
        except FrameError:
            return "refused"
        if link.heard:
            return "no receipt"
        if heard.result is None:
            return "late" if rig.queue.late else "of another producer"
        assert heard.result is Result.Ok
        return heard.message_id.ledger_id(), heard.message_id.entry_id()


def protobufs(command):
    try:
        parsed = BaseCommand.FromString(command)
    except DecodeError:
        return "refused"
    if parsed.type != BaseCommand.SEND_RECEIPT:
        return "no receipt"
    if not parsed.HasField("send_receipt") or not parsed.IsInitialized():
        return "refused"
    answer = parsed.send_receipt
    if answer.producer_id != PRODUCER_ID:
        return "of another producer"
    if answer.sequence_id != SEQUENCE_ID:
        return "late"
    if not answer.HasField("message_id"):
        return -1, -1
    return signed(answer.message_id.ledgerId), signed(answer.message_id.entryId)


def signed(value):
    return value - 2**64 if value >= 2**63 else value


@examples(400)
@given(commands)
def test_receipts_equal_protobufs(command):
    assert ours([framed(command)]) == protobufs(command)


@examples(500)
@given(bodies, st.data())
def test_damaged_receipts_are_refused_or_read_as_protobuf_does(body, draw):
    damaged = bytearray(body)
    for _ in range(draw.draw(st.integers(0, 3))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    del damaged[draw.draw(st.integers(1, len(damaged))) :]
    command = command_with(bytes(damaged))
    assert ours([framed(command)]) in (
        protobufs(command),
        "refused",
    )  # groups, which nobody sends, are refused here


def test_a_receipt_may_be_split_anywhere():
    whole = receipt(SEQUENCE_ID, 300, 70000, highest=SEQUENCE_ID)
    for cut in range(len(whole) + 1):
        assert ours([whole[:cut], whole[cut:]]) == (300, 70000)
    assert ours([whole[at : at + 1] for at in range(len(whole))]) == (300, 70000)


@examples(50)
@given(st.lists(st.integers(1, 60), max_size=60), st.integers(1, 80))
def test_receipts_arrive_in_pieces_of_any_size(sizes, count):
    with Rig(batching=False) as rig:
        link = rig.connect()
        heard = [rig.send(b"x") for _ in range(count)]
        rig.flush()
        stream = b"".join(receipt(number, 3, number) for number in range(count))
        pieces = []
        for size in sizes:
            pieces.append(stream[:size])
            stream = stream[size:]
        assert link.feed(*pieces, stream)
        assert [one.message_id.entry_id() for one in heard] == list(range(count))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(wire_field(1, VARINT, PRODUCER_ID), id="no sequence id"),
        pytest.param(wire_field(2, VARINT, SEQUENCE_ID), id="no producer id"),
        pytest.param(b"\x08\x07\x10", id="cut in a varint"),
        pytest.param(b"\x08\x07\x10" + b"\xff" * 11, id="varint without end"),
        pytest.param(b"\x08\x07\x10\x05\x1a\x7f\x08\x01", id="position beyond the end"),
        pytest.param(b"\x08\x07\x10\x05\x1a" + varint(2**64 - 1), id="a length of 2**64 - 1"),
        pytest.param(b"\x08\x07\x10\x05\x1a" + varint(2**63 - 1), id="a length of 2**63 - 1"),
        pytest.param(b"\x08\x07\x10\x05\x1a\x02\x08\x01", id="position without an entry"),
        pytest.param(b"\x08\x07\x10\x05\x1a\x00", id="empty position"),
        pytest.param(b"\x08\x07\x10\x05\x00\x00", id="field number 0"),
        pytest.param(b"\x08\x07\x10\x05\x2e", id="wire type 6"),
        pytest.param(b"\x08\x07\x10\x05\x2f", id="wire type 7"),
        pytest.param(b"\x08\x07\x10\x05\x29\x00", id="cut in a fixed field"),
    ],
)
def test_malformed_receipts_are_refused(body):
    command = command_with(body)
    assert protobufs(command) == "refused"
    assert ours([framed(command)]) == "refused"


def test_a_receipt_without_a_body_is_refused():
    assert ours([framed(wire_field(1, VARINT, BaseCommand.SEND_RECEIPT))]) == "refused"


def test_the_type_may_come_behind_the_body():
    body = wire_field(1, VARINT, PRODUCER_ID) + wire_field(2, VARINT, SEQUENCE_ID)
    command = wire_field(7, BYTES, body) + wire_field(1, VARINT, BaseCommand.SEND_RECEIPT)
    assert ours([framed(command)]) == protobufs(command) == (-1, -1)


def test_a_position_given_in_parts_is_refused():
    """Protobuf would merge them, but no serializer writes such a thing."""
    parts = wire_field(3, BYTES, wire_field(1, VARINT, 8)) + wire_field(3, BYTES, wire_field(2, VARINT, 9))
    body = wire_field(1, VARINT, PRODUCER_ID) + wire_field(2, VARINT, SEQUENCE_ID) + parts
    assert protobufs(command_with(body)) == (8, 9)
    assert ours([framed(command_with(body))]) == "refused"


def test_a_receipt_without_a_position_is_of_no_stored_message():
    body = wire_field(1, VARINT, PRODUCER_ID) + wire_field(2, VARINT, SEQUENCE_ID)
    command = command_with(body)
    assert ours([framed(command)]) == (-1, -1)
    assert ours([receipt(SEQUENCE_ID, NOWHERE, NOWHERE)]) == (-1, -1)


def test_message_ids_carry_partition_and_batch():
    with Rig(partition=4) as rig:
        link = rig.connect()
        heard = [rig.send(b"x") for _ in range(3)]
        rig.flush()
        link.feed(receipt(0, 11, 12))
        single = rig.send(b"alone", deliver_at=1)
        rig.flush()
        link.feed(receipt(3, 11, 13))
        assert [str(one.message_id) for one in heard] == ["(11,12,4,0)", "(11,12,4,1)", "(11,12,4,2)"]
        assert str(single.message_id) == "(11,13,4,-1)"


def test_receipts_of_several_producers_on_one_connection():
    with Rig() as first, Rig(shared=first) as second:
        link = first.connect(producer_id=1)
        second.connect(link, producer_id=2)
        heard = [first.send(b"x"), second.send(b"y")]
        first.flush()
        second.flush()
        link.feed(receipt(0, 1, 1, producer_id=2) + receipt(0, 9, 9, producer_id=3))
        assert [one.result for one in heard] == [None, Result.Ok]
        link.feed(receipt(0, 1, 2, producer_id=1))
        assert [one.message_id.entry_id() for one in heard] == [2, 1]
