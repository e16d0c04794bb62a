"""The synchronous client and producer against real brokers: what is sent is what arrives, and what callers hear."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

import pulsar_fast
from pulsar_fast import Client, MessageId, Producer, Result
from tests.brokers.apache import ApacheBroker
from tests.brokers.peek import Entry, peek
from tests.brokers.readback import Received, Subscription

pytestmark = pytest.mark.broker
on_apache = pytest.mark.parametrize("service_url", ["apache"], indirect=True)
each_batching = pytest.mark.parametrize("batching_enabled", [False, True, None])

Subscribe = Callable[[str], Subscription]
ReadBack = Callable[[str, int], list[Received]]
Answer = tuple[Result, MessageId]

NEVER_MS = 60_000  # a batch that nothing else seals holds its test up: half the send timeout, 15 s
LARGEST = 102_400  # bytes, of `small_limit_broker`
NOWHERE = (-1, -1, -1, -1)


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url, operation_timeout_seconds=10) as client:
        yield client


@pytest.fixture(scope="module")
def small_limit_broker() -> Iterator[ApacheBroker]:
    """A broker that takes messages of at most `LARGEST` bytes."""
    with ApacheBroker({"maxMessageSize": LARGEST}) as broker:
        yield broker


def numbered(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


def data(messages: Iterable[Received]) -> list[bytes]:
    """What was stored, in order; pulsar-lite may deliver a stored message more than once."""
    return list({message.message_id: message.data for message in messages}.values())


def place(message_id: MessageId) -> tuple[int, int, int, int]:
    """A message id as `Received` shows it."""
    return message_id.ledger_id(), message_id.entry_id(), message_id.partition(), message_id.batch_index()


def collector() -> tuple[list[Answer], Callable[[Result, MessageId], None]]:
    """A list of answers, and a callback that adds to it."""
    answers: list[Answer] = []
    return answers, lambda result, message_id: answers.append((result, message_id))


def payloads(entry: Entry) -> list[bytes]:
    return [payload for _, payload in entry.messages()]


# What arrives


@each_batching
def test_contents_arrive_unchanged(
    client: Client, topic: str, read_back: ReadBack, batching_enabled: bool | None
) -> None:
    contents = [b"", b"x", bytes(range(256)), bytes(range(256)) * 4096, b"last"]
    with client.create_producer(topic, batching_enabled=batching_enabled) as producer:
        for content in contents:
            producer.send_async(content, None)
        producer.flush()
        assert data(read_back(topic, len(contents))) == contents


def test_20_000_messages_keep_their_order(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    with client.create_producer(topic, block_if_queue_full=True) as producer:
        for content in numbered(20_000):
            producer.send_async(content, None)
    assert data(subscription.read_all()) == numbered(20_000)


@each_batching
def test_metadata(
    client: Client, service_url: str, topic: str, read_back: ReadBack, batching_enabled: bool | None
) -> None:
    properties = {"city": "Zürich", "": "", "鍵": "値 🗝", "b": "2", "a": "1"}
    with client.create_producer(topic, batching_enabled=batching_enabled) as producer:
        for number in range(2):
            producer.send_async(
                b"%d" % number,
                None,
                properties=properties,
                partition_key=f"schlüssel {number}",
                ordering_key=f"order {number}",
                event_timestamp=1_700_000_000_000 + number,
            )
        producer.flush()
    received = read_back(topic, 2)
    assert [message.properties for message in received] == [properties] * 2
    assert [message.partition_key for message in received] == ["schlüssel 0", "schlüssel 1"]
    assert [message.ordering_key for message in received] == ["order 0", "order 1"]
    assert [message.event_timestamp for message in received] == [1_700_000_000_000, 1_700_000_000_001]
    now = time.time() * 1000
    assert all(now - 60_000 < message.publish_timestamp <= now + 1000 for message in received)


@each_batching
def test_falsy_arguments_are_honoured(
    client: Client, service_url: str, topic: str, batching_enabled: bool | None
) -> None:
    with client.create_producer(topic, batching_enabled=batching_enabled) as producer:
        producer.send(b"", partition_key="", ordering_key="", sequence_id=0, event_timestamp=0)
        producer.send(b"", properties={})
    falsy, plain = peek(service_url, topic, 2)
    ((metadata, _),) = falsy.messages()
    assert falsy.metadata["sequence_id"] == 0
    assert metadata["event_time"] == 0
    assert metadata["partition_key"] == ""
    assert metadata["ordering_key"] == b""
    assert (
        plain.messages()[0][0]
        .keys()
        .isdisjoint({"event_time", "partition_key", "ordering_key", "properties"})
    )


@each_batching
def test_a_tombstone_is_not_an_empty_message(
    client: Client, topic: str, read_back: ReadBack, batching_enabled: bool | None
) -> None:
    with client.create_producer(topic, batching_enabled=batching_enabled) as producer:
        for content in (None, b"", b"x", None):
            producer.send_async(content, None, partition_key="key")
        producer.flush()
    received = read_back(topic, 4)
    assert [message.null_value for message in received] == [True, False, False, True]
    assert data(received) == [b"", b"", b"x", b""]


@on_apache
@pytest.mark.parametrize("argument", ["deliver_at", "deliver_after"])
def test_delayed_delivery(
    client: Client, apache_broker: ApacheBroker, consumer_client: pulsar.Client, topic: str, argument: str
) -> None:
    namespace = topic.removeprefix("persistent://public/default/")
    apache_broker.admin.put(f"/namespaces/public/{namespace}")
    tick = {"active": True, "tickTime": 100}  # ms that the broker may be early
    apache_broker.admin.post(f"/namespaces/public/{namespace}/delayedDelivery", tick)
    topic = f"public/{namespace}/topic"
    consumer = consumer_client.subscribe(topic, "shared", consumer_type=pulsar.ConsumerType.Shared)
    with client.create_producer(topic, batching_max_publish_delay_ms=1) as producer:
        due = time.time() + 1.5
        delay = (
            {"deliver_at": int(due * 1000)}
            if argument == "deliver_at"
            else {"deliver_after": timedelta(seconds=1.5)}
        )
        producer.send_async(b"later", None, **delay)
        producer.send_async(b"past", None, deliver_at=0)
        producer.send_async(b"now", None)
        producer.flush()
    early = [consumer.receive(5000).data() for _ in range(2)]
    assert early == [b"past", b"now"]
    assert time.time() < due, "this machine is too slow to tell"
    assert consumer.receive(5000).data() == b"later"
    assert due - 0.2 < time.time()
    consumer.close()


# How it is stored


def test_without_batching_each_message_is_an_entry(client: Client, service_url: str, topic: str) -> None:
    with client.create_producer(topic, batching_enabled=False) as producer:
        assert producer.send_many(numbered(5)).result(10) == 5
    entries = peek(service_url, topic, 5)
    assert [payloads(entry) for entry in entries] == [[content] for content in numbered(5)]
    assert all("num_messages_in_batch" not in entry.metadata for entry in entries)


def test_with_batching_any_keys_share_a_batch(client: Client, service_url: str, topic: str) -> None:
    with client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=NEVER_MS
    ) as producer:
        for content in numbered(5):
            producer.send_async(content, None, partition_key=content.decode())
        producer.send_async(b"5", None)
        producer.flush()
    (entry,) = peek(service_url, topic, 1)
    assert payloads(entry) == numbered(6)


def test_by_default_a_batch_holds_one_key(client: Client, service_url: str, topic: str) -> None:
    keys = [*"aabba", None, None, "a"]
    with client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
        for number, key in enumerate(keys):
            producer.send_async(b"%d" % number, None, partition_key=key)
        producer.flush()
    entries = peek(service_url, topic, 5)
    stored = [(entry.metadata.get("partition_key"), payloads(entry)) for entry in entries]
    assert stored == [
        ("a", [b"0", b"1"]),
        ("b", [b"2", b"3"]),
        ("a", [b"4"]),
        (None, [b"5", b"6"]),
        ("a", [b"7"]),
    ]


@on_apache  # pulsar-lite lets one consumer of a Key_Shared subscription have everything
def test_by_default_keys_stay_with_their_consumer(
    client: Client, consumer_client: pulsar.Client, topic: str
) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [consumer_client.subscribe(topic, "shared", consumer_type=kind) for _ in range(2)]
    with client.create_producer(topic) as producer:
        for number in range(200):
            producer.send_async(b"%d" % number, None, partition_key=f"key {number % 20}")
        producer.flush()
    received: list[tuple[str, int, int]] = []
    deadline = time.monotonic() + 10
    while len(received) < 200 and time.monotonic() < deadline:
        for index, consumer in enumerate(consumers):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            received.append((message.partition_key(), int(message.data()), index))
    for consumer in consumers:
        consumer.close()
    for key in range(20):
        mine = [(number, index) for name, number, index in received if name == f"key {key}"]
        assert [number for number, _ in mine] == list(range(key, 200, 20))
        assert len({index for _, index in mine}) == 1
    assert {index for _, _, index in received} == {0, 1}


def test_replication_settings_share_no_batch(client: Client, service_url: str, topic: str) -> None:
    answers, callback = collector()
    with client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
        producer.send_async(b"0", callback)
        producer.send_async(b"1", callback, replication_clusters=["standalone"])
        producer.send_async(b"2", callback, replication_clusters=["standalone"], properties={"p": "q"})
        producer.send_async(b"3", callback, disable_replication=True)
        producer.send_async(b"4", callback)
        producer.send_async(b"5", callback, replication_clusters=[])
        producer.flush()
    entries = peek(service_url, topic, 5)
    assert [payloads(entry) for entry in entries] == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4", b"5"]]
    clusters = [entry.metadata.get("replicate_to") for entry in entries]
    assert clusters == [None, ["standalone"], ["standalone"], ["__local__"], None]
    assert [result for result, _ in answers] == [Result.Ok] * 6


def test_batches_end_where_they_are_told(client: Client, service_url: str, topic: str) -> None:
    with client.create_producer(
        topic,
        batching_max_messages=4,
        batching_max_allowed_size_in_bytes=1000,
        batching_max_publish_delay_ms=NEVER_MS,
    ) as producer:
        sizes = [1] * 5 + [400] * 3 + [2000, 1]
        for size in sizes:
            producer.send_async(b"x" * size, None)
        producer.flush()
    entries = peek(service_url, topic, 5)
    assert [[len(payload) for payload in payloads(entry)] for entry in entries] == [
        [1] * 4,
        [1, 400, 400],
        [400],
        [2000],
        [1],
    ]


def test_a_batch_goes_after_its_delay(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    with client.create_producer(topic, batching_max_publish_delay_ms=300) as producer:
        started = time.monotonic()
        producer.send_async(b"message", None)
        subscription.read(1)
        assert 0.3 <= time.monotonic() - started < 2


# Names and numbers


@pytest.mark.parametrize("batching_enabled", [False, True])
def test_sequence_ids(client: Client, service_url: str, topic: str, batching_enabled: bool) -> None:
    with client.create_producer(
        topic, batching_enabled=batching_enabled, batching_max_publish_delay_ms=NEVER_MS
    ) as producer:
        assert producer.last_sequence_id() == -1
        for sequence_id in (None, 10, None, 100, None, 50, None):
            producer.send_async(b"", None, sequence_id=sequence_id)
        producer.flush()
        assert producer.last_sequence_id() == 102
    entries = peek(service_url, topic, 3 if batching_enabled else 7)
    stored = [[metadata["sequence_id"] for metadata, _ in entry.messages()] for entry in entries]
    replayed_alone = [[0, 10, 11, 100, 101], [50], [102]]
    assert stored == (replayed_alone if batching_enabled else [[0], [10], [11], [100], [101], [50], [102]])
    if batching_enabled:
        assert entries[0].metadata["sequence_id"] == 0
        assert entries[0].metadata["highest_sequence_id"] == 101


@pytest.mark.parametrize("initial_sequence_id", [0, 5])
def test_initial_sequence_id(client: Client, service_url: str, topic: str, initial_sequence_id: int) -> None:
    with client.create_producer(topic, initial_sequence_id=initial_sequence_id) as producer:
        producer.send(b"")
        assert producer.last_sequence_id() == initial_sequence_id + 1
    (entry,) = peek(service_url, topic, 1)
    assert entry.metadata["sequence_id"] == initial_sequence_id + 1


def test_producer_names(client: Client, topic: str, read_back: ReadBack) -> None:
    with (
        client.create_producer(topic, producer_name="given ñ") as given,
        client.create_producer(topic) as chosen,
    ):
        assert given.producer_name() == "given ñ"
        assert chosen.producer_name()
        given.send(b"")
        chosen.send(b"")
        names = [message.producer_name for message in read_back(topic, 2)]
        assert names == ["given ñ", chosen.producer_name()]


def test_topic_and_connection(client: Client, topic: str) -> None:
    short = topic.removeprefix("persistent://public/default/")
    producer = client.create_producer(short)
    assert producer.topic() == topic
    assert producer.is_connected()
    producer.close()
    assert not producer.is_connected()


@on_apache
def test_producer_properties_reach_the_broker(
    client: Client, apache_broker: ApacheBroker, topic: str
) -> None:
    properties = {"owner": "Zoë", "empty": ""}
    with client.create_producer(topic, producer_name="mine", properties=properties):
        path = topic.removeprefix("persistent://")
        (publisher,) = apache_broker.admin.get(f"/persistent/{path}/stats")["publishers"]
    assert publisher["producerName"] == "mine"
    assert publisher["metadata"] == properties
    assert publisher["clientVersion"].lower().startswith("pulsar_fast")


@on_apache
def test_sequence_ids_go_on_where_a_name_left_off(
    client: Client, apache_broker: ApacheBroker, topic: str
) -> None:
    namespace = topic.removeprefix("persistent://public/default/")
    apache_broker.admin.put(f"/namespaces/public/{namespace}")
    apache_broker.admin.post(f"/namespaces/public/{namespace}/deduplication", True)
    topic = f"public/{namespace}/topic"
    with client.create_producer(topic, producer_name="mine") as producer:
        producer.send(b"", sequence_id=7)
    with client.create_producer(topic, producer_name="mine") as producer:
        assert place(producer.send(b"")) != NOWHERE
        assert producer.last_sequence_id() == 8


def test_stats(client: Client, topic: str) -> None:
    with client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
        for _ in range(3):
            producer.send_async(b"four", None)
        waiting = producer.stats()
        assert (waiting.accepted, waiting.acknowledged, waiting.pending_messages) == (3, 0, 3)
        assert waiting.client_pending_bytes >= 12
        producer.flush()
        stats = producer.stats()
    assert (stats.accepted, stats.acknowledged, stats.pending_messages) == (3, 3, 0)
    assert stats.acknowledged_bytes >= 12
    assert stats.client_pending_bytes == 0
    assert 0 < stats.latency_p50_ms <= stats.latency_p99_ms <= stats.latency_p999_ms < 10_000
    nothing = (stats.failed, stats.expired, stats.duplicates, stats.dropped, stats.late, stats.resent)
    assert nothing == (0,) * 6
    assert (stats.reconnects, stats.last_connection_error) == (0, None)


# Message ids


@each_batching
def test_message_ids_are_those_that_consumers_see(
    client: Client, topic: str, read_back: ReadBack, batching_enabled: bool | None
) -> None:
    answers, callback = collector()
    with client.create_producer(topic, batching_enabled=batching_enabled) as producer:
        for content in numbered(10):
            producer.send_async(content, callback)
        producer.flush()
        alone = producer.send(b"10")
        handle = producer.send_many(numbered(10))
        assert handle.result(10) == 10
    ids = (
        [message_id for _, message_id in answers]
        + [alone]
        + [message_id for _, message_id in handle.message_ids()]
    )
    received = read_back(topic, 21)
    assert [place(message_id) for message_id in ids] == [message.message_id for message in received]
    assert all(earlier < later for earlier, later in pairwise(ids))
    assert (handle.first, handle.last) == (ids[11], ids[20])


@each_batching
def test_message_ids_serialize_as_the_official_clients_do(
    client: Client, consumer_client: pulsar.Client, topic: str, batching_enabled: bool | None
) -> None:
    consumer = consumer_client.subscribe(
        topic,
        "ids",
        consumer_type=pulsar.ConsumerType.Shared,  # pulsar-lite's Exclusive delivers entries again
        initial_position=pulsar.InitialPosition.Earliest,
    )
    answers, callback = collector()
    with client.create_producer(topic, batching_enabled=batching_enabled) as producer:
        for content in numbered(3):
            producer.send_async(content, callback)
        producer.flush()
    official = consumer_client.create_producer(topic, batching_enabled=bool(batching_enabled))
    theirs = official.send(b"3").serialize()
    official.close()
    ours = [message_id.serialize() for _, message_id in answers]
    consumed = [consumer.receive(5000).message_id().serialize() for _ in range(4)]
    consumer.close()
    assert [*ours, theirs] == consumed
    for (_, message_id), serialized in zip(answers, ours, strict=True):
        assert MessageId.deserialize(serialized) == message_id
        assert pulsar.MessageId.deserialize(serialized).serialize() == serialized
    assert MessageId.deserialize(theirs).serialize() == theirs


# Sending


def test_send_does_not_wait_for_the_batch(client: Client, topic: str, read_back: ReadBack) -> None:
    with client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
        producer.send_async(b"0", None)
        started = time.monotonic()
        producer.send(b"1")
        assert time.monotonic() - started < 5
        assert data(read_back(topic, 2)) == [b"0", b"1"]


def test_contents_are_those_at_the_time_of_the_call(client: Client, topic: str, read_back: ReadBack) -> None:
    content = bytearray(b"before")
    with client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS) as producer:
        producer.send_async(content, None)
        producer.send_async(memoryview(content)[2:4], None)
        content[:] = b"after!"
        producer.flush()
    assert data(read_back(topic, 2)) == [b"before", b"fo"]


def test_callbacks_run_once_in_order_with_their_ids(client: Client, topic: str) -> None:
    answers: list[tuple[int, Result, MessageId]] = []
    threads = set()

    def tell(number: int) -> Callable[[Result, MessageId], None]:
        def callback(result: Result, message_id: MessageId) -> None:
            threads.add(threading.get_ident())
            answers.append((number, result, message_id))

        return callback

    with client.create_producer(topic, max_pending_messages=0) as producer:
        for number in range(3000):
            producer.send_async(b"%d" % number, tell(number))
        producer.flush()
    assert [number for number, _, _ in answers] == list(range(3000))
    assert {result for _, result, _ in answers} == {Result.Ok}
    assert len({message_id for _, _, message_id in answers}) == 3000
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


@pytest.mark.parametrize(
    "make",
    [
        list,
        tuple,
        iter,
        lambda contents: (content for content in contents),
        lambda contents: map(bytes, contents),
    ],
    ids=["list", "tuple", "iterator", "generator", "map"],
)
def test_send_many_takes_any_iterable(
    client: Client, topic: str, subscribe: Subscribe, make: Callable[[list[bytes]], Iterable[bytes]]
) -> None:
    subscription = subscribe(topic)
    with client.create_producer(topic) as producer:
        handle = producer.send_many(make(numbered(100)), properties={"a": "b"}, partition_key="key")
        assert handle.result(10) == handle.count == 100
        assert handle.is_done()
        assert handle.errors == {}
    received = subscription.read_all()
    assert data(received) == numbered(100)
    assert {message.partition_key for message in received} == {"key"}
    assert all(message.properties == {"a": "b"} for message in received)


def test_send_many_takes_any_buffer(client: Client, topic: str, read_back: ReadBack) -> None:
    with client.create_producer(topic) as producer:
        elements = [b"bytes", bytearray(b"bytearray"), memoryview(b"a memoryview")[2:], None, b""]
        assert producer.send_many(elements).result(10) == 5
        assert producer.send_many([]).result(10) == 0
    received = read_back(topic, 5)
    assert data(received) == [b"bytes", b"bytearray", b"memoryview", b"", b""]
    assert [message.null_value for message in received] == [False, False, False, True, False]


def test_send_many_bad_elements_fail_at_their_index(client: Client, topic: str, read_back: ReadBack) -> None:
    with client.create_producer(topic) as producer:
        elements: list[Any] = [b"0", "text", b"2", 3, memoryview(b"4 4 4")[::2], b"5", bytes(6 << 20), b"7"]
        handle = producer.send_many(elements)
        with pytest.raises(TypeError, match="str"):
            handle.result(10)
    assert handle.count == 8
    kinds = {index: type(error) for index, error in handle.errors.items()}
    assert kinds == {1: TypeError, 3: TypeError, 4: ValueError, 6: pulsar_fast.MessageTooBig}
    received = read_back(topic, 4)
    assert data(received) == [b"0", b"2", b"5", b"7"]
    ids = {index: place(message_id) for index, message_id in handle.message_ids()}
    assert ids == dict(zip([0, 2, 5, 7], [message.message_id for message in received], strict=True))


def test_send_many_of_an_input_that_raises(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)

    def contents() -> Iterator[bytes]:
        yield from numbered(50)
        raise KeyError("the input")

    with client.create_producer(topic) as producer:
        with pytest.raises(KeyError, match="the input") as caught:
            producer.send_many(contents())
        handle: Any = caught.value.handle  # type: ignore[attr-defined]
        assert handle.result(10) == 50
    assert data(subscription.read_all()) == numbered(50)


@pytest.mark.parametrize(
    "arguments",
    [
        {"properties": {"a": 1}},
        {"partition_key": b"key"},
        {"event_timestamp": -1},
        {"replication_clusters": "cluster"},
        {"disable_replication": 1},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_send_many_checks_its_arguments_first(client: Client, topic: str, arguments: dict[str, Any]) -> None:
    contents = iter(numbered(3))
    with client.create_producer(topic) as producer:
        with pytest.raises((TypeError, ValueError), match=next(iter(arguments))):
            producer.send_many(contents, **arguments)
        assert next(contents) == b"0", "the input was touched"
        assert producer.stats().accepted == 0


def test_send_many_waits_for_room(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    most = 0

    def contents() -> Iterator[bytes]:
        nonlocal most
        for content in numbered(10_000):
            most = max(most, producer.stats().pending_messages)
            yield content

    with client.create_producer(topic, max_pending_messages=10) as producer:
        assert producer.send_many(contents()).result(30) == 10_000
    assert most == 10
    assert data(subscription.read_all()) == numbered(10_000)


def test_threads_keep_their_own_order(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=500)
    ids: dict[int, list[MessageId]] = {}

    def send(thread: int) -> None:
        for number in range(1000):
            producer.send_async(b"%d %d" % (thread, number), None)
            if number % 200 == 0:
                ids.setdefault(thread, []).append(producer.send(b"%d sync" % thread))

    senders = [threading.Thread(target=send, args=(thread,)) for thread in range(8)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    producer.close()
    received = data(subscription.read_all())
    assert len(received) == 8 * 1005
    for thread in range(8):
        mine = [content for content in received if content.startswith(b"%d " % thread)]
        assert [content for content in mine if b"sync" not in content] == [
            b"%d %d" % (thread, number) for number in range(1000)
        ]
        assert [mine.index(b"%d %d" % (thread, number)) for number in (0, 200, 400, 600, 800)] == [
            index - 1 for index, content in enumerate(mine) if b"sync" in content
        ]
        assert ids[thread] == sorted(ids[thread])


# Room


@pytest.mark.parametrize(
    ("limit", "size", "error"),
    [
        ({"max_pending_messages": 3}, 1, pulsar_fast.ProducerQueueIsFull),
        ({"memory_limit_bytes": 10_000}, 3_000, pulsar_fast.MemoryBufferIsFull),
    ],
    ids=["messages", "memory"],
)
class TestFull:
    """Three messages fit, the fourth does not."""

    @pytest.fixture
    def full(
        self, service_url: str, topic: str, limit: dict[str, Any], size: int, block: bool
    ) -> Iterator[tuple[Producer, list[Answer]]]:
        """A producer with three messages in an open batch, and their answers."""
        of_client = {name: value for name, value in limit.items() if name == "memory_limit_bytes"}
        of_producer = {name: value for name, value in limit.items() if name not in of_client}
        with Client(service_url, operation_timeout_seconds=10, **of_client) as client:
            producer = client.create_producer(
                topic, batching_max_publish_delay_ms=NEVER_MS, block_if_queue_full=block, **of_producer
            )
            answers, callback = collector()
            for _ in range(3):
                producer.send_async(bytes(size), callback)
            yield producer, answers

    @pytest.mark.parametrize("block", [False])
    def test_refuses(
        self, full: tuple[Producer, list[Answer]], size: int, error: type[pulsar_fast.PulsarException]
    ) -> None:
        producer, answers = full
        refused, callback = collector()
        with pytest.raises(error):
            producer.send_async(bytes(size), None)
        producer.flush()  # the refusal has sealed the batch, so that room comes soon
        for _ in range(3):
            producer.send_async(bytes(size), callback)
        producer.send_async(bytes(size), callback)
        assert [(result, place(message_id)) for result, message_id in refused] == [(error.result, NOWHERE)]
        producer.flush()
        with pytest.raises(error):
            for _ in range(4):
                producer.send_async(bytes(size), None)
        producer.flush()
        assert [result for result, _ in answers] == [Result.Ok] * 3
        stats = producer.stats()
        assert (stats.accepted, stats.acknowledged, stats.failed) == (9, 9, 0)

    @pytest.mark.parametrize("block", [True])
    def test_waits(
        self, full: tuple[Producer, list[Answer]], size: int, error: type[pulsar_fast.PulsarException]
    ) -> None:
        producer, answers = full
        started = time.monotonic()
        for _ in range(20):
            producer.send_async(bytes(size), lambda *answer: answers.append(answer))
        producer.send(bytes(size))
        producer.flush()
        assert time.monotonic() - started < 10
        assert [result for result, _ in answers] == [Result.Ok] * 23

    @pytest.mark.parametrize("block", [True])
    def test_a_callback_cannot_wait(
        self, full: tuple[Producer, list[Answer]], size: int, error: type[pulsar_fast.PulsarException]
    ) -> None:
        producer, _ = full
        producer.flush()
        refused: list[BaseException | Result] = []

        def send_more(result: Result, message_id: MessageId) -> None:
            for _ in range(4):
                producer.send_async(bytes(size), lambda result, _: refused.append(result))
            for wait in (producer.flush, lambda: producer.send(b""), producer.close):
                try:
                    wait()
                except RuntimeError as error:
                    refused.append(error)

        producer.send_async(b"", send_more)
        producer.flush()
        producer.flush()
        kinds = [entry if isinstance(entry, Result) else type(entry) for entry in refused]
        assert kinds == [Result.ProducerQueueIsFull, *[RuntimeError] * 3, *[Result.Ok] * 3]


def test_threads_that_wait_for_room_are_not_held_up_by_a_batch(client: Client, topic: str) -> None:
    with client.create_producer(
        topic, max_pending_messages=2, block_if_queue_full=True, batching_max_publish_delay_ms=NEVER_MS
    ) as producer:

        def send() -> None:
            for _ in range(20):
                producer.send_async(b"", None)

        threads = [threading.Thread(target=send) for _ in range(6)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        waited = time.monotonic() - started
        producer.close()  # ends those that still wait
        for thread in threads:
            thread.join(10)
        assert waited < 10
        assert producer.stats().acknowledged == 120


@pytest.mark.parametrize("block", [False, True])
def test_a_message_above_the_whole_memory_limit(service_url: str, topic: str, block: bool) -> None:
    with Client(service_url, memory_limit_bytes=10_000) as client:
        producer = client.create_producer(topic, block_if_queue_full=block)
        answers, callback = collector()
        started = time.monotonic()
        producer.send_async(bytes(10_001), callback)
        assert [result for result, _ in answers] == [Result.MemoryBufferIsFull]
        with pytest.raises(pulsar_fast.MemoryBufferIsFull):
            producer.send_async(bytes(10_001), None)
        with pytest.raises(pulsar_fast.MemoryBufferIsFull):
            producer.send(bytes(10_001))
        assert time.monotonic() - started < 1
        assert place(producer.send(bytes(9_000))) != NOWHERE


# Flush and close


def test_flush_ends_after_the_last_receipt(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    answers, callback = collector()
    with client.create_producer(
        topic, max_pending_messages=0, batching_max_publish_delay_ms=NEVER_MS
    ) as producer:
        producer.flush()
        for round_number in range(1, 4):
            for _ in range(1500):
                producer.send_async(b"x", callback)
            producer.flush(timeout=10)
            assert len(answers) == 1500 * round_number
            assert producer.stats().pending_messages == 0
    assert len(subscription.read_all()) == 4500


def test_close_sends_what_is_pending(client: Client, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    answers, callback = collector()
    producer = client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS)
    for content in numbered(500):
        producer.send_async(content, callback)
    producer.close()
    assert [result for result, _ in answers] == [Result.Ok] * 500
    assert data(subscription.read_all()) == numbered(500)
    producer.close()


def test_closing_the_client_sends_what_is_pending(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    client = Client(service_url)
    producers = [client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS) for _ in range(3)]
    for producer in producers:
        producer.send_async(b"pending", None)
    client.close()
    assert data(subscription.read_all()) == [b"pending"] * 3
    assert not any(producer.is_connected() for producer in producers)
    for producer in producers:
        producer.close()
    client.close()
    with pytest.raises(pulsar_fast.AlreadyClosed):
        client.create_producer(topic)


def test_context_managers_close(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    with (
        pytest.raises(ZeroDivisionError),
        Client(service_url) as client,
        client.create_producer(topic) as producer,
    ):
        producer.send_async(b"sent all the same", None)
        raise ZeroDivisionError
    assert data(subscription.read_all()) == [b"sent all the same"]
    with pytest.raises(pulsar_fast.AlreadyClosed):
        producer.send(b"")


def test_nothing_is_accepted_after_close(client: Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.close()
    answers, callback = collector()
    producer.send_async(b"", callback)
    assert [(result, place(message_id)) for result, message_id in answers] == [
        (Result.AlreadyClosed, NOWHERE)
    ]
    for send in (
        lambda: producer.send(b""),
        lambda: producer.send_async(b"", None),
        lambda: producer.send_many([b""]),
        producer.flush,
    ):
        with pytest.raises(pulsar_fast.AlreadyClosed):
            send()


def test_shutdown_fails_what_is_pending(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    client = Client(service_url)
    producer = client.create_producer(topic, batching_max_publish_delay_ms=NEVER_MS)
    answers, callback = collector()
    for _ in range(3):
        producer.send_async(b"never sent", callback)
    handle = producer.send_many([b"never sent"])
    client.shutdown()
    client.shutdown()
    assert [(result, place(message_id)) for result, message_id in answers] == [
        (Result.AlreadyClosed, NOWHERE)
    ] * 3
    with pytest.raises(pulsar_fast.AlreadyClosed):
        handle.result(1)
    with pytest.raises(pulsar_fast.AlreadyClosed):
        producer.send(b"")
    assert subscription.read_all() == []


def test_close_wakes_those_who_wait_for_room(client: Client, topic: str) -> None:
    with client.create_producer(
        topic, max_pending_messages=1, block_if_queue_full=True, batching_max_publish_delay_ms=NEVER_MS
    ) as producer:
        errors: list[BaseException] = []

        def send_until_closed() -> None:
            try:
                while True:
                    producer.send_async(b"", None)
            except pulsar_fast.AlreadyClosed as error:
                errors.append(error)

        threads = [threading.Thread(target=send_until_closed) for _ in range(4)]
        for thread in threads:
            thread.start()
        producer.close()
        for thread in threads:
            thread.join(5)
        assert len(errors) == 4


# Sizes around the broker's limit


@pytest.mark.parametrize("properties", [None, {"name": "value " * 20}], ids=["plain", "properties"])
@pytest.mark.parametrize("batching_enabled", [False, None])
def test_sizes_around_the_limit(
    small_limit_broker: ApacheBroker,
    topic: str,
    batching_enabled: bool | None,
    properties: dict[str, str] | None,
) -> None:
    sizes = range(LARGEST - 200, LARGEST + 2)
    results: dict[int, Result] = {}
    small, callback = collector()
    official = pulsar.Client(
        small_limit_broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    subscription = Subscription(official, topic)
    with Client(small_limit_broker.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=batching_enabled, block_if_queue_full=True)
        for size in sizes:

            def tell(result: Result, message_id: MessageId, size: int = size) -> None:
                results[size] = result

            producer.send_async(bytes(size), tell, properties=properties)
            producer.send_async(b"small", callback)
        producer.flush()
        assert producer.stats().reconnects == 0
    delivered = [size for size in sizes if results[size] == Result.Ok]
    refused = [size for size in sizes if results[size] == Result.MessageTooBig]
    assert sorted([*delivered, *refused]) == list(sizes)
    assert delivered
    assert refused
    assert max(delivered) < min(refused)
    assert [result for result, _ in small] == [Result.Ok] * len(sizes)
    received = [len(content) for content in data(subscription.read_all()) if content != b"small"]
    assert received == delivered
    official.close()


@pytest.mark.parametrize("batching_enabled", [False, None])
def test_only_the_message_that_is_too_big_fails(
    small_limit_broker: ApacheBroker, topic: str, batching_enabled: bool | None
) -> None:
    answers, callback = collector()
    with Client(small_limit_broker.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=batching_enabled)
        for size in (1, LARGEST + 1, 2):
            producer.send_async(bytes(size), callback)
        producer.flush()
        with pytest.raises(pulsar_fast.MessageTooBig):
            producer.send(bytes(LARGEST + 1))
    assert [result for result, _ in answers] == [Result.MessageTooBig, Result.Ok, Result.Ok]
    entries = peek(small_limit_broker.service_url, topic, 1 if batching_enabled is None else 2)
    assert [len(payload) for entry in entries for payload in payloads(entry)] == [1, 2]
