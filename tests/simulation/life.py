"""One life of a client in simulation: runs a script, and checks what must always hold after each act."""

import asyncio
import contextlib
import contextvars
import itertools
import logging
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from pulsar_fast._core import MessageId
from pulsar_fast.asyncio import Client, Producer
from pulsar_fast.client_core import ClientCore
from pulsar_fast.exceptions import PulsarException
from pulsar_fast.result import Result
from pulsar_fast.topic_producer import State, TopicProducer
from pulsar_fast.wire.messages import BaseCommand
from tests.brokers.frames import Frame, encode, read_frame, refusal_of
from tests.simulation.checker import Book, Checker, Record, make_payload
from tests.simulation.cluster import ABOVE, Answer, Cluster, Link, Registered, Told, Topic, receipt_for
from tests.simulation.coverage import Coverage
from tests.simulation.network import Network, SimulatedTransport, VirtualLoop, VirtualTime
from tests.simulation.script import Script

TOPICS = (  # deduplicates, persistent
    ("persistent://public/default/plain", False, True),
    ("persistent://public/default/dedup", True, True),
    ("persistent://public/default/dedup-2", True, True),
    ("non-persistent://public/default/fleeting", False, False),
)
HOSTS = ("broker-a", "broker-b")
_SLACK = 0.25  # seconds of virtual time that a bounded call may take beyond its bound
_MOST_DIALS = 500  # connections in a second, of all producers: more is a loop of reconnecting

_silent = logging.Logger("simulation")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


_creating: contextvars.ContextVar["Hand"] = contextvars.ContextVar("creating")


class Hand:
    """A producer in the hands of the application, from the call that creates it on."""

    def __init__(self, book: Book, topic: Topic) -> None:
        self.book = book
        self.topic = topic
        self.producer: Producer | None = None
        self.producer_id = -1  # given once it exists
        self.core: TopicProducer | None = None
        self.limit = 0
        self.waiting = False  # some messages may have no permit, though the book has them without an answer
        self.max_pending = 0
        self.blocks = False
        self.feeds = (
            False  # elements of `send_many` are accepted when there is room, and what waits behind them later
        )

    @property
    def state(self) -> State:
        return State.CONNECTING if self.core is None else self.core.state


class Broken(AssertionError):
    """A rule was broken; the message holds the script of the life."""


