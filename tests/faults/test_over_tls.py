"""TLS: whose certificate is accepted, what is said when it is not, and connections that end, stall or dribble."""

import asyncio
import itertools
import os
import shutil
import socket
import ssl
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import AuthenticationTLS, ConnectError, Result
from pulsar_fast.wire.messages import BaseCommand
from tests.certificates import Authority, Identity
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripts import run_script
from tests.faults.tls_front import Canned, TlsFront
from tests.waiting import until

STRIDE = 1 if os.environ.get("PULSAR_FAST_AT_LENGTH") else 19  # bytes between two cuts; 1 takes minutes

MakeClient = Callable[..., Any]
Front = Callable[..., TlsFront]


@pytest.fixture
def in_front(broker: ScriptedBroker) -> Iterator[Front]:
    """Puts TLS in front of the scripted broker, which then names that in its look-ups."""
    fronts: list[TlsFront] = []

    def make(context: ssl.SSLContext, host: str = "127.0.0.1") -> TlsFront:
        fronts.append(TlsFront(broker.port, context, host))
        broker.tls_url = fronts[-1].url
        return fronts[-1]

    yield make
    for front in fronts:
        front.stop()


@pytest.fixture
def front(in_front: Front, server: Identity) -> TlsFront:
    return in_front(server.server())


def assert_refused(client: Any, says: str) -> None:
    """Creating a producer fails, and soon."""
    started = time.monotonic()
    with pytest.raises(ConnectError, match=says):
        client.create_producer("t")
    assert time.monotonic() - started < 15


