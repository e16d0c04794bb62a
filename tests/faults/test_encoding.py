"""Contents of a producer with a schema: where they are encoded, and what becomes of those that cannot be."""

import asyncio
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

import pulsar_fast.asyncio
from pulsar_fast import IncompatibleSchema, Producer, Result
from pulsar_fast.schema import (
    BytesSchema,
    JsonSchema,
    KeyValueEncodingType,
    KeyValueSchema,
    Record,
    Schema,
    SchemaType,
    String,
    StringSchema,
)
from pulsar_fast.wire.messages import BaseCommand, ServerError
from pulsar_fast.wire.messages import Schema as WireSchema
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.waiting import until

MakeProducer = Callable[..., Producer]


class Order(Record):
    item = String(required=True)


class Recorder(Schema):
    """Records the threads that encode; refuses what is not a str, with whatever it is given as an error."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING", {"owner": "tests"})
        self.threads: list[int] = []

    def encode(self, obj: Any) -> Any:
        self.threads.append(threading.get_ident())
        if isinstance(obj, Exception):
            raise obj
        return obj.encode() if isinstance(obj, str) else obj


def told(broker: ScriptedBroker) -> WireSchema:
    """The schema of the last Producer command."""
    schema: WireSchema = broker.got(BaseCommand.PRODUCER)[-1].command.producer.schema
    return schema


TEXT = WireSchema(name="STRING", type=1, schema_data=b"null")
ORDER = (
    b'{\n "type": "record",\n "name": "Order",\n "fields": ['
    b'\n  {\n   "name": "item",\n   "type": "string"\n  }\n ]\n}'
)


def test_what_the_broker_is_told(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    owned = WireSchema.FromString(TEXT.SerializeToString())
    owned.properties.add(key="owner", value="tests")
    for schema, expected in (
        (StringSchema(), TEXT),
        (pulsar.schema.StringSchema(), TEXT),
        (JsonSchema(Order), WireSchema(name="JSON", type=2, schema_data=ORDER)),
        (Recorder(), owned),
        (BytesSchema(), WireSchema()),
        (pulsar.schema.BytesSchema(), WireSchema()),
        (None, WireSchema()),
    ):
        make_producer(schema=schema)
        assert told(broker) == expected


def test_a_reconnect_tells_it_again(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(schema=StringSchema())
    broker.cut_connections()
    producer.send("x")
    assert len(broker.got(BaseCommand.PRODUCER)) == 2
    assert told(broker).name == "STRING"


def test_contents_are_encoded_by_the_calling_thread(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    schema = Recorder()
    producer = make_producer(schema=schema)
    producer.send_async("a", None, partition_key="k")
    producer.send("b", {"p": "q"})
    producer.send_async(content="c", callback=None)
    producer.send_async(None, None)
    producer.send_many(["d", None, bytearray(b"e"), memoryview(b"f")]).result(5)
    assert broker.payloads == [b"a", b"b", b"c", b"", b"d", b"", b"e", b"f"]
    assert [message.metadata.null_value for frame in broker.sends for message in frame.messages] == [
        *[False, False, False, True, False, True, False, False]
    ]
    assert set(schema.threads) == {threading.get_ident()}
    assert len(schema.threads) == 6  # a tombstone is not encoded


def test_what_cannot_be_encoded_leaves_no_trace(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(schema=Recorder())
    outcomes = Outcomes()
    for error in (TypeError("no"), ValueError("no"), KeyError("no"), UnicodeError("no")):
        with pytest.raises(type(error), match="no"):
            producer.send(error)
        with pytest.raises(type(error), match="no"):
            producer.send_async(error, outcomes.of("never"))
    for wrong in (5, object(), [b"x"]):
        with pytest.raises(TypeError, match=r"Recorder.encode\(\) must return bytes or another buffer, not"):
            producer.send(wrong)
    assert producer.stats().accepted == producer.stats().client_pending_bytes == 0
    producer.send("good")
    assert [frame.command.send.sequence_id for frame in broker.sends] == [0]
    assert outcomes.answers == []


def test_elements_that_cannot_be_encoded(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(schema=Recorder(), max_pending_messages=2)
    errors = {1: KeyError("one"), 3: TypeError("three"), 4: ValueError("four")}
    handle = producer.send_many(["0", errors[1], "2", errors[3], errors[4], 5, *"678"])
    with pytest.raises(KeyError, match="one"):
        handle.result(5)
    assert {index: handle.errors[index] for index in errors} == errors
    assert set(handle.errors) == {*errors, 5}
    assert "Recorder.encode() must return bytes" in str(handle.errors[5])
    assert broker.payloads == [b"0", b"2", b"6", b"7", b"8"]


def test_the_input_itself_may_fail(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    def elements() -> Iterator[str]:
        yield "a"
        raise LookupError("the input")

    producer = make_producer(schema=StringSchema())
    with pytest.raises(LookupError, match="the input") as caught:
        producer.send_many(elements())
    assert caught.value.handle.result(5) == 1  # type: ignore[attr-defined]
    for one in ("text", b"bytes"):
        with pytest.raises(TypeError, match="payloads must be an iterable"):
            producer.send_many(one)
    assert broker.payloads == [b"a"]


def test_waiting_for_room_does_not_encode_again(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    schema = Recorder()
    producer = make_producer(schema=schema, max_pending_messages=1, block_if_queue_full=True)
    for number in range(20):
        producer.send_async(str(number), None)
    producer.flush(5)
    assert broker.payloads == [b"%d" % number for number in range(20)]
    assert len(schema.threads) == 20


def test_in_asyncio(broker: ScriptedBroker) -> None:
    schema = Recorder()
    outcomes = Outcomes()

    async def main() -> None:
        async with pulsar_fast.asyncio.Client(broker.url) as client:
            producer = await client.create_producer(
                "t", schema=schema, max_pending_messages=2, block_if_queue_full=True
            )
            for error in (TypeError("no"), KeyError("no")):
                with pytest.raises(type(error), match="no"):
                    producer.send(error)
            sent = [producer.send(one) for one in ("a", None, "b")]
            producer.send_async("c", outcomes.of("c"))
            await asyncio.gather(*sent)
            handle = producer.send_many(["d", ValueError("bad"), "e", "f"])
            with pytest.raises(ValueError, match="bad"):
                await handle
            assert handle.count == 4
            await producer.close()

    asyncio.run(main())
    assert broker.payloads == [b"a", b"", b"b", b"c", b"d", b"e", b"f"]
    assert outcomes.results == {"c": Result.Ok}
    assert set(schema.threads) == {threading.get_ident()}


def test_what_is_no_schema(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    for schema in (
        5,
        "STRING",
        StringSchema,
        type("NoInfo", (), {"encode": len})(),
        type("NoEncode", (), {"schema_info": len})(),
        type("WrongInfo", (), {"encode": len, "schema_info": lambda self: "JSON"})(),
        type("BytesSchema", (), {})(),
    ):
        with pytest.raises(TypeError, match="schema"):
            make_producer(schema=schema)
    assert broker.links == []


def test_a_schema_that_the_topic_does_not_accept(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    broker.on_producer().answer_error(ServerError.IncompatibleSchema, "not this one", times=1)
    with pytest.raises(IncompatibleSchema, match="not this one"):
        make_producer(schema=StringSchema())
    producer = make_producer(schema=StringSchema())
    broker.on_producer().answer_error(ServerError.IncompatibleSchema, "not any more")
    broker.close_producer()
    until(lambda: len(broker.got(BaseCommand.PRODUCER)) == 3 and not producer.is_connected())
    with pytest.raises(IncompatibleSchema, match="not any more"):
        producer.send("x")


def test_separated_keys(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    schema = KeyValueSchema(BytesSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    producer = make_producer(schema=schema, batching_enabled=True)
    pairs = [(b"\xff", "1"), (b"", "2"), (b"gone", None)]
    for pair in pairs:
        producer.send_async(pair, None)
    producer.send(pairs[0], deliver_at=1)  # alone
    batch, alone = broker.sends
    for metadata in (batch.metadata, batch.messages[0].metadata, alone.metadata):
        assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("/w==", True)
    assert [message.metadata.partition_key for message in batch.messages] == ["/w==", "", "Z29uZQ=="]
    assert [message.metadata.null_value for message in batch.messages] == [False, False, True]
    assert broker.payloads == [b"1", b"2", b"", b"1"]
    for wrong in ((None, "x"), "x"):
        with pytest.raises((TypeError, ValueError)):
            producer.send(wrong)
    with pytest.raises(ValueError, match="partition_key is the key of the pair"):
        producer.send_async(pairs[0], None, partition_key="other")
    with pytest.raises(ValueError, match="partition_key is the key of the pair"):
        producer.send_many(pairs, partition_key="other")
    producer.send(None, partition_key=None)
    assert producer.stats().accepted == 5


@pytest.mark.parametrize("batching_enabled", [None, True, False])
def test_separated_keys_of_many(
    broker: ScriptedBroker, make_producer: MakeProducer, batching_enabled: bool | None
) -> None:
    schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    producer = make_producer(schema=schema, batching_enabled=batching_enabled, max_pending_messages=3)
    pairs = [("a", "1"), ("a", None), ("long" * 1000, "2"), (None, "x"), ("", "3"), None, "x", ("b", "4")]
    handle = producer.send_many(iter(pairs), {"p": "q"}, ordering_key="o", event_timestamp=5)
    with pytest.raises(ValueError, match="must not be None"):
        handle.result(5)
    assert set(handle.errors) == {3, 6}
    sent = [pair for index, pair in enumerate(pairs) if index not in (3, 6)]
    keys, tombstones = [], []
    for frame in broker.sends:
        for message in frame.messages:
            metadata = message.metadata
            keys.append(
                b64decode(metadata.partition_key).decode() if metadata.partition_key_b64_encoded else None
            )
            tombstones.append(metadata.null_value)
            assert [(one.key, one.value) for one in metadata.properties] == [("p", "q")]
            assert (metadata.ordering_key, metadata.event_time) == (b"o", 5)
    assert keys == [pair and pair[0] for pair in sent]
    assert tombstones == [pair is None or pair[1] is None for pair in sent]
    assert broker.payloads == [b"1", b"", b"2", b"3", b"", b"4"]
