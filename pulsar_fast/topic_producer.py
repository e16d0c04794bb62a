"""The loop's side of a producer: registration, reconnecting, deadlines, flush and close."""

import asyncio
import contextlib
import enum
import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ._core import Accumulator, LatencyHistogram, PendingQueue, Registration, fresh_copy
from .backoff import Backoff
from .bounds import TimeIsUp, ended, within
from .connection import BrokerAddress, Connection
from .enums import ProducerAccessMode
from .exceptions import (
    AlreadyClosed,
    ChecksumError,
    MessageTooBig,
    NotAllowedError,
    ProducerBlockedQuotaExceededException,
    PulsarException,
    ServiceUnitNotReady,
    Timeout,
    TopicTerminated,
    from_server_error,
)
from .lookup import Lookup
from .options import ProducerOptions
from .result import Result
from .stats import ProducerStats
from .topic_name import TopicName
from .wire.messages import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducerSuccess,
    CommandSendError,
    CommandTopicMigrated,
)

if TYPE_CHECKING:
    from .client_core import ClientCore

__all__ = ["State", "TopicProducer"]

_NS = 1_000_000_000
_EXPIRY_SLACK = 0.1  # seconds between a deadline and the turn that notices it, at most
_MOST_HINTS = 3  # successors named by brokers that are tried at once, without any message getting through
_WARNING_INTERVAL = 60 * _NS  # of messages to the log that could come for each message


class State(enum.Enum):
    """Where a producer is in its life; only the first three accept messages."""

    CONNECTING = "connecting"
    READY = "ready"
    RECONNECTING = "reconnecting"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class _Attempt:
    """One `Producer` command on its way: it ends in a handoff or with an error, never both."""

    def __init__(self, connection: Connection, request_id: int) -> None:
        self.connection = connection
        self.request_id = request_id
        self.answered = False  # by the broker, well or badly, for good
        self.heard = asyncio.Event()  # anything of it
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: PulsarException) -> None:
        self.heard.set()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # seen, also if the attempt has been cancelled


