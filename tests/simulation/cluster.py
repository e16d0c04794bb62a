"""Brokers as a producer sees them: topics that have an owner, deduplication, ledgers, and every way to misbehave.

A model of what Pulsar does, fed with bytes. It knows no socket and no clock but the loop that it is given, so that
it serves in simulation and behind real sockets alike.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from pulsar_fast.wire.messages import BaseCommand, CommandLookupTopicResponse, ServerError
from tests.brokers import frames
from tests.brokers.frames import NOWHERE, Frame, Inbox, encode
from tests.simulation.identity import FORGED, WHO, proof_of

ABOVE = 1_000_000
"""How far an id is above all that were sent."""


class Wire(Protocol):
    """The broker's end of a connection."""

    room: int
    piece_size: int | None

    @property
    def is_inside_a_frame(self) -> bool: ...
    def when_inside(self, call: Callable[[], object]) -> None: ...
    def send(self, data: bytes, tag: Any = None) -> None: ...
    def close_behind(self) -> None: ...
    def end(self, *, reset: bool) -> None: ...
    def stall(self, stalled: bool) -> None: ...


class Witness(Protocol):
    """Sees what goes over the wire and what is stored."""

    def read(self, link: "Link", raw: bytes) -> Frame: ...
    def on_stored(self, topic: "Topic", frame: Frame, number: int) -> None: ...
    def on_told(self, told: "Told") -> None: ...
    def on_frame(self, registration: "Registered", frame: Frame) -> None: ...
    def on_stranger(self, frame: Frame) -> None: ...
    def on_answer(self, link: "Link", data: bytes, asked: bool) -> None: ...


@dataclass
class Told:
    """What an answer means, for whoever counts what was delivered."""

    events: tuple[str, ...]
    link: "Link"
    producer_id: int


@dataclass(eq=False)
class Registered:
    """A producer as a broker knows it."""

    link: "Link"
    producer_id: int
    name: str
    topic: "Topic"
    last_id: int = -1
    skipped: bool = False  # a receipt was left out
    noticeable: bool = False  # and another one followed it
    refuses: int | None = None  # the code of all that follows a refusal, until the producer is closed
    in_flight: int = 0
    when_idle: Callable[[], None] | None = None


@dataclass(eq=False)
class Entry:
    """A frame on its way into the ledger."""

    registration: Registered
    frame: Frame
    timer: asyncio.TimerHandle
    due: float


@dataclass(eq=False)
class Topic:
    """One topic: its owner, what is stored, and what deduplication remembers by producer name."""

    name: str
    owner: int
    deduplicates: bool
    persistent: bool
    stored: list[Frame] = field(default_factory=list)
    pushed: dict[str, int] = field(default_factory=dict)
    persisted: dict[str, int] = field(default_factory=dict)
    in_flight: deque[Entry] = field(default_factory=deque)
    away_until: float = 0
    terminated: bool = False
    not_allowed: set[tuple[str, int]] = field(default_factory=set)  # names and lowest ids, whenever they come
    store_ms: float = 1


@dataclass
class Answer:
    """What a broker does once instead of its usual answer: `error`, `silence`, `late`, `closed` or `cut` behind it."""

    kind: str
    code: int = 0
    ms: float = 0


class Link:
    """One connection, seen from its broker."""

    def __init__(self, cluster: "Cluster", host: int, wire: Wire) -> None:
        self.cluster = cluster
        self.host = host
        self.wire = wire
        self.inbox = Inbox()
        self.is_open = True
        self.producers: dict[int, Registered] = {}
        self.registering: dict[int, asyncio.TimerHandle] = {}  # producers whose answer comes late
        self.pinged = False  # and no answer yet
        self.is_greeted = False
        self.challenges: list[bytes] = []  # without an answer
        self.challenged_ns: int | None = None  # when the last of them came to the client
        self.known: set[int] = set()  # producers that ever asked for a registration here
        self.closed_here: set[int] = set()  # closed by the broker: what was on its way is dropped

    def send(self, data: bytes, *events: str, about: int = -1) -> None:
        if self.is_open:
            self.wire.send(data, Told(events, self, about))

    def on_bytes(self, data: bytes) -> None:
        if not self.is_open:
            return
        self.inbox.add(data)
        for raw in self.inbox.take():
            self.cluster.on_frame(self, self.cluster.witness.read(self, raw))
            if not self.is_open:
                return

    def close(self, *, reset: bool = False, behind: bool = False) -> None:
        """End it, at once or behind what was sent."""
        if not self.is_open:
            return
        self.on_closed()
        if behind:
            self.wire.close_behind()
        else:
            self.wire.end(reset=reset)

    def on_closed(self) -> None:
        self.is_open = False
        self.producers.clear()


