"""What is compressed is read back by the official client, from each broker."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import Client, CompressionType, MessageTooBig
from tests.brokers.readback import Received

pytestmark = pytest.mark.broker
ReadBack = Callable[[str, int], list[Received]]

KINDS = [kind for kind in CompressionType if kind is not CompressionType.NONE]
TEXT = b" ".join(b"%d green bottles" % number for number in range(3000))


@pytest.fixture
def client(service_url: str) -> Any:
    with Client(service_url, operation_timeout_seconds=10) as client:
        yield client


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "alone"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_contents_arrive_unchanged(
    client: Client, topic: str, read_back: ReadBack, kind: CompressionType, batching: bool
) -> None:
    contents = [
        b"",
        b"x",
        *[b"%d %s" % (number, TEXT[:1000]) for number in range(20)],
        bytes(range(256)),
        TEXT,
    ]
    with client.create_producer(topic, compression_type=kind, batching_enabled=batching) as producer:
        for number, content in enumerate(contents):
            producer.send_async(content, None, properties={"number": str(number)}, event_timestamp=1 + number)
        producer.send_async(None, None, partition_key="gone")
        producer.flush()
    received = read_back(topic, len(contents) + 1)
    assert [message.data for message in received] == [*contents, b""]
    assert [message.event_timestamp for message in received[:-1]] == list(range(1, 1 + len(contents)))
    assert [message.properties for message in received[:-1]] == [
        {"number": str(number)} for number in range(len(contents))
    ]
    assert received[-1].null_value


def test_a_message_above_the_brokers_limit_arrives_if_it_fits_compressed(
    client: Client, topic: str, read_back: ReadBack
) -> None:
    content = TEXT * (12 * 2**20 // len(TEXT))
    with client.create_producer(
        topic, compression_type=CompressionType.ZSTD, compression_level=1
    ) as producer:
        producer.send(content)
        with pytest.raises(MessageTooBig):
            producer.send(bytes(100 * 2**20))
    assert read_back(topic, 1)[0].data == content


def test_levels(client: Client, topic: str, read_back: ReadBack) -> None:
    levels = [(CompressionType.ZLib, 9), (CompressionType.ZSTD, -7), (CompressionType.ZSTD, 19)]
    for kind, level in levels:
        with client.create_producer(topic, compression_type=kind, compression_level=level) as producer:
            producer.send(TEXT)
    assert [message.data for message in read_back(topic, len(levels))] == [TEXT] * len(levels)


def test_the_asyncio_api_compresses_too(service_url: str, topic: str, read_back: ReadBack) -> None:
    async def send() -> None:
        async with (
            pulsar_fast.asyncio.Client(service_url) as client,
            await client.create_producer(topic, compression_type=CompressionType.LZ4) as producer,
        ):
            await producer.send(TEXT)

    asyncio.run(send())
    assert [message.data for message in read_back(topic, 1)] == [TEXT]
