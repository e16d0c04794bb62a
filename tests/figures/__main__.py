"""Measures everything and prints it as markdown; takes about five minutes."""

import argparse
import logging
import subprocess
import sys
from collections.abc import Callable

from tests.figures.cycles import asyncio_clients_that_come_and_go, clients_that_come_and_go
from tests.figures.first_resend import after_a_new_connection, after_an_outage
from tests.figures.lateness import BROKERS, lateness
from tests.figures.racing import deadlines_racing_with_writing, reconnects_racing_with_sending
from tests.figures.stalled import memory_while_stalled
from tests.figures.table import Figure, markdown

SECTIONS: dict[str, Callable[[], list[Figure]]] = {
    "Reconnects racing with sending, deadlines of 50 ms": lambda: [reconnects_racing_with_sending(1000)],
    "Deadlines of 50 ms racing with writing": lambda: [deadlines_racing_with_writing(200)],
    "Lateness of timeout callbacks": lambda: [
        lateness(broker_is, busy, seconds=4) for broker_is in BROKERS for busy in (0, 1, 2, 16)
    ],
    "Memory while the broker reads nothing": lambda: [memory_while_stalled(20)],
    "Resending with the default back-off": lambda: [after_a_new_connection(100), after_an_outage(100)],
    "Clients that come and go": lambda: [
        clients_that_come_and_go(2000),
        asyncio_clients_that_come_and_go(500),
    ],
}


def main() -> None:
    words = [title.split()[0].lower() for title in SECTIONS]
    parser = argparse.ArgumentParser(prog="python -m tests.figures", description=__doc__)
    parser.add_argument("section", nargs="*", choices=[*words, []], help="the first word of a title")
    chosen = parser.parse_args().section
    logging.disable(logging.CRITICAL)  # outages are meant here
    for word, (title, measure) in zip(words, SECTIONS.items(), strict=True):
        if word in chosen:
            print(markdown(title, measure()), flush=True)
        elif not chosen:  # in a process of its own, whose memory is nobody else's
            subprocess.run([sys.executable, "-m", "tests.figures", word], check=True)


if __name__ == "__main__":
    main()