@pytest.fixture
def named_broker(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that leads to loopback."""
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **named: Any) -> Any:
        return real("127.0.0.1" if host.lower().startswith("broker.b.example") else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return "broker.b.example"


# --- whose certificate is accepted


def test_a_message_over_tls(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    producer = make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t")
    producer.send(b"hello")
    assert broker.payloads == [b"hello"]
    assert len(front.handshakes) == 1, "the broker that the look-up named is another connection"
    assert len(broker.links) == 1, "somebody came without TLS"


def test_use_tls_with_a_plain_url(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    url = front.url.replace("pulsar+ssl", "pulsar")
    producer = make_client(url, use_tls=True, tls_trust_certs_file_path=ca.path).create_producer("t")
    producer.send(b"hello")
    assert len(front.handshakes) == 1
    assert broker.payloads == [b"hello"]


def test_asyncio(broker: ScriptedBroker, front: TlsFront, ca: Authority) -> None:
    async def run() -> None:
        options = {**QUICK, "tls_trust_certs_file_path": ca.path}
        async with pulsar_fast.asyncio.Client(front.url, **options) as client:
            producer = await client.create_producer("t")
            await producer.send(b"hello")

    asyncio.run(run())
    assert broker.payloads == [b"hello"]
    until(lambda: front.said_goodbye == 1)


def test_an_ssl_context(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    context = ssl.create_default_context(cafile=ca.path)
    make_client(front.url, ssl_context=context).create_producer("t").send(b"hello")
    assert broker.payloads == [b"hello"]


@pytest.mark.parametrize(
    ("names", "host", "is_right"),
    [
        (("broker.b.example",), "broker.b.example", True),
        (("BROKER.b.example",), "broker.b.EXAMPLE", True),
        (("broker.b.example",), "broker.b.example.", True),
        (("other.example", "broker.b.example"), "broker.b.example", True),
        (("*.b.example",), "broker.b.example", True),
        (("*.broker.b.example",), "broker.b.example", False),
        (("*.example",), "broker.b.example", False),
        (("*",), "broker.b.example", False),
        (("b.example",), "broker.b.example", False),
        (("127.0.0.1",), "broker.b.example", False),
        (("127.0.0.1",), "127.0.0.1", True),
        (("127.0.0.2",), "127.0.0.1", False),
        (("localhost",), "127.0.0.1", False),
        ((), "broker.b.example", False),  # the common name alone
    ],
)
def test_names(
    named_broker: str,
    broker: ScriptedBroker,
    in_front: Front,
    ca: Authority,
    make_client: MakeClient,
    names: tuple[str, ...],
    host: str,
    is_right: bool,
) -> None:
    front = in_front(ca.issue("broker.b.example", names).server())
    url = f"pulsar+ssl://{host}:{front.port}"
    broker.tls_url = url
    client = make_client(url, tls_trust_certs_file_path=ca.path)
    if is_right:
        client.create_producer("t").send(b"x")
        expected = None if host == "127.0.0.1" else host.rstrip(".")
        assert front.handshakes[0].server_name == expected, "not the name that was dialled"
    else:
        assert_refused(
            client, rf"no TLS with {host}:\d+: .*not valid for '{host}'.*subject alternative names"
        )
        assert len(broker.links) == 0, "it went on with a broker of another name"
        assert len(front.failures) <= 1, "it was tried again, though nothing can have changed"
    unchecked = make_client(url, tls_trust_certs_file_path=ca.path, tls_validate_hostname=False)
    assert unchecked.create_producer("u").is_connected()


def test_an_issuer_that_is_not_trusted(
    broker: ScriptedBroker, front: TlsFront, tmp_path: Path, make_client: MakeClient
) -> None:
    other = Authority(tmp_path, "other")
    client = make_client(front.url, tls_trust_certs_file_path=other.path)
    assert_refused(client, rf"no issuer among '{other.path}'.*tls_trust_certs_file_path")
    until(lambda: front.failures == ["TLSV1_ALERT_UNKNOWN_CA"])  # the broker is told, once
    assert_refused(make_client(front.url), r"no issuer among the system's CAs.*tls_trust_certs_file_path")
    assert broker.frames == []
    assert_refused(
        make_client(front.url, ssl_context=ssl.create_default_context()), "among the CAs of ssl_context"
    )
    unchecked = make_client(front.url, tls_allow_insecure_connection=True)
    assert unchecked.create_producer("t").is_connected()


def test_a_certificate_that_has_expired(in_front: Front, ca: Authority, make_client: MakeClient) -> None:
    front = in_front(ca.issue("old", ("127.0.0.1",), days=-1).server())
    assert_refused(make_client(front.url, tls_trust_certs_file_path=ca.path), "expired.*new certificate")


@pytest.mark.parametrize(
    ("options", "version", "ciphers"),
    [
        ({}, "TLSv1.3", {"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"}),
        ({"tls_minimum_version": ssl.TLSVersion.TLSv1_3}, "TLSv1.3", None),
        ({"tls_ciphers": "ECDHE-ECDSA-AES128-SHA256"}, "TLSv1.2", {"ECDHE-ECDSA-AES128-SHA256"}),
        ({"tls_ciphers": "ECDHE+CHACHA20"}, "TLSv1.2", {"ECDHE-ECDSA-CHACHA20-POLY1305"}),
    ],
    ids=str,
)
def test_what_is_negotiated(
    front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    options: dict[str, Any],
    version: str,
    ciphers: set[str] | None,
) -> None:
    if version == "TLSv1.2":
        front.context.maximum_version = ssl.TLSVersion.TLSv1_2
    make_client(front.url, tls_trust_certs_file_path=ca.path, **options).create_producer("t").send(b"x")
    (handshake,) = front.handshakes
    assert handshake.version == version
    assert ciphers is None or handshake.cipher in ciphers


def test_ciphers_do_not_touch_those_of_tls_1_3(
    front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    options = {"tls_trust_certs_file_path": ca.path, "tls_ciphers": "ECDHE+AES128"}
    make_client(front.url, **options).create_producer("t").send(b"x")
    assert front.handshakes[0].version == "TLSv1.3"
    assert front.handshakes[0].cipher.startswith("TLS_")


@pytest.mark.parametrize(
    ("newest", "options", "says"),
    [
        (ssl.TLSVersion.TLSv1_1, {}, r"\(1\.2 at least\) and cipher that both sides allow"),
        (
            ssl.TLSVersion.TLSv1_2,
            {"tls_minimum_version": ssl.TLSVersion.TLSv1_3},
            r"\(1\.3 at least\) and cipher that both sides allow",
        ),
        (
            ssl.TLSVersion.TLSv1_2,
            {"tls_ciphers": "ECDHE-RSA-AES128-SHA256"},  # which no key of this server fits
            "and cipher \\(of tls_ciphers 'ECDHE-RSA-AES128-SHA256'\\) that both sides allow",
        ),
        (ssl.TLSVersion.TLSv1_2, {"ssl_context": None}, "that both ssl_context and the broker allow"),
    ],
    ids=["old server", "new client", "ciphers", "ssl_context"],
)
def test_no_protocol_in_common(
    front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    newest: ssl.TLSVersion,
    options: dict[str, Any],
    says: str,
) -> None:
    if "ssl_context" in options:
        options = {"ssl_context": ssl.create_default_context(cafile=ca.path)}
        options["ssl_context"].minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        options = {"tls_trust_certs_file_path": ca.path, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old one
        front.context.set_ciphers("ALL:@SECLEVEL=0")
        front.context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        front.context.maximum_version = newest
    client = make_client(front.url, operation_timeout_seconds=0.3, **options)
    assert_refused(client, f"no TLS with 127.0.0.1:{front.port}: no TLS version .*{says}")
    assert front.handshakes == []


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_resumed(
    broker: ScriptedBroker,
    front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    version: ssl.TLSVersion,
) -> None:
    front.context.maximum_version = version
    producer = make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t")
    for _ in range(3):
        producer.send(b"x")
        broker.cut_connections()
    producer.send(b"x")
    assert [handshake.resumed for handshake in front.handshakes] == [False, True, True, True]


# --- certificates of clients


def test_mutual_tls(
    broker: ScriptedBroker, in_front: Front, ca: Authority, server: Identity, make_client: MakeClient
) -> None:
    front = in_front(server.server(asks=ca))
    app = ca.issue("app")
    client = make_client(front.url, tls_trust_certs_file_path=ca.path, **app.options)
    client.create_producer("t").send(b"x")
    assert [handshake.common_name for handshake in front.handshakes] == ["app"]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("has_one", [True, False])
def test_a_client_whose_certificate_is_refused(
    in_front: Front,
    ca: Authority,
    server: Identity,
    tmp_path: Path,
    make_client: MakeClient,
    version: ssl.TLSVersion,
    has_one: bool,
) -> None:
    front = in_front(server.server(asks=ca))
    front.context.maximum_version = version
    stranger = Authority(tmp_path, "other").issue("stranger").options if has_one else {}
    client = make_client(
        front.url, tls_trust_certs_file_path=ca.path, operation_timeout_seconds=0.5, **stranger
    )
    whose = "the certificate of this client" if has_one else "a client without a certificate"
    if version is ssl.TLSVersion.TLSv1_2 and not has_one:
        whose = "cipher that both sides allow, or the broker refuses a client without a certificate"
    assert_refused(client, f"{front.port}.*{whose}.*tls_certificate_file_path")
    assert front.handshakes == []


def test_authentication_by_certificate(
    broker: ScriptedBroker, in_front: Front, ca: Authority, server: Identity, make_client: MakeClient
) -> None:
    """The files of `AuthenticationTLS` are those of the connection, and the broker is told to look at them."""
    front = in_front(server.server(asks=ca))
    app = ca.issue("app")
    authentication = AuthenticationTLS(app.certificate, app.key)
    client = make_client(front.url, authentication=authentication, tls_trust_certs_file_path=ca.path)
    client.create_producer("t").send(b"x")
    assert broker.payloads == [b"x"]
    assert {frame.command.connect.auth_method_name for frame in broker.got(BaseCommand.CONNECT)} == {"tls"}


def test_certificates_are_read_again_for_each_connection(
    broker: ScriptedBroker,
    in_front: Front,
    ca: Authority,
    server: Identity,
    tmp_path: Path,
    make_client: MakeClient,
) -> None:
    front = in_front(server.server(asks=ca))
    trusted = str(tmp_path / "trusted.crt")
    shutil.copy(ca.path, trusted)
    mine = ca.issue("first", file="mine")
    producer = make_client(front.url, tls_trust_certs_file_path=trusted, **mine.options).create_producer("t")
    outcomes, count, stop = Outcomes(), itertools.count(), threading.Event()

    def keep_sending() -> None:
        while not stop.wait(0.002):
            producer.send_async(b"x", outcomes.of(next(count)))

    traffic = threading.Thread(target=keep_sending)
    traffic.start()
    try:
        ca.issue("second", file="mine")
        front.cut_connections()
        until(lambda: len(front.handshakes) == 2)
        # Now the server comes with a certificate of another authority, and trusts only that one.
        other = Authority(tmp_path, "other")
        renewed = other.issue("renewed", ("127.0.0.1",))
        Path(mine.certificate).write_text("half written")
        shutil.copy(other.path, trusted)
        front.context = renewed.server(asks=other)
        front.cut_connections()
        until(lambda: "tls_certificate_file_path" in str(producer.stats().last_connection_error))
        other.issue("third", file="mine")
        until(lambda: len(front.handshakes) == 3)
    finally:
        stop.set()
        traffic.join()
    producer.flush(5)
    outcomes.wait_for(next(count))
    assert set(outcomes.results.values()) == {Result.Ok}
    assert [handshake.common_name for handshake in front.handshakes] == ["first", "second", "third"]
    assert [handshake.resumed for handshake in front.handshakes] == [False] * 3


def test_rotation_under_traffic(
    broker: ScriptedBroker,
    in_front: Front,
    ca: Authority,
    server: Identity,
    tmp_path: Path,
    make_client: MakeClient,
) -> None:
    """Both sides get certificates of a new authority again and again, which alone is trusted from then on."""
    front = in_front(server.server(asks=ca))
    trusted = str(tmp_path / "trusted.crt")
    shutil.copy(ca.path, trusted)
    mine = ca.issue("0", file="mine")
    options = {"tls_trust_certs_file_path": trusted, **mine.options}
    client = make_client(front.url, connections_per_broker=2, **options)
    producers = [client.create_producer(f"t{number}", max_pending_messages=0) for number in range(2)]
    outcomes, count, stop = Outcomes(), itertools.count(), threading.Event()

    def keep_sending() -> None:
        while not stop.wait(0.001):
            number = next(count)
            producers[number % 2].send_async(b"%d" % number, outcomes.of(number))

    traffic = threading.Thread(target=keep_sending)
    traffic.start()
    try:
        for turn in range(1, 7):
            authority = Authority(tmp_path, f"CA {turn}")
            renewed = authority.issue("server", ("127.0.0.1",))
            authority.issue(str(turn), file="mine")
            shutil.copy(authority.path, trusted)
            front.context = renewed.server(asks=authority)
            front.cut_connections()
            until(lambda turn=turn: [shown.common_name for shown in front.handshakes].count(str(turn)) >= 2)
            answered = len(outcomes.answers)
            until(lambda answered=answered: len(outcomes.answers) > answered + 20)
    finally:
        stop.set()
        traffic.join()
    for producer in producers:
        producer.flush(5)
    outcomes.wait_for(next(count))
    assert set(outcomes.results.values()) == {Result.Ok}
    assert set(broker.payloads) == {b"%d" % number for number in outcomes.results}
    turns = [int(shown.common_name or 0) for shown in front.handshakes]
    assert turns == sorted(turns), "a connection came with an old certificate"
    assert not any(shown.resumed for shown in front.handshakes)


@pytest.mark.parametrize(
    ("whose", "says"),
    [
        ("expired server", "certificate has expired; the broker needs a new certificate"),
        ("foreign server", "its certificate has no issuer among"),
        ("expired client", "the broker refuses the certificate of this client .*expired"),
        ("foreign client", "the broker refuses the certificate of this client"),
    ],
    ids=lambda text: text if len(text) < 20 else "",
)
def test_a_certificate_that_is_refused_on_a_reconnect(
    broker: ScriptedBroker,
    in_front: Front,
    ca: Authority,
    server: Identity,
    tmp_path: Path,
    make_client: MakeClient,
    whose: str,
    says: str,
) -> None:
    """What is pending stays; it times out with that as its reason, or arrives once there is a good certificate."""
    good = server.server(asks=ca)
    front = in_front(good)
    app = ca.issue("app")
    options = {"tls_trust_certs_file_path": ca.path, **app.options}
    client = make_client(front.url, connections_per_broker=2, **options)
    hasty = client.create_producer("hasty", send_timeout_millis=300)
    patient = client.create_producer("patient")
    other = Authority(tmp_path, "other")
    if whose == "expired server":
        front.context = ca.issue("old", ("127.0.0.1",), days=-1).server(asks=ca)
    elif whose == "foreign server":
        front.context = other.issue("foreign", ("127.0.0.1",)).server(asks=ca)
    elif whose == "expired client":
        ca.issue("app", days=-1)
    else:
        other.issue("app")
    front.cut_connections()
    outcomes = Outcomes()
    patient.send_async(b"patient", outcomes.of("patient"))
    with pytest.raises(pulsar_fast.Timeout, match=f"no broker has taken messages of .*hasty.*: .*{says}"):
        hasty.send(b"hasty")
    assert outcomes.answers == []
    front.context = good
    ca.issue("app")
    outcomes.wait_for(1)
    assert outcomes.results == {"patient": Result.Ok}
    assert broker.payloads == [b"patient"]


def test_files_that_cannot_be_used(tmp_path: Path, ca: Authority, make_client: MakeClient) -> None:
    app, other = ca.issue("app"), ca.issue("other")
    locked = ca.issue("locked", password=b"secret")
    (tmp_path / "empty").touch()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"tls_trust_certs_file_path": "/nowhere"}, "tls_trust_certs_file_path '/nowhere'.*No such file"),
        (
            {"tls_trust_certs_file_path": str(tmp_path / "empty")},
            "tls_trust_certs_file_path .*cannot be used",
        ),
        ({"tls_trust_certs_file_path": app.key}, "tls_trust_certs_file_path .*cannot be used"),
        ({**app.options, "tls_certificate_file_path": "/nowhere"}, "'/nowhere'.*No such file"),
        ({**app.options, "tls_private_key_file_path": "/nowhere"}, "'/nowhere'.*No such file"),
        ({**app.options, "tls_private_key_file_path": other.key}, "cannot be used: key values mismatch"),
        (
            {**app.options, "tls_private_key_file_path": app.certificate},
            "tls_private_key_file_path.*cannot be",
        ),
        (locked.options, "tls_private_key_file_path .* is encrypted"),
    ]
    for options, says in cases:
        for kind in (make_client, pulsar_fast.asyncio.Client):
            with pytest.raises(ValueError, match=says):
                kind("pulsar+ssl://localhost", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"tls_trust_certs_file_path": "/x"},
        {"tls_allow_insecure_connection": True},
        {"tls_certificate_file_path": "/x", "tls_private_key_file_path": "/x"},
        {"ssl_context": ssl.create_default_context()},
        {"tls_minimum_version": ssl.TLSVersion.TLSv1_3},
        {"tls_ciphers": "ECDHE+AESGCM"},
        {"authentication": AuthenticationTLS("/x", "/x")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_tls_without_it(make_client: MakeClient, options: dict[str, Any]) -> None:
    name = next(iter(options)).replace("authentication", "AuthenticationTLS")
    with pytest.raises(ValueError, match=rf"^{name} is for TLS: use a pulsar\+ssl://"):
        make_client("pulsar://localhost", **options)


@pytest.mark.parametrize("validate", [True, False])
def test_what_the_official_client_takes_without_tls(
    broker: ScriptedBroker, make_client: MakeClient, validate: bool
) -> None:
    client = make_client(
        broker.url, use_tls=False, tls_allow_insecure_connection=False, tls_validate_hostname=validate
    )
    assert client.create_producer("t").is_connected()


# --- whom the system trusts


@pytest.fixture
def own_store(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """What OpenSSL takes for the system's file of CAs."""

    def use(path: str) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", path)
        monkeypatch.setenv("SSL_CERT_DIR", "/nowhere")

    return use


def test_the_systems_authorities(
    broker: ScriptedBroker,
    front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    own_store: Callable[[str], None],
) -> None:
    own_store(ca.path)
    make_client(front.url).create_producer("t").send(b"x")
    assert broker.payloads == [b"x"]


def test_a_system_without_authorities(
    broker: ScriptedBroker,
    front: TlsFront,
    ca: Authority,
    make_client: MakeClient,
    own_store: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_store("/nowhere")
    monkeypatch.setitem(sys.modules, "certifi", None)
    assert_refused(make_client(front.url), "no issuer among the system's CAs")
    certifi = types.ModuleType("certifi")
    certifi.where = lambda: ca.path  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "certifi", certifi)
    make_client(front.url).create_producer("t").send(b"x")
    assert broker.payloads == [b"x"]


# --- TLS and no TLS


def test_tls_to_a_plain_port(ca: Authority, make_client: MakeClient) -> None:
    broker = ScriptedBroker()
    options = {"tls_trust_certs_file_path": ca.path, "operation_timeout_seconds": 0.3}
    try:
        client = make_client(f"pulsar+ssl://{broker.address}", **options)
        says = rf"no TLS with {broker.address}: .*is it the broker's TLS port \(6651 by default\)"
        assert_refused(client, says)
    finally:
        broker.stop()  # without a look at the violations: what begins a handshake is no frame


def test_tls_to_something_else(make_client: MakeClient) -> None:
    with Canned(b"HTTP/1.1 400 Bad Request\r\n\r\n") as front:
        client = make_client(front.url, operation_timeout_seconds=0.3)
        assert_refused(client, "what answers does not speak TLS .*pulsar://")


def test_a_server_from_before_tls_1_2(make_client: MakeClient) -> None:
    """It knows nothing of how newer clients name their versions, and answers with its own, 1.1."""
    hello = b"\x03\x02" + bytes(32) + b"\x00" + b"\xc0\x13" + b"\x00"
    message = b"\x02" + len(hello).to_bytes(3, "big") + hello
    with Canned(b"\x16\x03\x02" + len(message).to_bytes(2, "big") + message) as front:
        client = make_client(front.url, operation_timeout_seconds=0.3)
        assert_refused(client, r"no TLS version \(1\.2 at least\) .*\(unsupported protocol\)")


def test_a_mute_peer(make_client: MakeClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"pulsar+ssl://127.0.0.1:{listener.getsockname()[1]}"
        client = make_client(url, operation_timeout_seconds=0.5, connection_timeout_ms=200)
        assert_refused(client, r"no TLS with .* within 0\.2 s")


def test_a_plain_client_on_a_tls_port(front: TlsFront, make_client: MakeClient) -> None:
    client = make_client(f"pulsar://127.0.0.1:{front.port}", operation_timeout_seconds=0.3)
    assert_refused(client, r"closed the connection before it answered; a TLS port .* needs pulsar\+ssl://")


# --- other brokers


def test_redirects_and_successors_by_their_tls_urls(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, server: Identity, make_client: MakeClient
) -> None:
    with ScriptedBroker() as second, TlsFront(second.port, server.server()) as second_front:
        second.tls_url = second_front.url
        broker.on_lookup().redirect_to("pulsar://127.0.0.1:1", tls_url=second_front.url)
        producer = make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t")
        producer.send(b"redirected")
        second.close_producer(assigned="pulsar://127.0.0.1:1", assigned_tls=front.url)
        producer.send(b"moved")
        assert second.payloads[0] == b"redirected"  # perhaps the other one too, before the client has heard
        assert broker.payloads == [b"moved"]
        assert [handshake.resumed for handshake in second_front.handshakes] == [False]
        assert len(second.got(BaseCommand.LOOKUP)) == 1
        assert len(broker.got(BaseCommand.LOOKUP)) == 1, "it was looked up, though its broker was named"


def test_a_redirect_is_checked_against_its_own_host(
    named_broker: str, broker: ScriptedBroker, in_front: Front, ca: Authority, make_client: MakeClient
) -> None:
    first = in_front(ca.issue("a", ("127.0.0.1",)).server())
    second = in_front(ca.issue("b", (named_broker,)).server())
    options = {"tls_trust_certs_file_path": ca.path}
    broker.tls_url = f"pulsar+ssl://{named_broker}:{second.port}"
    make_client(first.url, **options).create_producer("t").send(b"x")
    broker.tls_url = f"pulsar+ssl://{named_broker}:{first.port}"  # whose certificate is for the address only
    assert_refused(make_client(first.url, **options), f"no TLS with {named_broker}.*not valid for")


def test_a_proxy_is_checked_by_its_own_name(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    broker.on_lookup().send_to("", tls_url="pulsar+ssl://inner.example:6651", through_proxy=True)
    make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t").send(b"x")
    connects = [frame.command.connect.proxy_to_broker_url for frame in broker.got(BaseCommand.CONNECT)]
    assert connects == ["", "inner.example:6651"]


def test_a_look_up_without_a_tls_url(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    broker.tls_url = ""
    client = make_client(front.url, tls_trust_certs_file_path=ca.path, operation_timeout_seconds=0.3)
    with pytest.raises(pulsar_fast.LookupError, match=r"there is none with pulsar\+ssl://"):
        client.create_producer("t")


# --- connections that end, stall and dribble


@pytest.mark.timeout(900)
def test_cut_all_along_a_handshake(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    options = {"tls_trust_certs_file_path": ca.path}
    make_client(front.url, **options).create_producer("t").send(b"1")
    for count, answered in enumerate(range(1, 1800, STRIDE), 2):
        front.cut_next_connection_after(answered)
        client = make_client(front.url, max_backoff_interval_ms=2, **options)
        client.create_producer("t").send(b"%d" % count)
        client.shutdown()
        assert len(set(broker.payloads)) == count


@pytest.mark.timeout(900)
def test_cut_all_along_the_answers(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    """All along a resumed handshake and the answers to `Connect`, look-up, `Producer` and the first messages."""
    producer = make_client(
        front.url, tls_trust_certs_file_path=ca.path, max_backoff_interval_ms=2
    ).create_producer("t")
    producer.send(b"0")
    payloads = [b"0"]
    for answered in range(1, 900, STRIDE):
        front.cut_next_connection_after(answered)
        front.cut_connections()
        payloads.append(b"%d" % answered)
        producer.send(payloads[-1])
    assert sorted(set(broker.payloads)) == sorted(payloads)
    assert producer.stats().pending_messages == 0


def test_ciphertext_that_dribbles_in(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    front.dribble(1)
    producer = make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t")
    producer.send_many([b"x"] * 3000).result(timeout=20)
    assert len(broker.payloads) == 3000


def test_big_messages(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    producer = make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t")
    payloads = [bytes([65 + number]) * 5_000_000 for number in range(6)]
    producer.send_many(payloads).result(timeout=20)
    assert broker.payloads == payloads


def test_a_peer_that_stops_reading(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    client = make_client(front.url, tls_trust_certs_file_path=ca.path, memory_limit_bytes=8 << 20)
    producer = client.create_producer("t", send_timeout_millis=500, max_pending_messages=0)
    producer.send(b"first")
    front.stall()
    outcomes, payload = Outcomes(), bytes(100_000)
    started = time.monotonic()
    accepted = 0
    while producer.stats().client_pending_bytes < 7 << 20:
        producer.send_async(payload, outcomes.of(accepted))
        accepted += 1
    outcomes.wait_for(accepted)
    assert time.monotonic() - started < 15
    assert set(outcomes.results.values()) == {Result.Timeout}
    assert producer.stats().client_pending_bytes < 1 << 20, "what has expired is kept"
    taken = front.bytes_in
    front.go_on()
    producer.send(b"last")
    assert broker.payloads[-1] == b"last"
    assert producer.stats().reconnects == 0
    assert front.bytes_in - taken < 6 << 20, "what had expired was written all the same"


def test_closing_while_the_peer_does_not_read(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    client = make_client(front.url, tls_trust_certs_file_path=ca.path, operation_timeout_seconds=0.5)
    producer = client.create_producer("t")
    front.stall()
    outcomes = Outcomes()
    for number in range(80):
        producer.send_async(bytes(100_000), outcomes.of(number))
    started = time.monotonic()
    client.close()
    assert time.monotonic() - started < 10
    outcomes.wait_for(80)
    assert set(outcomes.results.values()) == {Result.AlreadyClosed}
    assert front.said_goodbye == 0


def test_the_end_right_behind_the_last_bytes(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, make_client: MakeClient
) -> None:
    """A receipt and the end of the connection in one reading: the receipt counts, then it reconnects."""
    producer = make_client(front.url, tls_trust_certs_file_path=ca.path).create_producer("t")

    def answer_and_end(frame: Any) -> None:
        broker.usual_answer(frame)
        frame.link.close()

    broker.on_send().do(answer_and_end, times=20)
    for number in range(20):
        producer.send(b"%d" % number)
    producer.send(b"end")
    assert broker.payloads == [*(b"%d" % number for number in range(20)), b"end"]
    assert producer.stats().reconnects == 20


def test_a_child_leaves_the_connection_to_its_parent(
    broker: ScriptedBroker, front: TlsFront, ca: Authority, own_store: Callable[[str], None]
) -> None:
    own_store(ca.path)
    script = """
        async def main():
            async with pulsar_fast.asyncio.Client(url) as client:
                producer = await client.create_producer("t")
                await producer.send(b"before")
                os.waitpid(fork(gc.collect, "_exit"), 0)
                await producer.send(b"behind")
                say(producer.stats().reconnects, "reconnects")
        asyncio.run(main())
        """
    assert run_script(front, script) == "0 reconnects\n"
    assert broker.payloads == [b"before", b"behind"]
    until(lambda: front.said_goodbye == 1)
