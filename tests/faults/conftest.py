"""A scripted broker for each test, and clients that do not wait long."""

import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_fast import Client, Producer
from tests import live_counters
from tests.certificates import Authority, Identity
from tests.faults.scripted_broker import ScriptedBroker

QUICK: dict[str, Any] = {
    "operation_timeout_seconds": 5,
    "initial_backoff_interval_ms": 2,
    "max_backoff_interval_ms": 50,
}


_OVER_TLS = {"breaking", "connections", "dropped", "endings", "flow", "payloads", "reconnecting", "refusals"}
"""Files whose tests with a broker run over plain TCP and over TLS."""
_AT_LENGTH = {"answers", "cancelled_by_others", "credentials"}
"""The same, where `PULSAR_FAST_AT_LENGTH` is set, as `make soak` does."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    files = _OVER_TLS | (_AT_LENGTH if os.environ.get("PULSAR_FAST_AT_LENGTH") else set())
    if "transport" in metafunc.fixturenames and metafunc.module.__name__.rpartition("test_")[2] in files:
        metafunc.parametrize("transport", ["plain", "TLS"])


class KeepingClient(Client):
    """Keeps its producers, so that a test need not: one that is dropped warns."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.kept: list[Producer] = []
        super().__init__(*args, **options)
        live_counters.watched.add(self._thread.core)

    def create_producer(self, *args: Any, **options: Any) -> Producer:
        options.setdefault("send_timeout_millis", 5000)
        self.kept.append(super().create_producer(*args, **options))
        return self.kept[-1]


@pytest.fixture
def transport() -> str:
    """`plain` or `TLS`."""
    return "plain"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def broker_context(authority: Authority) -> ssl.SSLContext:
    return authority.issue("broker", ("127.0.0.1",)).server()


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    """An authority of the test alone, which no client trusts unless it is told to."""
    return Authority(tmp_path)


@pytest.fixture
def server(ca: Authority) -> Identity:
    return ca.issue("server", ("localhost", "127.0.0.1"))


@pytest.fixture
def context_of_broker(
    transport: str, authority: Authority, broker_context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> ssl.SSLContext | None:
    """None over plain TCP. Else clients of the test trust it untold, those of other processes too."""
    if transport == "plain":
        return None
    monkeypatch.setenv("SSL_CERT_FILE", authority.path)
    return broker_context


@pytest.fixture
def broker(context_of_broker: ssl.SSLContext | None) -> Iterator[ScriptedBroker]:
    """Its client has broken no rule of the protocol."""
    with ScriptedBroker(context=context_of_broker) as broker:
        yield broker


@pytest.fixture
def make_client() -> Iterator[Callable[..., Client]]:
    """Clients that are shut down after the test."""
    clients: list[Client] = []

    def make(url: str, **options: Any) -> Client:
        clients.append(KeepingClient(url, **{**QUICK, **options}))
        return clients[-1]

    yield make
    for client in clients:
        client.shutdown()
    assert [live_counters.left_over(client._thread.core) for client in clients] == [{}] * len(clients)


@pytest.fixture
def make_producer(broker: ScriptedBroker, make_client: Callable[..., Client]) -> Callable[..., Producer]:
    """Producers on the scripted broker, of one client; options of the client in `client`."""
    clients: list[Client] = []

    def make(topic: str = "t", client: dict[str, Any] | None = None, **options: Any) -> Producer:
        if not clients or client is not None:
            clients.append(make_client(broker.url, **(client or {})))
        return clients[-1].create_producer(topic, **options)

    return make
