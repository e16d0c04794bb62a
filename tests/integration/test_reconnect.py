"""Brokers that die, come back, or move and end topics under a producer."""

import asyncio
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pulsar  # type: ignore[import-untyped]
import pytest

import pulsar_fast
import pulsar_fast.asyncio
from pulsar_fast import Client, MessageId, Producer, Result
from pulsar_fast.embedded import EmbeddedBroker
from tests.brokers.admin import Admin
from tests.brokers.apache import ApacheBroker
from tests.brokers.readback import Received, Subscription
from tests.waiting import until

pytestmark = pytest.mark.broker
on_apache = pytest.mark.parametrize("service_url", ["apache"], indirect=True)

Subscribe = Callable[[str], Subscription]
COUNT = 4000  # messages of a traffic


@contextmanager
def subscribed(broker: EmbeddedBroker, topic: str) -> Iterator[Subscription]:
    client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        yield Subscription(client, topic)
    finally:
        client.shutdown()


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def without_repeats(messages: list[Received]) -> list[bytes]:
    """What was sent before a connection was lost, and not answered, is sent again and perhaps stored twice."""
    return list(dict.fromkeys(message.data for message in messages))


class Traffic:
    """Messages numbered from 0, sent by a thread of their own, and how often each callback ran with what."""

    def __init__(self, producer: Producer, count: int = COUNT) -> None:
        self.answers: Counter[tuple[int, Result]] = Counter()
        self.sent = 0
        self._producer = producer
        self._count = count
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        for number in range(self._count):
            self._producer.send_async(b"%d" % number, self._callback(number))
            self.sent += 1
            if number % 40 == 0:
                time.sleep(0.005)  # a rate

    def _callback(self, number: int) -> Callable[[Result, MessageId], None]:
        def callback(result: Result, message_id: MessageId) -> None:
            self.answers[number, result] += 1

        return callback

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()

    def reaches(self, number: int) -> None:
        until(lambda: self.sent >= number)

    def assert_each_answered_once(self) -> None:
        assert self.answers == Counter({(number, Result.Ok): 1 for number in range(self._count)})


# A broker that is killed and comes back


@pytest.mark.parametrize("batching_enabled", [None, False])
def test_a_broker_is_killed_three_times(broker: EmbeddedBroker, batching_enabled: bool | None) -> None:
    with (
        subscribed(broker, "topic") as subscription,
        Client(broker.service_url) as client,
        client.create_producer(
            "topic", block_if_queue_full=True, batching_enabled=batching_enabled, max_pending_messages=300
        ) as producer,
    ):
        with Traffic(producer) as traffic:
            for point in (200, 1500, 3000):
                traffic.reaches(point)
                broker.kill()
                broker.restart()
        producer.flush()
        traffic.assert_each_answered_once()
        stats = producer.stats()
        assert (stats.accepted, stats.acknowledged, stats.failed) == (COUNT, COUNT, 0)
        assert stats.reconnects >= 3
        assert stats.last_connection_error
        assert producer.is_connected()
        assert without_repeats(subscription.read_all()) == numbered(COUNT)


def test_asyncio_a_broker_is_killed_three_times(broker: EmbeddedBroker) -> None:
    answers: Counter[int] = Counter()

    async def send(producer: pulsar_fast.asyncio.Producer, number: int) -> None:
        await producer.send(b"%d" % number)
        answers[number] += 1

    async def disturb() -> None:
        for point in (200, 1500, 3000):
            while len(answers) < point:
                await asyncio.sleep(0.001)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)

    async def main() -> None:
        async with (
            pulsar_fast.asyncio.Client(broker.service_url) as client,
            await client.create_producer(
                "topic", block_if_queue_full=True, max_pending_messages=300
            ) as producer,
        ):
            disturbance = asyncio.create_task(disturb())
            tasks = []
            for number in range(COUNT):
                tasks.append(asyncio.create_task(send(producer, number)))
                if number % 40 == 0:
                    await asyncio.sleep(0.005)
            await asyncio.gather(disturbance, *tasks)
            assert producer.stats().reconnects >= 3

    with subscribed(broker, "topic") as subscription:
        asyncio.run(asyncio.wait_for(main(), 40))
        assert answers == Counter(range(COUNT))
        assert without_repeats(subscription.read_all()) == numbered(COUNT)


