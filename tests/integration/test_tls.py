"""TLS with Apache Pulsar: certificates of brokers and of clients, the right ones and the wrong ones."""

import base64
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

from pulsar_fast import (
    Authentication,
    AuthenticationError,
    AuthenticationTLS,
    AuthorizationError,
    Client,
    ConnectError,
    ProxyProtocol,
)
from pulsar_fast.embedded import reserve_port
from tests.brokers import apache, unavailable
from tests.brokers.admin import Login
from tests.brokers.jwt import token_of
from tests.brokers.readback import Subscription
from tests.certificates import Authority, Identity
from tests.faults.tls_front import SniProxy

BEHIND_PROXY = "broker.invalid"  # a name that leads nowhere

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


class Cluster:
    """A broker with plain and TLS ports, and the certificates around it."""

    def __init__(self, broker: apache.ApacheBroker, port: int, web_port: int) -> None:
        self.broker = broker
        self.port = port
        self.url = f"pulsar+ssl://127.0.0.1:{port}"
        self.web_url = f"https://127.0.0.1:{web_port}"


@contextmanager
def running(
    identity: Identity, ca: Authority, login: Login | None = None, **settings: str
) -> Iterator[Cluster]:
    if (reason := apache.available()) is not None:
        unavailable(reason)
    with ExitStack() as resources:
        port, web_port = (resources.enter_context(reserve_port()).getsockname()[1] for _ in range(2))
        overrides = {
            "brokerServicePortTls": port,
            "webServicePortTls": web_port,
            "tlsCertificateFilePath": identity.certificate,
            "tlsKeyFilePath": identity.key,
            "tlsTrustCertsFilePath": ca.path,
            "brokerClientTrustCertsFilePath": ca.path,
            **settings,
        }
        broker = resources.enter_context(apache.ApacheBroker(overrides, login))
        yield Cluster(broker, port, web_port)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def ca(folder: Path) -> Authority:
    return Authority(folder, rsa=True)


@pytest.fixture(scope="module")
def other(folder: Path) -> Authority:
    return Authority(folder, "other", rsa=True)


# --- certificates of brokers


@pytest.fixture(scope="module")
def cluster(folder: Path, ca: Authority) -> Iterator[Cluster]:
    names = ("localhost", "127.0.0.1", BEHIND_PROXY)
    with running(ca.issue("server", names, file="server"), ca) as cluster:
        yield cluster


@pytest.fixture
def subscribe(cluster: Cluster, ca: Authority) -> Iterator[Callable[[str], Subscription]]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(cluster.broker.service_url, logger=logger)
    yield lambda topic: Subscription(client, topic)
    client.close()


def test_what_goes_in_over_tls_comes_out(
    cluster: Cluster, ca: Authority, topic: str, subscribe: Callable[[str], Subscription]
) -> None:
    payloads = [b"%d" % number * 100 for number in range(5000)]
    payloads += [bytes([number]) * 4_000_000 for number in range(3)]
    subscription = subscribe(topic)
    for host in ("127.0.0.1", "localhost"):
        url = f"pulsar+ssl://{host}:{cluster.port}"
        with Client(url, tls_trust_certs_file_path=ca.path) as client:
            producer = client.create_producer(topic, block_if_queue_full=True)
            producer.send_many(payloads).result(timeout=60)
    assert [message.data for message in subscription.read_all(60)] == payloads * 2
    subscription.close()


def test_looked_up_over_https(
    cluster: Cluster, ca: Authority, topic: str, subscribe: Callable[[str], Subscription]
) -> None:
    subscription = subscribe(topic)
    for url in (cluster.web_url, cluster.web_url.replace("127.0.0.1", "localhost")):
        with (
            Client(url, tls_trust_certs_file_path=ca.path) as client,
            client.create_producer(topic) as producer,
        ):
            producer.send(b"x")
    assert [message.data for message in subscription.read_all(2)] == [b"x"] * 2
    subscription.close()


