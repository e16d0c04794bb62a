"""The scenarios from the command line: a table in Markdown, and a status of 1 if anything is wrong."""

import argparse
import logging
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from tests.brokers import apache
from tests.brokers.apache import ApacheBroker
from tests.brokers.cluster import Cluster

from .scenarios import Report, freezes, kills, moves, restarts, unloads

_Server = TypeVar("_Server", ApacheBroker, Cluster)


def scenarios(full: bool) -> Iterator[tuple[str, Callable[[], list[Report]]]]:
    """Each on servers of its own, so that none suffers from what another one did to them."""
    yield "restarts", partial(_on, ApacheBroker, restarts, 20 if full else 3)
    yield "kills", partial(_on, partial(Cluster, brokers=1), kills, 20 if full else 3)
    yield "unloads", partial(_on, ApacheBroker, unloads, 60 if full else 10)
    yield "freezes", partial(_on, ApacheBroker, freezes, 5 if full else 1)
    yield "moves", partial(_on, Cluster, moves, 20 if full else 5)


def _on(
    make_server: Callable[[], _Server], scenario: Callable[[_Server, int], list[Report]], extent: int
) -> list[Report]:
    with make_server() as server:
        return scenario(server, extent)


def run(scenarios: Iterable[tuple[str, Callable[[], list[Report]]]]) -> list[str]:
    """Print the table, in which a scenario that cannot be finished has one row, and return all complaints."""
    complaints: list[str] = []
    print(Report.COLUMNS, re.sub("[^|]+", "---", Report.COLUMNS), sep="\n", flush=True)
    for name, scenario in scenarios:
        try:
            reports = scenario()
        except Exception as error:
            print(f"| {name} | not finished |", flush=True)
            complaints.append(f"{name}: {type(error).__name__}: {error}")
            continue
        for report in reports:
            print(report.row(), flush=True)
            complaints += [
                f"{report.scenario}, {report.producer}: {text}" for text in report.verdict.complaints()
            ]
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outages", description=__doc__)
    parser.add_argument("--full", action="store_true", help="many outages of each kind (15 to 20 minutes)")
    arguments = parser.parse_args()
    if (reason := apache.available()) is not None:
        parser.error(reason)
    logging.disable(logging.WARNING)  # each reconnect
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # servers and folders go on any way out
    complaints = run(scenarios(arguments.full))
    print(*complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
