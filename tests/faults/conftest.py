"""A scripted broker for each test, and clients that do not wait long."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pulsar_fast import Client, Producer
from tests import live_counters
from tests.faults.scripted_broker import ScriptedBroker

QUICK: dict[str, Any] = {
    "operation_timeout_seconds": 5,
    "initial_backoff_interval_ms": 2,
    "max_backoff_interval_ms": 50,
}


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
def broker() -> Iterator[ScriptedBroker]:
    """Its client has broken no rule of the protocol."""
    with ScriptedBroker() as broker:
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
