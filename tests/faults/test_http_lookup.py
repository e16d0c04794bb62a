"""Look-ups over HTTP and HTTPS: what is asked, of whom and as whom, and every answer that is none."""

import asyncio
import itertools
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import (
    Authentication,
    AuthenticationBasic,
    AuthenticationError,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
    ConnectError,
    LookupError,
    PulsarException,
    Timeout,
)
from pulsar_fast.tls import PeerNotTrusted
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.token_server import TokenServer
from tests.certificates import Authority, Identity
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripted_http import ScriptedHttp, answer, scripted_http
from tests.faults.tls_front import TlsFront
from tests.waiting import until

MakeClient = Callable[..., Any]
Secure = Callable[..., TlsFront]
ASK_PARTITIONS = "/admin/v2/persistent/public/default/t/partitions?checkAllowAutoCreation=true"
LOOK_UP = "/lookup/v2/topic/persistent/public/default/t"


@pytest.fixture
def web(broker: ScriptedBroker) -> Iterator[ScriptedHttp]:
    """That of the scripted broker."""
    with scripted_http() as web:
        web.script = web.usual(broker.url)
        yield web


@contextmanager
def refuses(kind: type[BaseException], says: str) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    started = time.monotonic()
    with pytest.raises(kind, match=says) as caught:
        yield caught
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


def test_partitions(broker: ScriptedBroker, web: ScriptedHttp, make_client: MakeClient) -> None:
    usual = web.script
    web.script = lambda target: answer(200, {"partitions": 3}) if "/admin/" in target else usual(target)
    client = make_client(web.url)
    assert client.get_topic_partitions("t") == [
        f"persistent://public/default/t-partition-{number}" for number in range(3)
    ]
    client.create_producer("t").send(b"x")
    assert len(broker.got(BaseCommand.PRODUCER)) == 3


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
    "location", ["pulsar://127.0.0.1:6650", "http://[", "http://a:b/", "http://u@a/", "ftp://a/"]
)
def test_redirects_to_what_cannot_be_asked(web: ScriptedHttp, make_client: MakeClient, location: str) -> None:
    web.script = lambda target: answer(307, Location=location)
    with refuses(LookupError, f"{web.url}.* redirected: "):
        make_client(web.url, operation_timeout_seconds=0.3).create_producer("t")


@pytest.mark.parametrize(("scheme", "port"), [("http", 80), ("https", 443)])
def test_a_redirect_without_a_port(
    web: ScriptedHttp, make_client: MakeClient, scheme: str, port: int
) -> None:
    """Whoever may be there."""
    web.script = lambda target: answer(307, Location=f"{scheme}://127.0.0.1/x")
    client = make_client(web.url, operation_timeout_seconds=0.3)
    with pytest.raises(PulsarException, match=rf"127\.0\.0\.1:{port}\b"):
        client.create_producer("t")


# --- over TLS


@pytest.fixture
def secure() -> Iterator[Secure]:
    """Puts TLS in front of a port."""
    with ExitStack() as fronts:
        yield lambda port, context: fronts.enter_context(TlsFront(port, context))


def https(front: TlsFront, host: str = "127.0.0.1") -> str:
    return f"https://{host}:{front.port}"


@pytest.fixture
def web_front(broker: ScriptedBroker, web: ScriptedHttp, secure: Secure, server: Identity) -> TlsFront:
    """TLS in front of the web; the broker that it names is behind TLS alone."""
    web.script = web.usual("pulsar://127.0.0.1:1", secure(broker.port, server.server()).url)
    return secure(web.port, server.server())


