"""The application of a life: producers, what they send, and what must hold for each call."""

import asyncio
import contextlib
import contextvars
import itertools
import math
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from pulsar_fast._core import MessageId, SendHandle
from pulsar_fast.client_core import ClientCore
from pulsar_fast.enums import CompressionType
from pulsar_fast.exceptions import PulsarException
from pulsar_fast.producer_base import BaseProducer
from pulsar_fast.result import Result
from pulsar_fast.topic_producer import State, TopicProducer
from tests import payloads
from tests.simulation.checker import Book, Checker, Record
from tests.simulation.cluster import Topic
from tests.simulation.coverage import Coverage

_COMPRESSIONS = [*CompressionType, *3 * [CompressionType.NONE]]  # of the producers of a life, in turn
_SLACK = 0.25  # seconds that a bounded call may take beyond its bound

_creating: contextvars.ContextVar["Hand"] = contextvars.ContextVar("creating")


class Hand:
    """A producer in the hands of the application, from the call that creates it on."""

    def __init__(self, book: Book, topic: Topic) -> None:
        self.book = book
        self.topic = topic
        self.producer: Any = None  # of either API
        self.producer_id = -1  # given once it exists
        self.core: TopicProducer | None = None
        self.limit = 0
        self.waiting = False  # some messages may have no permit, though the book has them without an answer
        self.max_pending = 0
        self.blocks = False
        self.turn = threading.RLock()  # of the thread that sends
        # Elements of `send_many` are accepted when there is room, and what waits behind them later.
        self.feeds = False

    @property
    def state(self) -> State:
        return State.CONNECTING if self.core is None else self.core.state


