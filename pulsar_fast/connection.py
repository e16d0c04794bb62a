"""One connection to a broker: handshake, requests and their answers, keep-alive."""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ._core import Channel, Clock, FrameError, Transport
from ._version import __version__
from .bounds import TimeIsUp, within
from .credentials import Conversation, Credentials
from .dialer import Dial, host_and_port
from .exceptions import AuthenticationError, ConnectError, PulsarException, Timeout, from_server_error
from .log import Log
from .options import ClientOptions
from .wire.messages import BaseCommand, CommandCloseProducer, CommandSendError, CommandTopicMigrated

__all__ = ["BrokerAddress", "Connection", "ProducerOnConnection"]

CLIENT_VERSION = f"pulsar_fast-{__version__}"
PROTOCOL_VERSION = 20
MAX_MESSAGE_SIZE = 5 * 1024 * 1024
"""Bytes; of a broker that does not say (the default of Pulsar's `maxMessageSize`)."""

_NO_REQUEST = 2**64 - 1
"""In an error that is no answer: the broker is about to end the connection."""

_Reply = Callable[["BaseCommand | PulsarException"], None]


@dataclass(frozen=True)
class BrokerAddress:
    """Where to dial, and which broker is meant: they differ behind a proxy."""

    physical: tuple[str, int]
    logical: tuple[str, int]

    @property
    def is_proxied(self) -> bool:
        return self.physical != self.logical

    def __str__(self) -> str:
        text = host_and_port(self.physical)
        return f"{text} (proxy of {host_and_port(self.logical)})" if self.is_proxied else text


class ProducerOnConnection(Protocol):
    """What a connection tells the producers on it, from inside its dispatch."""

    def on_send_error(self, refusal: CommandSendError) -> None: ...
    def on_close_producer(self, connection: "Connection", close: CommandCloseProducer) -> None: ...
    def on_topic_migrated(self, connection: "Connection", migrated: CommandTopicMigrated) -> None: ...
    def on_connection_lost(self, connection: "Connection", error: PulsarException) -> None: ...


