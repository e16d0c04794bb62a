"""One life of a client: runs a script, and checks what must always hold after each act."""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pulsar_fast.asyncio import Client
from pulsar_fast.client_core import ClientCore
from pulsar_fast.result import Result
from pulsar_fast.tls import TlsDialer
from pulsar_fast.topic_producer import State
from pulsar_fast.wire.messages import BaseCommand
from tests import live_counters
from tests.brokers.frames import Frame, read_frame
from tests.simulation.application import Application, Hand
from tests.simulation.checker import Checker, Record
from tests.simulation.cluster import Cluster, Link, Registered, Told, Topic
from tests.simulation.coverage import COUNTED, Coverage
from tests.simulation.identity import FORGED, Proof, contexts
from tests.simulation.network import Line, Network, Observed, VirtualLoop, VirtualTime
from tests.simulation.script import Script
from tests.simulation.surroundings import Surroundings

TOPICS = (  # deduplicates, persistent
    ("persistent://public/default/plain", False, True),
    ("persistent://public/default/dedup", True, True),
    ("persistent://public/default/dedup-2", True, True),
    ("non-persistent://public/default/fleeting", False, False),
)
HOSTS = ("broker-a", "broker-b")
_MOST_DIALS = 500  # connections in a second, of all producers: more is a loop of reconnecting

silent = logging.Logger("a life")
silent.addHandler(logging.NullHandler())
silent.propagate = False


class Broken(AssertionError):
    """A rule was broken; the message holds the script of the life."""


