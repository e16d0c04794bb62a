"""Real brokers, and reading back from them with the official client."""

import os
import re
import uuid
from collections.abc import Callable, Iterator

import pulsar  # type: ignore[import-untyped]
import pytest

from pulsar_fast.embedded import EmbeddedBroker
from tests.brokers import apache, unavailable
from tests.brokers.lite import running_lite
from tests.brokers.readback import Received, Subscription

_EXTERNAL = os.environ.get("PULSAR_FAST_SERVICE_URL")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fetch the broker before the first test, since the time limit of a test is too short for it."""
    if not session.config.option.collectonly and any(map(_needs_apache, session.items)):
        apache.available()


def _needs_apache(item: pytest.Item) -> bool:
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return "apache_broker" in getattr(item, "fixturenames", ()) or parameters.get("service_url") == "apache"


@pytest.fixture(scope="session")
def apache_broker() -> Iterator[apache.ApacheBroker]:
    """A running Apache Pulsar standalone."""
    if (reason := apache.available()) is not None:
        unavailable(reason)
    with apache.ApacheBroker() as broker:
        yield broker


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    """A broker that the test may kill."""
    with running_lite() as broker:
        yield broker


@pytest.fixture(scope="session", params=["external"] if _EXTERNAL else ["lite", "apache"])
def service_url(request: pytest.FixtureRequest) -> str:
    """The URL of each broker in turn; of the one broker that PULSAR_FAST_SERVICE_URL names, if it is set.

    For some of them only: ``@pytest.mark.parametrize("service_url", ["apache"], indirect=True)``.
    """
    if request.param == "external":
        assert _EXTERNAL is not None
        return _EXTERNAL
    url: str = request.getfixturevalue(f"{request.param}_broker").service_url
    return url


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic of this test alone."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    return f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="session")
def consumer_client(service_url: str) -> Iterator[pulsar.Client]:
    """The official client, connected to ``service_url``."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, operation_timeout_seconds=10, logger=logger)
    yield client
    client.close()


@pytest.fixture
def subscribe(consumer_client: pulsar.Client) -> Iterator[Callable[[str], Subscription]]:
    """Subscribes to a topic. Call it before producing where the broker deletes what nobody waits for."""
    subscriptions = []

    def subscribe(topic: str) -> Subscription:
        subscriptions.append(Subscription(consumer_client, topic))
        return subscriptions[-1]

    yield subscribe
    for subscription in subscriptions:
        subscription.close()


@pytest.fixture
def read_back(subscribe: Callable[[str], Subscription]) -> Callable[[str, int], list[Received]]:
    """Reads the first messages of a topic: ``read_back(topic, 3)``."""
    return lambda topic, count: subscribe(topic).read(count)
