"""Reconnects that race with sending, and deadlines that race with writing."""

import random
import time
from collections.abc import Callable

from pulsar_fast import Client
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import Frame, refusal
from tests.faults.scripted_broker import ScriptedBroker
from tests.figures.table import Figure
from tests.figures.traffic import Check, Traffic

_SEND_TIMEOUT_MS = 50
_PATIENCE = 20.0  # seconds for one step, when something is wrong


def reconnects_racing_with_sending(outages: int, threads: int = 16) -> Figure:
    """The broker closes the producer, cuts the connection or refuses a frame, under traffic at full speed."""
    with ScriptedBroker() as broker:
        client = Client(broker.url, initial_backoff_interval_ms=1, max_backoff_interval_ms=5)
        producer = client.create_producer(
            "t", send_timeout_millis=_SEND_TIMEOUT_MS, block_if_queue_full=True, batching_max_messages=20
        )
        script = _Script(broker)
        with Traffic(producer, threads, sizes=(20, 2000)) as traffic:
            for number in range(outages):
                script.make_outage(number)
        client.close()
        script.check.look()
        return Figure(
            f"{outages} reconnects, {threads} threads",
            {
                **traffic.counts(),
                **script.check.counts(),
                "connections beyond the script's": len(broker.links) - 1 - script.cuts,
                "registrations beyond the script's": script.check.registered - 1 - outages,
                "reconnects": producer.stats().reconnects,
            },
        )


class _Script:
    """Ends the registration in one of four ways, at a frame, and waits until there is another."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._chance = random.Random(1)
        self._next: Callable[[Frame], None] | None = None
        self.cuts = 0
        self.check = Check(broker)
        self.check.look()
        broker.on_send().do(self._on_send)

    def _on_send(self, frame: Frame) -> None:
        act, self._next = self._next, None
        (act or self._broker.usual_answer)(frame)

    def make_outage(self, number: int) -> None:
        time.sleep(self._chance.uniform(0, 0.01))
        kinds: list[Callable[[Frame], None]] = [self._close_producer, self._cut, self._reset, self._refuse]
        with self._broker.changed:
            self._next = kinds[number % len(kinds)]
        self._broker.wait_for(lambda b: b.got(BaseCommand.PRODUCER), _PATIENCE)
        self.check.look()

    def _close_producer(self, frame: Frame) -> None:
        frame.link.send(self._broker.closing(frame))

    def _cut(self, frame: Frame) -> None:
        self.cuts += 1
        frame.link.close()

    def _reset(self, frame: Frame) -> None:
        self.cuts += 1
        frame.link.close(reset=True)

    def _refuse(self, frame: Frame) -> None:
        frame.link.send(refusal(frame, ServerError.PersistenceError))


def deadlines_racing_with_writing(stops: int, threads: int = 16) -> Figure:
    """The broker stops reading in the middle of frames, for longer and shorter than the send timeout."""
    chance = random.Random(2)
    with ScriptedBroker() as broker:
        client = Client(broker.url, memory_limit_bytes=8_000_000)
        producer = client.create_producer(
            "t",
            send_timeout_millis=_SEND_TIMEOUT_MS,
            max_pending_messages=0,
            block_if_queue_full=True,
            batching_enabled=False,
        )
        check = Check(broker)
        with Traffic(producer, threads, sizes=(1000, 200_000)) as traffic:
            for _ in range(stops):
                broker.stop_reading()
                time.sleep(chance.uniform(0, 0.15))
                broker.resume_reading()
                time.sleep(chance.uniform(0, 0.05))
                check.look()
        client.close()
        check.look()
        return Figure(
            f"{stops} stops of reading, {threads} threads",
            {
                **traffic.counts(),
                **check.counts(),
                "connections beyond the script's": len(broker.links) - 1,
                "reconnects": producer.stats().reconnects,
            },
        )