def test_send_many_through_a_restart(broker: EmbeddedBroker) -> None:
    def contents() -> Iterator[bytes]:
        for number, content in enumerate(numbered(COUNT)):
            if number == 1000:
                broker.kill()
                broker.restart()
            yield content

    with (
        subscribed(broker, "topic") as subscription,
        Client(broker.service_url) as client,
        client.create_producer("topic", max_pending_messages=300) as producer,
    ):
        assert producer.send_many(contents()).result(30) == COUNT
        assert without_repeats(subscription.read_all()) == numbered(COUNT)


def test_every_producer_of_a_client_comes_back(broker: EmbeddedBroker) -> None:
    with Client(broker.service_url) as client:
        producers = [client.create_producer(f"topic-{number}") for number in range(5)]
        broker.kill()
        for producer in producers:
            until(lambda producer=producer: not producer.is_connected())  # type: ignore[misc]
            producer.send_async(b"while it is down", None)
        broker.restart()
        for producer in producers:
            producer.flush(timeout=10)
            assert producer.is_connected()


# A broker that is away


def test_messages_fail_at_their_own_deadlines_while_the_broker_is_down(broker: EmbeddedBroker) -> None:
    with (
        subscribed(broker, "topic") as subscription,
        Client(broker.service_url) as client,
        client.create_producer("topic", send_timeout_millis=1000) as producer,
    ):
        producer.send(b"before")
        broker.kill()
        until(lambda: not producer.is_connected())
        results: list[tuple[float, Result]] = []
        started: list[float] = []
        for _ in range(3):
            started.append(time.monotonic())
            producer.send_async(b"lost", lambda result, _: results.append((time.monotonic(), result)))
            time.sleep(0.2)  # between the deadlines, too
        with pytest.raises(pulsar_fast.Timeout, match=r"for \d.*refused") as caught:
            producer.send(b"lost")
        assert isinstance(caught.value, TimeoutError)
        until(lambda: len(results) == 3)
        assert [result for _, result in results] == [Result.Timeout] * 3
        waits = [answered - sent for sent, (answered, _) in zip(started, results, strict=True)]
        assert all(0.99 <= wait <= 1.5 for wait in waits), waits
        stats = producer.stats()
        assert (stats.expired, stats.failed, stats.pending_messages) == (4, 4, 0)
        assert stats.client_pending_bytes == 0
        assert "refused" in (stats.last_connection_error or "")

        broker.restart()
        until(producer.is_connected, 15)
        producer.send(b"after")
        assert without_repeats(subscription.read_all()) == [b"before", b"after"]


def test_waiting_for_room_ends_at_the_deadline(broker: EmbeddedBroker) -> None:
    with (
        Client(broker.service_url) as client,
        client.create_producer(
            "topic", send_timeout_millis=1000, max_pending_messages=1, block_if_queue_full=True
        ) as producer,
    ):
        broker.kill()
        until(lambda: not producer.is_connected())
        producer.send_async(b"fills the queue", lambda *_: None)
        time.sleep(0.2)  # so that room comes before the deadline of the next one
        started = time.monotonic()
        with pytest.raises(pulsar_fast.Timeout):
            producer.send(b"waits for room, then for the broker")
        assert 0.99 <= time.monotonic() - started <= 1.5


def test_send_many_goes_on_while_messages_expire(broker: EmbeddedBroker) -> None:
    with (
        Client(broker.service_url) as client,
        client.create_producer("topic", send_timeout_millis=300, max_pending_messages=5) as producer,
    ):
        broker.kill()
        handle = producer.send_many(numbered(12))
        with pytest.raises(pulsar_fast.Timeout):
            handle.result(10)
        assert {index: type(error) for index, error in handle.errors.items()} == dict.fromkeys(
            range(12), pulsar_fast.Timeout
        )
        assert (handle.count, handle.first, handle.last) == (12, None, None)