class Cluster:
    """Some brokers that share topics. Untold, they behave."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        urls: list[str],
        limits: list[int],
        witness: Witness,
        *,
        authenticates: bool,
    ) -> None:
        self._loop = loop
        self.urls = urls
        self.limits = limits  # max message size of each broker
        self.witness = witness
        self.authenticates = (
            authenticates  # clients have to; else they have nothing to say, and that is right
        )
        self.challenged_handshakes = 0  # how many of the next ones are
        self.links: list[Link] = []
        self.topics: dict[str, Topic] = {}
        self.down_until = [0.0] * len(limits)
        self.dark_until = [0.0] * len(limits)
        self.answers: dict[int, deque[Answer]] = {}  # by kind of command
        self.refusals: deque[tuple[int, int]] = deque()  # frames to let pass, code
        self.receipt_faults: deque[str] = deque()
        self.steps = 0
        self._names = 0
        self._challenges = 0

    def add_topic(self, name: str, *, deduplicates: bool, persistent: bool) -> Topic:
        self.topics[name] = Topic(name, 0, deduplicates, persistent)
        return self.topics[name]

    def connected(self, host: int, wire: Wire) -> Link:
        link = Link(self, host, wire)
        self.links.append(link)
        return link

    def is_up(self, host: int) -> bool:
        return self._loop.time() >= self.down_until[host]

    def is_dark(self, host: int) -> bool:
        return self._loop.time() < self.dark_until[host]

    # --- commands

    def on_frame(self, link: Link, frame: Frame) -> None:
        self.steps += 1
        handler = self._HANDLERS.get(frame.kind)
        if handler is None:
            return
        planned = self.answers.get(frame.kind)
        if planned and frame.kind != BaseCommand.SEND:
            self._answer_as_planned(link, frame, handler, planned.popleft())
        else:
            handler(self, link, frame)

    def _answer_as_planned(
        self, link: Link, frame: Frame, usual: "Callable[[Cluster, Link, Frame], None]", answer: Answer
    ) -> None:
        producer_id = frame.producer_id
        if frame.kind == BaseCommand.PRODUCER:
            link.known.add(producer_id)
        if frame.kind == BaseCommand.CLOSE_PRODUCER:  # done in any case: an error says that there is none
            self._deregister(link, producer_id)
            usual = Cluster._confirm
        if answer.kind == "error":
            link.send(
                frames.error_answer(frame, answer.code, "as scripted"),
                f"error {answer.code}",
                about=producer_id,
            )
        elif answer.kind == "late":
            timer = self._loop.call_later(answer.ms / 1000, self._answer_late, link, frame, usual)
            if frame.kind == BaseCommand.PRODUCER:
                link.registering[producer_id] = timer
        elif answer.kind == "closed behind":
            usual(self, link, frame)
            if producer_id in link.producers:
                self.tell_closed(link.producers[producer_id], None)
        elif answer.kind == "cut behind":
            usual(self, link, frame)
            link.close(behind=True)

    def _answer_late(self, link: Link, frame: Frame, usual: "Callable[[Cluster, Link, Frame], None]") -> None:
        link.registering.pop(frame.producer_id, None)
        if link.is_open:
            usual(self, link, frame)

    def _on_connect(self, link: Link, frame: Frame) -> None:
        if frame.command.connect.auth_data != (WHO if self.authenticates else b""):
            self._turn_away(link, frame)
        elif self.challenged_handshakes:
            self.challenged_handshakes -= 1
            self.challenge(link)
        else:
            self._greet(link)

    def _greet(self, link: Link) -> None:
        link.is_greeted = True
        link.send(frames.connected(self.limits[link.host]))

    def challenge(self, link: Link) -> None:
        self._challenges += 1
        link.challenges.append(b"%d" % self._challenges)
        link.send(
            frames.challenge(link.challenges[-1]),
            "challenges later on" if link.is_greeted else "challenges in a handshake",
        )

    def _on_auth_response(self, link: Link, frame: Frame) -> None:
        """An answer is for the last challenge that it may be for and those before it, which count no more."""
        data = frame.command.authResponse.response.auth_data
        rights = [proof_of(challenge) if self.authenticates else b"" for challenge in link.challenges]
        self.witness.on_answer(link, data, asked=data in rights or (data == FORGED and bool(rights)))
        if data == FORGED:
            self._turn_away(link, frame)
        elif data in rights:
            while data in rights:
                del link.challenges[0], rights[0]
            if not link.is_greeted and not link.challenges:
                self._greet(link)

    def _turn_away(self, link: Link, frame: Frame) -> None:
        code = ServerError.AuthenticationError
        link.send(frames.error_answer(frame, code, "wrong credentials"), "wrong credentials")
        link.close(behind=True)

    def _on_pong(self, link: Link, frame: Frame) -> None:
        link.pinged = False

    def ping(self) -> None:
        """Ask on every connection for a sign of life, and who is there."""
        for link in self.open_links():
            link.pinged = True
            link.send(encode(BaseCommand(type=BaseCommand.PING, ping={})))
            self.challenge(link)

    def _on_ping(self, link: Link, frame: Frame) -> None:
        link.send(frames.pong())

    def _on_partitions(self, link: Link, frame: Frame) -> None:
        link.send(frames.partitions(frame))

    def _on_lookup(self, link: Link, frame: Frame) -> None:
        topic = self.topics[frame.command.lookupTopic.topic]
        kind = CommandLookupTopicResponse.Connect
        url = self.urls[topic.owner]
        link.send(frames.lookup_answer(frame, url, kind, tls_url=url))

    def _on_producer(self, link: Link, frame: Frame) -> None:
        asked = frame.command.producer
        topic = self.topics[asked.topic]
        link.known.add(asked.producer_id)
        refused = 0
        if topic.terminated:
            refused = ServerError.TopicTerminatedError
        elif (
            topic.owner != link.host
            or self._loop.time() < topic.away_until
            or asked.producer_id in link.registering  # an earlier one is not through
        ):
            refused = ServerError.ServiceNotReady
        if refused:
            link.send(
                frames.error_answer(frame, refused, "as it is"), f"error {refused}", about=asked.producer_id
            )
            return
        known = link.producers.get(asked.producer_id)
        if known is not None and known.last_id >= 0:
            self.witness.on_stranger(frame)  # it would get the old registration, with what is in flight there
        for other in list(self.registrations()):
            if other.topic is topic and other.name == asked.producer_name:
                self._drop(other)
        self._names += not asked.producer_name
        name = asked.producer_name or f"simulated-{self._names}"
        registered = Registered(link, asked.producer_id, name, topic)
        link.producers[asked.producer_id] = registered
        link.closed_here.discard(asked.producer_id)
        last_id = topic.persisted.get(name, -1) if topic.deduplicates else -1
        link.send(frames.registered(frame, name, last_id), "registered", about=asked.producer_id)

    def _on_close_producer(self, link: Link, frame: Frame) -> None:
        registered = self._deregister(link, frame.producer_id)
        if registered is not None and registered.in_flight:  # behind the answers to what is in flight
            registered.when_idle = lambda: self._confirm(link, frame)
        else:
            self._confirm(link, frame)

    def _confirm(self, link: Link, frame: Frame) -> None:
        link.send(frames.success(frame))

    def _deregister(self, link: Link, producer_id: int) -> Registered | None:
        if (registering := link.registering.pop(producer_id, None)) is not None:
            registering.cancel()
        return link.producers.pop(producer_id, None)

    def _on_send(self, link: Link, frame: Frame) -> None:
        sent = frame.command.send
        registered = link.producers.get(sent.producer_id)
        if registered is None:
            if sent.producer_id not in link.closed_here:
                self.witness.on_stranger(frame)
                link.close()
            return
        self.witness.on_frame(registered, frame)
        topic, refused = registered.topic, registered.refuses
        if topic.terminated:
            refused = ServerError.TopicTerminatedError
        elif (registered.name, frame.lowest_id) in topic.not_allowed:
            refused = ServerError.NotAllowedError
        if refused is not None:
            self._refuse(registered, frame, refused)
        elif not self._is_refused_by_plan(registered, frame) and not self._is_duplicate(registered, frame):
            self._store(registered, frame)

    _HANDLERS: "dict[int, Callable[[Cluster, Link, Frame], None]]" = {
        BaseCommand.CONNECT: _on_connect,
        BaseCommand.AUTH_RESPONSE: _on_auth_response,
        BaseCommand.PING: _on_ping,
        BaseCommand.PONG: _on_pong,
        BaseCommand.PARTITIONED_METADATA: _on_partitions,
        BaseCommand.LOOKUP: _on_lookup,
        BaseCommand.PRODUCER: _on_producer,
        BaseCommand.CLOSE_PRODUCER: _on_close_producer,
        BaseCommand.SEND: _on_send,
    }

    # --- storing

    def _is_refused_by_plan(self, registered: Registered, frame: Frame) -> bool:
        if not self.refusals:
            return False
        passing, code = self.refusals[0]
        if passing:
            self.refusals[0] = (passing - 1, code)
            return False
        self.refusals.popleft()
        if code == ServerError.NotAllowedError:
            registered.topic.not_allowed.add((registered.name, frame.lowest_id))
        else:  # it concerns all that follow, or they would be stored before it
            registered.refuses = code
        self._refuse(registered, frame, code)
        return True

    def _refuse(self, registered: Registered, frame: Frame, code: int) -> None:
        events = [f"error {code}"] + ["refusal in the middle"] * (registered.in_flight > 0)
        registered.link.send(frames.refusal(frame, code), *events, about=registered.producer_id)

    def _is_duplicate(self, registered: Registered, frame: Frame) -> bool:
        """As the broker's deduplication judges: stored already, perhaps stored already, or new."""
        topic, lowest, highest = registered.topic, frame.lowest_id, frame.highest_id
        if not topic.deduplicates:
            return False
        if lowest > topic.pushed.get(registered.name, -1):
            topic.pushed[registered.name] = highest
            return False
        if lowest <= topic.persisted.get(registered.name, -1):
            registered.link.send(frames.receipt(frame, NOWHERE, NOWHERE), "ack", about=registered.producer_id)
        else:
            registered.refuses = ServerError.PersistenceError
            self._refuse(registered, frame, ServerError.PersistenceError)
        return True

    def _store(self, registered: Registered, frame: Frame) -> None:
        topic = registered.topic
        due = self._loop.time() + topic.store_ms / 1000
        if topic.in_flight:
            due = max(due, topic.in_flight[-1].due)
        timer = self._loop.call_at(due, self._stored, topic)
        registered.in_flight += 1
        topic.in_flight.append(Entry(registered, frame, timer, due))

    def _stored(self, topic: Topic) -> None:
        """The next entry is in the ledger."""
        entry = topic.in_flight.popleft()
        self._persist(topic, entry)
        self._acknowledge(entry.registration, entry.frame, len(topic.stored) - 1)
        self._settle(entry.registration)

    def _settle(self, registered: Registered) -> None:
        """One entry less in flight; who waits for all of them hears of the last one."""
        registered.in_flight -= 1
        if not registered.in_flight and registered.when_idle is not None:
            registered.when_idle()
            registered.when_idle = None

    def _persist(self, topic: Topic, entry: Entry) -> None:
        name, highest = entry.registration.name, entry.frame.highest_id
        topic.stored.append(entry.frame)
        self.witness.on_stored(topic, entry.frame, len(topic.stored) - 1)
        topic.persisted[name] = max(topic.persisted.get(name, -1), highest)

    def _acknowledge(self, registered: Registered, frame: Frame, number: int) -> None:
        link, producer_id = registered.link, registered.producer_id
        fault = self.receipt_faults.popleft() if self.receipt_faults else ""
        if fault == "skip" and registered.topic.persistent:
            registered.skipped = True
            return
        if fault == "foreign":
            link.send(frames.receipt_for(producer_id + 1000, frame.lowest_id, 1, number))
        elif fault == "above":
            link.send(
                frames.receipt_for(producer_id, frame.highest_id + ABOVE, 1, number),
                "skipped ack",
                about=producer_id,
            )
        elif fault == "below" and frame.lowest_id and registered.topic.persistent and not registered.skipped:
            link.send(
                frames.receipt_for(producer_id, frame.lowest_id - 1, 1, number), "late ack", about=producer_id
            )
        event = "skipped ack" if registered.skipped else "ack"
        registered.noticeable = registered.skipped
        for _ in range(2 if fault == "repeat" else 1):
            link.send(frames.receipt(frame, 1, number), event, about=producer_id)

    # --- what happens to them

    def registrations(self) -> Iterator[Registered]:
        for link in self.links:
            if link.is_open:
                yield from link.producers.values()

    def open_links(self, host: int | None = None) -> list[Link]:
        self.links = [link for link in self.links if link.is_open]
        return [link for link in self.links if host is None or link.host == host]

    def _drop(self, registered: Registered) -> None:
        """The broker knows it no longer; what comes for it is dropped."""
        registered.link.producers.pop(registered.producer_id, None)
        registered.link.closed_here.add(registered.producer_id)

    def tell_closed(self, registered: Registered, assigned: str | None) -> None:
        self._drop(registered)
        self.say_closed(registered.link, registered.producer_id, assigned)

    def say_closed(self, link: Link, producer_id: int, assigned: str | None) -> None:
        if (registering := link.registering.pop(producer_id, None)) is not None:
            registering.cancel()
        event = "closed by the broker" if assigned is None else "closed, owner named"
        link.send(frames.close_producer(producer_id, assigned, assigned), event, about=producer_id)

    def unload(self, topic: Topic, *, kept: int, owner: int, named: str | None, away_ms: float) -> None:
        """A topic leaves its owner: of what is in flight the first `kept` frames are stored, nobody hears of it."""
        while topic.in_flight:
            entry = topic.in_flight.popleft()
            entry.timer.cancel()
            if kept > 0:
                self._persist(topic, entry)
                kept -= 1
            self._settle(entry.registration)
        topic.pushed = dict(topic.persisted)
        topic.owner = owner
        topic.away_until = self._loop.time() + away_ms / 1000
        for registered in list(self.registrations()):
            if registered.topic is topic:
                self.tell_closed(registered, named)

    def crash(self, host: int, *, kept: int, down_ms: float, reset: bool) -> None:
        """A broker dies and comes back; its topics stay or move with the next look-up."""
        self.down_until[host] = self._loop.time() + down_ms / 1000
        for link in self.open_links(host):
            link.close(reset=reset)
        for topic in self.topics.values():
            if topic.owner == host:
                self.unload(topic, kept=kept, owner=host, named=None, away_ms=0)

    def heal(self) -> None:
        """From now on they behave."""
        self.answers.clear()
        self.refusals.clear()
        self.receipt_faults.clear()
        self.challenged_handshakes = 0
        self.down_until = [0.0] * len(self.limits)
        self.dark_until = [0.0] * len(self.limits)
        for topic in self.topics.values():
            topic.store_ms = 1
            topic.away_until = 0
        for registered in list(self.registrations()):
            if registered.skipped and not registered.noticeable:  # no client could ever find out
                self.tell_closed(registered, None)
        for link in self.open_links():
            link.wire.room = 1 << 20
            link.wire.piece_size = None
            link.wire.stall(False)