def test_https_and_http_mixed_up(cluster: Cluster, ca: Authority, topic: str) -> None:
    with (
        Client(cluster.web_url.replace("https", "http"), operation_timeout_seconds=0.5) as client,
        pytest.raises(ConnectError, match="a TLS port needs https://"),
    ):
        client.create_producer(topic)
    with (
        Client(
            cluster.broker.admin_url.replace("http", "https"),
            tls_trust_certs_file_path=ca.path,
            operation_timeout_seconds=0.5,
        ) as client,
        pytest.raises(ConnectError, match=r"with https:// .*8443.* A plain one needs .*http://"),
    ):
        client.create_producer(topic)


def test_through_an_sni_proxy(
    cluster: Cluster, ca: Authority, topic: str, subscribe: Callable[[str], Subscription]
) -> None:
    subscription = subscribe(topic)
    with SniProxy({BEHIND_PROXY: cluster.port}) as proxy:
        options = {"proxy_service_url": proxy.url, "proxy_protocol": ProxyProtocol.SNI}
        url = f"pulsar+ssl://{BEHIND_PROXY}"
        with Client(url, tls_trust_certs_file_path=ca.path, **options) as client:
            producer = client.create_producer(topic)
            producer.send(b"before")
            proxy.cut_connections()
            producer.send(b"behind")
        assert set(proxy.names) == {BEHIND_PROXY}
    assert [message.data for message in subscription.read_all()] == [b"before", b"behind"]
    subscription.close()


def test_the_plain_port_stays_plain(cluster: Cluster, topic: str) -> None:
    with Client(cluster.broker.service_url) as client, client.create_producer(topic) as producer:
        producer.send(b"x")


def test_a_foreign_authority(cluster: Cluster, other: Authority, topic: str) -> None:
    for url in (cluster.url, cluster.web_url):
        with (
            Client(url, tls_trust_certs_file_path=other.path) as client,
            pytest.raises(ConnectError, match=r"no issuer among .*other"),
        ):
            client.create_producer(topic)
        with (
            Client(url, tls_allow_insecure_connection=True) as client,
            client.create_producer(topic) as producer,
        ):
            producer.send(b"x")


def test_tls_and_plain_mixed_up(cluster: Cluster, ca: Authority, topic: str) -> None:
    with (
        Client(f"pulsar://127.0.0.1:{cluster.port}", operation_timeout_seconds=1) as client,
        pytest.raises(ConnectError, match=r"needs pulsar\+ssl://"),
    ):
        client.create_producer(topic)
    plain = cluster.broker.service_url.replace("pulsar://", "pulsar+ssl://")
    with (
        Client(plain, tls_trust_certs_file_path=ca.path, operation_timeout_seconds=1) as client,
        pytest.raises(ConnectError, match="is it the broker's TLS port"),
    ):
        client.create_producer(topic)


# --- certificates of clients


@pytest.fixture(scope="module")
def strict_cluster(folder: Path, ca: Authority) -> Iterator[Cluster]:
    server = ca.issue("server", ("broker.invalid",), file="misnamed")
    with running(
        server,
        ca,
        tlsRequireTrustedClientCertOnConnect="true",
    ) as cluster:
        yield cluster


def test_mutual_tls(strict_cluster: Cluster, ca: Authority, topic: str) -> None:
    app = ca.issue("app")
    for url in (strict_cluster.url, strict_cluster.web_url):
        with (
            Client(
                url, tls_trust_certs_file_path=ca.path, tls_validate_hostname=False, **app.options
            ) as client,
            client.create_producer(topic) as producer,
        ):
            producer.send(b"x")


def assert_refused(cluster: Cluster, ca: Authority, topic: str, says: str, **options: Any) -> None:
    for url in (cluster.url, cluster.web_url):
        with (
            Client(url, tls_trust_certs_file_path=ca.path, operation_timeout_seconds=1, **options) as client,
            pytest.raises(ConnectError, match=says),
        ):
            client.create_producer(topic)


def test_a_wrong_name(strict_cluster: Cluster, ca: Authority, topic: str) -> None:
    says = r"not valid for '127\.0\.0\.1'.*tls_validate_hostname"
    assert_refused(strict_cluster, ca, topic, says, **ca.issue("app").options)


