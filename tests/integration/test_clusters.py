"""From one real cluster to another: because it has been migrated, and because it does not answer."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pulsar  # type: ignore[import-untyped]
import pytest

from pulsar_fast import AutoClusterFailover, Client, ServiceInfo
from tests.brokers import apache, unavailable
from tests.brokers.apache import ApacheBroker
from tests.brokers.readback import Subscription
from tests.faults.outcomes import Outcomes
from tests.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[ApacheBroker, ApacheBroker]]:
    """Of one broker each."""
    if (reason := apache.available()) is not None:
        unavailable(reason)
    both = tuple(ApacheBroker({"clusterMigrationCheckDurationSeconds": 1}) for _ in range(2))
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(ApacheBroker.start, both))
        yield both  # type: ignore[misc]
    finally:
        for broker in both:
            broker.stop()


@pytest.fixture
def topic() -> str:
    return f"moving-{uuid.uuid4().hex[:8]}"


def read_all(broker: ApacheBroker, topic: str) -> list[int]:
    """What a cluster holds, from the first message on."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(broker.service_url, logger=logger)
    try:
        return [int(message.data) for message in Subscription(client, topic).read_all()]
    finally:
        client.close()


def without_repetitions(numbers: list[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def test_over_to_the_secondary_and_back(clusters: tuple[ApacheBroker, ApacheBroker], topic: str) -> None:
    """The process of the primary stands still, though its port goes on accepting."""
    primary, secondary = clusters
    rules = AutoClusterFailover(
        ServiceInfo(primary.service_url), [ServiceInfo(secondary.service_url)], check_interval_ms=200
    )
    with Client(rules, connection_timeout_ms=1000) as client:
        producer = client.create_producer(topic, send_timeout_millis=0)
        producer.send(b"0")
        outcomes = Outcomes()
        with primary.frozen():
            for number in range(1, 1000):
                producer.send_async(b"%d" % number, outcomes.of(number))
            outcomes.wait_for(999, timeout=30)
            assert client.get_service_info().service_url == secondary.service_url
        until(lambda: client.get_service_info().service_url == primary.service_url, 30)
        producer.send(b"1000")
    assert outcomes.names == list(range(1, 1000))
    there = read_all(secondary, topic)
    assert there == list(range(1, 1000))
    here = without_repetitions(read_all(primary, topic))
    assert (here[0], here[-1]) == (
        0,
        1000,
    )  # what it got and had not answered when it stood still is there too


def test_migrated_under_traffic(clusters: tuple[ApacheBroker, ApacheBroker], topic: str) -> None:
    """The last test with these clusters."""
    old, new = clusters
    outcomes = Outcomes()
    with Client(old.service_url) as client:
        producer = client.create_producer(topic, send_timeout_millis=0)
        producer.send(b"0")
        sent = 1
        old.admin.post(
            "/clusters/standalone/migrate?migrated=true",
            {"serviceUrl": new.admin_url, "brokerServiceUrl": new.service_url},
        )

        def send_and_look() -> bool:
            nonlocal sent
            producer.send_async(b"%d" % sent, outcomes.of(sent))
            sent += 1
            return producer.stats().reconnects > 0 and producer.is_connected()

        until(send_and_look, 60)
        for _ in range(100):
            send_and_look()
        producer.flush()
        created_after = client.create_producer(f"{topic}-2", send_timeout_millis=0)
        created_after.send(b"7")
    outcomes.wait_for(sent - 1)
    assert outcomes.names == list(range(1, sent))
    before, after = read_all(old, topic), read_all(new, topic)
    assert before[0] == 0
    assert after[-1] == sent - 1
    assert without_repetitions(before + after) == list(range(sent))
    assert read_all(new, f"{topic}-2") == [7]