class Life:
    """What all lives share: a subclass says what the client runs on, and where its brokers are."""

    def __init__(
        self,
        script: Script,
        coverage: Coverage,
        loop: asyncio.AbstractEventLoop,
        checker: Checker,
        urls: list[str],
        make_application: type[Application] = Application,
    ) -> None:
        self.script = script
        self.coverage = coverage
        self.loop = loop
        self.checker = checker
        self.is_over_tls: bool = script.settings["tls"]
        self.scheme = "pulsar+ssl" if self.is_over_tls else "pulsar"
        self.cluster = Cluster(
            loop,
            urls,
            list(script.settings["limits"]),
            self,
            authenticates=script.settings["authenticates"],
        )
        self.proof = Proof(coverage)
        topics = [self.cluster.add_topic(name, deduplicates=d, persistent=p) for name, d, p in TOPICS]
        longest = float(script.settings["operation_timeout_s"])
        self.app = make_application(loop, checker, coverage, topics, longest)

    def options(self) -> dict[str, Any]:
        """Of the client."""
        settings = self.script.settings
        return {
            "authentication": self.proof if settings["authenticates"] else None,
            "ssl_context": contexts()[0] if self.is_over_tls else None,
            "operation_timeout_seconds": settings["operation_timeout_s"],
            "connection_timeout_ms": 200,
            "keep_alive_interval_seconds": settings["keep_alive_s"],
            "connections_per_broker": settings["connections_per_broker"],
            "connection_max_idle_seconds": settings["max_idle_s"],
            "memory_limit_bytes": settings["memory_limit"],
            "initial_backoff_interval_ms": settings["backoff_ms"][0],
            "max_backoff_interval_ms": settings["backoff_ms"][1],
            "logger": silent,
            "stats_interval_in_seconds": 0,  # or something would always be left to happen
        }

    def verdict(self) -> None:
        """Raises `Broken` when a rule was broken."""
        self.coverage.steps += self.cluster.steps
        self.coverage.lives += 1
        self.coverage.count("events over TLS", self.cluster.steps if self.is_over_tls else 0)
        if self.checker.violations:
            raise Broken("\n".join([*self.checker.violations[:5], str(self.script)]))

    async def live(self, surroundings: Surroundings, pace: float = 1) -> None:
        """From the first act to the last, with pauses that are `pace` times as long; then the end."""
        for act in self.script.acts:
            actor = self.app if hasattr(self.app, f"act_{act.what}") else surroundings
            getattr(actor, f"act_{act.what}")(**act.arguments)
            await asyncio.sleep(pace * act.pause_ms / 1000)
            if self.checker.violations:
                raise AssertionError("a rule is broken")
            self.check()
        await self._end(self.script.settings["ending"])
        await self._settle()

    async def _end(self, ending: str) -> None:
        app = self.app
        if ending == "healed":
            await self._prove_life()
        for hand in app.hands:
            app.note(hand, "close")
        if ending == "shut down":
            await self.shut_down()
        else:
            await app.bounded("Client.close()", app.call(app.client.close), app.longest)
        if app.work:
            await asyncio.wait(app.work, timeout=app.longest + app.slack)
        if app.work:
            self.checker.fail(f"calls that never end: {app.work}")

    async def shut_down(self) -> None:
        await self.app.do(self.app.client.shutdown)

    async def _prove_life(self) -> None:
        """With brokers that behave every producer that has not ended gets its messages through."""
        self.cluster.heal()
        self.proof.faults.clear()
        await asyncio.sleep(1)
        self._check_challenges()
        self.cluster.heal()
        self.cluster.ping()
        hands = [hand for hand in self.app.hands if not hand.topic.terminated]
        last: list[tuple[Hand, Record]] = []
        for hand in hands:
            if hand.producer is not None and hand.state in (State.READY, State.RECONNECTING):
                last += [(hand, record) for record in await self.app.do(self.app.send, hand, 2, 10)]
        ends = self.loop.time() + 60
        while any(record.result is None for _, record in last) and self.loop.time() < ends:
            await asyncio.sleep(0.05)
        for hand, record in last:
            allowed = {Result.Ok, Result.Timeout, Result.ProducerQueueIsFull, Result.MemoryBufferIsFull}
            if record.result not in allowed:
                self.checker.fail(f"{hand.topic.name} does not work any more: {record.result}")
        for hand in hands:
            while not self._is_well(hand) and self.loop.time() < ends:
                await asyncio.sleep(0.1)
            if not self._is_well(hand):
                why = hand.core and hand.core._last_error
                self.checker.fail(
                    f"{hand.topic.name}: {hand.state}, {hand.book.unanswered} without an answer: {why}"
                )
        await asyncio.sleep(0.1)  # for what is on its way
        self._check_links()

    def _check_challenges(self) -> None:
        """Each was answered by now, or its connection is over."""
        if any(link.challenges for link in self.cluster.open_links()):
            self.checker.fail("a challenge has no answer")

    def _check_links(self) -> None:
        """What brokers see of a client that had time to settle."""
        self._check_challenges()
        for link in self.cluster.open_links():
            if link.pinged:
                self.checker.fail("a ping has no answer")
            for number in (*link.producers, *link.registering):
                hand = self.app.hand_of(number)
                if hand is None or hand.state in (State.CLOSED, State.FAILED):
                    self.checker.fail(f"producer {number} has ended, and the broker does not know")

    def _is_well(self, hand: Hand) -> bool:
        """Whether it has come back and owes nobody an answer, or has ended."""
        if hand.state is State.READY:
            return not hand.book.unanswered
        return hand.state is not State.RECONNECTING

    async def _settle(self) -> None:
        """What is on its way arrives; then nothing of the client is left."""
        ends = self.loop.time() + 2
        while self.loop.time() < ends and (self._left_over() or self.is_busy()):
            await asyncio.sleep(0.05)
        if self._left_over():
            self.checker.fail(f"something is left: {self._left_over()}")
        if self.is_busy():
            self.checker.fail(f"tasks are left: {self.is_busy()}")
        for hand in self.app.hands:
            stored = [
                record.counter
                for frame in hand.topic.stored
                for book, record in self.checker.records_of(frame)
                if book is hand.book
            ]
            hand.book.check_end(stored)

    def is_busy(self) -> Any:
        """What still runs of the client."""
        raise NotImplementedError

    def _left_over(self) -> dict[str, int]:
        assert self.app.core is not None
        return live_counters.left_over(self.app.core)

    def check(self) -> None:
        """After each act, and between callbacks."""
        assert self.app.core is not None
        self.checker.violations += live_counters.broken_rules(self.app.core)
        for hand in self.app.hands:
            hand.book.check_deadlines()

    def guard(self, work: Callable[[], None]) -> None:
        """Whatever a broker finds wrong is a broken rule."""
        try:
            work()
        except AssertionError as error:
            self.checker.fail(str(error))

    # --- what the cluster tells

    def read(self, link: Link, raw: bytes) -> Frame:
        return read_frame(link, raw)

    def on_frame(self, registered: Registered, frame: Frame) -> None:
        limit = self.cluster.limits[registered.link.host]
        self.checker.frame_arrived(frame, registered.name, registered.last_id, limit)
        registered.last_id = frame.highest_id
        link = registered.link
        if link.challenges and link.challenged_ns is not None:
            meanwhile = [r for _, r in self.checker.records_of(frame) if r.called_ns > link.challenged_ns]
            self.coverage.count("messages sent while a challenge waits", len(meanwhile))

    def on_stranger(self, frame: Frame) -> None:
        self.checker.fail(f"{frame.command} for a producer that is not, or is already, registered")

    def on_answer(self, link: Link, data: bytes, asked: bool) -> None:
        if not asked and self.cluster.authenticates:
            self.checker.fail(f"an answer to no challenge: {data!r}")
        if data != FORGED:
            self.coverage.count("answers to challenges")

    def on_stored(self, topic: Topic, frame: Frame, number: int) -> None:
        self.checker.stored(frame, number)

    def on_told(self, told: Told) -> None:
        """An answer is about to be handed to the client."""
        self.cluster.steps += 1
        for event in told.events:
            if event in COUNTED:
                self.coverage.count(event)
            if "challenge" in event:
                told.link.challenged_ns = self.checker.now_ns()
        hand = self.app.hand_of(told.producer_id)
        if hand is None:
            return
        for event in told.events:
            if event != "registered":
                self.app.note(hand, event)
                continue
            limit = self.cluster.limits[told.link.host]
            if limit < hand.limit:
                self.app.note(hand, "smaller limit")
            hand.limit = limit