class Life:
    """The application, its client, the network and the brokers of one script."""

    def __init__(self, script: Script, coverage: Coverage) -> None:
        self._script = script
        self._coverage = coverage
        self._time = VirtualTime()
        self._loop = VirtualLoop(self._time)
        self._loop.set_exception_handler(self._on_loop_error)
        self._checker = Checker(lambda: self._time.now_ns, self._time.wall_offsets_ms)
        settings = script.settings
        self._network = Network(self._loop, settings["latency_ms"] / 1000)
        self._cluster = Cluster(
            self._loop, [f"pulsar://{host}:6650" for host in HOSTS], list(settings["limits"]), self
        )
        self._topics = [
            self._cluster.add_topic(name, deduplicates=dedup, persistent=persistent)
            for name, dedup, persistent in TOPICS
        ]
        self._network.accept = self._accept
        self._network.is_dark = lambda host: self._cluster.is_dark(HOSTS.index(host))
        self._wires: dict[Link, SimulatedTransport] = {}
        self._begun: dict[Link, deque[Frame]] = {}
        self._live: dict[Link, set[int]] = {}
        self._armed: set[Link] = set()
        self._hands: list[Hand] = []
        self._hands_by_id: dict[int, Hand] = {}
        self._work: set[asyncio.Task[Any]] = set()
        self._dials: deque[float] = deque()
        self._ended = False

    # --- running

    def run(self) -> None:
        """Raises `Broken` when a rule is broken."""
        random.seed(self._script.seed)
        try:
            self._loop.run_until_complete(self._live_it())
            self._loop.run_until_complete(self._settle())
        except BaseException as error:
            self._checker.fail(f"{type(error).__name__}: {error}")
        finally:
            self._coverage.steps += self._cluster.steps
            self._coverage.lives += 1
            self._close_loop()
        if self._checker.violations:
            raise Broken("\n".join([*self._checker.violations[:5], str(self._script)]))

    def _close_loop(self) -> None:
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(BaseException):  # a broken life has said already what is wrong
            self._loop.run_until_complete(self._shut_down())
        self._loop.close()

    async def _shut_down(self) -> None:
        self._client.shutdown()
        await asyncio.sleep(1)

    async def _live_it(self) -> None:
        settings = self._script.settings
        self._client = Client(
            f"pulsar://{HOSTS[0]}:6650,{HOSTS[1]}:6650",
            operation_timeout_seconds=settings["operation_timeout_s"],
            connection_timeout_ms=200,
            keep_alive_interval_seconds=settings["keep_alive_s"],
            memory_limit_bytes=settings["memory_limit"],
            initial_backoff_interval_ms=settings["backoff_ms"][0],
            max_backoff_interval_ms=settings["backoff_ms"][1],
            logger=_silent,
        )
        self._numbers = itertools.count(1)
        self._core = self._client._core = ClientCore(
            self._client._url, self._client._options, clock=self._time.clock, dial=self._dial
        )
        self._core.next_producer_id = self._next_producer_id  # type: ignore[method-assign]
        self._client._loop = self._loop
        for act in self._script.acts:
            getattr(self, f"act_{act.what}")(**act.arguments)
            await asyncio.sleep(act.pause_ms / 1000)
            self._check()
        await self._end(settings["ending"])

    async def _end(self, ending: str) -> None:
        if ending == "healed":
            self._cluster.heal()
            await self._prove_life()
        if ending == "shut down":
            for hand in self._hands:
                self._note_for(hand, "close")
            self._client.shutdown()
        else:
            for hand in self._hands:
                self._note_for(hand, "close")
            await self._bounded("Client.close()", self._client.close(), self._longest_close())
        if self._work:
            await asyncio.wait(self._work, timeout=self._longest_close())
            if self._work:
                self._checker.fail(f"calls that never end: {self._work}")
        self._ended = True

    async def _prove_life(self) -> None:
        """With brokers that behave every producer that has not ended gets its messages through."""
        await asyncio.sleep(1)
        self._cluster.heal()
        last: list[tuple[Hand, Record]] = []
        for hand in self._hands:
            if hand.state in (State.READY, State.RECONNECTING) and not hand.topic.terminated:
                last += [(hand, record) for record in self._send(hand, 2, 10)]
        ends = self._loop.time() + 60
        while any(record.result is None for _, record in last) and self._loop.time() < ends:
            await asyncio.sleep(0.05)
        for hand, record in last:
            allowed = {Result.Ok, Result.Timeout, Result.ProducerQueueIsFull, Result.MemoryBufferIsFull}
            if record.result not in allowed:
                self._checker.fail(f"{hand.topic.name} does not work any more: {record.result}")
        for hand in self._hands:
            while hand.state is State.RECONNECTING and self._loop.time() < ends:
                await asyncio.sleep(0.1)
            if hand.state is State.RECONNECTING:
                self._checker.fail(
                    f"{hand.topic.name} has not come back: {hand.core and hand.core._last_error}"
                )

    async def _settle(self) -> None:
        """What is on its way arrives; then nothing of the client is left."""
        await asyncio.sleep(2)
        accounts = {
            "bytes": self._core.budget.used,
            "batches": self._core.buffers.live_batches,
            "held by pending queues": self._core.buffers.pending_holds,
            "held by writes": self._core.buffers.write_holds,
            "memory": self._core.buffers.live_bytes,
        }
        if any(accounts.values()):
            self._checker.fail(f"something is left: {accounts}")
        for hand in self._hands:
            stored = [
                record.counter
                for frame in hand.topic.stored
                for book, record in self._checker.records_of(frame)
                if book is hand.book
            ]
            hand.book.check_end(stored)
            if hand.core is not None and hand.core.accumulator.pending_messages:
                self._checker.fail(f"permits are left: {hand.core.accumulator.pending_messages}")
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            self._checker.fail(f"tasks are left: {tasks}")

    def _check(self) -> None:
        """After each act, and between callbacks."""
        if self._checker.violations:
            raise AssertionError("a rule is broken")
        budget, pool = self._core.budget, self._core.buffers
        if budget.limit and budget.used > budget.limit:
            self._checker.fail(f"{budget.used} bytes of {budget.limit}")
        if (pool.write_holds or pool.pending_holds) and not budget.used:
            self._checker.fail("frames are held, and no bytes are counted")
        if pool.write_holds > len(self._wires):
            self._checker.fail(
                f"{pool.write_holds} frames are held by writes of {len(self._wires)} connections"
            )
        for hand in self._hands:
            hand.book.check_deadlines()
            if self._hand_of(hand.producer_id) is None or hand.core is None:
                continue
            pending = hand.core.accumulator.pending_messages
            if pending != hand.book.unanswered and not (
                hand.waiting and 0 <= pending <= hand.book.unanswered
            ):
                self._checker.fail(f"{pending} permits for {hand.book.unanswered} messages without an answer")
            if hand.max_pending and pending > hand.max_pending:
                self._checker.fail(f"{pending} pending messages of {hand.max_pending}")

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "nobody awaited its send" not in context["message"]:
            self._checker.fail(f"an error in the loop: {context}")

    # --- the network

    async def _dial(self, host: str, port: int, timeout: float) -> Any:
        now = self._loop.time()
        self._dials.append(now)
        while now - self._dials[0] > 1:
            self._dials.popleft()
        if len(self._dials) > _MOST_DIALS:
            self._checker.fail(f"{len(self._dials)} connections within a second")
            raise asyncio.CancelledError
        return await self._network.dial(host, port, timeout)

    def _accept(self, host: str, transport: SimulatedTransport) -> bool:
        number = HOSTS.index(host)
        if not self._cluster.is_up(number):
            return False
        link = self._cluster.connected(number, transport)
        self._wires[link] = transport
        self._begun[link] = deque()
        self._live[link] = set()
        transport.on_bytes = lambda data: self._guard(lambda: link.on_bytes(data))
        transport.on_closed = lambda: self._forget(link)
        transport.on_delivered = self.on_told
        transport.on_begun = lambda raw: self._guard(lambda: self._on_begun(link, raw))
        transport.on_refused = lambda raws: self._guard(lambda: self._on_refused(link, raws))
        return True

    def _guard(self, work: Callable[[], None]) -> None:
        """Whatever a broker finds wrong is a broken rule."""
        try:
            work()
        except AssertionError as error:
            self._checker.fail(str(error))

    def _forget(self, link: Link) -> None:
        link.on_closed()
        self._wires.pop(link, None)

    def _on_begun(self, link: Link, raw: bytes) -> None:
        frame = read_frame(link, raw)
        self._begun[link].append(frame)
        if frame.kind == BaseCommand.SEND:
            self._checker.frame_begins(frame)
            if frame.producer_id not in self._live[link]:
                self._checker.fail(f"frame {frame.lowest_id} is begun without a live registration")

    def _on_refused(self, link: Link, raws: list[bytes]) -> None:
        for raw in raws:
            frame = read_frame(link, raw)
            for _, record in self._checker.records_of(frame):
                record.handed_out = True
        if link in self._armed and self._wires[link].is_inside_a_frame:
            self._armed.discard(link)
            self._loop.call_later(0.003, self._cut, link, True)

    # --- what the cluster tells

    def read(self, link: Link, raw: bytes) -> Frame:
        """A frame that has arrived is the frame that was begun."""
        frame = self._begun[link].popleft()
        assert frame.raw == raw, f"frame {frame.lowest_id} changed while it was written"
        return frame

    def on_frame(self, registered: Registered, frame: Frame) -> None:
        limit = self._cluster.limits[registered.link.host]
        self._checker.frame_arrived(frame, registered.name, registered.last_id, limit)
        registered.last_id = frame.highest_id

    def on_stranger(self, frame: Frame) -> None:
        self._checker.fail(f"{frame.command} for a producer that is not, or is already, registered")

    def on_stored(self, topic: Topic, frame: Frame, number: int) -> None:
        self._checker.stored(frame, number)

    def on_told(self, told: Told) -> None:
        """An answer is about to be handed to the client."""
        self._cluster.steps += 1
        for event in told.events:
            if event == "registered":
                self._live[told.link].add(told.producer_id)
            elif event.startswith("closed"):
                self._live[told.link].discard(told.producer_id)
            hand = self._hand_of(told.producer_id)
            if hand is not None:
                self._note_answer(hand, event, told.link)

    def _note_answer(self, hand: Hand, event: str, link: Link) -> None:
        if event == "registered":
            limit = self._cluster.limits[link.host]
            if limit < hand.limit:
                self._note_for(hand, "smaller limit")
            hand.limit = limit
        else:
            self._note_for(hand, event)

    def _hand_of(self, producer_id: int) -> Hand | None:
        hand = self._hands_by_id.get(producer_id)
        if hand is not None and hand.core is None:
            hand.core = next(
                (core for core in self._core._producers if core._producer_id == producer_id), None
            )
        return hand

    def _note_for(self, hand: Hand, event: str) -> None:
        self._coverage.note(hand.state, event)

    # --- acts of the application

    def _begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self._loop.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _bounded(self, what: str, work: Any, bound: float) -> Any:
        """A call that must end within its bound, whatever it ends with."""
        started = self._loop.time()
        try:
            return await work
        except (PulsarException, MemoryError) as error:
            return error
        finally:
            took = self._loop.time() - started
            if took > bound + _SLACK:
                self._checker.fail(f"{what} took {took:.2f} s, {bound} at most")

    def _longest_close(self) -> float:
        return float(self._script.settings["operation_timeout_s"])

    def act_create(
        self,
        topic: int,
        timeout_ms: int,
        max_pending: int,
        batching: bool | None,
        max_messages: int,
        delay_ms: int,
        blocks: bool,
    ) -> None:
        chosen = self._topics[topic]
        if len([hand for hand in self._hands if hand.state is not State.CLOSED]) >= 6:
            return
        book = self._checker.open_book(
            timeout_ms, deduplicates=chosen.deduplicates, persistent=chosen.persistent
        )
        hand = Hand(book, chosen)
        hand.waiting = hand.blocks = blocks
        hand.max_pending = max_pending
        book.on_expired = lambda record: self._note_expired(hand, record)
        self._hands.append(hand)
        options = {
            "send_timeout_millis": timeout_ms,
            "max_pending_messages": max_pending,
            "batching_enabled": batching,
            "batching_max_messages": max_messages,
            "batching_max_publish_delay_ms": delay_ms,
            "block_if_queue_full": blocks,
        }
        self._begin(self._create(hand, options))

    async def _create(self, hand: Hand, options: dict[str, Any]) -> None:
        _creating.set(hand)
        creation = self._client.create_producer(hand.topic.name, **options)
        made = await self._bounded("Client.create_producer()", creation, 2 * self._longest_close())
        if isinstance(made, Producer):
            hand.producer = made

    def _next_producer_id(self) -> int:
        """Called by a producer that is about to exist, within the task that creates it."""
        number = next(self._numbers)
        _creating.get().producer_id = number
        self._hands_by_id[number] = _creating.get()
        return number

    def _open_hand(self, who: int) -> Hand | None:
        """One of those that the application has in its hands."""
        created = [hand for hand in self._hands if hand.producer is not None]
        return created[who % len(created)] if created else None

    def act_send(self, who: int, count: int, size: int, key: str | None, alone: bool) -> None:
        hand = self._open_hand(who)
        if hand is not None:
            self._send(hand, count, size, key, alone)

    def _send(
        self, hand: Hand, count: int, size: int, key: str | None = None, alone: bool = False
    ) -> list[Record]:
        assert hand.producer is not None
        records = []
        for _ in range(count):
            record = hand.book.next(dated=not (hand.blocks and hand.feeds))
            records.append(record)
            hand.producer.send_async(
                make_payload(hand.book.key, record.counter, size),
                self._callback(hand, record),
                partition_key=key,
                deliver_at=1 if alone else None,
            )
        return records

    def _callback(self, hand: Hand, record: Record) -> Callable[[Result, MessageId], None]:
        def answered(result: Result, message_id: MessageId) -> None:
            if result is Result.ProducerQueueIsFull:
                self._note_for(hand, "queue full")
            position = (message_id.entry_id(), message_id.batch_index()) if result is Result.Ok else None
            hand.book.answered(record, result, position)

        return answered

    def _note_expired(self, hand: Hand, record: Record) -> None:
        how = "after writing" if record.begun else "before writing" if record.handed_out else "before framing"
        self._note_for(hand, f"expired {how}")

    def act_send_and_await(self, who: int, count: int, size: int) -> None:
        hand = self._open_hand(who)
        for _ in range(count if hand is not None else 0):
            assert hand is not None
            self._begin(self._send_and_await(hand, size))

    async def _send_and_await(self, hand: Hand, size: int) -> None:
        assert hand.producer is not None
        record = hand.book.next(dated=not (hand.blocks and hand.feeds))
        callback = self._callback(hand, record)
        hand.waiting = True  # for the turn of its task, once the permit is back
        try:
            message_id = await hand.producer.send(make_payload(hand.book.key, record.counter, size))
        except PulsarException as error:
            callback(error.result, MessageId())
        else:
            callback(Result.Ok, message_id)

    def act_send_many(self, who: int, count: int, size: int) -> None:
        hand = self._open_hand(who)
        if hand is not None:
            self._begin(self._send_many(hand, count, size))

    async def _send_many(self, hand: Hand, count: int, size: int) -> None:
        assert hand.producer is not None
        hand.waiting = hand.feeds = True  # it waits for room, whatever the option says
        records = [hand.book.next(dated=False) for _ in range(count)]
        payloads = [make_payload(hand.book.key, record.counter, size) for record in records]
        try:
            handle = hand.producer.send_many(payloads)
        except PulsarException as error:
            for record in records:
                self._callback(hand, record)(error.result, MessageId())
            return
        with contextlib.suppress(PulsarException):
            await handle
        ids = dict(handle.message_ids())
        for index, record in enumerate(records):
            if index in ids:
                self._callback(hand, record)(Result.Ok, ids[index])
            else:
                error = handle.errors.get(index, next(iter(handle.errors.values()), None))
                result = getattr(error, "result", Result.UnknownError)
                self._callback(hand, record)(result, MessageId())

    def act_fill(self, who: int) -> None:
        hand = self._open_hand(who)
        if hand is not None and hand.max_pending and not hand.waiting:
            self._send(hand, hand.max_pending + 2, 20)

    def act_pause(self) -> None:
        """Nothing but the time behind it."""

    def act_flush(self, who: int) -> None:
        hand = self._open_hand(who)
        if hand is not None:
            assert hand.producer is not None
            self._note_for(hand, "flush")
            # What waits for room is accepted later, and flushed as well.
            bound = hand.book.timeout_ns / 1e9 if hand.book.timeout_ns and not hand.feeds else math.inf
            self._begin(self._bounded("Producer.flush()", hand.producer.flush(), 2 * bound))

    def act_close(self, who: int) -> None:
        hands = [hand for hand in self._hands if hand.producer is not None]
        if hands:
            hand = hands[who % len(hands)]
            assert hand.producer is not None
            self._note_for(hand, "close")
            self._begin(self._bounded("Producer.close()", hand.producer.close(), self._longest_close()))

    def act_cancel_tasks(self) -> None:
        """Somebody cancels all tasks that are not theirs."""
        mine = {asyncio.current_task(), *self._work}
        for task in sorted(asyncio.all_tasks() - mine, key=lambda task: task.get_name()):
            if "_reconnect" in repr(task.get_coro()):
                task.cancel()

    # --- acts of brokers

    def act_answer(self, to: str, kind: str, code: int = 0, ms: float = 0) -> None:
        number = BaseCommand.Type.Value(to)
        self._cluster.answers.setdefault(number, deque()).append(Answer(kind, code, ms))

    def act_refuse(self, after: int, code: int) -> None:
        self._cluster.refusals.append((after, code))

    def act_receipts(self, faults: list[str]) -> None:
        self._cluster.receipt_faults.extend(faults)

    def act_store_in(self, topic: int, ms: float) -> None:
        self._topics[topic].store_ms = ms

    def act_unload(self, topic: int, moves: bool, named: str, kept: int, away_ms: float) -> None:
        chosen = self._topics[topic]
        owner = 1 - chosen.owner if moves else chosen.owner
        urls = self._cluster.urls
        names = {
            "no": None,
            "owner": urls[owner],
            "other": urls[1 - owner],
            "nobody": "pulsar://nobody:1",
            "garbage": "no url",
        }
        self._cluster.unload(chosen, kept=kept, owner=owner, named=names[named], away_ms=away_ms)

    def act_terminate(self, topic: int) -> None:
        self._topics[topic].terminated = True

    def act_crash(self, host: int, kept: int, down_ms: float, reset: bool) -> None:
        for link in self._cluster.open_links(host):
            self._note_cut(link)
        self._cluster.crash(host, kept=kept, down_ms=down_ms, reset=reset)

    def act_say(self, who: int, state: str, what: list[str]) -> None:
        """To a producer in that state, on a connection where the broker has heard of it."""
        for hand in self._hands[who:] + self._hands[:who]:
            if self._hand_of(hand.producer_id) is not None and hand.state.value == state:
                for link in self._cluster.open_links():
                    if hand.producer_id in link.known:
                        for one in what:
                            self._say(link, hand, one)
                        return

    def _say(self, link: Link, hand: Hand, what: str) -> None:
        number = hand.producer_id
        if what.startswith("error"):
            link.send(refusal_of(number, ABOVE**2, int(what.split()[1])), what, about=number)
        elif what.startswith("closed"):
            registered = link.producers.get(number)
            named = self._cluster.urls[hand.topic.owner] if "owner" in what else None
            if registered is not None:
                self._cluster.tell_closed(registered, named)
            else:
                self._cluster.say_closed(link, number, named)
        elif what == "skipped ack":
            link.send(receipt_for(number, ABOVE**2, 1, 0), "skipped ack", about=number)
        elif hand.state is State.CONNECTING:
            link.send(receipt_for(number, 0, 1, 0), what, about=number)
        else:
            for record in hand.book.records[:1]:
                if record.stored and record.sequence_id is not None:
                    link.send(
                        receipt_for(number, record.sequence_id, 1, record.stored[0]), what, about=number
                    )

    def act_noise(self, link: int, kind: str) -> None:
        chosen = self._link(link)
        if chosen is None:
            return
        command = BaseCommand(type=BaseCommand.PING, ping={})
        if kind == "challenge":
            command = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
            command.authChallenge.server_version = "simulated"
        elif kind == "success":
            command = BaseCommand(type=BaseCommand.SUCCESS)
            command.success.request_id = 2**40
        elif kind == "pong":
            command = BaseCommand(type=BaseCommand.PONG, pong={})
        noise = {
            "unknown": b"\0\0\0\6\0\0\0\2\x08\x63",
            "migrated": b"\0\0\0\7\0\0\0\3\x08\xc4\x00",
            "empty": b"\0\0\0\4\0\0\0\0",
            "garbage": b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "long": b"\x7f\xff\xff\xff\0\0\0\2",
        }
        chosen.send(noise.get(kind) or encode(command))

    # --- acts of the network

    def _link(self, number: int) -> Link | None:
        links = self._cluster.open_links()
        return links[number % len(links)] if links else None

    def act_cut(self, link: int, reset: bool, behind: bool) -> None:
        chosen = self._link(link)
        if chosen is not None:
            self._cut(chosen, reset, behind)

    def _cut(self, link: Link, reset: bool, behind: bool = False) -> None:
        if link.is_open:
            self._note_cut(link)
            link.close(reset=reset, behind=behind)

    def _note_cut(self, link: Link) -> None:
        where = "inside a frame" if self._wires[link].is_inside_a_frame else "between frames"
        self._cluster.steps += 1
        for hand in self._hands:
            if hand.producer_id in link.known:
                self._note_for(hand, f"cut {where}")

    def act_cut_inside(self, link: int, room: int) -> None:
        """The next time that a frame does not fit, the connection ends in the middle of it."""
        chosen = self._link(link)
        if chosen is not None:
            self._armed.add(chosen)
            chosen.wire.room = room
            chosen.wire.stall(True)

    def act_stall(self, link: int, room: int, ms: float) -> None:
        chosen = self._link(link)
        if chosen is None:
            return
        chosen.wire.room = room
        chosen.wire.stall(True)

        def go_on() -> None:
            chosen.wire.room = 1 << 20
            chosen.wire.stall(False)

        self._loop.call_later(ms / 1000, go_on)

    def act_dribble(self, link: int, size: int) -> None:
        chosen = self._link(link)
        if chosen is not None:
            chosen.wire.piece_size = size

    def act_dark(self, host: int, ms: float) -> None:
        self._cluster.dark_until[host] = self._loop.time() + ms / 1000

    def act_set_wall_clock(self, by_ms: int) -> None:
        self._time.set_wall_clock(by_ms)
