"""How soon a pending message goes out again, with the client's default back-off."""

import random
import time
from collections.abc import Callable

from pulsar_fast import Client
from tests.brokers.frames import Frame
from tests.faults.scripted_broker import ScriptedBroker
from tests.figures.table import Figure, spread


def after_a_new_connection(trials: int) -> Figure:
    """From accepting the connection to the first frame with messages on it."""

    def lose_the_connection(broker: ScriptedBroker, frame: Frame) -> None:
        frame.link.close()

    return _figure(
        "from accept() to the first resend", trials, lose_the_connection, lambda frame: frame.link.accepted_at
    )


def after_an_outage(trials: int, shortest: float = 0.01, longest: float = 1.0) -> Figure:
    """From listening again, after nobody did for a while, to the first frame with messages."""
    chance = random.Random(3)
    listening_since = 0.0

    def be_away(broker: ScriptedBroker, _frame: Frame) -> None:
        nonlocal listening_since
        broker.go_down()
        time.sleep(chance.uniform(shortest, longest))  # holds the broker's thread, which has nobody to serve
        broker.come_back()
        listening_since = time.monotonic()

    what = f"outages of {1000 * shortest:g} to {1000 * longest:g} ms: from listen() to the first resend"
    return _figure(what, trials, be_away, lambda _frame: listening_since)


def _figure(
    what: str,
    trials: int,
    make_outage: Callable[[ScriptedBroker, Frame], None],
    began: Callable[[Frame], float],
) -> Figure:
    took = []
    with ScriptedBroker() as broker, Client(broker.url) as client:
        producer = client.create_producer("t")

        def resent(frame: Frame) -> None:
            took.append(time.monotonic() - began(frame))
            broker.usual_answer(frame)

        for _ in range(trials):
            broker.on_send().do(lambda frame: make_outage(broker, frame), times=1)
            broker.on_send().do(resent, times=1)
            producer.send(b"x")
            producer.send(b"y")  # answered, so that the back-off starts anew
        return Figure(
            what,
            {
                "trials": trials,
                "resent": len(took),
                "reconnects": producer.stats().reconnects,
                "connections": len(broker.links) - 1,
                **spread(took),
            },
        )