def test_over_tls(
    broker: ScriptedBroker, web: ScriptedHttp, web_front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    client = make_client(https(web_front, "localhost"), tls_trust_certs_file_path=ca.path)
    client.create_producer("t").send(b"x")
    assert f"of https://localhost:{web_front.port}>" in repr(client)
    assert broker.payloads == [b"x"]
    assert web.targets == [ASK_PARTITIONS, LOOK_UP]
    assert web.headers("Host") == [f"localhost:{web_front.port}"] * 2
    assert [handshake.server_name for handshake in web_front.handshakes] == ["localhost"] * 2


def test_over_tls_in_asyncio(
    broker: ScriptedBroker, web: ScriptedHttp, web_front: TlsFront, ca: Authority
) -> None:
    async def send() -> None:
        context = ssl.create_default_context(cafile=ca.path)
        async with pulsar_fast.asyncio.Client(https(web_front), ssl_context=context) as client:
            producer = await client.create_producer("t")
            await producer.send(b"x")

    asyncio.run(send())
    assert broker.payloads == [b"x"]
    assert len(web_front.handshakes) == len(web.requests) == 2


@pytest.mark.parametrize("kind", ["options", "AuthenticationTLS"])
def test_the_certificate_of_the_client(
    web_front: TlsFront, ca: Authority, server: Identity, make_client: MakeClient, kind: str
) -> None:
    web_front.context = server.server(asks=ca)
    app = ca.issue("app")
    options: dict[str, Any] = dict(app.options)
    if kind == "AuthenticationTLS":
        options = {"authentication": AuthenticationTLS(app.certificate, app.key)}
    make_client(https(web_front), tls_trust_certs_file_path=ca.path, **options).create_producer("t")
    assert [handshake.common_name for handshake in web_front.handshakes] == ["app"] * 2


def test_without_the_certificate_that_the_server_wants(
    web: ScriptedHttp, web_front: TlsFront, ca: Authority, server: Identity, make_client: MakeClient
) -> None:
    web_front.context = server.server(asks=ca)
    client = make_client(https(web_front), tls_trust_certs_file_path=ca.path, operation_timeout_seconds=0.3)
    with refuses(ConnectError, f"{https(web_front)}/admin.*refuses a client without a certificate"):
        client.create_producer("t")
    assert web.requests == []


@pytest.mark.parametrize(
    ("names", "days", "says"),
    [
        (("127.0.0.1",), 30, "no issuer among .*tls_trust_certs_file_path"),
        (("localhost",), 30, r"not valid for '127\.0\.0\.1'"),
        (("127.0.0.1",), -1, "expired"),
    ],
    ids=["foreign", "misnamed", "expired"],
)
def test_certificates_that_are_not_trusted(
    web: ScriptedHttp,
    web_front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    tmp_path: Path,
    names: tuple[str, ...],
    days: int,
    says: str,
) -> None:
    """Raised at once, and nothing is told to a stranger; nobody is one where everything is accepted."""
    issuer = Authority(tmp_path, "foreign") if "no issuer" in says else ca
    web_front.context = issuer.issue("other", names, days=days).server()
    options = {"tls_trust_certs_file_path": ca.path, "authentication": AuthenticationToken("t")}
    with refuses(PeerNotTrusted, f"no TLS with 127.0.0.1:{web_front.port}: .*{says}"):
        make_client(https(web_front), **options).create_producer("t")
    assert web_front.handshakes == []
    until(lambda: len(web_front.failures) == 1)
    assert web.requests == []
    make_client(https(web_front), tls_allow_insecure_connection=True).create_producer("t")


def test_a_host_that_is_not_trusted_beside_one_that_is(
    web: ScriptedHttp, web_front: TlsFront, secure: Secure, ca: Authority, make_client: MakeClient
) -> None:
    stranger = secure(web.port, ca.issue("stranger", ("example.com",)).server())
    url = f"{https(stranger)},127.0.0.1:{web_front.port}"
    make_client(url, tls_trust_certs_file_path=ca.path).create_producer("t")
    until(lambda: len(stranger.failures) == 1)
    assert len(web_front.handshakes) == 2


def test_tls_and_plain_mixed_up(
    web: ScriptedHttp, web_front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    options = {"operation_timeout_seconds": 0.3}
    with refuses(ConnectError, "does not speak TLS .*with https:// .*8443.* needs pulsar:// or http://"):
        make_client(f"https://{web.address}", tls_trust_certs_file_path=ca.path, **options).create_producer(
            "t"
        )
    with refuses(ConnectError, "no HTTP answer: .*a TLS port needs https://"):
        make_client(f"http://127.0.0.1:{web_front.port}", **options).create_producer("t")


def test_tls_to_brokers_alone(
    broker: ScriptedBroker, web: ScriptedHttp, web_front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    client = make_client(web.url, use_tls=True, tls_trust_certs_file_path=ca.path)
    client.create_producer("t").send(b"x")
    assert broker.payloads == [b"x"]
    assert web.targets == [ASK_PARTITIONS, LOOK_UP]
    assert web_front.handshakes == []


def test_a_broker_without_tls(
    broker: ScriptedBroker, web: ScriptedHttp, web_front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    web.script = web.usual(broker.url)
    options = {"tls_trust_certs_file_path": ca.path, "operation_timeout_seconds": 0.3}
    with refuses(LookupError, rf"{LOOK_UP}: the broker's URL: there is none with pulsar\+ssl://"):
        make_client(https(web_front), **options).create_producer("t")


def redirecting(web: ScriptedHttp, to: str) -> None:
    """Every look-up goes there."""
    web.script = lambda target: answer(307, Location=f"{to}{target}")


@pytest.mark.parametrize("token", [None, "t"])
def test_redirects_between_hosts_over_tls(
    web: ScriptedHttp,
    web_front: TlsFront,
    secure: Secure,
    server: Identity,
    ca: Authority,
    make_client: MakeClient,
    token: str | None,
) -> None:
    """Each host needs a certificate of its own name, and gets the credentials."""
    options: dict[str, Any] = {"tls_trust_certs_file_path": ca.path}
    if token is not None:
        options["authentication"] = AuthenticationToken(token)
    with scripted_http() as first:
        redirecting(first, https(web_front, "localhost"))
        front = secure(first.port, server.server())
        make_client(https(front), **options).create_producer("t")
        assert [handshake.server_name for handshake in web_front.handshakes] == ["localhost"] * 2
        expected = [token and f"Bearer {token}"] * 2
        assert first.headers("Authorization") == web.headers("Authorization") == expected
        web_front.context = ca.issue("only by address", ("127.0.0.1",)).server()
        with refuses(PeerNotTrusted, rf"localhost:{web_front.port}: .*not valid for 'localhost'"):
            make_client(https(front), **options).create_producer("t")
        assert len(web.requests) == 2


def test_a_redirect_away_from_tls_is_refused(
    web: ScriptedHttp, web_front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    options = {"authentication": AuthenticationToken("t"), "operation_timeout_seconds": 0.3}
    with scripted_http() as plain:
        redirecting(web, plain.url)
        with refuses(LookupError, f"{https(web_front)}/.* redirected: {plain.url}/.* is without TLS"):
            make_client(https(web_front), tls_trust_certs_file_path=ca.path, **options).create_producer("t")
        assert plain.requests == []


@pytest.mark.parametrize("use_tls", [False, True])
def test_a_redirect_to_tls_is_followed(
    broker: ScriptedBroker,
    web: ScriptedHttp,
    web_front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    use_tls: bool,
) -> None:
    """The brokers' URLs are those that the service URL asks for, and the credentials stay where they were."""
    options: dict[str, Any] = {"authentication": AuthenticationToken("t")}
    if use_tls:
        options |= {"use_tls": True, "tls_trust_certs_file_path": ca.path}
    else:
        web.script = web.usual(broker.url)
        monkeypatch.setenv("SSL_CERT_FILE", ca.path)  # the system's CAs
    with scripted_http() as plain:
        redirecting(plain, https(web_front))
        make_client(plain.url, **options).create_producer("t").send(b"x")
        assert broker.payloads == [b"x"]
        assert web.targets == plain.targets == [ASK_PARTITIONS, LOOK_UP]
        assert plain.headers("Authorization") == ["Bearer t"] * 2
        assert web.headers("Authorization") == [None] * 2
        redirecting(web, plain.url)
        with refuses(LookupError, "is without TLS"):
            make_client(plain.url, operation_timeout_seconds=0.3, **options).create_producer("t")


# --- who asks


class Own(Authentication):
    """A method with headers of its own, which block if they are `plain`."""

    name = "own"
    plain = False

    def __init__(self, headers: Any, host: str = "") -> None:
        self.given, self.host = headers, host

    def for_host(self, host: str) -> Authentication:
        return type(self)(self.given, host)

    def initial_data(self) -> bytes:
        return b"data"

    async def http_headers(self) -> Mapping[str, str]:
        await asyncio.sleep(0.01)
        return {name: value.format(self) for name, value in self.given.items()}


class OwnPlain(Own):
    def http_headers(self) -> Any:
        time.sleep(0.01)
        return self.given() if callable(self.given) else self.given


async def supply_token() -> str:
    await asyncio.sleep(0)
    return "abc"


@pytest.mark.parametrize(
    ("authentication", "headers"),
    [
        (AuthenticationToken("abc"), {"Authorization": "Bearer abc", "X-Pulsar-Auth-Method-Name": "token"}),
        (AuthenticationToken(lambda: "abc"), {"Authorization": "Bearer abc"}),
        (AuthenticationToken(supply_token), {"Authorization": "Bearer abc"}),
        (
            AuthenticationBasic("Aladdin", "open sesame"),
            {"Authorization": "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", "X-Pulsar-Auth-Method-Name": "basic"},
        ),
        (AuthenticationBasic("me", "é", method="m"), {"X-Pulsar-Auth-Method-Name": "m"}),
        (
            Own({"X-Own": "of {0.host}", "Authorization": "\tOwn ~"}),
            {"X-Own": "of 127.0.0.1", "Authorization": "Own ~"},
        ),
        (OwnPlain({"X-Own": ""}), {"X-Own": "", "Authorization": None}),
        (OwnPlain({}), {"Authorization": None, "X-Pulsar-Auth-Method-Name": None}),
        (None, {"Authorization": None, "X-Pulsar-Auth-Method-Name": None}),
    ],
    ids=["text", "function", "async", "basic", "method", "own", "plain own", "none of its own", "nobody"],
)
def test_credentials(
    web: ScriptedHttp,
    make_client: MakeClient,
    authentication: Authentication | None,
    headers: dict[str, str | None],
) -> None:
    assert make_client(web.url, authentication=authentication).create_producer("t").is_connected()
    assert web.targets == [ASK_PARTITIONS, LOOK_UP]
    for name, value in headers.items():
        assert web.headers(name) == [value] * 2


@pytest.fixture
def blocked() -> Iterator[threading.Event]:
    """Set at the latest after the test, so that what waits for it ends."""
    event = threading.Event()
    yield event
    event.set()


def test_each_request_gets_fresh_credentials(
    broker: ScriptedBroker, web: ScriptedHttp, make_client: MakeClient
) -> None:
    """Another host that a redirect leads to gets them as well."""
    numbers = itertools.count(1)
    with scripted_http() as other:
        other.script = web.script
        redirecting(web, other.url)
        client = make_client(web.url, authentication=AuthenticationToken(lambda: f"t{next(numbers)}"))
        producer = client.create_producer("t")
        assert web.headers("Authorization") == ["Bearer t1", "Bearer t3"]
        assert other.headers("Authorization") == ["Bearer t2", "Bearer t4"]
        broker.cut_connections()
        producer.send(b"x")
        assert web.headers("Authorization")[2:] == ["Bearer t6"]
        assert [frame.command.connect.auth_data for frame in broker.got(BaseCommand.CONNECT)] == [
            b"t5",
            b"t8",
        ]


def test_a_token_of_an_oauth2_server_serves_look_ups_and_connections(
    broker: ScriptedBroker, web: ScriptedHttp, make_client: MakeClient
) -> None:
    with TokenServer(lambda form: "abc") as server:
        given = {"issuer_url": server.url, "client_id": "me", "client_secret": server.secret}
        make_client(web.url, authentication=AuthenticationOauth2(given)).create_producer("t")
        assert len(server.forms) == 1
    assert web.headers("Authorization") == ["Bearer abc"] * 2
    assert broker.got(BaseCommand.CONNECT)[0].command.connect.auth_data == b"abc"


def test_no_look_up_without_credentials(
    web: ScriptedHttp, make_client: MakeClient, blocked: threading.Event
) -> None:
    """What a supplier does wrong is raised at once; one that blocks has the operation timeout, or a host's part."""
    mistakes: list[tuple[Any, str]] = [
        (lambda: 1 / 0, r"raised ZeroDivisionError at .*test_http_lookup\.py"),
        (lambda: blocked.wait(10), r"there were none within 0\.225 s"),
        (lambda: None, "must be a mapping of str to str, not NoneType"),
        (lambda: [("a", "b")], "must be a mapping of str to str, not list"),
        (lambda: {"a": b"secret"}, "the header a holds what is not printable ASCII"),
        *(
            (lambda name=name: {name: "secret"}, "a header has no proper name")
            for name in (1, "", "a b", "a:", "é", "a\n")
        ),
        *(
            (lambda value=value: {"a": value}, "the header a holds what is not printable ASCII")
            for value in ("secret\r\nb: c", "secret\n", "secret\r", "secret\0", "sécret", "\ud800")
        ),
    ]
    hosts = f"{web.url},{web.address}"  # a host's part is half of the time
    for supply, says in mistakes:
        client = make_client(hosts, authentication=OwnPlain(supply), operation_timeout_seconds=0.5)
        with refuses(AuthenticationError, rf"no credentials \(own\) for 127\.0\.0\.1: .*{says}") as caught:
            client.create_producer("t")
        assert "secret" not in str(caught.value)
    with refuses(AuthenticationError, r"no credentials \(token\) .*the header Authorization holds"):
        make_client(web.url, authentication=AuthenticationToken("a\r\nb: c")).create_producer("t")
    assert web.requests == []


def test_a_long_token(web: ScriptedHttp, make_client: MakeClient) -> None:
    """It does not fit into the socket at once."""
    token = "x" * 8_000_000
    client = make_client(web.url, authentication=AuthenticationToken(token))
    assert client.get_topic_partitions("t")
    assert web.headers("Authorization") == [f"Bearer {token}"]


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
        (answer(404, {"message": "no such page"}), LookupError, "HTTP 404 no such page"),
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
