"""A proxy that learns from the TLS handshake which broker is meant, before brokers with names that lead nowhere."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import AuthenticationTLS, ConnectError, ProxyProtocol
from tests.certificates import Authority
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.tls_front import SniProxy, TlsFront
from tests.waiting import until

A, B = "a.broker.invalid", "b.broker.invalid"
URL = f"pulsar+ssl://{A}"

MakeClient = Callable[..., Any]


class Site:
    """Two brokers with TLS, and the proxy in front of them."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        self.ca = Authority(folder)
        self.brokers: dict[str, ScriptedBroker] = {}
        self.fronts: dict[str, TlsFront] = {}
        for name in (A, B):
            broker = self.brokers[name] = resources.enter_context(ScriptedBroker())
            context = self.ca.issue(name, (name,)).server()
            self.fronts[name] = resources.enter_context(TlsFront(broker.port, context))
            broker.tls_url = f"pulsar+ssl://{name}"
        routes: dict[str | None, int] = {name: front.port for name, front in self.fronts.items()}
        self.proxy = resources.enter_context(SniProxy(routes))

    @property
    def options(self) -> dict[str, Any]:
        return {
            "proxy_service_url": self.proxy.url,
            "proxy_protocol": ProxyProtocol.SNI,
            "tls_trust_certs_file_path": self.ca.path,
        }


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as resources:
        yield Site(tmp_path, resources)


@pytest.fixture
def proxy(site: Site) -> SniProxy:
    return site.proxy


def assert_refused(client: Any, says: str) -> None:
    """Creating a producer fails, and soon."""
    started = time.monotonic()
    with pytest.raises(ConnectError, match=says):
        client.create_producer("t")
    assert time.monotonic() - started < 15


def test_every_connection_goes_through_the_proxy(
    site: Site, proxy: SniProxy, make_client: MakeClient
) -> None:
    """To the host of the URL, to the broker that a look-up names, and to the one that that broker names."""
    site.brokers[A].on_lookup().redirect_to("", tls_url=f"pulsar+ssl://{B}:7000")
    producer = make_client(URL, **site.options).create_producer("t")
    producer.send(b"at b")
    site.brokers[B].close_producer(assigned_tls=f"pulsar+ssl://{A}:8000")
    producer.send(b"at a")
    assert site.brokers[B].payloads[0] == b"at b"
    assert site.brokers[A].payloads == [b"at a"]
    # Twice to the same broker: the first one calls it B:7000, which then calls itself B:6651.
    assert proxy.names == [A, B, B, A]
    for name, front in site.fronts.items():
        assert {handshake.server_name for handshake in front.handshakes} == {name}


def test_asyncio_and_a_certificate_of_the_client(site: Site, proxy: SniProxy) -> None:
    app = site.ca.issue("app")
    site.fronts[A].context = site.ca.issue(A, (A,)).server(asks=site.ca)

    async def run() -> None:
        authentication = AuthenticationTLS(app.certificate, app.key)
        options = {**QUICK, **site.options, "authentication": authentication}
        async with pulsar_fast.asyncio.Client(URL, **options) as client:
            producer = await client.create_producer("t")
            await producer.send(b"x")

    asyncio.run(run())
    assert {handshake.common_name for handshake in site.fronts[A].handshakes} == {"app"}
    assert set(proxy.names) == {A}
    assert site.brokers[A].payloads == [b"x"]


