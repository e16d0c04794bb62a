"""Schemas on Apache Pulsar: either client reads what the other wrote, and both mean the same version."""

import asyncio
import enum
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

import pulsar_fast.asyncio
import pulsar_fast.schema
from pulsar_fast import Client, IncompatibleSchema
from pulsar_fast.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    ProtobufNativeSchema,
    Record,
    Schema,
    SchemaType,
    String,
    StringSchema,
)
from pulsar_fast.wire.messages import CommandProducer
from tests.brokers.apache import ApacheBroker
from tests.brokers.peek import peek
from tests.brokers.readback import Received, Subscription

pytestmark = [
    pytest.mark.broker,
    pytest.mark.parametrize("service_url", ["apache"], indirect=True),
]


class Side(enum.Enum):
    buy = 1
    sell = 2


def classes(s: Any) -> Any:
    """The same records, declared with the names of either package."""

    class Leg(s.Record):  # type: ignore[misc]
        symbol = s.String(required=True)
        price = s.Double()

    class Trade(s.Record):  # type: ignore[misc]
        _avro_namespace = "org.example"
        number = s.Long(required=True)
        note = s.String(default="none", required_default=False)
        side = s.CustomEnum(Side)
        flags = s.Array(s.Boolean())
        raw = s.Bytes()
        tags = s.Map(s.String())
        first = Leg()
        active = s.Boolean(default=True, required_default=False)

    return SimpleNamespace(Leg=Leg, Trade=Trade)


OURS, THEIRS = classes(pulsar_fast.schema), classes(pulsar.schema)


def trade(records: Any) -> Any:
    return records.Trade(
        number=2**40,
        side=Side.sell,
        flags=[True, False],
        raw=b"raw",
        tags={"é": "🗝"},
        first=records.Leg(symbol="X", price=0.1),
    )


COMMAND = CommandProducer(topic="t", producer_id=1, request_id=2)
KINDS = {
    "string": (StringSchema(), pulsar.schema.StringSchema(), "é🗝", "é🗝"),
    "json": (JsonSchema(OURS.Trade), pulsar.schema.JsonSchema(THEIRS.Trade), trade(OURS), trade(THEIRS)),
    "avro": (AvroSchema(OURS.Trade), pulsar.schema.AvroSchema(THEIRS.Trade), trade(OURS), trade(THEIRS)),
    "protobuf": (
        ProtobufNativeSchema(CommandProducer),
        pulsar.schema.ProtobufNativeSchema(CommandProducer),
        COMMAND,
        COMMAND,
    ),
}


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url, operation_timeout_seconds=10) as client:
        yield client


def versions(broker: ApacheBroker, topic: str) -> list[dict[str, Any]]:
    """All versions of the topic's schema."""
    path = topic.removeprefix("persistent://")
    found: list[dict[str, Any]] = broker.admin.get(f"/schemas/{path}/schemas")["getSchemaResponses"]
    return found


def write_officially(client: pulsar.Client, topic: str, schema: Any, content: Any) -> None:
    producer = client.create_producer(topic, schema=schema)
    producer.send(content)
    producer.close()


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("kind", KINDS)
def test_either_client_reads_the_other(
    client: Client,
    consumer_client: pulsar.Client,
    apache_broker: ApacheBroker,
    topic: str,
    kind: str,
    first: str,
) -> None:
    ours, theirs, our_content, their_content = KINDS[kind]
    consumer = consumer_client.subscribe(topic, "s")  # keeps what is sent, and has no schema itself
    if first == "theirs":
        write_officially(consumer_client, topic, theirs, their_content)
    with client.create_producer(topic, schema=ours) as producer:
        producer.send(our_content)
        producer.send_many([our_content, our_content]).result(10)
        producer.send(None)
    with client.create_producer(topic, schema=theirs) as producer:  # an object of the official package
        producer.send(their_content)
    write_officially(consumer_client, topic, theirs, their_content)

    (stored,) = versions(apache_broker, topic)
    info = theirs.schema_info()
    assert (stored["version"], stored["type"]) == (0, info.schema_type().name)
    if kind in ("json", "avro"):  # the admin interface does not show the others' definitions as they are
        assert stored["data"] == info.schema()
    typed = consumer_client.subscribe(
        topic, "typed", schema=theirs, initial_position=pulsar.InitialPosition.Earliest
    )
    count = 6 + (first == "theirs")
    messages = [typed.receive(5000) for _ in range(count)]
    tombstones = [message.has_null_value() for message in messages]
    assert tombstones == [index == count - 3 for index in range(count)]
    values = [message.value() for message in messages if not message.has_null_value()]
    assert all(value == their_content for value in values)
    assert {message.schema_version() for message in messages} == {"\0" * 8}
    payloads = {message.data() for message in messages if not message.has_null_value()}
    assert len(payloads) == 1
    assert ours.decode(payloads.pop()) == our_content
    assert len(versions(apache_broker, topic)) == 1
    typed.close()
    consumer.close()


