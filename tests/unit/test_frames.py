"""Frames are byte for byte what protobuf would serialise."""

import struct
from dataclasses import dataclass, field
from datetime import timedelta

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_fast._core import BinaryKey, crc32c_is_native, crc32c_of
from pulsar_fast.wire.messages import BaseCommand, MessageMetadata, SingleMessageMetadata
from tests.unit.harness import START_MS, Frame, Rig, examples, frames_in

KEY_LIMIT = 1024


@dataclass
class Message:
    """The arguments of one send."""

    content: bytes | None
    properties: dict[str, str] = field(default_factory=dict)
    partition_key: str | BinaryKey | None = None
    ordering_key: str | None = None
    event_timestamp: int | None = None
    deliver_at: int | None = None
    replication_clusters: list[str] | None = None
    disable_replication: bool = False

    @property
    def payload(self):
        return self.content or b""

    @property
    def must_go_alone(self):
        return self.deliver_at is not None or bool(self.replication_clusters) or self.disable_replication

    def send(self, rig):
        return rig.send(**vars(self))


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.none() | text | st.integers(100, 1500).map("k".__mul__)
times = st.none() | st.integers(0, 2**63 - 1)
sizes = st.integers(0, 40) | st.integers(100, 2000) | st.sampled_from([127, 128, 65536, 131072, 200_000])
contents = st.builds(
    lambda size, seed: (seed * (size // len(seed) + 1))[:size], sizes, st.binary(min_size=1, max_size=9)
)
properties = st.dictionaries(text, text | st.integers(100, 3000).map("v".__mul__), max_size=4)
plain = st.builds(Message, st.none() | contents)
rich = st.builds(
    Message,
    st.none() | contents,
    properties=properties,
    partition_key=keys | st.binary(max_size=20).map(BinaryKey),
    ordering_key=keys,
    event_timestamp=times,
    deliver_at=st.none() | st.none() | times,
    replication_clusters=st.none() | st.none() | st.lists(text, max_size=3),
    disable_replication=st.sampled_from([False, False, False, True]),
)
messages = st.lists(plain | rich, min_size=1, max_size=12)


def put_properties(into, properties):
    for key, value in properties.items():
        into.add(key=key, value=value)


def put_partition_key(into, key):
    if isinstance(key, BinaryKey):
        into.partition_key_b64_encoded = True
        key = key.text
    if key is not None:
        into.partition_key = key


def expected_entry(message, sequence_id):
    """What protobuf makes of one message of a batch."""
    single = SingleMessageMetadata(payload_size=len(message.payload), sequence_id=sequence_id)
    put_properties(single.properties, message.properties)
    put_partition_key(single, message.partition_key)
    if message.ordering_key is not None:
        single.ordering_key = message.ordering_key.encode()
    if message.event_timestamp is not None:
        single.event_time = message.event_timestamp
    if message.content is None:
        single.null_value = True
    metadata = single.SerializeToString()
    return struct.pack(">I", len(metadata)) + metadata + message.payload


def expected_frame(group, ids, batched, *, producer_id, name, schema_version=b"", publish_time=START_MS):
    """What protobuf makes of these messages as one frame."""
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id = producer_id
    command.send.sequence_id = ids[0]
    metadata = MessageMetadata(producer_name=name, sequence_id=ids[0], publish_time=publish_time)
    first = group[0]
    put_partition_key(metadata, first.partition_key)
    if first.ordering_key is not None:
        metadata.ordering_key = first.ordering_key.encode()
    if schema_version:
        metadata.schema_version = schema_version
    if batched:
        command.send.num_messages = metadata.num_messages_in_batch = len(group)
        command.send.highest_sequence_id = metadata.highest_sequence_id = ids[-1]
        payload = b"".join(
            expected_entry(message, number) for message, number in zip(group, ids, strict=True)
        )
    else:
        put_properties(metadata.properties, first.properties)
        clusters = ["__local__"] if first.disable_replication else first.replication_clusters or []
        metadata.replicate_to.extend(clusters)
        if first.event_timestamp is not None:
            metadata.event_time = first.event_timestamp
        if first.deliver_at is not None:
            metadata.deliver_at_time = first.deliver_at
        if first.content is None:
            metadata.null_value = True
        payload = first.payload
    return in_frame(command.SerializeToString(), metadata.SerializeToString(), payload)


def in_frame(command, metadata, payload):
    covered = struct.pack(">I", len(metadata)) + metadata + payload
    rest = command + b"\x0e\x01" + struct.pack(">I", google_crc32c.value(covered)) + covered
    return struct.pack(">II", 4 + len(rest), len(command)) + rest


def assert_protobuf_agrees(written, sent, batching, ids=None, **registration):
    """Every frame, with as many messages as it says, is what protobuf makes of them; nothing is left over."""
    ids = list(range(len(sent))) if ids is None else list(ids)
    rest = list(sent)
    expected = []
    for frame in frames_in(written):
        batched = frame.metadata.HasField("num_messages_in_batch")
        count = frame.metadata.num_messages_in_batch if batched else 1
        group, rest = rest[:count], rest[count:]
        numbers, ids = ids[:count], ids[count:]
        assert batching or not batched
        assert not (batched and any(message.must_go_alone for message in group))
        expected.append(expected_frame(group, numbers, batched, **registration))
    assert rest == []
    assert bytes(written) == b"".join(expected)


@examples(150)
@given(
    messages=messages,
    batching=st.booleans(),
    by_key=st.booleans(),
    name=text | st.integers(0, 2000).map("n".__mul__),
    producer_id=st.integers(0, 2**64 - 1),
    schema_version=st.binary(max_size=10),
    max_messages=st.integers(1, 5) | st.just(1000),
    max_bytes=st.integers(1, 3000) | st.just(128 * 1024),
)
def test_frames_equal_protobufs(
    messages, batching, by_key, name, producer_id, schema_version, max_messages, max_bytes
):
    registered = {"name": name, "producer_id": producer_id, "schema_version": schema_version}
    with Rig(batching=batching, by_key=by_key, max_messages=max_messages, max_bytes=max_bytes) as rig:
        link = rig.connect(**registered)
        heard = [message.send(rig) for message in messages]
        assert rig.flush()
        assert_protobuf_agrees(link.wire.written, messages, batching, **registered)
        for frame in link.frames:
            assert len(frame.contents) <= max_messages
        assert [one.answers for one in heard] == [[]] * len(heard)


@examples(150)
@given(messages, st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.booleans())
def test_partial_writes_change_no_byte(messages, amounts, batching):
    with Rig(batching=batching, max_messages=3) as rig:
        link = rig.connect()
        rest = list(messages)
        for amount in amounts:
            if rest:
                rest.pop(0).send(rig)
            link.wire.room = amount
            rig.flush()
        link.wire.room = None
        for message in rest:
            message.send(rig)
        assert rig.flush()
        assert_protobuf_agrees(link.wire.written, messages, batching, name="p", producer_id=7)


@examples(40)
@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=20, unique=True).map(sorted), st.integers(0, 2**62)
)
def test_given_sequence_ids_are_sent(offsets, base):
    sent = [Message(b"%d" % offset) for offset in offsets]
    ids = [base + offset for offset in offsets]
    with Rig(max_messages=4) as rig:
        link = rig.connect()
        for message, sequence_id in zip(sent, ids, strict=True):
            rig.send(message.content, sequence_id=sequence_id)
        rig.flush()
        assert_protobuf_agrees(link.wire.written, sent, True, ids, name="p", producer_id=7)


