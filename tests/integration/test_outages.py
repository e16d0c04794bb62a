"""Outages of real brokers under steady traffic, the short way; ``make soak`` takes its time."""

import threading
from collections.abc import Iterator

import pytest

from pulsar_fast.embedded import EmbeddedBroker
from tests.brokers import apache, unavailable
from tests.brokers.apache import ApacheBroker
from tests.brokers.cluster import Cluster
from tests.outages.scenarios import Report, freezes, kills, moves, restarts, unloads
from tests.outages.traffic import AsyncioTraffic, SteadyTraffic

pytestmark = [pytest.mark.broker, pytest.mark.timeout(240)]


@pytest.fixture
def restartable_broker() -> Iterator[ApacheBroker]:
    """A standalone that belongs to one test."""
    if (reason := apache.available()) is not None:
        unavailable(reason)
    with ApacheBroker() as broker:
        yield broker


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A cluster of as many brokers as the parameter says."""
    if (reason := apache.available()) is not None:
        unavailable(reason)
    with Cluster(brokers=request.param) as cluster:
        yield cluster


def assert_faultless(reports: list[Report], outages: int) -> None:
    """Each message was stored once, in order, unless it was told to have timed out."""
    assert [report.producer for report in reports if len(report.waits) != outages] == []
    assert {report.producer: report.verdict.complaints() for report in reports} == {
        report.producer: [] for report in reports
    }


def assert_reconnected(reports: list[Report], outages: int) -> None:
    assert [report.producer for report in reports if report.reconnects < outages] == []


def timed_out(reports: list[Report]) -> bool:
    return any(report.verdict.timeouts > 0 for report in reports)


def test_restarted(restartable_broker: ApacheBroker) -> None:
    reports = restarts(restartable_broker, 3)
    assert_faultless(reports, 3)
    assert_reconnected(reports, 3)
    assert timed_out(reports), "the outages were shorter than the send timeout"


def test_unloaded_every_two_seconds(apache_broker: ApacheBroker) -> None:
    reports = unloads(apache_broker, 10)
    assert_faultless(reports, 5)
    assert_reconnected(reports, 5)


def test_frozen_for_longer_than_the_send_timeout(apache_broker: ApacheBroker) -> None:
    reports = freezes(apache_broker, 1)
    assert_faultless(reports, 1)
    assert timed_out(reports)


@pytest.mark.parametrize("cluster", [1], indirect=True)
def test_killed(cluster: Cluster) -> None:
    reports = kills(cluster, 3)
    assert_faultless(reports, 3)
    assert_reconnected(reports, 3)
    assert timed_out(reports), "the outages were shorter than the send timeout"


@pytest.mark.parametrize("cluster", [2], indirect=True)
def test_moved_between_two_brokers(cluster: Cluster) -> None:
    reports = moves(cluster, 5)
    assert_faultless(reports, 5)
    assert_reconnected(reports, 5)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", [SteadyTraffic, AsyncioTraffic])
def test_a_failure_ends_the_traffic_though_the_broker_is_away(
    broker: EmbeddedBroker, kind: type[SteadyTraffic]
) -> None:
    with pytest.raises(RuntimeError, match="of a scenario"), kind("traffic", broker.service_url, "topic"):
        broker.kill()
        raise RuntimeError("of a scenario")
    assert [thread for thread in threading.enumerate() if thread.name.startswith("traffic")] == []