class SimulatedLife(Life):
    """In virtual time, over a network of lists: each byte is seen when it is offered, taken and handed over."""

    def __init__(self, script: Script, coverage: Coverage) -> None:
        time = VirtualTime()
        loop = VirtualLoop(time)
        checker = Checker(lambda: time.now_ns, time.wall_offsets_ms, 0.05)
        super().__init__(script, coverage, loop, checker, [])
        self.cluster.urls += [f"{self.scheme}://{host}:6650" for host in HOSTS]
        loop.set_exception_handler(self._on_loop_error)
        self._time = time
        latency = script.settings["latency_ms"] / 1000
        self._network = Network(loop, latency, contexts()[1] if self.is_over_tls else None)
        self._network.accept = self._accept
        self._network.is_dark = lambda host: self.cluster.is_dark(HOSTS.index(host))
        self._begun: dict[Link, deque[Frame]] = {}
        self._registered: dict[Link, set[int]] = {}
        self._dials: deque[float] = deque()

    def run(self) -> None:
        """Raises `Broken` when a rule is broken."""
        random.seed(self.script.seed)
        try:
            self.loop.run_until_complete(self._live())
        except BaseException as error:
            self.checker.fail(f"{type(error).__name__}: {error}")
        finally:
            self._close_loop()
        self.verdict()

    async def _live(self) -> None:
        client = Client(f"{self.scheme}://{HOSTS[0]}:6650,{HOSTS[1]}:6650", **self.options())
        service = client._source.first
        if self.is_over_tls:
            self._dial_tls = TlsDialer(service.options, self._network.dial)
        client._core = ClientCore(replace(service, dial=self._dial), clock=self._time.clock)
        client._loop = self.loop
        self.app.use(client, client._core)
        await self.live(
            Surroundings(self.loop, self.cluster, self.app, self.proof, self._time.set_wall_clock)
        )

    def _close_loop(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        with contextlib.suppress(BaseException):  # a broken life has said already what is wrong
            self.loop.run_until_complete(self._clean_up())
        self.loop.close()

    async def _clean_up(self) -> None:
        await self.shut_down()
        await asyncio.sleep(1)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "nobody awaited its send" not in context["message"]:
            self.checker.fail(f"an error in the loop: {context}")

    def is_busy(self) -> Any:
        return asyncio.all_tasks() - {asyncio.current_task()}

    def check(self) -> None:
        super().check()
        core = self.app.core
        assert core is not None
        if (core.buffers.write_holds or core.buffers.pending_holds) and not core.budget.used:
            self.checker.fail("frames are held, and no bytes are counted")
        for hand in self.app.hands:
            if self.app.hand_of(hand.producer_id) is not None and hand.core is not None:
                self._check_permits(hand, hand.core.accumulator.pending_messages)

    def _check_permits(self, hand: Hand, pending: int) -> None:
        unanswered = hand.book.unanswered
        if pending != unanswered and not (hand.waiting and pending <= unanswered + hand.book.given_up):
            self.checker.fail(f"{pending} permits for {unanswered} messages without an answer")

    # --- the network

    async def _dial(self, host: str, port: int, timeout: float) -> Any:
        now = self.loop.time()
        self._dials.append(now)
        while now - self._dials[0] > 1:
            self._dials.popleft()
        if len(self._dials) > _MOST_DIALS:
            self.checker.fail(f"{len(self._dials)} connections within a second")
            raise asyncio.CancelledError
        if self.is_over_tls:
            over_tls: Any = await self._dial_tls(host, port, timeout)
            return Observed(over_tls, over_tls._below)
        line = await self._network.dial(host, port, timeout)
        return Observed(line, line)

    def _accept(self, host: str, line: Line) -> bool:
        number = HOSTS.index(host)
        if not self.cluster.is_up(number):
            return False
        link = self.cluster.connected(number, line)
        self._begun[link] = deque()
        self._registered[link] = set()
        line.on_bytes = lambda data: self.guard(lambda: link.on_bytes(data))
        line.on_closed = link.on_closed
        line.on_delivered = self.on_told
        line.on_begun = lambda raw: self.guard(lambda: self._on_begun(link, raw))
        line.on_refused = lambda raws: self.guard(lambda: self._on_refused(link, raws))
        return True

    def _on_begun(self, link: Link, raw: bytes) -> None:
        frame = read_frame(link, raw)
        self._begun[link].append(frame)
        if frame.kind == BaseCommand.SEND:
            self.checker.frame_begins(frame)
            if frame.producer_id not in self._registered[link]:
                self.checker.fail(f"frame {frame.lowest_id} is begun without a live registration")

    def _on_refused(self, link: Link, raws: list[bytes]) -> None:
        for raw in raws:
            for _, record in self.checker.records_of(read_frame(link, raw)):
                record.handed_out = True

    def read(self, link: Link, raw: bytes) -> Frame:
        """A frame that has arrived is the frame that was begun."""
        frame = self._begun[link].popleft()
        assert frame.raw == raw, f"frame {frame.lowest_id} changed while it was written"
        return frame

    def on_told(self, told: Told) -> None:
        for event in told.events:
            if event == "registered":
                self._registered[told.link].add(told.producer_id)
            elif event.startswith("closed"):
                self._registered[told.link].discard(told.producer_id)
        super().on_told(told)
