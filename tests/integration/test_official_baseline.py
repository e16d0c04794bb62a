"""The official client against the fixtures: a failure here is one of the tests, not of the product."""

from collections.abc import Callable

import pulsar  # type: ignore[import-untyped]
import pytest

from tests.brokers.apache import ApacheBroker
from tests.brokers.peek import peek
from tests.brokers.readback import Received, Subscription

pytestmark = pytest.mark.broker


def test_reads_back_in_order_what_was_sent(
    consumer_client: pulsar.Client, topic: str, read_back: Callable[[str, int], list[Received]]
) -> None:
    producer = consumer_client.create_producer(topic, producer_name="baseline")
    sent = [
        producer.send(
            b"message %d" % i,
            properties={"number": str(i)},
            partition_key=f"key {i}",
            ordering_key=f"order {i}",
            event_timestamp=1000 + i,
        )
        for i in range(10)
    ]
    producer.close()

    received = read_back(topic, 10)

    assert [message.data for message in received] == [b"message %d" % i for i in range(10)]
    assert [message.properties for message in received] == [{"number": str(i)} for i in range(10)]
    assert [message.partition_key for message in received] == [f"key {i}" for i in range(10)]
    assert [message.ordering_key for message in received] == [f"order {i}" for i in range(10)]
    assert [message.event_timestamp for message in received] == [1000 + i for i in range(10)]
    assert {message.producer_name for message in received} == {"baseline"}
    assert [message.message_id[:2] for message in received] == [(m.ledger_id(), m.entry_id()) for m in sent]


def test_reading_too_many_fails(
    consumer_client: pulsar.Client, topic: str, subscribe: Callable[[str], Subscription]
) -> None:
    subscription = subscribe(topic)
    producer = consumer_client.create_producer(topic)
    producer.send(b"only one")
    producer.close()
    with pytest.raises(AssertionError, match="1 of 2 messages"):
        subscription.read(2, timeout=0.5)


@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("service_url", ["apache"], indirect=True)
def test_read_all_ends_with_the_topic(
    consumer_client: pulsar.Client,
    apache_broker: ApacheBroker,
    topic: str,
    subscribe: Callable[[str], Subscription],
    partitions: int,
) -> None:
    if partitions:
        path = topic.removeprefix("persistent://")
        apache_broker.admin.put(f"/persistent/{path}/partitions", partitions)
    subscription = subscribe(topic)
    producer = consumer_client.create_producer(topic)
    for i in range(9):
        producer.send(b"%d" % i)
    producer.close()
    assert sorted(message.data for message in subscription.read_all()) == [b"%d" % i for i in range(9)]
    assert subscription.read_all() == []


def test_peek_shows_batches_and_sequence_ids(
    service_url: str, consumer_client: pulsar.Client, topic: str
) -> None:
    producer = consumer_client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=10_000,
        compression_type=pulsar.CompressionType.ZLib,
        initial_sequence_id=41,
    )
    for i in range(3):
        producer.send_async(b"message %d" % i, lambda *_: None, properties={"number": str(i)})
    producer.flush()
    producer.close()

    (entry,) = peek(service_url, topic, 1)

    assert entry.metadata["sequence_id"] == 42
    assert entry.metadata["num_messages_in_batch"] == 3
    assert [payload for _, payload in entry.messages()] == [b"message %d" % i for i in range(3)]
    assert [single["sequence_id"] for single, _ in entry.messages()] == [42, 43, 44]
    assert [single["properties"] for single, _ in entry.messages()] == [
        [{"key": "number", "value": str(i)}] for i in range(3)
    ]