def test_flush_has_a_timeout(broker: EmbeddedBroker) -> None:
    with Client(broker.service_url) as client:
        producer = client.create_producer("topic")
        broker.kill()
        producer.send_async(b"", lambda *_: None)
        started = time.monotonic()
        with pytest.raises(pulsar_fast.Timeout, match="flush"):
            producer.flush(timeout=0.3)
        assert 0.3 <= time.monotonic() - started < 1
        broker.restart()
        producer.flush(timeout=10)


@pytest.mark.parametrize("end", ["close", "shutdown", "client"])
def test_ends_are_bounded_while_the_broker_is_down(broker: EmbeddedBroker, end: str) -> None:
    client = Client(broker.service_url, operation_timeout_seconds=1)
    producer = client.create_producer("topic")
    broker.kill()
    results: list[Result] = []
    producer.send_async(b"", lambda result, _: results.append(result))
    handle = producer.send_many([b""])
    started = time.monotonic()
    if end == "close":
        producer.close(timeout=0.5)
    elif end == "shutdown":
        client.shutdown()
    client.close()
    assert time.monotonic() - started < 2
    assert results == [Result.AlreadyClosed]
    with pytest.raises(pulsar_fast.AlreadyClosed):
        handle.result(0)


def test_closing_waits_for_a_broker_that_comes_back(broker: EmbeddedBroker) -> None:
    with subscribed(broker, "topic") as subscription:
        client = Client(broker.service_url)
        producer = client.create_producer("topic")
        broker.kill()
        results: list[Result] = []
        producer.send_async(b"late", lambda result, _: results.append(result))
        restart = threading.Timer(0.5, broker.restart)
        restart.start()
        client.close()
        restart.join()
        assert results == [Result.Ok]
        assert without_repeats(subscription.read_all()) == [b"late"]


def test_creating_waits_for_a_broker_that_comes_back(broker: EmbeddedBroker) -> None:
    broker.kill()
    with Client(broker.service_url, operation_timeout_seconds=10) as client:
        restart = threading.Timer(0.5, broker.restart)
        restart.start()
        with client.create_producer("topic") as producer:
            restart.join()
            producer.send(b"")


def test_creating_tells_why_nobody_answered() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with Client(f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=0.5) as client:
            started = time.monotonic()
            with pytest.raises(pulsar_fast.ConnectError, match=rf"{port}.*refused"):
                client.create_producer("topic")
            assert 0.4 <= time.monotonic() - started < 2


# A topic that moves or ends (Apache Pulsar only)


