"""Ways in which brokers fail their clients, and what three producers at once make of each."""

import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tests.brokers.admin import Admin
from tests.brokers.apache import ApacheBroker
from tests.brokers.cluster import Cluster

from .traffic import AsyncioTraffic, SteadyTraffic
from .verdict import Verdict

_CALM = 1.5  # seconds of undisturbed traffic between two outages that are not due at fixed times


@dataclass(frozen=True)
class Outage:
    """Moments of the monotonic clock."""

    begun: float
    back: float
    """From here on the broker could be of use again."""
    topic: str | None = None
    """The one that is concerned; None: all."""


@dataclass(frozen=True)
class Report:
    """What one producer has been through in one scenario."""

    scenario: str
    producer: str
    waits: list[float]
    """Of each outage: seconds from its end to the first receipt behind it."""
    gaps: list[float]
    """Of each outage: the longest time in seconds between two receipts around it."""
    reconnects: int
    verdict: Verdict

    COLUMNS = (
        "| scenario | producer | outages | reconnects | messages | delivered once | duplicates | lost | out of order "
        "| timeouts | no progress once back, median / max | longest gap, median / max |"
    )

    def row(self) -> str:
        """Of a table in Markdown."""
        verdict = self.verdict
        cells = (
            *(self.scenario, self.producer, len(self.waits), self.reconnects, verdict.sent),
            *(
                verdict.delivered_once,
                verdict.duplicates,
                verdict.lost,
                verdict.out_of_order,
                verdict.timeouts,
            ),
            *(_times(self.waits), _times(self.gaps)),
        )
        return f"| {' | '.join(map(str, cells))} |"


def _times(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} / {max(seconds):.2f} s"


def restarts(broker: ApacheBroker, times: int) -> list[Report]:
    """The broker stops and starts again on the same ports and data."""

    def disturb(_topics: Sequence[str]) -> Iterator[Outage]:
        for _ in range(times):
            begun = time.monotonic()
            yield Outage(begun, broker.restart())

    name = "broker restarted"
    return _observe(name, broker.service_url, broker.admin, disturb, timeout_millis=3000)


def kills(cluster: Cluster, times: int) -> list[Report]:
    """The broker dies (SIGKILL) and starts again, while metadata and bookie live on, as they do in production."""

    def disturb(topics: Sequence[str]) -> Iterator[Outage]:
        for _ in range(times):
            begun = time.monotonic()
            yield Outage(begun, cluster.kill_and_restart(topics[0]))

    name = "broker killed and restarted"
    return _observe(name, cluster.service_url, cluster.admin, disturb, timeout_millis=3000)


def freezes(broker: ApacheBroker, times: int, seconds: float = 5) -> list[Report]:
    """The broker's process stops and goes on; nobody closes a connection."""

    def disturb(_topics: Sequence[str]) -> Iterator[Outage]:
        for _ in range(times):
            begun = time.monotonic()
            with broker.frozen():
                time.sleep(seconds)
            yield Outage(begun, time.monotonic())

    name = f"broker frozen for {seconds:g} s"
    return _observe(name, broker.service_url, broker.admin, disturb, timeout_millis=3000)


def unloads(broker: ApacheBroker, seconds: float, interval: float = 2) -> list[Report]:
    """The broker closes the topics and opens them again when it is asked to."""

    def disturb(topics: Sequence[str]) -> Iterator[Outage]:
        due = time.monotonic()
        for _ in range(int(seconds / interval)):
            for topic in topics:
                begun = time.monotonic()
                broker.admin.put(f"/{topic.replace('://', '/')}/unload")
                yield Outage(begun, time.monotonic(), topic)
            due += interval
            time.sleep(max(0, due - time.monotonic()))

    name = f"topic unloaded every {interval:g} s"
    return _observe(name, broker.service_url, broker.admin, disturb, timeout_millis=100, calm=0)


def moves(cluster: Cluster, times: int) -> list[Report]:
    """The topics move between two brokers, to and fro."""

    def disturb(topics: Sequence[str]) -> Iterator[Outage]:
        for _ in range(times):
            begun = time.monotonic()
            cluster.move(topics[0])
            yield Outage(begun, time.monotonic())

    name = "bundle moved to the other broker"
    return _observe(name, cluster.service_url, cluster.admin, disturb, timeout_millis=100)


def _observe(
    scenario: str,
    service_url: str,
    admin: Admin,
    disturb: Callable[[Sequence[str]], Iterator[Outage]],
    *,
    timeout_millis: int,
    calm: float = _CALM,
) -> list[Report]:
    """Let steady traffic run through all outages, each over when it flows again, and judge it."""
    namespace = _new_namespace(admin)
    patient = SteadyTraffic("patient", service_url, f"persistent://{namespace}/patient")
    timed = SteadyTraffic("timed", service_url, f"persistent://{namespace}/timed", timeout_millis)
    coroutines = AsyncioTraffic("asyncio", service_url, f"persistent://{namespace}/asyncio")
    traffics = [patient, timed, coroutines]
    outages: dict[SteadyTraffic, list[Outage]] = {traffic: [] for traffic in traffics}
    with ExitStack() as running:
        for traffic in traffics:
            running.enter_context(traffic)
        for outage in disturb([traffic.topic for traffic in traffics]):
            for traffic in traffics:
                if outage.topic in (None, traffic.topic):
                    traffic.await_receipt(outage.back)
                    outages[traffic].append(outage)
            time.sleep(calm)
    names = {
        patient: "no timeout",
        timed: f"timeout {timeout_millis / 1000:g} s",
        coroutines: "no timeout, asyncio",
    }
    return [
        Report(
            scenario,
            names[traffic],
            [traffic.next_receipt(outage.back) - outage.back for outage in outages[traffic]],
            [traffic.longest_gap(outage.begun, outage.back) for outage in outages[traffic]],
            traffic.stats.reconnects,
            traffic.verdict(),
        )
        for traffic in traffics
    ]


def _new_namespace(admin: Admin) -> str:
    """Of one bundle, where the broker drops what it has already and keeps the rest for ever."""
    namespace = f"public/outages-{uuid.uuid4().hex[:8]}"
    path = f"/namespaces/{namespace}"
    admin.put(path, {"bundles": {"numBundles": 1}})
    admin.post(f"{path}/deduplication", True)
    admin.post(f"{path}/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    return namespace