def test_an_optional_field_more_is_another_version(
    client: Client, service_url: str, apache_broker: ApacheBroker, topic: str
) -> None:
    class Trade(Record):
        number = Integer(required=True)

    old = Trade

    class Trade(Record):  # type: ignore[no-redef]
        number = Integer(required=True)
        note = String(required_default=True)

    for number, record in enumerate((old, Trade, old)):
        with client.create_producer(topic, schema=AvroSchema(record)) as producer:
            producer.send(record(number=number))
    assert [one["version"] for one in versions(apache_broker, topic)] == [0, 1]
    entries = peek(service_url, topic, 3)
    assert [entry.metadata["schema_version"][-1] for entry in entries] == [0, 1, 0]


def test_incompatible_schemas(client: Client, topic: str) -> None:
    class Trade(Record):
        number = Integer(required=True)

    with client.create_producer(topic, schema=JsonSchema(Trade)) as producer:
        producer.send(Trade(number=1))
        for other in (StringSchema(), AvroSchema(OURS.Leg), JsonSchema(OURS.Leg)):
            with pytest.raises(IncompatibleSchema):
                client.create_producer(topic, schema=other)
        producer.send(Trade(number=2))


def test_a_schema_of_ones_own(client: Client, apache_broker: ApacheBroker, topic: str) -> None:
    class Numbers(Schema):
        def __init__(self) -> None:
            super().__init__(int, SchemaType.INT64, b"", "INT64")

        def encode(self, obj: int) -> bytes:
            return obj.to_bytes(8, "big", signed=True)

    with client.create_producer(topic, schema=Numbers()) as producer:
        producer.send(-5)
    assert [one["type"] for one in versions(apache_broker, topic)] == ["INT64"]
    with client.create_producer(topic, schema=BytesSchema()) as producer:  # as brokers allow by default
        producer.send((6).to_bytes(8, "big"))


def test_in_asyncio(service_url: str, consumer_client: pulsar.Client, topic: str) -> None:
    ours, theirs, our_content, their_content = KINDS["avro"]
    consumer = consumer_client.subscribe(topic, "s", schema=theirs)

    async def main() -> None:
        async with pulsar_fast.asyncio.Client(service_url) as client:
            async with await client.create_producer(topic, schema=ours) as producer:
                await producer.send(our_content)
                await producer.send_many([our_content])
            with pytest.raises(IncompatibleSchema):
                await client.create_producer(topic, schema=StringSchema())

    asyncio.run(main())
    assert [consumer.receive(5000).value() for _ in range(2)] == [their_content] * 2
    consumer.close()


@pytest.mark.parametrize("encoding_type", KeyValueEncodingType)
def test_pairs(
    client: Client,
    service_url: str,
    apache_broker: ApacheBroker,
    subscribe: Callable[[str], Subscription],
    topic: str,
    encoding_type: KeyValueEncodingType,
) -> None:
    schema = KeyValueSchema(StringSchema(), JsonSchema(OURS.Trade), encoding_type)
    subscription = subscribe(topic)
    pair = KeyValue("schlüssel", trade(OURS))
    with client.create_producer(topic, schema=schema) as producer:
        producer.send(pair)
        producer.send(pair, deliver_after=timedelta(0))  # not in a batch
        producer.send(KeyValue("gone", None))
    (stored,) = versions(apache_broker, topic)
    assert (stored["type"], stored["properties"]["kv.encoding.type"]) == ("KEY_VALUE", encoding_type.name)
    first, second, gone = subscription.read(3)

    def decoded(key: str) -> str:
        return b64decode(key).decode()

    separated = encoding_type is KeyValueEncodingType.SEPARATED
    for message in (first, second):
        assert decoded(message.partition_key) == ("schlüssel" if separated else "")
        assert schema.decode(message.data, b64decode(message.partition_key)) == pair
    assert (decoded(gone.partition_key), gone.null_value) == (("gone", True) if separated else ("", False))


def test_pairs_on_partitions(
    client: Client,
    apache_broker: ApacheBroker,
    subscribe: Callable[[str], Subscription],
    topic: str,
) -> None:
    apache_broker.admin.put(f"/persistent/{topic.removeprefix('persistent://')}/partitions", 3)
    subscription = subscribe(topic)
    pairs = [(f"key {number % 7}", str(number)) for number in range(60)]
    schema = KeyValueSchema(StringSchema(), StringSchema(), KeyValueEncodingType.SEPARATED)
    with client.create_producer(topic, schema=schema, max_pending_messages=5) as producer:
        producer.send_many(pairs[:50]).result(10)
        for pair in pairs[50:]:
            producer.send(pair)
    by_key: dict[str, list[Received]] = {}
    for message in subscription.read(len(pairs)):
        by_key.setdefault(b64decode(message.partition_key).decode(), []).append(message)
    for key, messages in by_key.items():
        assert len({message.topic for message in messages}) == 1
        assert [message.data.decode() for message in messages] == [v for k, v in pairs if k == key]
    assert len({messages[0].topic for messages in by_key.values()}) > 1