@on_apache
class TestTopic:
    @pytest.fixture
    def client(self, service_url: str) -> Iterator[Client]:
        with Client(service_url) as client:
            yield client

    @pytest.fixture
    def admin(self, apache_broker: ApacheBroker) -> Admin:
        return apache_broker.admin

    @pytest.fixture
    def path(self, topic: str) -> str:
        """The topic in the admin interface."""
        return "/" + topic.replace("://", "/")

    @pytest.mark.parametrize("what", ["topic", "namespace"])
    def test_unloaded_ten_times(
        self, client: Client, admin: Admin, topic: str, path: str, subscribe: Subscribe, what: str
    ) -> None:
        if what == "namespace":
            admin.put(f"/namespaces/public/{topic.rpartition('/')[2]}")
            topic = f"persistent://public/{topic.rpartition('/')[2]}/topic"
            path = "/namespaces/public/" + topic.split("/")[3]
        subscription = subscribe(topic)
        with (
            client.create_producer(topic, block_if_queue_full=True) as producer,
            client.create_producer("persistent://public/default/beside", block_if_queue_full=True) as beside,
        ):
            with Traffic(producer) as traffic, Traffic(beside) as other:
                for point in range(200, COUNT, COUNT // 10):
                    traffic.reaches(point)
                    admin.put(f"{path}/unload")
            producer.flush()
            beside.flush()
            traffic.assert_each_answered_once()
            other.assert_each_answered_once()
            assert producer.stats().reconnects >= 2  # some come while it is away anyway
            assert (beside.stats().reconnects, beside.stats().resent) == (0, 0)
        assert without_repeats(subscription.read_all()) == numbered(COUNT)

    @pytest.mark.parametrize("batching_enabled", [False, True])
    def test_with_deduplication_nothing_is_stored_twice(
        self, client: Client, admin: Admin, topic: str, subscribe: Subscribe, batching_enabled: bool
    ) -> None:
        namespace = "/namespaces/public/" + topic.rpartition("/")[2]
        topic = f"persistent://public/{topic.rpartition('/')[2]}/topic"
        admin.put(namespace)
        admin.post(f"{namespace}/deduplication", True)
        subscription = subscribe(topic)
        with client.create_producer(
            topic, producer_name="mine", batching_enabled=batching_enabled, block_if_queue_full=True
        ) as producer:
            with Traffic(producer) as traffic:
                for point in range(200, COUNT, COUNT // 10):
                    traffic.reaches(point)
                    admin.put(f"/{topic.replace('://', '/')}/unload")
            producer.flush()
            traffic.assert_each_answered_once()
        # What the unloaded topic had delivered without an acknowledgement yet, it delivers again.
        stored = {message.message_id: message.data for message in subscription.read_all()}
        assert list(stored.values()) == numbered(COUNT)

    def test_terminated(self, client: Client, admin: Admin, topic: str, path: str) -> None:
        with client.create_producer(topic, batching_enabled=False) as producer:
            producer.send(b"")
            results: list[Result] = []
            admin.post(f"{path}/terminate")
            started = time.monotonic()
            with suppress(pulsar_fast.TopicTerminated):  # it may know already
                for _ in range(10):
                    producer.send_async(b"", lambda result, _: results.append(result))
                producer.flush()
            with pytest.raises(pulsar_fast.TopicTerminated):
                producer.send(b"")
            with pytest.raises(pulsar_fast.TopicTerminated):
                producer.send_async(b"", None)
            assert time.monotonic() - started < 3
            assert results == [Result.TopicTerminated] * 10
            assert not producer.is_connected()
        with pytest.raises(pulsar_fast.TopicTerminated):
            client.create_producer(topic)

    def test_deleted(self, client: Client, admin: Admin, topic: str, path: str) -> None:
        """It is created anew where topics are, as for any client."""
        with client.create_producer(topic) as producer:
            producer.send(b"")
            admin.delete(f"{path}?force=true")
            until(lambda: producer.stats().reconnects == 1)
            producer.send(b"")
            assert producer.is_connected()

    def test_deleted_and_not_created_anew(self, client: Client, admin: Admin, topic: str) -> None:
        namespace = "/namespaces/public/" + topic.rpartition("/")[2]
        topic = f"persistent://public/{topic.rpartition('/')[2]}/topic"
        admin.put(namespace)
        with client.create_producer(topic) as producer:
            producer.send(b"")
            admin.post(f"{namespace}/autoTopicCreation", {"allowAutoTopicCreation": False})
            admin.delete(f"/{topic.replace('://', '/')}?force=true")
            results: list[Result] = []
            with suppress(pulsar_fast.TopicNotFound):
                producer.send_async(b"", lambda result, _: results.append(result))
                producer.flush(10)
            assert results == [Result.TopicNotFound]
            with pytest.raises(pulsar_fast.TopicNotFound):
                producer.send(b"")

    def test_a_name_that_is_taken(self, client: Client, service_url: str, topic: str) -> None:
        with client.create_producer(topic, producer_name="mine") as producer, Client(service_url) as second:
            started = time.monotonic()
            with pytest.raises(pulsar_fast.ProducerBusy, match="mine"):
                second.create_producer(topic, producer_name="mine")
            assert time.monotonic() - started < 2
            producer.send(b"not disturbed")
            assert producer.stats().reconnects == 0

    def test_a_namespace_that_is_missing(self, client: Client) -> None:
        started = time.monotonic()
        with pytest.raises(pulsar_fast.TopicNotFound, match="Namespace not found"):
            client.create_producer("persistent://public/nowhere/topic")
        assert time.monotonic() - started < 2
