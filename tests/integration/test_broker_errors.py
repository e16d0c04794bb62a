"""What Apache Pulsar refuses, delays or drops, and what callers hear of it."""

import time
from collections.abc import Callable, Iterator

import pulsar  # type: ignore[import-untyped]
import pytest

import pulsar_fast
from pulsar_fast import Client, MessageId, Producer, Result
from tests.brokers.admin import Admin
from tests.brokers.apache import ApacheBroker
from tests.brokers.readback import Subscription
from tests.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("service_url", ["apache"], indirect=True)]

Subscribe = Callable[[str], Subscription]
NOWHERE = (-1, -1, -1, -1)


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url, operation_timeout_seconds=10) as client:
        yield client


@pytest.fixture
def admin(apache_broker: ApacheBroker) -> Admin:
    return apache_broker.admin


@pytest.fixture
def namespace(admin: Admin, topic: str) -> str:
    """A namespace of this test alone, in the admin interface."""
    path = "/namespaces/public/" + topic.rpartition("/")[2]
    admin.put(path)
    return path


@pytest.fixture
def policed(namespace: str) -> str:
    """A topic in that namespace."""
    return f"persistent://{namespace.removeprefix('/namespaces/')}/topic"


def path_of(topic: str) -> str:
    """A topic in the admin interface."""
    return "/" + topic.replace("://", "/")


def place(message_id: MessageId) -> tuple[int, int, int, int]:
    return message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()


# Limits that only delay


def test_a_publish_rate_only_delays(client: Client, admin: Admin, namespace: str, policed: str) -> None:
    admin.post(
        f"{namespace}/publishRate", {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}
    )
    results: list[Result] = []
    with client.create_producer(policed, batching_enabled=False) as producer:
        started = time.monotonic()
        for _ in range(31):
            producer.send_async(b"", lambda result, _: results.append(result))
        producer.flush()
        assert time.monotonic() - started > 1, "the broker did not limit the rate"
        assert producer.stats().reconnects == 0
    assert results == [Result.Ok] * 31


# The backlog quota


class TestBacklogQuota:
    """A subscription that nobody reads, and a topic that may hold 2000 bytes for it."""

    @pytest.fixture
    def producer(
        self,
        client: Client,
        admin: Admin,
        namespace: str,
        policed: str,
        consumer_client: pulsar.Client,
        policy: str,
    ) -> Iterator[Producer]:
        quota = {"limitSize": 2000, "limitTime": -1, "policy": policy}
        admin.post(f"{namespace}/backlogQuota?backlogQuotaType=destination_storage", quota)
        with client.create_producer(policed, batching_enabled=False) as producer:
            admin.put(f"{path_of(policed)}/subscription/reader")
            for _ in range(5):
                producer.send(bytes(1000))
            until(lambda: producer.stats().reconnects > 0)  # the broker looks once a second
            yield producer

    @staticmethod
    def free(admin: Admin, topic: str) -> None:
        admin.post(f"{path_of(topic)}/subscription/reader/skip_all")

    @pytest.mark.parametrize("policy", ["producer_exception"])
    def test_exception_fails_what_is_pending_at_once(
        self, producer: Producer, admin: Admin, policed: str
    ) -> None:
        started = time.monotonic()
        with pytest.raises(pulsar_fast.ProducerBlockedQuotaExceededException, match="quota"):
            producer.send(b"refused")
        assert time.monotonic() - started < 12  # at the next attempt to register
        self.free(admin, policed)
        until(producer.is_connected, 20)
        producer.send(b"accepted again")

    @pytest.mark.parametrize("policy", ["producer_request_hold"])
    def test_hold_makes_messages_wait(self, producer: Producer, admin: Admin, policed: str) -> None:
        results: list[Result] = []
        producer.send_async(b"held", lambda result, _: results.append(result))
        with pytest.raises(pulsar_fast.Timeout):
            producer.flush(timeout=1)
        assert results == []
        assert "uota" in (producer.stats().last_connection_error or "")
        self.free(admin, policed)
        producer.flush(timeout=20)
        assert results == [Result.Ok]

    @pytest.mark.parametrize("policy", ["producer_exception", "producer_request_hold"])
    def test_creating_fails(self, producer: Producer, service_url: str, policed: str, policy: str) -> None:
        kind = {
            "producer_exception": pulsar_fast.ProducerBlockedQuotaExceededException,
            "producer_request_hold": pulsar_fast.ProducerBlockedQuotaExceededError,
        }[policy]
        with Client(service_url, operation_timeout_seconds=1) as second:
            started = time.monotonic()
            with pytest.raises(kind):
                second.create_producer(policed)
            assert time.monotonic() - started < 3