def test_going_to_another_cluster(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    """The checks of both go through the proxy too."""
    options = site.options
    trusted = options.pop("tls_trust_certs_file_path")
    clusters = [pulsar_fast.ServiceInfo(f"pulsar+ssl://{name}", None, trusted) for name in (A, B)]
    rules = pulsar_fast.AutoClusterFailover(clusters[0], clusters[1:], check_interval_ms=20)
    producer = make_client(rules, **options).create_producer("t")
    producer.send(b"at a")
    proxy.routes.pop(A)
    proxy.cut_connections()
    producer.send(b"at b")
    assert site.brokers[B].payloads == [b"at b"]
    assert set(proxy.names) == {A, B}


def test_another_host_of_the_url(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    producer = make_client(f"pulsar+ssl://unknown.invalid,{B}", **site.options).create_producer("t")
    producer.send(b"x")
    assert proxy.names[0] == "unknown.invalid"
    assert site.brokers[B].payloads == [b"x"]


def test_a_broker_behind_the_wrong_name(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    proxy.routes[A] = site.fronts[B].port
    says = rf"no TLS with {A}:6651 through the proxy 127\.0\.0\.1:{proxy.port}: .*not valid for '{A}'"
    assert_refused(make_client(URL, **site.options), says)
    assert proxy.names == [A], "it was tried again, though nothing can have changed"
    assert site.brokers[B].frames == []


def test_a_name_that_the_proxy_does_not_know(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    url = "pulsar+ssl://unknown.invalid:6000"
    client = make_client(url, operation_timeout_seconds=0.3, **site.options)
    says = rf"no TLS with unknown\.invalid:6000 through the proxy 127\.0\.0\.1:{proxy.port}: nobody .*does the proxy"
    assert_refused(client, says)
    assert set(proxy.names) == {"unknown.invalid"}


def test_a_broker_that_is_away_behind_the_proxy(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    site.fronts[A].stop()
    client = make_client(URL, operation_timeout_seconds=0.3, **site.options)
    assert_refused(
        client, rf"no TLS with {A}:6651 through the proxy .*broke off.*does the proxy lead that name"
    )


def test_no_proxy(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    proxy.stop()
    client = make_client(URL, operation_timeout_seconds=0.3, **site.options)
    assert_refused(client, rf"no way to {A}:6651 through the proxy: .*127\.0\.0\.1:{proxy.port} .*refused")


def test_a_proxy_that_goes_away_and_comes_back(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    producer = make_client(URL, **site.options).create_producer("t")
    producer.send(b"before")
    proxy.stop()
    outcomes = Outcomes()
    producer.send_async(b"meanwhile", outcomes.of("meanwhile"))
    until(lambda: "no way to" in str(producer.stats().last_connection_error))
    with SniProxy(proxy.routes, proxy.port) as again:
        outcomes.wait_for(1)
        assert set(again.names) == {A}
        assert site.brokers[A].payloads == [b"before", b"meanwhile"]


def test_a_broker_that_is_named_by_its_address(site: Site, proxy: SniProxy, make_client: MakeClient) -> None:
    site.brokers[A].tls_url = site.fronts[B].url
    client = make_client(URL, operation_timeout_seconds=0.3, **site.options)
    assert_refused(client, rf"cannot be told of 127\.0\.0\.1:{site.fronts[B].port}: SNI carries no address")
    assert set(proxy.names) == {A}, "it went there without the proxy"


BOTH = {"proxy_service_url": "pulsar+ssl://proxy.invalid:4443", "proxy_protocol": ProxyProtocol.SNI}


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("pulsar://a.invalid", BOTH, r"^proxy_service_url is for TLS: use a pulsar\+ssl:// service URL"),
        ("http://a.invalid", BOTH, "^proxy_service_url is for TLS"),
        ("http://a.invalid", {**BOTH, "use_tls": True}, "^proxy_service_url .* HTTP does not go through"),
        ("https://a.invalid", BOTH, "^proxy_service_url .* HTTP does not go through"),
        ("pulsar+ssl://a.invalid,10.0.0.1", BOTH, r"^proxy_service_url needs names .*10\.0\.0\.1"),
        ("pulsar+ssl://[::1]:4443", BOTH, "^proxy_service_url needs names .*::1"),
    ],
)
def test_urls_that_do_not_go_with_a_proxy(
    make_client: MakeClient, url: str, options: dict[str, Any], says: str
) -> None:
    for kind in (make_client, pulsar_fast.asyncio.Client):
        with pytest.raises(ValueError, match=says):
            kind(url, **options)