def test_every_payload_size_around_the_limits_of_a_batch():
    with Rig() as rig:
        link = rig.connect()
        sent = [
            Message(bytes([size % 251]) * size)
            for size in [0, 1, *range(126, 130), *range(129_700, 131_200, 7), 200_000]
        ]
        for message in sent:
            message.send(rig)
        rig.flush()
        assert_protobuf_agrees(link.wire.written, sent, True, name="p", producer_id=7)


def test_many_small_messages_share_frames():
    with Rig(max_messages=100) as rig:
        link = rig.connect()
        for _ in range(250):
            rig.send(b"payload")
        rig.flush()
        assert [len(frame.contents) for frame in link.frames] == [100, 100, 50]
        assert [(frame.send.sequence_id, frame.send.highest_sequence_id) for frame in link.frames] == [
            (0, 99),
            (100, 199),
            (200, 249),
        ]


def test_a_batch_is_sealed_before_it_exceeds_its_bytes():
    with Rig(max_bytes=1000) as rig:
        link = rig.connect()
        for _ in range(50):
            rig.send(b"x" * 100)
        rig.flush()
        assert max(len(frame.payload) for frame in link.frames) <= 1000
        assert len(link.frames) < 10


def test_keys_do_not_share_a_batch_when_batching_is_by_key():
    with Rig(by_key=True) as rig:
        link = rig.connect()
        for partition_key, ordering_key in [
            ("a", None),
            ("a", None),
            ("b", None),
            ("b", "c"),
            ("d", "c"),
            (None, None),
        ]:
            rig.send(b"x", partition_key=partition_key, ordering_key=ordering_key)
        rig.flush()
        assert [len(frame.contents) for frame in link.frames] == [2, 1, 2, 1]
        assert [frame.metadata.partition_key for frame in link.frames] == ["a", "b", "b", ""]
        assert [frame.metadata.ordering_key for frame in link.frames] == [b"", b"", b"c", b""]


