"""Topics with partitions on Apache Pulsar, beside the official client."""

from collections import Counter
from collections.abc import Callable, Iterator

import pulsar  # type: ignore[import-untyped]
import pytest

from pulsar_fast import Client
from tests.brokers.apache import ApacheBroker
from tests.brokers.readback import Subscription
from tests.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("service_url", ["apache"], indirect=True)]
Subscribe = Callable[[str], Subscription]


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url) as client:
        yield client


@pytest.fixture
def partitioned(apache_broker: ApacheBroker, topic: str) -> str:
    """A topic with seven partitions."""
    apache_broker.admin.put(f"/{topic.replace('://', '/')}/partitions", 7)
    return topic


def test_keys_go_where_the_official_client_sends_them(
    client: Client, consumer_client: pulsar.Client, partitioned: str
) -> None:
    keys = ["", "a", "é", "a much longer key than eight bytes", *(f"key-{number}" for number in range(100))]
    with client.create_producer(partitioned) as producer:
        ours = [producer.send(b"x", partition_key=key).partition() for key in keys if key]
    official = consumer_client.create_producer(partitioned)
    theirs = [official.send(b"x", partition_key=key).partition() for key in keys if key]
    official.close()
    assert ours == theirs
    assert set(ours) == set(range(7))


def test_everything_arrives_in_the_order_of_its_partition(
    client: Client, partitioned: str, subscribe: Subscribe
) -> None:
    subscription = subscribe(partitioned)
    with client.create_producer(partitioned, max_pending_messages=0) as producer:
        for number in range(2000):
            key = None if number % 2 else f"key-{number % 26}"
            producer.send_async(b"%d" % number, None, partition_key=key)
        producer.send_many(b"%d" % number for number in range(2000, 12000)).result()
        assert producer.stats().acknowledged == 12000
    received = subscription.read(12000, timeout=30)
    assert sorted(int(message.data) for message in received) == list(range(12000))
    by_topic: dict[str, list[int]] = {}
    for message in received:
        by_topic.setdefault(message.topic, []).append(int(message.data))
    assert by_topic.keys() == {f"{partitioned}-partition-{number}" for number in range(7)}
    assert all(numbers == sorted(numbers) for numbers in by_topic.values())
    sizes = Counter(message.topic for message in received)
    assert max(sizes.values()) < 3 * min(sizes.values())


def test_a_topic_that_grows_under_traffic(
    client: Client, apache_broker: ApacheBroker, partitioned: str, subscribe: Subscribe
) -> None:
    with client.create_producer(partitioned, partitions_update_interval_seconds=0.1) as producer:
        sent = 0
        used: set[int] = set()

        def send_one() -> bool:
            nonlocal sent
            producer.send_async(b"%d" % sent, lambda _, message_id: used.add(message_id.partition()))
            sent += 1
            return max(used, default=0) == 8

        for _ in range(100):
            send_one()
        apache_broker.admin.post(f"/{partitioned.replace('://', '/')}/partitions", 9)
        until(send_one, 30)
        producer.flush()
        assert producer.stats().reconnects == 0
    received = subscribe(partitioned).read(sent, timeout=30)
    assert sorted(int(message.data) for message in received) == list(range(sent))