class TopicProducer:
    """A producer of one topic. Owned by the event loop; only `accumulator` is shared with other threads."""

    def __init__(self, client: "ClientCore", topic: TopicName, options: ProducerOptions) -> None:
        self.topic = topic
        self.state = State.CONNECTING
        self.producer_name = options.producer_name or ""
        self.encoding = options.schema
        self._client = client
        self._options = options
        self._logger = client.logger
        self._loop = asyncio.get_running_loop()
        self._producer_id = client.next_producer_id()
        self._codec = options.codec()
        self.accumulator = Accumulator(
            client.buffers,
            client.budget,
            client.waker,
            client.clock,
            self,
            max_pending=options.max_pending_messages,
            max_messages=options.batching_max_messages,
            max_bytes=options.batching_max_allowed_size_in_bytes,
            batching=options.batching_enabled is not False,
            by_key=options.batching_enabled is None,
            compresses=self._codec is not None,
        )
        if options.initial_sequence_id is not None:
            self.accumulator.start_after(options.initial_sequence_id)
        self._delay_ns = options.batching_max_publish_delay_ms * 1_000_000
        self._timeout_ns = options.send_timeout_millis * 1_000_000
        self._queue = PendingQueue(
            self.accumulator,
            result_ok=Result.Ok,
            observer=self,
            partition=topic.partition,
            timeout_ns=self._timeout_ns,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._registration: Registration | None = None
        self._attempt: _Attempt | None = None
        self._epoch = -1
        self._topic_epoch: int | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._hint: BrokerAddress | None = None
        self._migrated_to: Lookup | None = None
        self._backoff = Backoff(
            client.options.initial_backoff_interval_ms, client.options.max_backoff_interval_ms
        )
        self._acknowledged_before = 0
        self._hints_followed = 0
        self._go_on = asyncio.Event()
        self._tried: BrokerAddress | None = None
        self._reconnects = 0
        self._unreachable_since = client.clock.now_ns()
        self._last_error: PulsarException | None = None
        self._warned_at = {"unheard": -_WARNING_INTERVAL, "callback": -_WARNING_INTERVAL}
        self._unheard = 0
        self._closing: asyncio.Task[None] | None = None
        self._leaving = False
        self._starts_later = False
        self._at_once = False
        self._background: asyncio.Task[None] | None = None  # kept, since the loop holds tasks weakly

    # --- the data way

    @property
    def ends(self) -> Accumulator:
        """Where messages go in."""
        return self.accumulator

    def turn(self) -> None:
        """Do what there is to do: seal what is due, take over, write, expire, and set the timer."""
        if self.state is State.CLOSED:
            return
        if self._starts_later and self.accumulator.pending_messages:
            self._start()
        self.accumulator.timer_armed = False
        left = self.accumulator.seal_if_due(self._delay_ns, self._timeout_ns)
        self._queue.absorb()
        self._write()
        now = self._client.clock.now_ns()
        due = self._queue.next_deadline()
        if due is not None and due <= now:
            self._expire()
            due = self._queue.next_deadline()
        if left >= 0:
            due = now + left if due is None else min(due, now + left)
        if due is not None:
            self._wake_at((due - now) / _NS)
        self.accumulator.timer_armed = left >= 0

    def _write(self) -> None:
        registration = self._registration
        if registration is not None and not registration.stopped:
            registration.offer()
            self._connection_of(registration).flush()

    def _connection_of(self, registration: Registration) -> Connection:
        connection = registration.channel
        assert isinstance(connection, Connection)
        return connection

    def _wake_at(self, delay: float) -> None:
        when = self._loop.time() + max(delay, 0.001)
        if self._timer is not None:
            if self._timer.when() <= when:
                return  # it looks again by itself
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.turn()

    def _expire(self) -> None:
        """Fail what has waited too long, after a look at what the socket already holds."""
        if self._registration is not None:
            self._connection_of(self._registration).take_in()
        self._queue.expire(Timeout(self._why_no_receipt()))

    def _why_no_receipt(self) -> str:
        if self._registration is not None and not self._registration.stopped:
            return f"no receipt for {self._options.send_timeout_millis / 1000:g} s"
        away = (self._client.clock.now_ns() - self._unreachable_since) / _NS
        cause = "not connected" if self._last_error is None else self._last_error.message
        return f"no broker has taken messages of {self.topic.full} for {away:.1f} s: {cause}"

    def nobody_heard(self, count: int, error: Exception) -> None:
        """Messages without a callback failed (called by the pending queue)."""
        self._unheard += count
        if self._may_warn("unheard"):
            self._logger.error(
                "%s: messages without a callback failed (%d): %s", self.topic.full, self._unheard, error
            )
            self._unheard = 0

    def callbacks_held_loop(self, seconds: float) -> None:
        """Callbacks kept the loop from its work (called by the pending queue)."""
        if self._may_warn("callback"):
            self._logger.warning(
                "%s: callbacks of one batch held the client's loop for %.0f ms; nothing is sent meanwhile",
                self.topic.full,
                1000 * seconds,
            )

    def _may_warn(self, kind: str) -> bool:
        now = self._client.clock.now_ns()
        if now - self._warned_at[kind] < _WARNING_INTERVAL:
            return False
        self._warned_at[kind] = now
        return True

    # --- connecting and reconnecting, beside the data way

    async def create(self) -> None:
        """Register for the first time, within the operation timeout.

        What a retry cannot mend is raised at once, the rest when the time is up.
        """
        self._connecting = self._begin_connecting(self._connect_first())
        try:
            await self._connecting
        except BaseException as error:
            refusal = error if isinstance(error, PulsarException) else AlreadyClosed("creation was given up")
            self._end(State.CLOSED, refusal)
            raise

    def start_later(self) -> None:
        """Register with the first message, like after an outage: attempts end with the messages only."""
        self._starts_later = True

    @property
    def is_started(self) -> bool:
        return not self._starts_later

    def _start(self) -> None:
        self._starts_later = False
        if self.state is State.CONNECTING:
            self.state = State.RECONNECTING
        self._at_once = True
        self._start_reconnect()

    async def _connect_first(self) -> None:
        waits = self._options.access_mode is ProducerAccessMode.WaitForExclusive
        await self._client.retried(
            f"creating a producer on {self.topic.full}", self._try_once, without_end=waits
        )

    async def _reconnect(self) -> None:
        """Until there is a live registration again; only prepares, and ends in a handoff."""
        while self._lacks_registration():
            try:
                await self._let_the_broker_finish()
                await self._back_off()
                await self._try_once()
            except PulsarException as error:
                self._last_error = error
                if error.terminal:
                    self._end(State.FAILED, error)
                    return
                if isinstance(error, ProducerBlockedQuotaExceededException):
                    self._queue.fail_all(error)
                self._logger.debug("%s: reconnecting failed: %s", self.topic.full, error)

    async def _let_the_broker_finish(self) -> None:
        """After a refused send: `CloseProducer`, whose answer comes behind those to all frames in flight."""
        registration = self._registration
        if registration is None:
            return
        connection = self._connection_of(registration)
        with contextlib.suppress(PulsarException):
            await self._ask_to_close(connection)
        connection.producers.pop(self._producer_id, None)
        self._detach()

    async def _back_off(self) -> None:
        """Wait before an attempt, unless the broker has named its successor or is known to be reachable again."""
        if self._queue.acknowledged > self._acknowledged_before:
            self._backoff.reset()
            self._hints_followed = 0
        self._acknowledged_before = self._queue.acknowledged
        if self._at_once:
            self._at_once = False
            return
        if self._hint is not None and self._hints_followed < _MOST_HINTS:
            self._hints_followed += 1
            return
        self._go_on.clear()
        with contextlib.suppress(TimeIsUp):
            await within(self._backoff.next(), self._go_on.wait())

    def on_reached(self, address: BrokerAddress) -> None:
        """Some producer has reached a broker: no need to wait longer if it is the one of the last attempt."""
        if self._tried is None or self._tried == address:
            self._go_on.set()

    def move(self) -> None:
        """The client goes to another cluster: whatever was known of the old one does not count there."""
        self._hint = self._migrated_to = self._topic_epoch = None
        self._backoff.reset()
        self._go_on.set()

    async def _try_once(self) -> None:
        """Find the broker, connect and register there, once."""
        # One and the same from here on: an address means nothing in another one.
        cluster = self._client.cluster
        hint, self._hint = self._hint, None
        self._tried = hint  # None while the broker is not known: any that is reached may be it
        address = hint or await cluster.broker_of(self.topic, self._migrated_to)
        self._tried = address
        connection = await cluster.pool.get(address, self._producer_id)
        attempt = self._register(connection)
        timeout = self._client.options.operation_timeout_seconds
        try:
            await within(timeout, attempt.heard.wait())
            await attempt.ended
        except TimeIsUp:
            raise Timeout(
                f"{connection.address} did not answer a Producer command within {timeout:g} s"
            ) from None
        finally:
            self._attempt = None
            connection.forget(attempt.request_id)
            if self._registration is None:
                connection.producers.pop(self._producer_id, None)
            if not attempt.answered and connection.lost is None:
                # The broker may still create it: it must not keep a producer that nobody uses.
                self._send_close(connection)

    def _register(self, connection: Connection) -> _Attempt:
        self._epoch += 1
        request_id = connection.next_request_id()
        attempt = self._attempt = _Attempt(connection, request_id)
        command = BaseCommand(type=BaseCommand.PRODUCER)
        producer = command.producer
        producer.topic = self.topic.full
        producer.producer_id = self._producer_id
        producer.request_id = request_id
        producer.epoch = self._epoch
        producer.user_provided_producer_name = self._options.producer_name is not None
        if self.producer_name:
            producer.producer_name = self.producer_name
        if self._options.access_mode is not ProducerAccessMode.Shared:
            producer.producer_access_mode = self._options.access_mode  # type: ignore[assignment]
        if self._topic_epoch is not None:
            producer.topic_epoch = self._topic_epoch
        for key, value in (self._options.properties or {}).items():
            producer.metadata.add(key=key, value=value)
        if self.encoding is not None and self.encoding.on_wire is not None:
            producer.schema.CopyFrom(self.encoding.on_wire)
        connection.producers[self._producer_id] = self  # before the broker can say anything about it
        connection.request(request_id, command, lambda reply: self._on_reply(attempt, reply))
        return attempt

    def _on_reply(self, attempt: _Attempt, reply: BaseCommand | PulsarException) -> None:
        """Inside the dispatch of the answer: what comes behind it finds the registration in place."""
        attempt.heard.set()
        if not isinstance(reply, PulsarException) and not reply.producer_success.producer_ready:
            # In the queue for exclusive access: another answer follows, when the others have gone.
            attempt.connection.expect(attempt.request_id, lambda again: self._on_reply(attempt, again))
            return
        attempt.answered = True
        if isinstance(reply, PulsarException):
            attempt.fail(reply)
        elif not attempt.ended.done():
            attempt.ended.set_result(None)
            self._hand_over(attempt.connection, reply.producer_success)

    def _hand_over(self, connection: Connection, success: CommandProducerSuccess) -> None:
        """The one step from no registration to a live one."""
        self.producer_name = success.producer_name
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        if self.state is State.CONNECTING:
            # Only now: later on, messages of ours may have ids that the broker has not seen.
            self._queue.last_sequence_id = success.last_sequence_id
            if self._options.initial_sequence_id is None:
                self.accumulator.start_after(success.last_sequence_id)
        name = self.producer_name.encode()
        self.accumulator.set_limits(connection.max_message_size, len(name))
        registration = Registration(
            self._queue,
            connection,
            self._producer_id,
            name,
            success.schema_version,
            connection.max_message_size,
            self.topic.persistent,
            _too_big,
            self._codec,
        )
        connection.add_registration(registration)
        again = self.state is State.RECONNECTING
        if self.state is not State.CLOSING:
            self.state = State.READY
        self._registration = registration
        self._queue.attach(registration)  # what fails here may have a callback that ends the producer
        self._write()
        if again:  # last, since a handler of the log may end the producer too
            self._logger.info("%s: reconnected to %s", self.topic.full, connection.address)

    # --- what the connection tells, inside its dispatch

    def on_connection_lost(self, connection: Connection, error: PulsarException) -> None:
        if self._attempt is not None and self._attempt.connection is connection:
            self._attempt.fail(error)
        if self._registration is not None and self._registration.channel is connection:
            self._registration_ended(error)

    def on_close_producer(self, connection: Connection, close: CommandCloseProducer) -> None:
        """The topic moves, or is closed; the connection itself stays good and needs no answer."""
        error = ServiceUnitNotReady(f"{connection.address} closed the producer")
        connection.producers.pop(self._producer_id, None)
        self._hint = self._assigned_broker(connection, close)
        if self._attempt is not None and self._attempt.connection is connection:
            connection.forget(self._attempt.request_id)
            self._attempt.fail(error)
        if self._registration is not None and self._registration.channel is connection:
            self._registration_ended(error)

    def on_topic_migrated(self, connection: Connection, migrated: CommandTopicMigrated) -> None:
        """The topic is in another cluster now, where it is looked up once the broker has closed the producer."""
        cluster = self._client.cluster
        try:
            url = cluster.service.url.of_cluster(
                migrated.brokerServiceUrl, migrated.brokerServiceUrlTls, "the migrated topic's URL"
            )
        except ValueError as error:
            self._logger.warning("%s: %s named %s", self.topic.full, connection.address, error)
            return
        self._migrated_to = cluster.lookup_at(url)
        self._logger.info("%s: migrated to %s", self.topic.full, self._migrated_to)

    def _assigned_broker(self, connection: Connection, close: CommandCloseProducer) -> BrokerAddress | None:
        plain, tls = close.assignedBrokerServiceUrl, close.assignedBrokerServiceUrlTls
        if not plain and not tls:
            return None
        try:
            broker = self._client.cluster.service.url.of_broker(plain, tls, "the assigned broker's URL")
        except ValueError as error:
            self._logger.warning("%s: %s", self.topic.full, error)
            return None
        return BrokerAddress(connection.address.physical if connection.address.is_proxied else broker, broker)

    def on_send_error(self, refusal: CommandSendError) -> None:
        """Act on the message or the registration that the code concerns, never on the shared connection."""
        registration = self._registration
        if registration is None or not registration.has_slot(refusal.sequence_id):
            self._queue.late += 1
            return
        error = from_server_error(refusal.error, refusal.message)
        if isinstance(error, NotAllowedError) or (
            isinstance(error, ChecksumError) and not registration.is_intact(refusal.sequence_id)
        ):
            registration.fail_slot(refusal.sequence_id, error)
        elif isinstance(error, TopicTerminated):
            self._end(State.FAILED, error)
        else:
            registration.release_slot(refusal.sequence_id)
            if not registration.stopped:
                registration.stop()
                self._note_loss(error)
                self._start_reconnect()

    def _registration_ended(self, error: PulsarException) -> None:
        was_live = self._registration is not None and not self._registration.stopped
        self._detach()
        if was_live:
            self._note_loss(error)
        self._start_reconnect()

    def _note_loss(self, error: PulsarException) -> None:
        self._last_error = error
        self._unreachable_since = self._client.clock.now_ns()
        self._reconnects += 1
        self._logger.warning("%s: %s; reconnecting", self.topic.full, error)
        if self.state is State.READY:
            self.state = State.RECONNECTING

    def _start_reconnect(self) -> None:
        """At most one task: when one that is under way ends, it is seen whether another is needed."""
        if self._lacks_registration() and (self._connecting is None or self._connecting.done()):
            self._connecting = self._begin_connecting(self._reconnect())

    def _lacks_registration(self) -> bool:
        """Whether there should be a live registration and is none."""
        if self._leaving or self.state in (State.CONNECTING, State.CLOSED, State.FAILED):
            return False
        return not self.is_connected

    def _begin_connecting(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        task.add_done_callback(self._connecting_ended)
        return task

    def _connecting_ended(self, task: asyncio.Task[None]) -> None:
        """The registration may be over already, or the task was cancelled by somebody else."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PulsarException):
            self._logger.error("%s: reconnecting ended unexpectedly", self.topic.full, exc_info=error)
        elif not task.cancelled():
            self._start_reconnect()
            return
        # Later, so that a bug makes no hot loop, and a loop that is being torn down gets no new task.
        delay = self._client.options.initial_backoff_interval_ms / 1000
        self._loop.call_later(delay, self._start_reconnect)

    def _detach(self) -> None:
        self._queue.detach()
        self._registration = None

    # --- the command way

    async def flush(self, marks: list[int]) -> None:
        """Wait until everything accepted before the one mark was taken is answered; raises their first error.

        Of a producer that has ended, it raises why.
        """
        if self.state in (State.CLOSED, State.FAILED):
            assert self.accumulator.refusal is not None
            raise fresh_copy(self.accumulator.refusal)
        self.turn()
        answered: asyncio.Future[PulsarException | None] = self._loop.create_future()
        self._queue.when_complete(marks[0], answered)
        error = await answered
        if error is not None:
            raise fresh_copy(error)

    async def close(self, timeout: float | None = None) -> None:
        """Accept nothing more, wait for what was accepted, and take leave of the broker; a second call only waits.

        The wait ends at the latest deadline, the operation timeout or `timeout` (seconds), whichever is first.
        What is left then gets `AlreadyClosed`. It begins anew when somebody else cancels its task.
        """
        bound = self._client.options.operation_timeout_seconds
        ends = self._loop.time() + (bound if timeout is None else min(bound, timeout))
        while True:
            if self._closing is None or self._closing.cancelled():
                self.accumulator.end(AlreadyClosed("the producer is closed"))
                mark = self.accumulator.mark()
                self._closing = self._loop.create_task(self._close(mark, ends))
            if await ended(self._closing):
                return

    async def _close(self, mark: int, ends: float) -> None:
        if self.state not in (State.FAILED, State.CLOSED):
            self.state = State.CLOSING
            self.turn()
            answered = self._loop.create_future()
            self._queue.when_complete(mark, answered)
            await asyncio.wait([answered], timeout=min(self._time_to_live(), ends - self._loop.time()))
            await self._take_leave(ends)
        self._end(State.CLOSED, AlreadyClosed("the producer was closed before the broker answered"))

    def _time_to_live(self) -> float:
        """Seconds until every pending message has been answered or has expired."""
        deadline = self._queue.last_deadline()
        if deadline is None:
            return math.inf
        return (deadline - self._client.clock.now_ns()) / _NS + _EXPIRY_SLACK

    async def _take_leave(self, ends: float) -> None:
        """`CloseProducer`, whose answer comes behind those to all frames in flight."""
        self._leaving = True
        self._stop_connecting()
        registration = self._registration
        if registration is None or registration.stopped:
            return
        registration.stop()
        with contextlib.suppress(PulsarException, TimeIsUp):
            # Sent in any case: a bound that has passed leaves no time for the answer, but for the command.
            answer = self._loop.create_task(self._ask_to_close(self._connection_of(registration)))
            await asyncio.sleep(0)
            await within(ends - self._loop.time(), answer)

    async def _ask_to_close(self, connection: Connection) -> None:
        request_id = connection.next_request_id()
        await connection.ask(request_id, self._close_command(request_id))

    def _send_close(self, connection: Connection) -> None:
        connection.send(self._close_command(connection.next_request_id()))

    def _close_command(self, request_id: int) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = self._producer_id
        command.close_producer.request_id = request_id
        return command

    def close_soon(self) -> None:
        """Close in the background."""
        self._background = self._loop.create_task(self.close())

    def abandon(self) -> None:
        """The loop has been closed before the client: answer what is left, without it."""
        if self.state is State.CLOSED:
            return
        self._queue.absorb()
        if self.accumulator.pending_messages:
            self._logger.error(
                "%s: %d messages had no answer when the event loop was closed; close the client before",
                self.topic.full,
                self.accumulator.pending_messages,
            )
        error = AlreadyClosed("the event loop was closed before the client")
        self.state = State.CLOSED
        self.accumulator.end(error)
        self._detach()
        self._queue.fail_all(error)

    def leave_to_parent(self) -> None:
        """In a forked child: nothing that is pending is touched any more."""
        self.state = State.CLOSED

    def shut_down(self) -> None:
        """End at once: everything pending fails, the broker is told without waiting for its answer."""
        self._end(State.CLOSED, AlreadyClosed("the client was shut down"))

    def _stop_connecting(self) -> None:
        if self._attempt is not None:
            # Here, too: an answer that comes before the task hears of it changes nothing any more.
            self._attempt.ended.cancel()
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()

    def _end(self, state: State, error: PulsarException) -> None:
        """Terminal: answer everything that is left, and be known to nobody any more."""
        if self.state is State.CLOSED:
            return
        self.state = state
        self.accumulator.end(error)
        if state is State.FAILED:
            self.accumulator.refuse_with(error)
            self._logger.error("%s: the producer has failed: %s", self.topic.full, error)
        self._stop_connecting()
        self._leave_behind()
        self._queue.fail_all(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if state is State.CLOSED:
            self._client.forget(self)

    def _leave_behind(self) -> None:
        """The broker is told without waiting for its answer: it must not keep a producer that nobody uses."""
        registration = self._registration
        if registration is None:
            return
        connection = self._connection_of(registration)
        connection.producers.pop(self._producer_id, None)
        was_live = not registration.stopped
        self._detach()
        if was_live:
            self._send_close(connection)

    # --- what the application asks

    @property
    def is_connected(self) -> bool:
        return self._registration is not None and not self._registration.stopped

    @property
    def last_sequence_id(self) -> int:
        """Highest sequence id acknowledged, at creation the broker's last one for this name; -1 without any."""
        return self._queue.last_sequence_id

    @property
    def latency(self) -> LatencyHistogram:
        return self._queue.latency

    def stats(self) -> ProducerStats:
        queue, accumulator = self._queue, self.accumulator
        return ProducerStats(
            accepted=accumulator.position,
            acknowledged=queue.acknowledged,
            acknowledged_bytes=queue.acknowledged_bytes,
            failed=queue.failed,
            expired=queue.expired,
            duplicates=queue.duplicates,
            dropped=queue.dropped,
            late=queue.late,
            resent=queue.resent,
            reconnects=self._reconnects,
            pending_messages=accumulator.pending_messages,
            client_pending_bytes=self._client.budget.used,
            last_connection_error=None if self._last_error is None else str(self._last_error),
            latency_p50_ms=queue.latency.percentile(0.5),
            latency_p99_ms=queue.latency.percentile(0.99),
            latency_p999_ms=queue.latency.percentile(0.999),
        )


def _too_big(size: int, limit: int) -> MessageTooBig:
    return MessageTooBig(f"a message of {size} bytes with its metadata; the broker takes at most {limit}")