def test_publish_time_is_that_of_the_first_append():
    with Rig() as rig:
        link = rig.connect()
        rig.send(b"first")
        rig.tick(250)
        rig.send(b"second")
        rig.tick(250)
        rig.flush()
        assert [frame.metadata.publish_time for frame in link.frames] == [START_MS]


def test_deliver_after_counts_from_the_call():
    with Rig() as rig:
        link = rig.connect()
        rig.tick(10)
        rig.send(b"x", deliver_after=timedelta(seconds=1.5))
        rig.tick(5000)
        rig.flush()
        assert [frame.metadata.deliver_at_time for frame in link.frames] == [START_MS + 1510]


def test_growing_a_large_batch_does_not_copy_it_for_each_message():
    with Rig(max_bytes=4 << 20, max_messages=1_000_000) as rig:
        link = rig.connect()
        sizes = set()
        for _ in range(8000):
            rig.send(b"x" * 200)
            sizes.add(rig.pool.live_bytes)
        rig.flush()
        assert sum(len(frame.contents) for frame in link.frames) == 8000
        assert len(sizes) < 200, f"the buffer moved {len(sizes)} times"


# --- what is known to be right

CRC_VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes([1, 2, 3, 4, 5]), 0x53518FAB),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
]


@pytest.mark.parametrize(("data", "crc"), CRC_VECTORS)
def test_crc32c(data, crc):
    assert crc32c_of(data) == crc


def test_the_native_checksum_is_used_where_the_wheel_has_it():
    assert crc32c_is_native() == (google_crc32c.implementation == "c")


@examples(50)
@given(st.binary(max_size=300), st.data())
def test_crc32c_continues(data, draw):
    cut = draw.draw(st.integers(0, len(data)))
    assert crc32c_of(data[cut:], crc32c_of(data[:cut])) == google_crc32c.value(data)


# Two frames of the Go client's tests, from the magic number on.
SINGLE = bytes.fromhex(
    "0e01 0836b466 00000031 0a0f7374616e64616c6f6e652d37342d30 1000 18acefe8a0e22d"
    "22060a0161120131 22060a0162120132 4805 6005 820100 68656c6c6f"
)
BATCH = bytes.fromhex(
    "0e01 1f800968 0000001f 0a0f7374616e64616c6f6e652d37342d31 1000 18db80f4a0e22d 5801 820100"
    "00000016 0a060a0161120131 0a060a0162120132 1805 2805 4000 68656c6c6f"
)


@pytest.mark.parametrize("vector", [SINGLE, BATCH])
def test_crc32c_of_known_frames(vector):
    assert crc32c_of(vector[6:]) == struct.unpack_from(">I", vector, 2)[0]


def taken_apart(vector):
    (size,) = struct.unpack_from(">I", vector, 6)
    return MessageMetadata.FromString(vector[10 : 10 + size]), vector[10 + size :]


def frame_like(metadata, batching):
    """Our frame for the message of a vector."""
    with Rig(batching=batching) as rig:
        rig.clock.freeze(0, metadata.publish_time)
        link = rig.connect(name=metadata.producer_name)
        rig.send(b"hello", properties={"a": "1", "b": "2"}, event_timestamp=5, sequence_id=0)
        rig.flush()
        [frame] = link.frames
        return frame


def test_a_known_single_frame():
    metadata, payload = taken_apart(SINGLE)
    frame: Frame = frame_like(metadata, batching=False)
    # Not written here: a size that only matters with compression, and a schema version of no bytes.
    metadata.ClearField("uncompressed_size")
    metadata.ClearField("schema_version")
    assert frame.metadata == metadata
    assert frame.payload == payload


def test_a_known_batch_frame():
    metadata, payload = taken_apart(BATCH)
    frame: Frame = frame_like(metadata, batching=True)
    metadata.ClearField("schema_version")
    metadata.highest_sequence_id = 0  # written here, as the Java client does
    assert frame.metadata == metadata
    assert frame.payload == payload
