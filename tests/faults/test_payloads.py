"""Payloads of every kind of memory, and names, keys and properties of every length, through the whole client."""

import array
import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_fast import MessageTooBig, Result
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker

MakeProducer = Callable[..., Any]
MANY = {f"property {number}": f"value {number}" * 3 for number in range(3000)}


@pytest.mark.parametrize("batching", [None, True, False])
@pytest.mark.parametrize(
    "given",
    [
        {"properties": {"": ""}},
        {"properties": {"k": "v" * 65_535}},
        {"properties": {"k": "v" * 65_536}},
        {"properties": {"k" * 70_000: "v"}},
        {"properties": {"k": "v" * 2_000_000}},
        {"properties": MANY},
        {"partition_key": "k" * 70_000},
        {"ordering_key": "k" * 70_000, "partition_key": "k" * 1_000},
        {"partition_key": "ключ" * 9_000, "properties": {"é" * 30_000: "🙂" * 20_000}},
    ],
    ids=["empty", "65535", "65536", "long key", "2 MB", "3000", "partition key", "both keys", "not ASCII"],
)
def test_what_is_long_arrives_between_its_neighbours(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool | None, given: dict[str, Any]
) -> None:
    producer = make_producer(batching_enabled=batching)
    outcomes = Outcomes()
    producer.send_async(b"before", outcomes.of(0))
    producer.send_async(b"payload", outcomes.of(1), **given)
    producer.send_async(b"behind", outcomes.of(2))
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.Ok}
    assert broker.payloads == [b"before", b"payload", b"behind"]
    (frame,) = [frame for frame in broker.sends if b"payload" in [one.payload for one in frame.messages]]
    (single,) = [one.metadata for one in frame.messages if one.payload == b"payload"]
    assert {pair.key: pair.value for pair in single.properties} == given.get("properties", {})
    assert single.partition_key == given.get("partition_key", "")
    assert single.ordering_key == given.get("ordering_key", "").encode()


@pytest.mark.parametrize("batching", [None, False])
@pytest.mark.parametrize("size", [255, 256, 70_000])
def test_a_long_producer_name(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool | None, size: int
) -> None:
    producer = make_producer(producer_name="n" * size, batching_enabled=batching)
    for _ in range(3):
        producer.send(b"x")
    assert {frame.metadata.producer_name for frame in broker.sends} == {"n" * size}
    assert producer.producer_name() == "n" * size


@pytest.mark.parametrize(
    "given",
    [
        {"properties": {"k": "v" * 6_000_000}},
        {"partition_key": "k" * 6_000_000},
        {"properties": {"k" * 6_000_000: ""}},
    ],
    ids=["value", "partition key", "key"],
)
@pytest.mark.parametrize("batching", [None, False])
def test_what_is_too_long_is_refused_alone(
    broker: ScriptedBroker, make_producer: MakeProducer, batching: bool | None, given: dict[str, Any]
) -> None:
    producer = make_producer(batching_enabled=batching)
    outcomes = Outcomes()
    producer.send_async(b"before", outcomes.of(0))
    with pytest.raises(MessageTooBig):
        producer.send(b"payload", **given)
    producer.send_async(b"behind", outcomes.of(1))
    outcomes.wait_for(2)
    assert broker.payloads == [b"before", b"behind"]
    assert producer.stats().client_pending_bytes == 0


def views() -> dict[str, tuple[Any, bytes]]:
    numbers = array.array("d", [1.5, -2.5])
    structure = (ctypes.c_uint16 * 3)(1, 2, 3)
    grid = memoryview(bytes(range(24))).cast("B", (4, 6))
    mapped = mmap.mmap(-1, 100)
    mapped[:5] = b"map.."
    return {
        "bytes": (b"abc", b"abc"),
        "empty": (b"", b""),
        "bytearray": (bytearray(b"abc"), b"abc"),
        "array": (numbers, numbers.tobytes()),
        "array slice": (memoryview(numbers)[1:], numbers.tobytes()[8:]),
        "slice": (memoryview(b"abcdef")[2:5], b"cde"),
        "empty slice": (memoryview(b"abcdef")[3:3], b""),
        "read-only": (memoryview(bytearray(b"abc")).toreadonly(), b"abc"),
        "two dimensions": (grid, bytes(range(24))),
        "other format": (memoryview(b"abcdefgh").cast("q"), b"abcdefgh"),
        "ctypes": (structure, bytes(structure)),
        "mmap": (memoryview(mapped)[:5], b"map.."),
    }


@pytest.mark.parametrize("kind", views())
def test_a_payload_in_any_memory(broker: ScriptedBroker, make_producer: MakeProducer, kind: str) -> None:
    payload, expected = views()[kind]
    producer = make_producer()
    producer.send(payload)
    producer.send_many([payload, payload]).result()
    producer.send_async(payload, None)
    producer.flush()
    assert broker.payloads == [expected] * 4


@pytest.mark.parametrize("step", [2, -1, -3])
def test_a_payload_with_holes_is_refused(
    broker: ScriptedBroker, make_producer: MakeProducer, step: int
) -> None:
    producer = make_producer()
    with pytest.raises(ValueError, match="content"):
        producer.send(memoryview(b"abcdefgh")[::step])
    assert producer.stats().pending_messages == 0
    producer.send(b"x")
    assert broker.payloads == [b"x"]


def test_a_payload_that_was_released_is_refused(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    payload = memoryview(b"abc")
    payload.release()
    producer = make_producer()
    with pytest.raises(ValueError, match=r"content.*released"):
        producer.send(payload)
    producer.send(b"x")
    assert broker.payloads == [b"x"]


class TestNumpy:
    def test_arrays(self, broker: ScriptedBroker, make_producer: MakeProducer) -> None:
        numpy = pytest.importorskip("numpy")
        producer = make_producer()
        array = numpy.arange(12, dtype="<i4").reshape(3, 4)
        whole = [
            array,
            array[1],
            array[1:],
            numpy.float64(1.5).reshape(1),
            numpy.empty((0, 4)),
            array.view("u1"),
        ]
        expected = [one.tobytes() for one in whole]
        for one in whole:
            producer.send_async(one, None)
        array[:] = 0  # they are what they were at the call
        producer.flush()
        assert broker.payloads == expected

    def test_arrays_with_holes(self, broker: ScriptedBroker, make_producer: MakeProducer) -> None:
        numpy = pytest.importorskip("numpy")
        producer = make_producer()
        array = numpy.arange(12).reshape(3, 4)
        for one in (array[:, 1], array[::2], array[::-1], array.T):
            with pytest.raises(ValueError, match="content"):
                producer.send(one)
        assert producer.stats().pending_messages == 0
