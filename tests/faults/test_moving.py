"""Going to another cluster: by the caller, by whoever names clusters, and because a topic has migrated."""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import (
    AlreadyClosed,
    AuthenticationToken,
    AutoClusterFailover,
    Client,
    ConnectError,
    Result,
    ServiceInfo,
    ServiceInfoProvider,
)
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers import frames
from tests.brokers.frames import Frame
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripted_http import scripted_http
from tests.waiting import until

MakeClient = Callable[..., Any]


@pytest.fixture
def other() -> Iterator[ScriptedBroker]:
    """A broker of another cluster."""
    with ScriptedBroker() as broker:
        yield broker


def names(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def send_all(producer: Any, payloads: list[bytes], outcomes: Outcomes) -> None:
    for payload in payloads:
        producer.send_async(payload, outcomes.of(payload))


# --- by the caller


def test_what_is_pending_moves_along(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(broker.url)
    producers = [client.create_producer(topic, batching_enabled=False) for topic in ("a", "b")]
    broker.hold_receipts()
    outcomes = [Outcomes(), Outcomes()]
    for producer, own in zip(producers, outcomes, strict=True):
        send_all(producer, names(20), own)
    broker.wait_for(lambda b: len(b.payloads) == 40)
    client.update_service_url(other.url)
    assert client.get_service_info().service_url == other.url
    for producer, own in zip(producers, outcomes, strict=True):
        send_all(producer, names(20, 20), own)
        own.wait_for(40)
        assert own.names == names(40)
        assert set(own.results.values()) == {Result.Ok}
    by_producer = {
        frame.command.producer.producer_id: [
            send.messages[0].payload
            for send in other.sends
            if send.command.send.producer_id == frame.command.producer.producer_id
        ]
        for frame in other.got(BaseCommand.PRODUCER)
    }
    assert list(by_producer.values()) == [names(40)] * 2
    assert not any(link.is_open for link in broker.links)


def test_credentials_and_trust_of_a_service_info(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(broker.url, authentication=AuthenticationToken("first"))
    producer = client.create_producer("t")
    client.update_service_url(ServiceInfo(other.url, AuthenticationToken("second")))
    producer.send(b"x")
    client.update_service_url(broker.url)  # a URL alone leaves the credentials
    producer.send(b"y")
    client.update_service_url(ServiceInfo(other.url))
    producer.send(b"z")
    connects = [
        frame.command.connect for frame in (*broker.got(BaseCommand.CONNECT), *other.got(BaseCommand.CONNECT))
    ]
    assert [(connect.auth_method_name, connect.auth_data) for connect in connects] == [
        ("token", b"first"),
        ("token", b"second"),
        ("token", b"second"),
        ("none", b""),
    ]


def test_the_same_again_changes_nothing(broker: ScriptedBroker, make_client: MakeClient) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t")
    client.update_service_url(broker.url)
    producer.send(b"x")
    assert len(broker.links) == 1
    assert producer.stats().reconnects == 0


def test_from_a_cluster_that_is_down(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    """However long the producers would wait before their next attempt there."""
    client = make_client(broker.url, initial_backoff_interval_ms=60_000, max_backoff_interval_ms=60_000)
    producer = client.create_producer("t", send_timeout_millis=0)
    broker.go_down()
    outcomes = Outcomes()
    send_all(producer, names(3), outcomes)
    until(lambda: producer.stats().reconnects == 1)
    client.update_service_url(other.url)
    outcomes.wait_for(3)
    assert other.payloads == names(3)


@pytest.mark.parametrize("stuck_at", ["dialling", "look-up", "registration"])
def test_while_a_producer_is_being_created(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient, stuck_at: str
) -> None:
    client = make_client(broker.url)
    {"dialling": broker.on_connect, "look-up": broker.on_lookup, "registration": broker.on_producer}[
        stuck_at
    ]().say_nothing()
    kind = {
        "dialling": BaseCommand.CONNECT,
        "look-up": BaseCommand.LOOKUP,
        "registration": BaseCommand.PRODUCER,
    }
    created: list[Any] = []
    thread = threading.Thread(target=lambda: created.append(client.create_producer("t")))
    thread.start()
    broker.wait_for(lambda b: b.got(kind[stuck_at]))
    client.update_service_url(other.url)
    thread.join(10)
    created[0].send(b"x")
    assert other.payloads == [b"x"]


def test_while_a_look_up_over_http_hangs(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    """It has no connection of the cluster's that could end."""
    with scripted_http() as web:
        web.script = lambda target: None
        client = make_client(web.url, operation_timeout_seconds=30)
        creating = threading.Thread(target=lambda: client.create_producer("t").send(b"x"))
        creating.start()
        until(lambda: web.requests)
        client.update_service_url(other.url)
        creating.join(10)
        assert other.payloads == [b"x"]


def test_to_a_cluster_that_is_down(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    other.go_down()
    client = make_client(broker.url)
    producer = client.create_producer("t", send_timeout_millis=300)
    client.update_service_url(other.url)
    with pytest.raises(pulsar_fast.Timeout, match=f"{other.port}.*refused"):
        producer.send(b"x")
    client.update_service_url(broker.url)
    producer.send(b"y")
    assert broker.payloads == [b"y"]


def test_what_cannot_be_used(broker: ScriptedBroker, make_client: MakeClient) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t")
    for bad, kind, says in (
        ("nonsense", ValueError, "service_url 'nonsense' cannot be used"),
        (None, TypeError, "service_url must be a str or a pulsar_fast.ServiceInfo, not NoneType"),
        (ServiceInfo(broker.url, None, "/nowhere.pem"), ValueError, "tls_trust_certs_file_path is for TLS"),
        (ServiceInfo("pulsar+ssl://h", None, "/nowhere.pem"), ValueError, "/nowhere.pem.*cannot be used"),
    ):
        with pytest.raises(kind, match=says):
            client.update_service_url(bad)
    producer.send(b"x")
    assert len(broker.links) == 1
    client.close()
    with pytest.raises(AlreadyClosed):
        client.update_service_url("pulsar://elsewhere")


def test_closing_moves_along_too(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t")
    broker.hold_receipts()
    outcomes = Outcomes()
    send_all(producer, names(3), outcomes)
    closing = threading.Thread(target=producer.close)
    closing.start()
    broker.wait_for(lambda b: len(b.payloads) == 3)
    client.update_service_url(other.url)
    closing.join(10)
    assert outcomes.names == names(3)
    assert other.payloads == names(3)


def test_asyncio(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    async def main() -> None:
        async with pulsar_fast.asyncio.Client(broker.url, **QUICK) as client:
            assert client.get_service_info() == ServiceInfo(broker.url)
            producer = await client.create_producer("t")
            broker.hold_receipts()
            sends = [asyncio.ensure_future(producer.send(name)) for name in names(5)]
            await asyncio.to_thread(broker.wait_for, lambda b: len(b.payloads) == 5)
            client.update_service_url(other.url)
            await asyncio.gather(*sends)
            assert client.get_service_info() == ServiceInfo(other.url)
        with pytest.raises(AlreadyClosed):
            client.update_service_url(broker.url)

    asyncio.run(main())
    assert other.payloads == names(5)


# --- by a provider


class Provider(ServiceInfoProvider):
    def __init__(self, first: Any) -> None:
        self.first = first
        self.calls: list[str] = []

    def initial_service_info(self) -> Any:
        self.calls.append("initial")
        return self.first

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        self.calls.append("initialize")
        self.update = on_service_info_update

    def close(self) -> None:
        self.calls.append("close")


def test_a_provider(broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient) -> None:
    provider = Provider(ServiceInfo(broker.url, AuthenticationToken("first")))
    client = make_client(provider)
    producer = client.create_producer("t")
    producer.send(b"x")
    thread = threading.Thread(target=provider.update, args=[ServiceInfo(other.url)])
    thread.start()
    thread.join()
    until(lambda: client.get_service_info() == ServiceInfo(other.url))
    producer.send(b"y")
    assert (broker.payloads, other.payloads) == ([b"x"], [b"y"])
    with pytest.raises(ValueError, match="up to its Provider"):
        client.update_service_url(broker.url)
    client.close()
    client.close()
    assert provider.calls == ["initial", "initialize", "close"]
    provider.update(ServiceInfo(broker.url))  # heard by nobody


def test_updates_that_cannot_be_used(broker: ScriptedBroker, make_client: MakeClient) -> None:
    provider = Provider(ServiceInfo(broker.url))
    producer = make_client(provider).create_producer("t")
    update: Any = provider.update
    with pytest.raises(TypeError, match=r"must be a pulsar_fast\.ServiceInfo, not str"):
        update(broker.url)
    with pytest.raises(ValueError, match="is for TLS"):
        update(ServiceInfo(broker.url, None, "ca.pem"))
    producer.send(b"x")
    assert len(broker.links) == 1


def test_an_update_from_a_callback_of_the_client(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    provider = Provider(ServiceInfo(broker.url))
    producer = make_client(provider).create_producer("t")
    producer.send_async(b"x", lambda *_: provider.update(ServiceInfo(other.url)))
    until(lambda: len(other.got(BaseCommand.PRODUCER)) == 1)
    producer.send(b"y")
    assert other.payloads == [b"y"]


class Failing(Provider):
    def __init__(self, first: Any, at: str) -> None:
        super().__init__(first)
        self.at = at

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        super().initialize(on_service_info_update)
        if self.at == "initialize":
            raise RuntimeError("as scripted")

    def close(self) -> None:
        super().close()
        if self.at == "close":
            raise RuntimeError("as scripted")


def test_a_provider_that_fails_at_once() -> None:
    provider = Failing(ServiceInfo("pulsar://h"), "initialize")
    with pytest.raises(RuntimeError, match="as scripted"):
        Client(provider)
    assert provider.calls == ["initial", "initialize", "close"]
    gc.collect()
    wrong: Any = Provider("pulsar://h")
    with pytest.raises(
        TypeError, match=r"initial_service_info\(\) returns must be a pulsar_fast.ServiceInfo"
    ):
        Client(wrong)


def test_a_provider_that_fails_to_close(
    broker: ScriptedBroker, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    client = make_client(Failing(ServiceInfo(broker.url), "close"))
    client.create_producer("t").send(b"x")
    client.close()
    assert "closing the ServiceInfoProvider failed" in caplog.text


def test_a_provider_keeps_no_client_alive(broker: ScriptedBroker) -> None:
    provider = Provider(ServiceInfo(broker.url))
    client = Client(provider, **QUICK)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del client
    gc.collect()
    until(lambda: provider.calls == ["initial", "initialize", "close"])


def test_a_provider_with_asyncio(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    provider = Provider(ServiceInfo(broker.url))

    async def main() -> None:
        async with pulsar_fast.asyncio.Client(provider, **QUICK) as client:
            assert provider.calls == ["initial"]
            producer = await client.create_producer("t")
            await producer.send(b"x")
            await asyncio.to_thread(provider.update, ServiceInfo(other.url))
            await producer.send(b"y")

    asyncio.run(main())
    assert (broker.payloads, other.payloads) == ([b"x"], [b"y"])
    assert provider.calls == ["initial", "initialize", "close"]
    provider.update(ServiceInfo(broker.url))


# --- by itself


def failing_over(*brokers: ScriptedBroker, **settings: Any) -> AutoClusterFailover:
    primary, *secondary = (ServiceInfo(broker.url) for broker in brokers)
    return AutoClusterFailover(primary, secondary, **{"check_interval_ms": 50, **settings})


def test_over_to_the_secondary_and_back(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(failing_over(broker, other))
    producer = client.create_producer("t", send_timeout_millis=0)
    producer.send(b"0")
    broker.go_down()
    outcomes = Outcomes()
    send_all(producer, names(3, 1), outcomes)
    outcomes.wait_for(3)
    assert other.payloads == names(3, 1)
    broker.come_back()
    until(lambda: client.get_service_info().service_url == broker.url)
    producer.send(b"4")
    assert broker.payloads == [b"0", b"4"]
    until(lambda: not any(link.is_open and link.producers for link in other.links))


def test_the_first_secondary_that_answers(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    with ScriptedBroker() as dead:
        dead.go_down()
        client = make_client(failing_over(broker, dead, other))
        producer = client.create_producer("t", send_timeout_millis=0)
        broker.go_down()
        producer.send(b"x")
    assert other.payloads == [b"x"]


def test_the_primary_is_down_from_the_start(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    broker.go_down()
    producer = make_client(failing_over(broker, other)).create_producer("t")
    producer.send(b"x")
    assert other.payloads == [b"x"]


def test_a_broker_that_accepts_and_says_nothing(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(failing_over(broker, other), connection_timeout_ms=200)
    producer = client.create_producer("t", send_timeout_millis=0)
    broker.stop_reading()
    producer.send(b"x")
    assert other.payloads == [b"x"]
    broker.resume_reading()


def probes(broker: ScriptedBroker) -> int:
    return len(broker.got(BaseCommand.CONNECT)) - len(broker.got(BaseCommand.PRODUCER))


def test_as_many_checks_as_the_thresholds_say(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(failing_over(broker, other, failover_threshold=3, switch_back_threshold=4))
    producer = client.create_producer("t", send_timeout_millis=0)
    for _ in range(3):
        before = probes(broker)
        broker.on_connect().cut_connection(times=2)
        until(lambda: probes(broker) >= before + 4)  # noqa: B023
        assert client.get_service_info().service_url == broker.url, "two failures in a row are not enough"
    broker.on_connect().cut_connection(times=None)
    broker.cut_connections()
    producer.send(b"x")
    assert other.payloads == [b"x"]
    before = probes(broker)
    broker.forget_rules()
    until(lambda: client.get_service_info().service_url == broker.url)
    assert probes(broker) - before >= 4
    producer.send(b"y")
    assert broker.payloads == [b"y"]


def test_nobody_answers(broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient) -> None:
    """The one in use stays in use, and is used as soon as it answers."""
    client = make_client(failing_over(broker, other))
    producer = client.create_producer("t", send_timeout_millis=200)
    other.go_down()
    broker.go_down()
    with pytest.raises(pulsar_fast.Timeout):
        producer.send(b"x")
    assert client.get_service_info().service_url == broker.url
    broker.come_back()
    until(producer.is_connected)
    producer.send(b"y")
    assert broker.payloads == [b"y"]


def test_a_refusal_is_an_answer(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(failing_over(broker, other))
    broker.on_connect().answer_error(ServerError.AuthenticationError)
    with pytest.raises(pulsar_fast.AuthenticationError):
        client.create_producer("t")
    until(lambda: probes(broker) >= 4)
    assert client.get_service_info().service_url == broker.url
    assert other.links == []


def test_failing_over_with_asyncio(broker: ScriptedBroker, other: ScriptedBroker) -> None:
    async def main() -> None:
        async with pulsar_fast.asyncio.Client(failing_over(broker, other), **QUICK) as client:
            producer = await client.create_producer("t")
            broker.go_down()
            await producer.send(b"x")
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is checked any more"

    asyncio.run(main())
    assert other.payloads == [b"x"]


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        ({"primary": "pulsar://h"}, TypeError, "primary must be a pulsar_fast.ServiceInfo, not str"),
        ({"secondary": ServiceInfo("pulsar://h")}, TypeError, "secondary must be a list of ServiceInfo"),
        ({"secondary": []}, ValueError, "secondary must name at least one cluster"),
        ({"secondary": ["pulsar://h"]}, TypeError, r"secondary\[0\] must be a pulsar_fast.ServiceInfo"),
        ({"check_interval_ms": 0}, ValueError, "check_interval_ms must be from 1"),
        ({"failover_threshold": 1.5}, TypeError, "failover_threshold must be an int, not float"),
        ({"switch_back_threshold": True}, TypeError, "switch_back_threshold must be an int, not bool"),
    ],
)
def test_bad_rules(arguments: dict[str, Any], kind: type[Exception], says: str) -> None:
    good = {"primary": ServiceInfo("pulsar://a"), "secondary": [ServiceInfo("pulsar://b")]}
    with pytest.raises(kind, match=says):
        AutoClusterFailover(**{**good, **arguments})


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (("nonsense",), ValueError, "service_url 'nonsense'"),
        (("pulsar://h", "token"), TypeError, "authentication must be a pulsar_fast.Authentication or None"),
        (("pulsar://h", None, 1), TypeError, "tls_trust_certs_file_path must be a str or None, not int"),
    ],
)
def test_bad_service_infos(arguments: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        ServiceInfo(*arguments)


def test_what_belongs_to_each_cluster() -> None:
    rules = AutoClusterFailover(ServiceInfo("pulsar://a"), [ServiceInfo("pulsar://b")])
    with pytest.raises(
        ValueError, match=r"authentication is given with each ServiceInfo.*AutoClusterFailover"
    ):
        Client(rules, authentication=AuthenticationToken("x"))
    with pytest.raises(ValueError, match="tls_trust_certs_file_path is given with each ServiceInfo"):
        Client(Provider(ServiceInfo("pulsar://a")), tls_trust_certs_file_path="ca.pem")
    unusable = AutoClusterFailover(
        ServiceInfo("pulsar://a"), [ServiceInfo("pulsar+ssl://b", None, "/nowhere.pem")]
    )
    with pytest.raises(ValueError, match=r"/nowhere\.pem"):
        Client(unusable)
    info = ServiceInfo("pulsar+ssl://b", AuthenticationToken("secret"), "ca.pem")
    assert info.use_tls
    assert "secret" not in repr(AutoClusterFailover(info, [info]))


# --- because the topic has migrated


def migrate(frame: Frame, url: str, **fields: Any) -> None:
    """As a broker of a migrated cluster does: it names the other one, and closes the producer."""
    frame.link.send(frames.topic_migrated(frame.command.producer.producer_id, url, **fields))
    frame.link.send(frames.close_producer(frame.command.producer.producer_id, None, None))


def test_migrated_under_traffic(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t", batching_enabled=False)
    stays = client.create_producer("u")
    broker.hold_receipts()
    outcomes = Outcomes()
    send_all(producer, names(10), outcomes)
    broker.wait_for(lambda b: len(b.payloads) == 10)
    with broker.changed:
        first = broker.got(BaseCommand.PRODUCER)[0]
        first.link.dropped.add(first.command.producer.producer_id)
        first.link.producers.pop(first.command.producer.producer_id)
        migrate(first, other.url)
    broker.release_receipts(0)
    send_all(producer, names(10, 10), outcomes)
    outcomes.wait_for(20)
    assert outcomes.names == names(20)
    assert other.payloads == names(20)
    broker.forget_rules()
    other.cut_connections()  # it is still looked up over there
    producer.send(b"again")
    assert other.payloads[-1] == b"again"
    assert client.get_service_info().service_url == broker.url
    assert stays.is_connected()


def test_migrated_before_creation(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    """The broker does not even answer the registration."""
    broker.on_producer().do(lambda frame: migrate(frame, other.url))
    make_client(broker.url).create_producer("t").send(b"x")
    assert other.payloads == [b"x"]
    assert len(broker.got(BaseCommand.PRODUCER)) == 1


def test_migrated_back(broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient) -> None:
    broker.on_producer().do(lambda frame: migrate(frame, other.url), times=1)
    producer = make_client(broker.url).create_producer("t")
    other.on_producer().do(lambda frame: migrate(frame, broker.url), times=1)
    other.cut_connections()
    producer.send(b"x")
    assert broker.payloads == [b"x"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "there is none with pulsar://"),
        ("nonsense", "must start with pulsar://"),
        ("pulsar+ssl://h", "must start"),
    ],
)
def test_migrated_to_what_cannot_be_used(
    broker: ScriptedBroker, make_client: MakeClient, url: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is looked up where it was."""
    broker.on_producer().do(lambda frame: migrate(frame, url), times=1)
    make_client(broker.url).create_producer("t").send(b"x")
    assert broker.payloads == [b"x"]
    assert says in caplog.text


def test_a_consumer_that_migrates_is_not_ours(broker: ScriptedBroker, make_client: MakeClient) -> None:
    producer = make_client(broker.url).create_producer("t")
    producer_id = broker.got(BaseCommand.PRODUCER)[0].command.producer.producer_id
    broker.send_bytes(frames.topic_migrated(producer_id, "pulsar://127.0.0.1:1", resource_type=1))
    broker.send_bytes(frames.topic_migrated(producer_id + 1, "pulsar://127.0.0.1:1"))
    broker.close_producer()
    producer.send(b"x")
    assert broker.payloads == [b"x"]


def test_a_migrated_topic_goes_where_the_caller_says(
    broker: ScriptedBroker, other: ScriptedBroker, make_client: MakeClient
) -> None:
    """The newest word counts."""
    broker.on_producer().do(lambda frame: migrate(frame, "pulsar://127.0.0.1:1"), times=1)
    client = make_client(broker.url, operation_timeout_seconds=0.5)
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1 .*refused"):
        client.create_producer("t")
    broker.on_producer().do(lambda frame: migrate(frame, "pulsar://127.0.0.1:1"), times=1)
    creating = threading.Thread(target=lambda: client.create_producer("t").send(b"x"))
    creating.start()
    broker.wait_for(lambda b: len(b.got(BaseCommand.PRODUCER)) == 2)
    client.update_service_url(other.url)
    creating.join(10)
    assert other.payloads == [b"x"]
