"""Look-ups over HTTP: what is asked, and every answer that is none."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import pulsar_fast
from pulsar_fast import ConnectError, LookupError, Timeout
from pulsar_fast.wire.messages import BaseCommand
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripted_http import ScriptedHttp, answer, scripted_http

MakeClient = Callable[..., Any]
ASK_PARTITIONS = "/admin/v2/persistent/public/default/t/partitions?checkAllowAutoCreation=true"
LOOK_UP = "/lookup/v2/topic/persistent/public/default/t"


@pytest.fixture
def web(broker: ScriptedBroker) -> Iterator[ScriptedHttp]:
    """That of the scripted broker."""
    with scripted_http() as web:
        web.script = web.usual(broker.url)
        yield web


@contextmanager
def refuses(kind: type[BaseException], says: str) -> Iterator[None]:
    started = time.monotonic()
    with pytest.raises(kind, match=says) as caught:
        yield
    assert type(caught.value) is kind
    assert time.monotonic() - started < 3


# --- what is asked


def test_what_is_asked_and_where_messages_go(
    broker: ScriptedBroker, web: ScriptedHttp, make_client: MakeClient
) -> None:
    make_client(web.url).create_producer("t").send(b"x")
    assert broker.payloads == [b"x"]
    assert web.targets == [ASK_PARTITIONS, LOOK_UP]
    for request in web.requests:
        assert request[0].endswith(" HTTP/1.1")
        assert f"Host: {web.address}" in request
        assert "Connection: close" in request
    assert broker.got(BaseCommand.LOOKUP) == broker.got(BaseCommand.PARTITIONED_METADATA) == []
    assert broker.got(BaseCommand.CONNECT)[0].command.connect.proxy_to_broker_url == ""


def test_the_listener(web: ScriptedHttp, make_client: MakeClient) -> None:
    make_client(web.url, listener_name="out side&x").create_producer("t")
    assert web.targets[-1] == f"{LOOK_UP}?listenerName=out+side%26x"


@pytest.mark.parametrize(
    ("topic", "path"),
    [
        ("tenant/ns/t", "persistent/tenant/ns/t"),
        ("non-persistent://a/b/c", "non-persistent/a/b/c"),
        ("persistent://a/b/c d%e?#é", "persistent/a/b/c%20d%25e%3F%23%C3%A9"),
        ("persistent://a/b/c\r\nX: y", "persistent/a/b/c%0D%0AX%3A%20y"),
    ],
)
def test_names_are_escaped(web: ScriptedHttp, make_client: MakeClient, topic: str, path: str) -> None:
    make_client(web.url).create_producer(topic)
    assert web.targets == [
        f"/admin/v2/{path}/partitions?checkAllowAutoCreation=true",
        f"/lookup/v2/topic/{path}",
    ]


def test_a_reconnect_asks_again(broker: ScriptedBroker, web: ScriptedHttp, make_client: MakeClient) -> None:
    producer = make_client(web.url).create_producer("t")
    broker.cut_connections()
    producer.send(b"x")
    assert broker.payloads == [b"x"]
    assert web.targets == [ASK_PARTITIONS, LOOK_UP, LOOK_UP]


def test_partitions(web: ScriptedHttp, make_client: MakeClient) -> None:
    web.script = lambda target: answer(200, {"partitions": 3})
    with refuses(NotImplementedError, "has 3 partitions"):
        make_client(web.url).create_producer("t")


def test_an_answer_in_chunks(web: ScriptedHttp, make_client: MakeClient) -> None:
    usual = web.script

    def in_chunks(target: str) -> bytes:
        body = (usual(target) or b"").partition(b"\r\n\r\n")[2]
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"

    web.script = in_chunks
    assert make_client(web.url).create_producer("t").is_connected()


# --- redirects


def test_redirects_are_followed(web: ScriptedHttp, make_client: MakeClient) -> None:
    with scripted_http() as other:
        other.script = web.script
        elsewhere = f"{other.url}{LOOK_UP}?authoritative=true"
        web.script = lambda target: (
            answer(307, Location=elsewhere) if target == LOOK_UP else other.script(target)
        )
        assert make_client(web.url).create_producer("t").is_connected()
        assert other.targets == [f"{LOOK_UP}?authoritative=true"]


def test_a_redirect_within_the_host(web: ScriptedHttp, make_client: MakeClient) -> None:
    usual = web.script
    web.script = lambda target: (
        answer(302, Location=f"{LOOK_UP}?again=1") if target == LOOK_UP else usual(target)
    )
    assert make_client(web.url).create_producer("t").is_connected()
    assert web.targets == [ASK_PARTITIONS, LOOK_UP, f"{LOOK_UP}?again=1"]


def test_redirects_without_end(web: ScriptedHttp, make_client: MakeClient) -> None:
    web.script = lambda target: answer(307, Location=target)
    client = make_client(
        web.url,
        initial_backoff_interval_ms=10_000,
        max_backoff_interval_ms=10_000,
        operation_timeout_seconds=1,
    )
    with refuses(LookupError, f"{web.url}/admin.*redirected more than 20 times"):
        client.create_producer("t")
    assert len(web.requests) == 21


@pytest.mark.parametrize(
    "location", ["https://127.0.0.1:8443/x", "pulsar://127.0.0.1:6650", "http://[", "ftp://a/"]
)
def test_redirects_to_what_cannot_be_asked(web: ScriptedHttp, make_client: MakeClient, location: str) -> None:
    web.script = lambda target: answer(307, Location=location)
    with refuses(LookupError, f"{web.url}.* redirected: "):
        make_client(web.url, operation_timeout_seconds=0.3).create_producer("t")


# --- refusals and what is no answer

TRACE = {"reason": "\n --- An unexpected error ---\n\nMessage: no listener x\n\nStacktrace:\n\n at z"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, pulsar_fast.AuthenticationError),
        (403, pulsar_fast.AuthorizationError),
        (404, pulsar_fast.TopicNotFound),
    ],
)
def test_raised_at_once(
    web: ScriptedHttp, make_client: MakeClient, status: int, kind: type[Exception]
) -> None:
    web.script = lambda target: answer(status, {"reason": "as scripted"})
    with refuses(kind, f"{web.url}/admin.*HTTP {status} as scripted"):
        make_client(web.url).create_producer("t")
    assert len(web.requests) == 1


@pytest.mark.parametrize(
    ("said", "kind", "says"),
    [
        (answer(404), LookupError, "HTTP 404"),
        (answer(500, TRACE), LookupError, "HTTP 500 Message: no listener x"),
        (answer(503), LookupError, "HTTP 503"),
        (answer(503, [1]), LookupError, "HTTP 503"),
        (answer(204), LookupError, "HTTP 204"),
        (answer(307), LookupError, "HTTP 307"),
        (answer(200), LookupError, "no JSON object.*8080"),
        (answer(200, ["a"]), LookupError, "no JSON object"),
        (answer(200, {}), LookupError, "named no"),
        (answer(200, {"partitions": "3"}), LookupError, "named no number"),
        (answer(200, {"partitions": -1}), LookupError, "named no number"),
        (answer(200, "x" * 70_000), LookupError, "more than 65536 bytes"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 60_000, LookupError, "no JSON object"),
        (b"", ConnectError, "no HTTP answer"),
        (b"\0\0\0\5\0\0\0\1x", ConnectError, "no HTTP answer"),
        (answer(200, {"partitions": 0})[:-3], ConnectError, "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", ConnectError, "no HTTP answer"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200, ConnectError, "no HTTP answer"),
        (None, Timeout, "gave no answer|did not answer within"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_retried_until_the_operation_timeout(
    web: ScriptedHttp, make_client: MakeClient, said: bytes | None, kind: type[Exception], says: str
) -> None:
    web.script = lambda target: said
    with refuses(kind, f"{web.url}.*({says})"):
        make_client(web.url, operation_timeout_seconds=0.4).create_producer("t")
    assert len(web.requests) > 1 or said is None


@pytest.mark.parametrize(
    "url", [None, "", 5, "nonsense", "http://127.0.0.1:8080", "pulsar+ssl://127.0.0.1:6651"]
)
def test_no_usable_broker(web: ScriptedHttp, make_client: MakeClient, url: Any) -> None:
    web.script = web.usual(url)
    with refuses(LookupError, f"{web.url}{LOOK_UP}"):
        make_client(web.url, operation_timeout_seconds=0.3).create_producer("t")


def test_not_ready_twice_and_then_fine(web: ScriptedHttp, make_client: MakeClient) -> None:
    usual, refusals = web.script, iter([answer(503), answer(500)])
    web.script = lambda target: next(refusals, None) or usual(target)
    assert make_client(web.url).create_producer("t").is_connected()


# --- several hosts, many producers, ends


def test_hosts_that_are_dead_or_mute(web: ScriptedHttp, make_client: MakeClient) -> None:
    with scripted_http() as mute:
        mute.script = lambda target: None
        client = make_client(f"http://localhost:1,{mute.address},{web.address}", operation_timeout_seconds=1)
        for number in range(3):
            client.create_producer(f"t{number}")
        assert len(mute.requests) == 1


def test_nobody_listens(make_client: MakeClient) -> None:
    with refuses(ConnectError, r"127\.0\.0\.1:1 .*Connection refused"):
        make_client("http://127.0.0.1:1", operation_timeout_seconds=0.3).create_producer("t")


def test_many_at_once(broker: ScriptedBroker, web: ScriptedHttp, make_client: MakeClient) -> None:
    """Their requests take turns, and no descriptor is kept."""
    client = make_client(web.url)
    usual, lock, here, most = web.script, threading.Lock(), 0, 0

    def count(target: str) -> bytes | None:
        nonlocal here, most
        with lock:
            here += 1
            most = max(most, here)
        time.sleep(0.002)
        said = usual(target)
        with lock:
            here -= 1
        return said

    web.script = count
    with ExitStack() as stack:
        threads = [
            threading.Thread(target=client.create_producer, args=(f"t{number}",)) for number in range(40)
        ]
        for thread in threads:
            thread.start()
            stack.callback(thread.join, 10)
    assert len(broker.got(BaseCommand.PRODUCER)) == 40
    assert most <= 16


def test_closing_the_client_ends_a_look_up(web: ScriptedHttp, make_client: MakeClient) -> None:
    web.script = lambda target: None
    client = make_client(web.url, operation_timeout_seconds=20)
    errors: list[Exception] = []

    def create() -> None:
        try:
            client.create_producer("t")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=create)
    thread.start()
    deadline = time.monotonic() + 5
    while not web.requests:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    client.close()
    thread.join(5)
    assert [type(error) for error in errors] == [pulsar_fast.AlreadyClosed]