class Connection(Channel):
    """A connection past its handshake, owned by the event loop.

    Everything that can go wrong with it ends in `lose`, once: pending requests get the error, then the producers
    on it; whoever gave `on_lost` hears first, so that nobody gets it from the pool.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        address: BrokerAddress,
        options: ClientOptions,
        logger: Log,
        conversation: Conversation,
        on_lost: Callable[["Connection"], None],
    ) -> None:
        self.address = address
        self.max_message_size = MAX_MESSAGE_SIZE
        self.producers: dict[int, ProducerOnConnection] = {}
        self.lost: PulsarException | None = None
        self._loop = asyncio.get_running_loop()
        self._now_ns = clock.now_ns
        self._options = options
        self._client_version = "-".join(filter(None, (CLIENT_VERSION, options.description)))
        self._logger = logger
        self._conversation = conversation
        self._challenge: bytes | None = None
        self._answering: asyncio.Task[None] | None = None
        self._on_lost = on_lost
        self._replies: dict[int, _Reply] = {}
        self._last_request_id = 0
        self._used_at = clock.now_ns()
        self._handshake: asyncio.Future[None] = self._loop.create_future()
        self._watches_writing = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._pong_waits = False
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        transport.watch_reading(self._on_readable)

    @classmethod
    async def open(
        cls,
        dial: Dial,
        address: BrokerAddress,
        clock: Clock,
        options: ClientOptions,
        logger: Log,
        conversation: Conversation,
        on_lost: Callable[["Connection"], None],
    ) -> "Connection":
        """Get credentials, then dial and shake hands within the connection timeout.

        Raises `AuthenticationError`, `ConnectError` or what the broker answers.
        """
        credentials = await conversation.begin()  # first: a broker does not wait long for them
        timeout = options.connection_timeout_ms / 1000
        started = asyncio.get_running_loop().time()
        transport = await dial(*address.physical, timeout)
        self = cls(transport, clock, address, options, logger, conversation, on_lost)
        try:
            left = timeout - (self._loop.time() - started)
            await within(left, self._shake_hands(credentials))
        except TimeIsUp:
            error = self._why_no_handshake(timeout)
            self.lose(error)
            raise error from None
        except BaseException:
            self.lose(ConnectError(f"connecting to {address} was given up"))
            raise
        if self.lost is not None:  # right behind its answer
            raise self.lost
        self._keep_alive_timer = self._loop.call_later(options.keep_alive_interval_seconds, self._keep_alive)
        logger.debug("connected to %s", address)
        return self

    def _why_no_handshake(self, timeout: float) -> PulsarException:
        if self._answering is not None:
            return AuthenticationError(
                f"{self.address} asked for credentials and had none within {timeout:g} s"
            )
        return ConnectError(
            f"{self.address} accepted the connection but did not answer within {timeout:g} s; "
            "is it a Pulsar broker's binary port (6650 by default)?"
        )

    async def _shake_hands(self, credentials: Credentials) -> None:
        self._send_connect(credentials)
        await self._handshake

    def _send_connect(self, credentials: Credentials) -> None:
        command = BaseCommand(type=BaseCommand.CONNECT)
        connect = command.connect
        connect.client_version = self._client_version
        connect.protocol_version = PROTOCOL_VERSION
        connect.auth_method_name = credentials.method
        if credentials.data:
            connect.auth_data = credentials.data
        connect.feature_flags.supports_auth_refresh = True
        if self.address.is_proxied:
            connect.proxy_to_broker_url = host_and_port(self.address.logical)
        self.send(command)

    # --- commands

    def send(self, command: BaseCommand) -> None:
        """Send a command that has no answer, or whose answer somebody waits for already."""
        body = command.SerializeToString()
        self.send_command(struct.pack(">II", 4 + len(body), len(body)) + body)
        self.flush()

    def next_request_id(self) -> int:
        self._last_request_id += 1
        return self._last_request_id

    def request(self, request_id: int, command: BaseCommand, on_reply: _Reply) -> None:
        """Send a command; `on_reply` gets its answer, or an error, from inside the dispatch of that answer."""
        if self.lost is not None:
            on_reply(self.lost)
            return
        self.expect(request_id, on_reply)
        self._used_at = self._now_ns()
        self.send(command)

    def expect(self, request_id: int, on_reply: _Reply) -> None:
        """There is an answer to come, the first one or another one; `forget` ends that."""
        self._replies[request_id] = on_reply

    async def ask(self, request_id: int, command: BaseCommand) -> BaseCommand:
        """Send a command and wait for its answer, at most the operation timeout."""
        answer: asyncio.Future[BaseCommand] = self._loop.create_future()

        def settle(reply: BaseCommand | PulsarException) -> None:
            if answer.done():
                return
            if isinstance(reply, PulsarException):
                answer.set_exception(reply)
            else:
                answer.set_result(reply)

        self.request(request_id, command, settle)
        timeout = self._options.operation_timeout_seconds
        try:
            return await within(timeout, answer)
        except TimeIsUp:
            raise Timeout(f"{self.address} did not answer within {timeout:g} s") from None
        finally:
            self.forget(request_id)

    def forget(self, request_id: int) -> None:
        """Nobody waits for that answer any more."""
        self._replies.pop(request_id, None)

    def flush(self) -> None:
        """Write what waits, unless the socket takes nothing now: then it follows when it does."""
        if not self._watches_writing:
            self._write()

    def _write(self) -> None:
        try:
            blocked = not self.write()
        except OSError as error:
            self.lose(ConnectError(f"the connection to {self.address} was lost: {error.strerror or error}"))
            return
        except Exception as error:
            self._break_down(error)
            return
        transport = self.transport
        if blocked != self._watches_writing and transport is not None:
            self._watches_writing = blocked
            self._pong_waits = False
            if blocked:
                self._writable.clear()
                transport.watch_writing(self._write)
            else:
                self._writable.set()
                transport.stop_watching_writing()

    # --- what comes in

    def take_in(self) -> None:
        """Read and dispatch what the socket holds; the connection is lost if that fails."""
        try:
            alive = self.read()
        except FrameError as error:
            self.lose(ConnectError(f"{self.address} broke the protocol: {error}{_hint(error)}"))
            return
        except OSError as error:
            self.lose(ConnectError(f"the connection to {self.address} was lost: {error.strerror or error}"))
            return
        except Exception as error:
            self._break_down(error)
            return
        if not alive:
            hint = "" if self._handshake.done() else _CLOSED_AT_ONCE
            self.lose(ConnectError(f"{self.address} closed the connection{hint}"))

    def _on_readable(self) -> None:
        self.take_in()
        if self.transport is not None:
            self.flush()

    def on_command(self, body: bytes) -> None:
        try:
            command = BaseCommand.FromString(body)
        except Exception as error:
            raise FrameError(f"a command that cannot be read: {error}") from error
        handler = self._HANDLERS.get(command.type)
        if handler is not None:
            handler(self, command)

    def _on_connected(self, command: BaseCommand) -> None:
        size = command.connected.max_message_size
        if size > 0:
            self.max_message_size = size
        if not self._handshake.done():
            self._handshake.set_result(None)

    def _on_ping(self, _command: BaseCommand) -> None:
        if self._watches_writing:
            if self._pong_waits:
                return  # one answer is enough for a peer that asks and does not read
            self._pong_waits = True
        self.send(BaseCommand(type=BaseCommand.PONG, pong={}))

    def _on_auth_challenge(self, command: BaseCommand) -> None:
        """Answered beside everything else; of challenges that come meanwhile the last one counts."""
        self._challenge = command.authChallenge.challenge.auth_data
        if self._answering is None:
            self._answering = self._loop.create_task(self._answer_challenges())
            self._answering.add_done_callback(self._on_answered)

    def _on_answered(self, answering: "asyncio.Task[None]") -> None:
        """Somebody may cancel it, begun or not; the broker must not wait for an answer in vain."""
        if answering.cancelled():
            self.lose(AuthenticationError(f"answering {self.address} was cancelled"))

    async def _answer_challenges(self) -> None:
        try:
            while self._challenge is not None:
                challenge, self._challenge = self._challenge, None
                self._send_auth_response(await self._conversation.answer(challenge))
                await self._writable.wait()  # one answer is enough for a peer that asks and does not read
        except AuthenticationError as error:
            self.lose(error)
        finally:
            self._answering = None

    def _send_auth_response(self, credentials: Credentials) -> None:
        command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
        answer = command.authResponse
        answer.client_version = self._client_version
        answer.protocol_version = PROTOCOL_VERSION
        answer.response.auth_method_name = credentials.method
        answer.response.auth_data = credentials.data
        self.send(command)

    def _on_error(self, command: BaseCommand) -> None:
        error = from_server_error(command.error.error, command.error.message)
        if not self._handshake.done():
            self._handshake.set_exception(error)
        elif command.error.request_id == _NO_REQUEST:
            self.lose(error)
        else:
            self._reply(command.error.request_id, error)

    def _on_success(self, command: BaseCommand) -> None:
        self._reply(command.success.request_id, command)

    def _on_producer_success(self, command: BaseCommand) -> None:
        self._reply(command.producer_success.request_id, command)

    def _on_lookup_response(self, command: BaseCommand) -> None:
        self._reply(command.lookupTopicResponse.request_id, command)

    def _on_partition_metadata(self, command: BaseCommand) -> None:
        self._reply(command.partitionMetadataResponse.request_id, command)

    def _on_send_error(self, command: BaseCommand) -> None:
        producer = self.producers.get(command.send_error.producer_id)
        if producer is not None:
            producer.on_send_error(command.send_error)

    def _on_close_producer(self, command: BaseCommand) -> None:
        producer = self.producers.get(command.close_producer.producer_id)
        if producer is not None:
            producer.on_close_producer(self, command.close_producer)

    def _on_topic_migrated(self, command: BaseCommand) -> None:
        migrated = command.topicMigrated
        producer = self.producers.get(migrated.resource_id)
        if producer is not None and migrated.resource_type == CommandTopicMigrated.Producer:
            producer.on_topic_migrated(self, migrated)

    def _reply(self, request_id: int, answer: BaseCommand | PulsarException) -> None:
        on_reply = self._replies.pop(request_id, None)
        if on_reply is not None:
            on_reply(answer)

    _HANDLERS: dict[int, Callable[["Connection", BaseCommand], None]] = {
        BaseCommand.CONNECTED: _on_connected,
        BaseCommand.PING: _on_ping,
        BaseCommand.AUTH_CHALLENGE: _on_auth_challenge,
        BaseCommand.ERROR: _on_error,
        BaseCommand.SUCCESS: _on_success,
        BaseCommand.PRODUCER_SUCCESS: _on_producer_success,
        BaseCommand.LOOKUP_RESPONSE: _on_lookup_response,
        BaseCommand.PARTITIONED_METADATA_RESPONSE: _on_partition_metadata,
        BaseCommand.SEND_ERROR: _on_send_error,
        BaseCommand.CLOSE_PRODUCER: _on_close_producer,
        BaseCommand.TOPIC_MIGRATED: _on_topic_migrated,
    }

    # --- life and death

    def idle_seconds(self) -> float:
        """Since it was last seen with a request or, by an earlier call of this, with a producer."""
        now = self._now_ns()
        if self.producers or self._replies:
            self._used_at = now
        return (now - self._used_at) / 1e9

    def _keep_alive(self) -> None:
        """Ping at every interval; a peer that has said nothing for two of them is gone."""
        interval = self._options.keep_alive_interval_seconds
        silent = (self._now_ns() - self.last_alive) / 1e9
        if silent >= 2 * interval:
            self.lose(ConnectError(f"{self.address} has said nothing for {silent:.1f} s"))
            return
        self._keep_alive_timer = self._loop.call_later(min(interval, 2 * interval - silent), self._keep_alive)
        self.send(BaseCommand(type=BaseCommand.PING, ping={}))

    def _break_down(self, error: Exception) -> None:
        """An error of ours (or no memory): what the stream holds is not known any more, so it must end."""
        self._logger.error("the connection to %s failed inside the client", self.address, exc_info=error)
        self.lose(ConnectError(f"the connection to {self.address} failed inside the client: {error!r}"))

    def lose(self, error: PulsarException) -> None:
        """The connection is over, for whatever reason; a second call does nothing."""
        if self.lost is not None:
            return
        self.lost = error
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()
        if self._answering is not None:
            self._answering.cancel()
        self.close()
        self._logger.debug("connection to %s is over: %s", self.address, error)
        if not self._handshake.done():
            self._handshake.set_exception(error)
            self._handshake.exception()  # seen, also if nobody waits for it any more
        self._on_lost(self)
        replies, self._replies = self._replies, {}
        for on_reply in replies.values():
            on_reply(error)
        producers, self.producers = self.producers, {}
        for producer in producers.values():
            producer.on_connection_lost(self, error)


_CLOSED_AT_ONCE = (
    " before it answered; a TLS port (6651 by default) needs pulsar+ssl://, a plain one pulsar://"
)


def _hint(error: FrameError) -> str:
    """What the peer may be instead of a broker."""
    if "HTTP" in str(error):
        return "; it looks like an HTTP server: use the broker's binary port (6650 by default)"
    return ""
