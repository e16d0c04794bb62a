"""Message ids are those of the official client, on the wire and in Python."""

import copy
import operator
import pickle

import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast._core import MessageId
from pulsar_fast.wire.messages import MessageIdData
from tests.unit.harness import Rig, examples, receipt

int64 = st.integers(-1, 3) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])
int32 = st.integers(-1, 3) | st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1])
parts = st.tuples(int32, int64, int64, int32)


def values(message_id):
    return message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()


@examples(300)
@given(parts)
def test_the_same_as_the_official_one(arguments):
    ours, official = MessageId(*arguments), pulsar.MessageId(*arguments)
    assert values(ours) == values(official) == arguments
    assert ours.serialize() == official.serialize()
    assert str(ours) == str(official)


@examples(200)
@given(parts)
def test_each_reads_what_the_other_wrote(arguments):
    ours, official = MessageId(*arguments), pulsar.MessageId(*arguments)
    assert values(MessageId.deserialize(official.serialize())) == arguments
    assert values(pulsar.MessageId.deserialize(ours.serialize())) == arguments
    assert values(MessageId.wrap(official)) == values(MessageId.wrap(official._msg_id)) == arguments


@examples(300)
@given(parts, parts, st.booleans())
def test_comparisons_equal_the_official_ones(first, second, near):
    if near:  # or they would hardly ever be equal in anything
        second = tuple(b if b % 2 else a for a, b in zip(first, second, strict=True))
    ours = MessageId(*first), MessageId(*second)
    official = pulsar.MessageId(*first), pulsar.MessageId(*second)
    assert (ours[0] == ours[1]) == (official[0] == official[1])
    assert (ours[0] != ours[1]) == (official[0] != official[1])
    assert (ours[0] < ours[1]) == (official[0] < official[1])
    if first[1:] != second[1:] or first == second:
        # Ids that differ in nothing but the partition are each greater than the other there.
        for compare in (operator.le, operator.gt, operator.ge):
            assert compare(*ours) == compare(*official)


def test_ids_of_different_partitions_are_neither_equal_nor_in_order():
    first, second = MessageId(1, 5, 5, 5), MessageId(2, 5, 5, 5)
    assert first != second
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        assert not compare(first, second)


@examples(100)
@given(parts, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_pickles_copies_and_hashes(arguments, protocol):
    message_id = MessageId(*arguments)
    for other in (
        pickle.loads(pickle.dumps(message_id, protocol)),
        copy.copy(message_id),
        copy.deepcopy(message_id),
        eval(repr(message_id)),
    ):
        assert type(other) is MessageId
        assert other == message_id
        assert hash(other) == hash(message_id)
        assert other.serialize() == message_id.serialize()


def test_an_id_out_of_a_batch_carries_its_size():
    with Rig(partition=3) as rig:
        link = rig.connect()
        heard = [rig.send(b"x") for _ in range(4)]
        rig.flush()
        link.feed(receipt(0, 8, 9))
        parsed = MessageIdData.FromString(heard[2].message_id.serialize())
        assert parsed == MessageIdData(ledgerId=8, entryId=9, partition=3, batch_index=2, batch_size=4)
        again = pickle.loads(pickle.dumps(heard[2].message_id))
        assert again.serialize() == heard[2].message_id.serialize()
        assert values(pulsar.MessageId.deserialize(again.serialize())) == (3, 8, 9, 2)


def test_defaults_and_keywords():
    assert values(MessageId()) == (-1, -1, -1, -1)
    assert values(MessageId(batch_index=4, entry_id=3, ledger_id=2, partition=1)) == (1, 2, 3, 4)
    assert MessageId(1, 2, 3, 4).serialize().hex() == "0802100318012004"


def test_earliest_and_latest():
    assert MessageId.earliest.serialize() == pulsar.MessageId.earliest.serialize()
    assert MessageId.latest.serialize() == pulsar.MessageId.latest.serialize()
    assert MessageId.earliest < MessageId(0, 0, 0) < MessageId.latest
    assert str(MessageId.latest) == str(pulsar.MessageId.latest)


def test_order():
    ids = [MessageId(-1, 2, 0), MessageId(-1, 1, 2), MessageId(-1, 1, 1, 0), MessageId(-1, 1, 1, -1)]
    assert sorted(ids) == ids[::-1]
    assert len({*ids, *[MessageId.deserialize(one.serialize()) for one in ids]}) == 4


@pytest.mark.parametrize("other", [None, 1, (1, 2, 3, 4), "(2,3,1,4)", object()])
def test_other_things_are_no_ids(other):
    message_id = MessageId(1, 2, 3, 4)
    assert message_id != other
    for compare in (operator.lt, operator.le, operator.gt, operator.ge):
        with pytest.raises(TypeError):
            compare(message_id, other)


@pytest.mark.parametrize("name", ["partition", "ledger_id", "entry_id", "batch_index"])
@pytest.mark.parametrize("value", [None, "1", 1.0, True, b"1"])
def test_a_part_of_a_wrong_type(name, value):
    with pytest.raises(TypeError, match=f"{name} must be an int, not {type(value).__name__}"):
        MessageId(**{name: value})


@pytest.mark.parametrize(
    ("name", "limit"),
    [("partition", 2**31), ("ledger_id", 2**63), ("entry_id", 2**63), ("batch_index", 2**31)],
)
def test_a_part_out_of_range(name, limit):
    for value in (limit, -limit - 1, 2**70):
        with pytest.raises(ValueError, match=f"{name} must fit in"):
            MessageId(**{name: value})


@pytest.mark.parametrize("data", [None, "08011002", bytearray(b"\x08\x01\x10\x02"), 5])
def test_deserialize_takes_bytes(data):
    with pytest.raises(TypeError, match="data must be bytes"):
        MessageId.deserialize(data)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "08",
        "0801",
        "1001",
        "08ff",
        "080110ffffffffffffffffffffff",
        "08011002f0",
        "080110021a",
        "00",
        "08011002" + "2fff",
    ],
)
def test_deserialize_refuses_what_is_no_id(data):
    with pytest.raises(ValueError, match="not a serialized message id"):
        MessageId.deserialize(bytes.fromhex(data))


@examples(300)
@given(st.binary(max_size=40))
def test_deserialize_anything(data):
    try:
        message_id = MessageId.deserialize(data)
    except ValueError:
        return
    parsed = MessageIdData.FromString(data)
    assert parsed.IsInitialized()
    assert message_id.partition() == parsed.partition
    assert message_id.batch_index() == parsed.batch_index


def test_deserialize_skips_what_it_does_not_know():
    parsed = MessageIdData(ledgerId=1, entryId=2, partition=3)
    parsed.first_chunk_message_id.ledgerId = 7
    parsed.first_chunk_message_id.entryId = 8
    data = parsed.SerializeToString() + b"\x28\x01\xa2\x06\x01x"  # ack_set, field 100
    assert values(MessageId.deserialize(data, topic="any")) == (3, 1, 2, -1)