class Application:
    """Does what a script says through the asyncio API, and notes each message in its producer's book."""

    slack = _SLACK
    is_alone = True  # on its loop
    keeps_order = True  # of calls that are awaited, too

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        checker: Checker,
        coverage: Coverage,
        topics: list[Topic],
        longest: float,
    ) -> None:
        self.loop = loop
        self.checker = checker
        self.coverage = coverage
        self.topics = topics
        self.longest = longest  # seconds that closing, or half of creating, may take
        self.hands: list[Hand] = []
        self.by_id: dict[int, Hand] = {}
        self.work: set[asyncio.Task[Any]] = set()
        self.client: Any = None
        self.core: ClientCore | None = None
        self._numbers = itertools.count(1)

    def use(self, client: Any, core: ClientCore) -> None:
        """The client is there; each producer that it makes is known by its id from the first moment."""
        self.client, self.core = client, core
        core.next_producer_id = self._next_producer_id  # type: ignore[method-assign]

    async def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call something that takes a while."""
        return await function(*arguments, **named)

    async def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call something that returns at once here, and may wait for room in other applications."""
        return function(*arguments)

    async def wait_for(self, handle: SendHandle) -> None:
        await handle

    def note(self, hand: Hand, event: str) -> None:
        self.coverage.note(hand.state, event)

    def hand_of(self, producer_id: int) -> Hand | None:
        """Whose id it is; its core, once it is there."""
        hand = self.by_id.get(producer_id)
        if hand is not None and hand.core is None and self.core is not None:
            hand.core = next(
                (core for core in list(self.core._producers) if core._producer_id == producer_id), None
            )
        return hand

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = self.loop.create_task(work)
        self.work.add(task)
        task.add_done_callback(self.work.discard)
        return task

    async def bounded(self, what: str, work: Any, bound: float) -> Any:
        """A call that must end within its bound, whatever it ends with."""
        started = self.loop.time()
        try:
            return await work
        except (PulsarException, MemoryError) as error:
            return error
        finally:
            took = self.loop.time() - started
            if took > bound + self.slack:
                self.checker.fail(f"{what} took {took:.2f} s, {bound} at most")

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
        chosen = self.topics[topic]
        if len([hand for hand in self.hands if hand.state is not State.CLOSED]) >= 6:
            return
        book = self.checker.open_book(timeout_ms, deduplicates=chosen.deduplicates)
        hand = Hand(book, chosen)
        hand.waiting = hand.blocks = blocks
        hand.max_pending = max_pending
        book.on_expired = lambda record: self._note_expired(hand, record)
        self.hands.append(hand)
        options = {
            "send_timeout_millis": timeout_ms,
            "max_pending_messages": max_pending,
            "batching_enabled": batching,
            "batching_max_messages": max_messages,
            "batching_max_publish_delay_ms": delay_ms,
            "block_if_queue_full": blocks,
            "compression_type": _COMPRESSIONS[len(self.hands) % len(_COMPRESSIONS)],
        }
        self.begin(self._create(hand, options))

    async def _create(self, hand: Hand, options: dict[str, Any]) -> None:
        _creating.set(hand)
        creation = self.call(self.client.create_producer, hand.topic.name, **options)
        made = await self.bounded("Client.create_producer()", creation, 2 * self.longest)
        if isinstance(made, BaseProducer):
            hand.producer = made

    def _next_producer_id(self) -> int:
        """Called by a producer that is about to exist, within the task that creates it."""
        number = next(self._numbers)
        _creating.get().producer_id = number
        self.by_id[number] = _creating.get()
        return number

    def _open_hand(self, who: int) -> Hand | None:
        """One of those that the application has in its hands."""
        created = [hand for hand in self.hands if hand.producer is not None]
        return created[who % len(created)] if created else None

    def act_send(self, who: int, count: int, size: int, key: str | None, alone: bool) -> None:
        hand = self._open_hand(who)
        if hand is not None:
            self.begin(self.do(self.send, hand, count, size, key, alone))

    def send(
        self, hand: Hand, count: int, size: int, key: str | None = None, alone: bool = False
    ) -> list[Record]:
        assert hand.producer is not None
        records = []
        for _ in range(count):
            with hand.turn:
                record = hand.book.next(dated=not (hand.blocks and hand.feeds))
                records.append(record)
                hand.producer.send_async(
                    payloads.make(hand.book.key, record.counter, size),
                    self._callback(hand, record),
                    partition_key=key,
                    deliver_at=1 if alone else None,
                )
        return records

    def _callback(self, hand: Hand, record: Record) -> Callable[[Result, MessageId], None]:
        def answered(result: Result, message_id: MessageId) -> None:
            if result is Result.ProducerQueueIsFull:
                self.note(hand, "queue full")
            position = (message_id.entry_id(), message_id.batch_index()) if result is Result.Ok else None
            hand.book.answered(record, result, position)

        return answered

    def _note_expired(self, hand: Hand, record: Record) -> None:
        how = "after writing" if record.begun else "before writing" if record.handed_out else "before framing"
        self.note(hand, f"expired {how}")

    def act_send_and_await(self, who: int, count: int, size: int) -> None:
        hand = self._open_hand(who)
        for _ in range(count if hand is not None else 0):
            assert hand is not None
            task = self.begin(self._send_and_await(hand, size))
            task.set_name(f"awaits {hand.book.key}: {task.get_name()}")

    async def _send_and_await(self, hand: Hand, size: int) -> None:
        assert hand.producer is not None
        record = hand.book.next(dated=not (hand.blocks and hand.feeds), ordered=self.keeps_order)
        callback = self._callback(hand, record)
        hand.waiting = True  # for the turn of its task, once the permit is back
        try:
            message_id = await self.call(
                hand.producer.send, payloads.make(hand.book.key, record.counter, size)
            )
        except PulsarException as error:
            callback(error.result, MessageId())
        except asyncio.CancelledError:
            hand.book.give_up(record)
        else:
            callback(Result.Ok, message_id)

    def act_send_many(self, who: int, count: int, size: int) -> None:
        hand = self._open_hand(who)
        if hand is not None:
            self.begin(self._send_many(hand, count, size))

    async def _send_many(self, hand: Hand, count: int, size: int) -> None:
        assert hand.producer is not None
        records, handle = await self.do(self._feed, hand, count, size)
        if handle is None:
            return
        with contextlib.suppress(PulsarException):
            await self.wait_for(handle)
        ids = dict(handle.message_ids())
        for index, record in enumerate(records):
            if index in ids:
                self._callback(hand, record)(Result.Ok, ids[index])
            else:
                error = handle.errors.get(index, next(iter(handle.errors.values()), None))
                result = getattr(error, "result", Result.UnknownError)
                self._callback(hand, record)(result, MessageId())

    def _feed(self, hand: Hand, count: int, size: int) -> tuple[list[Record], SendHandle | None]:
        hand.waiting = hand.feeds = True  # it waits for room, whatever the option says
        with hand.turn:
            records = [hand.book.next(dated=False) for _ in range(count)]
            contents = [payloads.make(hand.book.key, record.counter, size) for record in records]
            try:
                return records, hand.producer.send_many(contents)
            except PulsarException as error:
                for record in records:
                    self._callback(hand, record)(error.result, MessageId())
                return records, None

    def act_fill(self, who: int) -> None:
        hand = self._open_hand(who)
        if hand is not None and hand.max_pending and not hand.waiting:
            self.begin(self.do(self.send, hand, hand.max_pending + 2, 20))

    def act_pause(self) -> None:
        """Nothing but the time behind it."""

    def act_flush(self, who: int) -> None:
        hand = self._open_hand(who)
        if hand is not None:
            assert hand.producer is not None
            self.note(hand, "flush")
            # What waits for room is accepted later, and flushed as well.
            bound = hand.book.timeout_ns / 1e9 if hand.book.timeout_ns and not hand.feeds else math.inf
            self.begin(self._flush(hand, 2 * bound))

    async def _flush(self, hand: Hand, bound: float) -> None:
        covered = list(hand.book.records)
        error = await self.bounded("Producer.flush()", self.call(hand.producer.flush), bound)
        await asyncio.sleep(0.001)  # for the turn of who awaited a message
        # Elsewhere a message of another thread may not have come to the producer yet.
        for record in covered if error is None and self.keeps_order else ():
            if record.result is None:
                self.checker.fail(f"flush has not waited for message {hand.book.key}/{record.counter}")

    def act_cancel_sends(self, who: int) -> None:
        """Those that await messages give up; what was accepted is on its way all the same."""
        hand = self._open_hand(who)
        for task in sorted(self.work, key=lambda task: task.get_name()):
            if hand is not None and task.get_name().startswith(f"awaits {hand.book.key}:"):
                task.cancel()

    def act_close(self, who: int) -> None:
        hands = [hand for hand in self.hands if hand.producer is not None]
        if hands:
            hand = hands[who % len(hands)]
            assert hand.producer is not None
            self.note(hand, "close")
            self.begin(self.bounded("Producer.close()", self.call(hand.producer.close), self.longest))

    def act_cancel_tasks(self) -> None:
        """Somebody cancels all tasks that are not theirs; not where other lives are on the same loop."""
        if not self.is_alone:
            return
        mine = {asyncio.current_task(), *self.work}
        for task in sorted(asyncio.all_tasks() - mine, key=lambda task: task.get_name()):
            task.cancel()