# Refused at creation


def test_max_producers(client: Client, admin: Admin, namespace: str, policed: str) -> None:
    admin.post(f"{namespace}/maxProducersPerTopic", 1)
    with client.create_producer(policed) as producer:
        started = time.monotonic()
        with pytest.raises(pulsar_fast.ProducerBusy, match="max producers"):
            client.create_producer(policed)
        assert time.monotonic() - started < 2
        producer.send(b"")
    with client.create_producer(policed) as producer:
        producer.send(b"")


def test_max_topics(client: Client, admin: Admin, namespace: str, policed: str) -> None:
    admin.post(f"{namespace}/maxTopicsPerNamespace", 1)
    with client.create_producer(policed):
        started = time.monotonic()
        with pytest.raises(pulsar_fast.NotAllowedError):
            client.create_producer(f"{policed}-2")
        assert time.monotonic() - started < 2


def test_no_automatic_creation(client: Client, admin: Admin, namespace: str, policed: str) -> None:
    admin.post(f"{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
    started = time.monotonic()
    with pytest.raises(pulsar_fast.TopicNotFound):
        client.create_producer(policed)
    assert time.monotonic() - started < 2


def test_encryption_required(service_url: str, admin: Admin, namespace: str, policed: str) -> None:
    admin.post(f"{namespace}/encryptionRequired", True)
    with (
        Client(service_url, operation_timeout_seconds=1) as second,
        pytest.raises(pulsar_fast.BrokerMetadataError, match="Encryption is required"),
    ):
        second.create_producer(policed)


# Deduplication


@pytest.fixture
def deduplicated(admin: Admin, namespace: str, policed: str) -> str:
    """A topic where the broker drops sequence ids that a producer name has used already."""
    admin.post(f"{namespace}/deduplication", True)
    return policed


@pytest.mark.parametrize("batching_enabled", [False, True])
def test_duplicates_are_acknowledged_and_counted(
    client: Client, deduplicated: str, subscribe: Subscribe, batching_enabled: bool
) -> None:
    subscription = subscribe(deduplicated)
    answers: list[tuple[Result, bool]] = []

    def callback(result: Result, message_id: MessageId) -> None:
        answers.append((result, place(message_id) == NOWHERE))

    with client.create_producer(
        deduplicated, producer_name="mine", batching_enabled=batching_enabled
    ) as producer:
        for sequence_id in (5, 6):
            producer.send_async(b"%d" % sequence_id, callback, sequence_id=sequence_id)
        producer.flush()
        for sequence_id in (5, 6, 4, 7):
            producer.send_async(b"%d" % sequence_id, callback, sequence_id=sequence_id)
        producer.flush()
        assert answers == [(Result.Ok, duplicate) for duplicate in (False, False, True, True, True, False)]
        stats = producer.stats()
        assert (stats.acknowledged, stats.duplicates, stats.dropped, stats.failed) == (6, 3, 0, 0)
        assert (stats.reconnects, stats.late) == (0, 0)
        assert producer.last_sequence_id() == 7
        assert place(producer.send(b"8")) != NOWHERE
        assert producer.last_sequence_id() == 8
    assert [message.data for message in subscription.read_all()] == [b"5", b"6", b"7", b"8"]


def test_what_may_be_a_duplicate_is_sent_again(
    client: Client, deduplicated: str, subscribe: Subscribe
) -> None:
    """While the first message is being stored, the broker cannot tell, refuses the second, and takes the third."""
    subscription = subscribe(deduplicated)
    answers: dict[str, tuple[Result, bool]] = {}
    with (
        client.create_producer(deduplicated, producer_name="mine", batching_enabled=False) as producer,
        client.create_producer(f"{deduplicated}-beside") as beside,
    ):
        for name, sequence_id in {"first": 5, "again": 5, "next": 6}.items():

            def callback(result: Result, message_id: MessageId, name: str = name) -> None:
                answers[name] = result, place(message_id) == NOWHERE

            producer.send_async(name.encode(), callback, sequence_id=sequence_id)
        producer.flush()
        assert answers == {
            "first": (Result.Ok, False),
            "again": (Result.Ok, True),
            "next": (Result.Ok, False),
        }
        assert beside.stats().reconnects == 0, "the connection was closed"
    assert [message.data for message in subscription.read_all()] == [b"first", b"next"]


# Refused sends


def test_a_message_above_the_topics_own_limit(
    client: Client, admin: Admin, topic: str, subscribe: Subscribe
) -> None:
    """The broker tells clients its own limit only, and refuses by message."""
    subscription = subscribe(topic)
    probe, too_big = b"p" * 2000, b"x" * 2000
    results: list[Result] = []
    with (
        client.create_producer(topic, batching_enabled=False) as producer,
        client.create_producer(topic, batching_enabled=False) as beside,
    ):
        admin.post(f"{path_of(topic)}/maxMessageSize", 1000)
        until(lambda: refuses(beside, probe))  # a second until it takes effect
        for content in (b"0", too_big, b"1", too_big, too_big, b"2"):
            producer.send_async(content, lambda result, _: results.append(result))
        with pytest.raises(pulsar_fast.NotAllowedError, match="maximum message size"):
            producer.flush()
        with pytest.raises(pulsar_fast.NotAllowedError, match="maximum message size"):
            producer.send(too_big)
        producer.send(b"3")
        beside.send(b"beside")
        stats = producer.stats()
        assert (stats.acknowledged, stats.failed, stats.pending_messages) == (4, 4, 0)
        assert (stats.reconnects, beside.stats().reconnects) == (0, 0)
    assert sorted(results) == [Result.Ok] * 3 + [Result.NotAllowedError] * 3
    stored = [message.data for message in subscription.read_all() if message.data != probe]
    assert stored == [b"0", b"1", b"2", b"3", b"beside"]


def refuses(producer: Producer, content: bytes) -> bool:
    try:
        producer.send(content)
    except pulsar_fast.NotAllowedError:
        return True
    return False


# Partitions


def test_partitions(client: Client, admin: Admin, topic: str, subscribe: Subscribe) -> None:
    assert client.get_topic_partitions(topic) == [topic]
    admin.put(f"{path_of(topic)}/partitions", 3)
    partitions = [f"{topic}-partition-{index}" for index in range(3)]
    assert client.get_topic_partitions(topic) == partitions
    assert client.get_topic_partitions(topic.removeprefix("persistent://")) == partitions
    subscription = subscribe(topic)
    for index, partition in enumerate(partitions):
        with client.create_producer(partition) as producer:
            message_id = producer.send(b"%d" % index)
            assert message_id.partition() == index
            assert producer.topic() == partition
    received = sorted(subscription.read_all(), key=lambda message: message.topic)
    assert [(message.topic, message.data) for message in received] == [
        (partition, b"%d" % index) for index, partition in enumerate(partitions)
    ]
    assert [message.message_id[2] for message in received] == [0, 1, 2]
    assert place(message_id) == received[2].message_id
    started = time.monotonic()
    with pytest.raises(pulsar_fast.TopicNotFound):
        client.create_producer(f"{topic}-partition-9")
    assert time.monotonic() - started < 2


# Topics that keep nothing


def test_non_persistent(client: Client, topic: str, consumer_client: pulsar.Client) -> None:
    topic = f"non-{topic}"
    with client.create_producer(topic) as producer:
        for _ in range(100):
            producer.send_async(b"nobody listens", None)
        producer.flush()
        consumer = consumer_client.subscribe(topic, "listener")
        producer.send(b"heard")
        assert consumer.receive(5000).data() == b"heard"
        consumer.close()
        stats = producer.stats()
        assert (stats.acknowledged, stats.failed, stats.duplicates, stats.reconnects) == (101, 0, 0, 0)