def test_without_a_certificate(strict_cluster: Cluster, ca: Authority, topic: str) -> None:
    says = "refuses a client without a certificate"
    assert_refused(strict_cluster, ca, topic, says, tls_validate_hostname=False)


def test_a_strangers_certificate(
    strict_cluster: Cluster, ca: Authority, other: Authority, topic: str
) -> None:
    options = {"tls_validate_hostname": False, **other.issue("stranger").options}
    assert_refused(strict_cluster, ca, topic, "refuses the certificate of this client", **options)


# --- certificates of clients that say who they are


@pytest.fixture(scope="module")
def guarded_cluster(folder: Path, ca: Authority) -> Iterator[Cluster]:
    """Lets in who shows a certificate; the role `writer` may produce in acme/in. (The tests themselves use a token.)"""
    server = ca.issue("server", ("127.0.0.1", BEHIND_PROXY), file="guarded")
    key = secrets.token_bytes(32)
    admin = token_of(key, "admin")
    provider = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
    with running(
        server,
        ca,
        Login("token", admin),
        authenticationEnabled="true",
        authenticationProviders=f"{provider}Tls,{provider}Token",
        tokenSecretKey=f"data:;base64,{base64.b64encode(key).decode()}",
        brokerClientAuthenticationPlugin="org.apache.pulsar.client.impl.auth.AuthenticationToken",
        brokerClientAuthenticationParameters=f"token:{admin}",
        authorizationEnabled="true",
        superUserRoles="admin",
    ) as cluster:
        cluster.broker.admin.put("/tenants/acme", {"allowedClusters": ["standalone"]})
        cluster.broker.admin.put("/namespaces/acme/in")
        cluster.broker.admin.post("/namespaces/acme/in/permissions/writer", ["produce"])
        yield cluster


def by_certificate(ca: Authority, role: str) -> AuthenticationTLS:
    identity = ca.issue(role)
    return AuthenticationTLS(identity.certificate, identity.key)


def test_a_permitted_role(guarded_cluster: Cluster, ca: Authority) -> None:
    """Through a proxy that passes TLS on, so that it is the client's certificate that the broker sees."""
    with SniProxy({BEHIND_PROXY: guarded_cluster.port}) as proxy:
        options = {
            "authentication": by_certificate(ca, "writer"),
            "tls_trust_certs_file_path": ca.path,
            "proxy_service_url": proxy.url,
            "proxy_protocol": ProxyProtocol.SNI,
        }
        with (
            Client(f"pulsar+ssl://{BEHIND_PROXY}", **options) as client,
            client.create_producer("acme/in/t") as producer,
        ):
            producer.send(b"x")
            proxy.cut_connections()
            producer.send(b"says again who it is")
            stats = guarded_cluster.broker.admin.get("/persistent/acme/in/t/stats")
            assert stats["msgInCounter"] == 2
            assert producer.stats().reconnects == 1


@pytest.mark.parametrize(("role", "topic"), [("reader", "acme/in/t"), ("writer", "public/default/t")])
def test_a_role_without_permission(guarded_cluster: Cluster, ca: Authority, role: str, topic: str) -> None:
    options = {"authentication": by_certificate(ca, role), "tls_trust_certs_file_path": ca.path}
    with Client(guarded_cluster.url, **options) as client, pytest.raises(AuthorizationError):
        client.create_producer(topic)


class NothingToShow(Authentication):
    """Says that it comes with a certificate, and has none."""

    name = "tls"

    async def initial_data(self) -> bytes:
        return b""


@pytest.mark.parametrize("authentication", [None, NothingToShow()], ids=["none", "tls"])
def test_nobody_in_particular(
    guarded_cluster: Cluster, ca: Authority, authentication: Authentication | None
) -> None:
    options: dict[str, Any] = {"authentication": authentication, "tls_trust_certs_file_path": ca.path}
    with (
        Client(guarded_cluster.url, **options) as client,
        pytest.raises(AuthenticationError, match="Failed to authenticate"),
    ):
        client.create_producer("acme/in/t")
