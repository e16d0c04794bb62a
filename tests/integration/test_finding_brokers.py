"""The broker that serves a topic is found: from any broker, by either protocol, as it moves or dies."""

import logging
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

from pulsar_fast import Client, LookupError, Producer, ServiceUnitNotReady
from pulsar_fast.connection import Connection
from pulsar_fast.wire.messages import BaseCommand, CommandLookupTopicResponse
from tests.brokers import apache, unavailable
from tests.brokers.apache import ApacheBroker
from tests.brokers.cluster import Cluster
from tests.brokers.readback import Subscription
from tests.outages.scenarios import moves

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]

_LOAD_MANAGERS = {
    "names the owner": "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
    "redirects": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
}


@pytest.fixture(scope="module", params=_LOAD_MANAGERS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if (reason := apache.available()) is not None:
        unavailable(reason)
    with Cluster({"loadManagerClassName": _LOAD_MANAGERS[request.param]}) as cluster:
        yield cluster


@pytest.fixture
def topics(cluster: Cluster) -> list[str]:
    """In namespaces of one bundle each, so that every one can be moved alone; both brokers serve some."""
    topics = [f"persistent://public/find-{uuid.uuid4().hex[:8]}/t" for _ in range(4)]
    for topic in topics:
        cluster.admin.put(f"/namespaces/{topic[13:-2]}", {"bundles": {"numBundles": 1}})
    if len({cluster.admin.owner(topic) for topic in topics}) == 1:
        cluster.move(topics[0])
    assert len({cluster.admin.owner(topic) for topic in topics}) == 2
    return topics


class Conversation:
    """The look-ups of this process: what was asked where, and what was answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, bool]] = []
        self.answers: list[CommandLookupTopicResponse] = []
        request = Connection.request

        def note(connection: Connection, request_id: int, command: BaseCommand, on_reply: Any) -> None:
            if command.type != BaseCommand.LOOKUP:
                request(connection, request_id, command, on_reply)
                return
            self.asked.append((f"pulsar://{connection.address}", command.lookupTopic.authoritative))

            def note_reply(reply: Any) -> None:
                if isinstance(reply, BaseCommand):
                    self.answers.append(reply.lookupTopicResponse)
                on_reply(reply)

            request(connection, request_id, command, note_reply)

        monkeypatch.setattr(Connection, "request", note)


@pytest.fixture
def conversation(monkeypatch: pytest.MonkeyPatch) -> Conversation:
    return Conversation(monkeypatch)


def serves(cluster: Cluster, topic: str, producer: Producer) -> bool:
    """Whether the broker that owns a topic knows the producer."""
    publishers = cluster.admin.get(f"/{topic.replace('://', '/')}/stats")["publishers"]
    return producer.producer_name() in {publisher["producerName"] for publisher in publishers}


def test_from_any_broker(cluster: Cluster, topics: list[str], conversation: Conversation) -> None:
    for url in cluster.broker_urls:
        with Client(url) as client:
            for topic in topics:
                conversation.asked.clear()
                conversation.answers.clear()
                with client.create_producer(topic) as producer:
                    producer.send(b"x")
                    assert serves(cluster, topic, producer)
                last = conversation.answers[-1]
                assert (last.response, last.brokerServiceUrl) == (
                    CommandLookupTopicResponse.Connect,
                    cluster.admin.owner(topic),
                )
                assert conversation.asked[0] == (url, False)
                redirects = conversation.answers[:-1]
                assert {answer.response for answer in redirects} <= {CommandLookupTopicResponse.Redirect}
                assert conversation.asked[1:] == [
                    (answer.brokerServiceUrl, answer.authoritative) for answer in redirects
                ]


def test_over_http(cluster: Cluster, topics: list[str], conversation: Conversation) -> None:
    for url in cluster.broker_urls:
        with Client(cluster.web_url(url)) as client:
            for topic in topics:
                with client.create_producer(topic) as producer:
                    producer.send(b"x")
                    assert serves(cluster, topic, producer)
    assert conversation.asked == []


def test_moved_to_and_fro(
    cluster: Cluster, conversation: Conversation, request: pytest.FixtureRequest
) -> None:
    reports = moves(cluster, 4)
    assert {report.producer: report.verdict.complaints() for report in reports} == {
        report.producer: [] for report in reports
    }
    assert [report.producer for report in reports if report.reconnects < 4] == []
    redirected = [answer.response == CommandLookupTopicResponse.Redirect for answer in conversation.answers]
    assert any(redirected) == ("redirects" in request.node.name)


def test_the_owner_is_killed(cluster: Cluster, topics: list[str]) -> None:
    """The last test with this cluster."""
    owner = cluster.admin.owner(topics[0])
    (other,) = (url for url in cluster.broker_urls if url != owner)
    reader = pulsar.Client(other, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    urls = [f"{owner},{other.removeprefix('pulsar://')}", cluster.web_url(other)]
    clients = [Client(url, max_backoff_interval_ms=1000) for url in urls]
    try:
        subscriptions = [Subscription(reader, topic) for topic in topics]
        producers = [
            client.create_producer(topic, send_timeout_millis=0) for topic in topics for client in clients
        ]
        for producer in producers:
            producer.send(b"before")
        cluster.kill(owner)
        for producer in producers:
            producer.send(b"after")
        for subscription in subscriptions:
            # What the reader had acknowledged at the killed broker may come again, so ids count.
            messages = {message.message_id: message.data for message in subscription.read_all(timeout=60)}
            assert sorted(messages.values()) == [b"after"] * 2 + [b"before"] * 2
    finally:
        for client in clients:
            client.shutdown()
        reader.shutdown()


# --- listeners


@pytest.fixture(scope="module")
def two_listeners() -> Iterator[ApacheBroker]:
    if (reason := apache.available()) is not None:
        unavailable(reason)
    with ApacheBroker(two_listeners=True) as broker:
        yield broker


def connected_to(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records]
    return [match[1] for message in messages if (match := re.fullmatch("connected to (.*)", message))]


def test_the_listener_that_was_asked_for(
    two_listeners: ApacheBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """A standalone asks clients to stay on the port where they are, and to name the broker there."""
    caplog.set_level(logging.DEBUG, "pulsar_fast")
    port = two_listeners.service_url.removeprefix("pulsar://")
    external = two_listeners.external_url.removeprefix("pulsar://")
    names: dict[str | None, str] = {None: port, "internal": port, "external": external}
    for name, address in names.items():
        for url in (two_listeners.service_url, two_listeners.admin_url):
            caplog.clear()
            with (
                Client(url, listener_name=name) as client,
                client.create_producer(f"listeners-{name}") as producer,
            ):
                producer.send(b"x")
            over_http = url == two_listeners.admin_url
            expected = address if over_http or address == port else f"{port} (proxy of {address})"
            assert connected_to(caplog)[-1] == expected


def test_a_listener_that_is_not_there(two_listeners: ApacheBroker) -> None:
    for url, kind in (
        (two_listeners.service_url, ServiceUnitNotReady),
        (two_listeners.admin_url, LookupError),
    ):
        with (
            Client(url, listener_name="nope", operation_timeout_seconds=2) as client,
            pytest.raises(kind, match="do not have nope listener"),
        ):
            client.create_producer("t")
