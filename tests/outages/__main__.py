"""The scenarios from the command line: a table in Markdown, and a status of 1 if anything is wrong."""

import argparse
import logging
import re
import signal
import sys
from collections.abc import Iterator

from tests.brokers import apache
from tests.brokers.cluster import Cluster

from .scenarios import Report, freezes, moves, restarts, unloads


def reports(full: bool) -> Iterator[list[Report]]:
    """Each scenario in turn."""
    with apache.ApacheBroker() as broker:
        yield restarts(broker, 20 if full else 3, kill=False)
        yield restarts(broker, 20 if full else 3, kill=True)
        yield unloads(broker, 60 if full else 10)
        yield freezes(broker, 5 if full else 1, 5)
    with Cluster() as cluster:
        yield moves(cluster, 20 if full else 5)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outages", description=__doc__)
    parser.add_argument("--full", action="store_true", help="many outages of each kind (15 to 20 minutes)")
    arguments = parser.parse_args()
    if (reason := apache.available()) is not None:
        parser.error(reason)
    logging.disable(logging.WARNING)  # each reconnect
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # brokers and folders go on any way out
    complaints: list[str] = []
    print(Report.COLUMNS, re.sub("[^|]+", "---", Report.COLUMNS), sep="\n", flush=True)
    for report in (report for group in reports(arguments.full) for report in group):
        print(report.row(), flush=True)
        complaints += [
            f"{report.scenario}, {report.producer}: {text}" for text in report.verdict.complaints()
        ]
    print(*complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
