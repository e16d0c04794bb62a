"""Creating a producer when the peer is dead, mute, wrong or unwilling: the right error, in time, saying why."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import pulsar_fast
from pulsar_fast import ConnectError, LookupError, ServiceUnitNotReady, Timeout
from pulsar_fast.wire.messages import BaseCommand, CommandConnected, ServerError
from tests.brokers.frames import encode, error_answer
from tests.faults.scripted_broker import ScriptedBroker

CONNECTED = encode(BaseCommand(type=BaseCommand.CONNECTED, connected=CommandConnected(server_version="s")))


@contextmanager
def takes_at_most(seconds: float) -> Iterator[None]:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


@pytest.fixture
def dead_port() -> Iterator[int]:
    """A port where nobody listens; it stays ours meanwhile."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


# --- no broker behind the address


def test_nobody_listens(make_client: Callable[..., Any], dead_port: int) -> None:
    client = make_client(f"pulsar://127.0.0.1:{dead_port}", operation_timeout_seconds=0.5)
    with takes_at_most(2), pytest.raises(ConnectError, match=f"127.0.0.1:{dead_port}.*Connection refused"):
        client.create_producer("t")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", "HTTP server.*6650"),
        (b"\0\0\0\0\0\0\0\0", "broke the protocol"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "broke the protocol"),
        (b"\x7f\xff\xff\xff\0\0\0\4abcd", "a frame of 2147483647 bytes"),
        (b"\0\x60\0\0\0\0\0\4abcd", "a frame of 6291456 bytes"),
        (b"\0\0\0\x08\0\0\0\x05abcd", "a command of 5"),
        (b"\0\0\0\x03\0\0\0\0", "a frame of 3 bytes"),
        (b"\0\0\0\x08\0\0\0\x04\xff\xff\xff\xff", "broke the protocol"),
        (b"", "did not answer within 0.2 s"),
    ],
    ids=["http", "zeros", "ssh", "huge", "oversized", "command", "short", "garbage", "silence"],
)
def test_something_else_listens(
    broker: ScriptedBroker, make_client: Callable[..., Any], answer: bytes, says: str
) -> None:
    broker.on_connect().answer_bytes(lambda frame: answer)
    client = make_client(broker.url, operation_timeout_seconds=0.3, connection_timeout_ms=200)
    with takes_at_most(2), pytest.raises(ConnectError, match=f"{broker.address}.*{says}"):
        client.create_producer("t")


@pytest.mark.parametrize("reset", [False, True])
def test_the_peer_closes_at_once(
    broker: ScriptedBroker, make_client: Callable[..., Any], reset: bool
) -> None:
    broker.on_connect().cut_connection(times=None, reset=reset)
    client = make_client(broker.url, operation_timeout_seconds=0.4)
    says = "Connection reset by peer" if reset else "closed the connection"
    with takes_at_most(2), pytest.raises(ConnectError, match=f"{broker.address}.*{says}"):
        client.create_producer("t")
    assert len(broker.links) > 1, "it was not tried again"


def test_a_connection_that_never_comes_about(make_client: Callable[..., Any]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]  # the queue is full: the kernel answers no further ones
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        client = make_client(
            f"pulsar://127.0.0.1:{port}", operation_timeout_seconds=0.7, connection_timeout_ms=300
        )
        try:
            with (
                takes_at_most(2),
                pytest.raises(ConnectError, match=rf"127.0.0.1:{port}.*no answer within 0\.3 s"),
            ):
                client.create_producer("t")
        finally:
            for filler in fillers:
                filler.close()


def test_a_name_that_does_not_exist(make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: Any, **_options: Any) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    client = make_client("pulsar://no-such-host:6650", operation_timeout_seconds=0.3)
    with takes_at_most(2), pytest.raises(ConnectError, match=r"no-such-host.*Name or service not known"):
        client.create_producer("t")


def test_a_resolver_that_hangs(make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_args: Any, **_options: Any) -> list[Any]:
        over.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    client = make_client("pulsar://slow-host:6650", operation_timeout_seconds=0.5, connection_timeout_ms=200)
    try:
        with takes_at_most(2), pytest.raises(ConnectError, match=r"slow-host.*not resolved within 0\.2 s"):
            client.create_producer("t")
    finally:
        over.set()


# --- several hosts and addresses


def test_the_first_hosts_are_dead(
    broker: ScriptedBroker, make_client: Callable[..., Any], dead_port: int
) -> None:
    for attempt in range(5):
        client = make_client(f"pulsar://127.0.0.1:{dead_port},localhost:{dead_port},{broker.address}")
        assert client.create_producer(f"t{attempt}").is_connected()


def test_the_first_host_is_mute(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    with ScriptedBroker() as mute:
        mute.on_connect().say_nothing()
        client = make_client(f"pulsar://{mute.address},{broker.address}", connection_timeout_ms=200)
        with takes_at_most(2):
            assert client.create_producer("t").is_connected()


def test_a_dead_host_costs_its_timeout_once(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    """Also when the host that answered meanwhile goes away, and the dead one is next in order."""
    with ScriptedBroker() as mute, ScriptedBroker() as second:
        mute.on_connect().say_nothing()
        second.on_lookup().send_to(broker.url)
        client = make_client(
            f"pulsar://{second.address},{mute.address},{broker.address}", connection_timeout_ms=200
        )
        client.create_producer("t1").close()
        second.go_down()
        client.create_producer("t2").close()
        assert len(mute.links) == 1
        broker.cut_connections()
        second.come_back()
        for number in range(3, 10):
            broker.cut_connections()
            client.create_producer(f"t{number}").close()
        assert len(mute.links) == 1


def test_a_host_that_answers_no_look_up_leaves_time_for_the_next_one(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    with ScriptedBroker() as frozen:
        frozen.on_partitions().say_nothing()
        frozen.on_lookup().say_nothing()
        client = make_client(f"pulsar://{frozen.address},{broker.address}", operation_timeout_seconds=1)
        with takes_at_most(4):
            assert client.create_producer("t").is_connected()
        assert [frame.kind for frame in frozen.frames] == [
            BaseCommand.CONNECT,
            BaseCommand.PARTITIONED_METADATA,
        ]


def test_a_host_is_not_blamed_for_where_it_redirects_to(
    broker: ScriptedBroker, make_client: Callable[..., Any], dead_port: int
) -> None:
    with ScriptedBroker() as second:
        broker.on_lookup().redirect_to(f"pulsar://127.0.0.1:{dead_port}", times=2)
        client = make_client(f"pulsar://{broker.address},{second.address}")
        client.create_producer("t").send(b"x")
        assert broker.payloads == [b"x"]
        assert second.links == []


def test_ipv6_literal(make_client: Callable[..., Any]) -> None:
    try:
        broker = ScriptedBroker("::1")
    except OSError as error:
        pytest.skip(f"::1 cannot be bound here: {error}")
    with broker:
        producer = make_client(broker.url).create_producer("t")
        producer.send(b"over IPv6")
        producer.close()
        assert broker.payloads == [b"over IPv6"]


def test_every_address_of_a_name_is_tried(
    broker: ScriptedBroker, make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, dead_port: int
) -> None:
    addresses = [("127.0.0.1", dead_port), ("127.0.0.2", dead_port), ("127.0.0.1", broker.port)]
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda *_args, **_options: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", it) for it in addresses],
    )
    assert make_client("pulsar://three-addresses:6650").create_producer("t").is_connected()

    del addresses[2]
    client = make_client("pulsar://three-addresses:6650", operation_timeout_seconds=0.2)
    with pytest.raises(ConnectError, match=r"three-addresses:6650.*127\.0\.0\.1.*127\.0\.0\.2"):
        client.create_producer("t")


# --- look-ups


@pytest.mark.parametrize("step", ["on_partitions", "on_lookup", "on_producer", "on_connect"])
def test_not_ready_twice_and_then_fine(
    broker: ScriptedBroker, make_producer: Callable[..., Any], step: str
) -> None:
    getattr(broker, step)().answer_error(ServerError.ServiceNotReady, times=2)
    producer = make_producer()
    producer.send(b"x")
    assert broker.payloads == [b"x"]


@pytest.mark.parametrize("step", ["on_partitions", "on_lookup", "on_producer"])
def test_a_mute_broker(broker: ScriptedBroker, make_producer: Callable[..., Any], step: str) -> None:
    getattr(broker, step)().say_nothing()
    with takes_at_most(2), pytest.raises(Timeout, match=r"0\.4 s"):
        make_producer(client={"operation_timeout_seconds": 0.4})


def test_redirects_that_go_round_are_bounded(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    with ScriptedBroker() as other:
        broker.on_lookup().redirect_to(other.url)
        other.on_lookup().redirect_to(broker.url)
        client = make_client(
            broker.url,
            operation_timeout_seconds=1,
            initial_backoff_interval_ms=10_000,
            max_backoff_interval_ms=10_000,
        )
        with takes_at_most(3), pytest.raises(LookupError, match="redirected more than 20 times"):
            client.create_producer("t")
        assert len(broker.got(BaseCommand.LOOKUP)) + len(other.got(BaseCommand.LOOKUP)) <= 21


@pytest.mark.parametrize("authoritative", [False, True])
def test_a_redirect_is_repeated_with_its_authoritative(
    broker: ScriptedBroker, make_producer: Callable[..., Any], authoritative: bool
) -> None:
    with ScriptedBroker() as owner:
        broker.on_lookup().redirect_to(owner.url, authoritative=authoritative)
        producer = make_producer()
        producer.send(b"x")
        assert owner.payloads == [b"x"]
        assert [frame.command.lookupTopic.authoritative for frame in broker.got(BaseCommand.LOOKUP)] == [
            False
        ]
        asked = [frame.command.lookupTopic for frame in owner.got(BaseCommand.LOOKUP)]
        assert [lookup.authoritative for lookup in asked] == [authoritative]
        assert {lookup.topic for lookup in asked} == {"persistent://public/default/t"}
        producer.close()


def test_through_a_proxy(broker: ScriptedBroker, make_producer: Callable[..., Any]) -> None:
    broker.on_lookup().send_to("pulsar://broker-7.internal:6651", through_proxy=True)
    make_producer().send(b"x")
    connects = [frame.command.connect for frame in broker.got(BaseCommand.CONNECT)]
    assert [connect.proxy_to_broker_url for connect in connects] == ["", "broker-7.internal:6651"]
    assert broker.got(BaseCommand.PRODUCER)[0].link is broker.links[1]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:8080", "nonsense", "pulsar+ssl://127.0.0.1:6651"])
def test_a_lookup_that_names_no_usable_broker(
    broker: ScriptedBroker, make_producer: Callable[..., Any], url: str
) -> None:
    broker.on_lookup().send_to(url)
    with takes_at_most(2), pytest.raises(LookupError, match=broker.address):
        make_producer(client={"operation_timeout_seconds": 0.3})


# --- the handshake


def test_connected_and_then_closed_in_one_packet(
    broker: ScriptedBroker, make_producer: Callable[..., Any]
) -> None:
    def connect_and_close(frame: Any) -> None:
        frame.link.send(CONNECTED)
        frame.link.close()

    broker.on_connect().do(connect_and_close, times=1)
    assert make_producer("t1").is_connected()
    broker.forget_rules()
    broker.on_connect().do(connect_and_close)
    broker.cut_connections()
    with takes_at_most(2), pytest.raises(ConnectError, match=f"{broker.address}.*(closed|reset|lost)"):
        make_producer("t2", client={"operation_timeout_seconds": 0.3})


def test_credentials_refused(broker: ScriptedBroker, make_producer: Callable[..., Any]) -> None:
    broker.on_connect().answer_error(ServerError.AuthenticationError, "who are you?")
    with takes_at_most(2), pytest.raises(pulsar_fast.AuthenticationError, match="who are you"):
        make_producer()
    assert len(broker.got(BaseCommand.CONNECT)) == 1


def test_connecting_refused_for_now(broker: ScriptedBroker, make_producer: Callable[..., Any]) -> None:
    broker.on_connect().answer_error(ServerError.ServiceNotReady, "in a moment")
    with takes_at_most(2), pytest.raises(ServiceUnitNotReady, match="in a moment"):
        make_producer(client={"operation_timeout_seconds": 0.3})
    assert len(broker.got(BaseCommand.CONNECT)) > 1


def test_what_a_newer_broker_adds_is_ignored(
    broker: ScriptedBroker, make_producer: Callable[..., Any]
) -> None:
    unknown = BaseCommand(type=99)
    stray = BaseCommand(type=BaseCommand.SUCCESS)
    stray.success.request_id = 12345

    broker.on_connect().answer_bytes(lambda frame: CONNECTED + encode(unknown) + encode(stray))
    producer = make_producer()
    broker.send_bytes(encode(unknown) + encode(stray))
    producer.send(b"x")
    assert len(broker.links) == 1


# --- every refusal of a producer

RETRIED = {
    ServerError.UnknownError: "UnknownError",
    ServerError.MetadataError: "BrokerMetadataError",
    ServerError.PersistenceError: "BrokerPersistenceError",
    ServerError.ServiceNotReady: "ServiceUnitNotReady",
    ServerError.ProducerBlockedQuotaExceededError: "ProducerBlockedQuotaExceededError",
    ServerError.ProducerBlockedQuotaExceededException: "ProducerBlockedQuotaExceededException",
    ServerError.TooManyRequests: "TooManyLookupRequestException",
    99: "UnknownError",
}
FINAL = {
    ServerError.AuthenticationError: "AuthenticationError",
    ServerError.AuthorizationError: "AuthorizationError",
    ServerError.ConsumerBusy: "ConsumerBusy",
    ServerError.ChecksumError: "ChecksumError",
    ServerError.UnsupportedVersionError: "UnsupportedVersionError",
    ServerError.TopicNotFound: "TopicNotFound",
    ServerError.SubscriptionNotFound: "SubscriptionNotFound",
    ServerError.ConsumerNotFound: "ConsumerNotFound",
    ServerError.TopicTerminatedError: "TopicTerminated",
    ServerError.ProducerBusy: "ProducerBusy",
    ServerError.InvalidTopicName: "InvalidTopicName",
    ServerError.IncompatibleSchema: "IncompatibleSchema",
    ServerError.ConsumerAssignError: "ConsumerAssignError",
    ServerError.TransactionCoordinatorNotFound: "TransactionCoordinatorNotFoundError",
    ServerError.InvalidTxnStatus: "InvalidTxnStatusError",
    ServerError.NotAllowedError: "NotAllowedError",
    ServerError.TransactionConflict: "TransactionConflict",
    ServerError.TransactionNotFound: "TransactionNotFound",
    ServerError.ProducerFenced: "ProducerFenced",
}


def test_the_lists_below_are_complete() -> None:
    assert {*RETRIED, *FINAL} == {*ServerError.values(), 99}


@pytest.mark.parametrize(("code", "name"), RETRIED.items(), ids=[str(code) for code in RETRIED])
def test_retried_until_the_operation_timeout(
    broker: ScriptedBroker, make_producer: Callable[..., Any], code: int, name: str
) -> None:
    broker.on_producer().answer_error(code, "not today")
    with takes_at_most(2), pytest.raises(getattr(pulsar_fast, name), match="not today") as caught:
        make_producer(client={"operation_timeout_seconds": 0.2})
    assert type(caught.value).__name__ == name
    assert len(broker.got(BaseCommand.PRODUCER)) > 1
    assert "99" in str(caught.value) or code != 99


@pytest.mark.parametrize(("code", "name"), FINAL.items(), ids=[str(code) for code in FINAL])
def test_refused_at_once(
    broker: ScriptedBroker, make_producer: Callable[..., Any], code: int, name: str
) -> None:
    broker.on_producer().answer_error(code, "never", times=1)
    with takes_at_most(2), pytest.raises(getattr(pulsar_fast, name), match="never") as caught:
        make_producer("refused")
    assert type(caught.value).__name__ == name
    assert len(broker.got(BaseCommand.PRODUCER)) == 1
    make_producer("accepted").send(b"x")  # on the same connection
    assert len(broker.links) == 1


def test_an_unanswered_producer_is_closed_before_it_is_tried_again(
    broker: ScriptedBroker, make_producer: Callable[..., Any]
) -> None:
    producer = make_producer(client={"operation_timeout_seconds": 0.3}, producer_name="me")
    broker.on_producer().say_nothing(times=1)
    broker.close_producer()
    broker.wait_for(lambda b: len(b.got(BaseCommand.PRODUCER)) == 3)
    kinds = [
        frame.kind
        for frame in broker.frames
        if frame.kind in (BaseCommand.PRODUCER, BaseCommand.CLOSE_PRODUCER)
    ]
    assert kinds == [
        BaseCommand.PRODUCER,
        BaseCommand.PRODUCER,
        BaseCommand.CLOSE_PRODUCER,
        BaseCommand.PRODUCER,
    ]
    asked = [frame.command.producer for frame in broker.got(BaseCommand.PRODUCER)]
    assert {request.producer_name for request in asked} == {"me"}
    assert {request.producer_id for request in asked} == {asked[0].producer_id}
    assert asked[0].epoch < asked[1].epoch < asked[2].epoch
    producer.send(b"x")


def test_a_creation_without_answer_leaves_no_producer_behind(
    broker: ScriptedBroker, make_producer: Callable[..., Any]
) -> None:
    broker.on_producer().say_nothing(times=1)
    with takes_at_most(2), pytest.raises(Timeout):
        make_producer(client={"operation_timeout_seconds": 0.3}, producer_name="me")
    broker.wait_for(lambda b: b.got(BaseCommand.CLOSE_PRODUCER))
    asked = broker.got(BaseCommand.PRODUCER)[0].command.producer.producer_id
    assert broker.got(BaseCommand.CLOSE_PRODUCER)[0].command.close_producer.producer_id == asked


def test_an_error_for_one_request_does_not_end_another(
    broker: ScriptedBroker, make_producer: Callable[..., Any]
) -> None:
    good = make_producer("good")
    broker.on_producer().answer_bytes(
        lambda frame: error_answer(frame, ServerError.ProducerBusy, "busy"), times=1
    )
    with pytest.raises(pulsar_fast.ProducerBusy):
        make_producer("busy")
    good.send(b"x")
    assert broker.payloads == [b"x"]


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_host_that_is_no_name(make_client: Callable[..., Any], host: str) -> None:
    """Told for what it is, not as a time-out."""
    with pytest.raises(ConnectError, match="cannot be resolved"):
        make_client(f"pulsar://{host}:6650", operation_timeout_seconds=0.3).create_producer("t")
