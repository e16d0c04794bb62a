"""A broker over real sockets that does what a test tells it, and keeps every frame that it got.

Untold, it behaves: it connects, names itself in look-ups, registers producers and stores what they send. What no
client may ever send (a bad checksum, a frame for nobody, ids that do not rise) is kept in `violations`.
"""

import select
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable

from pulsar_fast.wire.messages import BaseCommand, CommandLookupTopicResponse
from tests import live_counters
from tests.brokers import frames
from tests.brokers.frames import Frame, Inbox, error_answer, lookup_answer, refusal
from tests.tls_server import TlsServer

LEDGER = 7
REFRESH = b"PulsarAuthRefresh"


class Link:
    """One accepted connection."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        self.socket = sock
        self._tls = None if context is None else TlsServer(context)
        self.inbox = Inbox()
        self.is_open = True
        self.accepted_at = time.monotonic()
        self.is_greeted = False
        self.producers: dict[int, str] = {}
        self.topics: dict[int, str] = {}
        self.last_ids: dict[int, int] = {}
        self.registrations: dict[int, int] = {}
        self.dropped: set[int] = set()  # producers that the broker has closed: what was on its way is dropped
        self.bytes_left: int | None = None
        self.piece_size: int | None = None

    def send(self, data: bytes) -> None:
        cut = self.bytes_left is not None and len(data) >= self.bytes_left
        if self.bytes_left is not None:
            data = data[: self.bytes_left]
            self.bytes_left -= len(data)
        if self._tls is not None:
            self._tls.encrypt(data)
            data = self._tls.take()
        self._transmit(data)
        if cut:
            self.close()

    def receive(self, data: bytes) -> bytes:
        """What the client says with these bytes."""
        if self._tls is None:
            return data
        inside = self._tls.decrypt(data)
        self._transmit(self._tls.take())
        return inside

    def _transmit(self, data: bytes) -> None:
        try:
            self._send_in_pieces(data)
        except OSError:
            self.close()

    def _send_in_pieces(self, data: bytes) -> None:
        if self.piece_size is None or not self.is_open:
            self.socket.sendall(data)
            return
        for start in range(0, len(data), self.piece_size):
            self.socket.sendall(data[start : start + self.piece_size])
            time.sleep(0.0002)  # or the kernel joins the pieces again

    def close(self, *, reset: bool = False) -> None:
        if not self.is_open:
            return
        self.is_open = False
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Rule:
    """What the broker does instead of its usual answer, for the next `times` frames of a kind after `skip` others."""

    def __init__(self, broker: "ScriptedBroker", kind: int, skip: int = 0) -> None:
        self.broker = broker
        self.kind = kind
        self.skip = skip
        self.times: int | None = None
        self.act: Callable[[Frame], None] | None = None

    def do(self, act: Callable[[Frame], None], times: int | None = None) -> None:
        self.act, self.times = act, times
        with self.broker.changed:
            self.broker.rules.append(self)

    def answer_bytes(self, make: Callable[[Frame], bytes], times: int | None = None) -> None:
        self.do(lambda frame: frame.link.send(make(frame)), times)

    def say_nothing(self, times: int | None = None) -> None:
        self.do(lambda frame: None, times)

    def answer_error(self, code: int, text: str = "as scripted", times: int | None = None) -> None:
        self.answer_bytes(lambda frame: error_answer(frame, code, text), times)

    def challenge(self, data: bytes = REFRESH, times: int | None = None) -> None:
        self.answer_bytes(lambda frame: frames.challenge(data), times)

    def cut_connection(self, times: int | None = 1, *, reset: bool = False) -> None:
        self.do(lambda frame: frame.link.close(reset=reset), times)

    def stop_reading(self) -> None:
        self.do(lambda frame: self.broker.stop_reading(), 1)

    def redirect_to(
        self, url: str, *, tls_url: str = "", authoritative: bool = True, times: int | None = None
    ) -> None:
        kind = CommandLookupTopicResponse.Redirect
        self.answer_bytes(
            lambda frame: lookup_answer(
                frame, url, kind, tls_url=tls_url or _over_tls(url), authoritative=authoritative
            ),
            times,
        )

    def send_to(
        self, url: str, *, tls_url: str = "", through_proxy: bool = False, times: int | None = None
    ) -> None:
        self.answer_bytes(
            lambda frame: lookup_answer(
                frame, url, tls_url=tls_url or _over_tls(url), through_proxy=through_proxy
            ),
            times,
        )


class ScriptedBroker:
    """Listens at once, on loopback, for TLS if there is a context; runs on a thread of its own until `stop`.

    All that a script counts is counted in plaintext, but for the pieces of `dribble`.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        *,
        max_message_size: int | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.frames: list[Frame] = []
        self.links: list[Link] = []
        self.violations: list[str] = []
        self.rules: list[Rule] = []
        self.max_message_size = max_message_size
        self.last_sequence_id = -1
        self.schema_version = b""
        self.partitions = 0  # of every topic
        self._entries = 0
        self._names = 0
        self._registrations = 0
        # Registration and bytes, by topic, name and lowest id.
        self._sent: dict[tuple[str, str, int], tuple[int, bytes]] = {}
        self._held: list[Frame] | None = None
        self._reads = True
        self._cuts: list[int] = []
        self._piece_size: int | None = None
        self._stopped = False
        self._host = host
        self._context = context
        self._listener: socket.socket | None = self._listen(0)
        self.port = int(self._listener.getsockname()[1])
        self.tls_url = "" if context is None else self.url  # which look-ups name beside the plain one
        self._waked, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="scripted broker", daemon=True)
        self._thread.start()

    def another(self, *, max_message_size: int | None = None) -> "ScriptedBroker":
        """One more, with the same transport."""
        return ScriptedBroker(self._host, max_message_size=max_message_size, context=self._context)

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'pulsar' if self._context is None else 'pulsar+ssl'}://{self.address}"

    # --- the script

    def on_connect(self) -> Rule:
        return Rule(self, BaseCommand.CONNECT)

    def on_auth_response(self) -> Rule:
        return Rule(self, BaseCommand.AUTH_RESPONSE)

    def on_lookup(self) -> Rule:
        return Rule(self, BaseCommand.LOOKUP)

    def on_partitions(self) -> Rule:
        return Rule(self, BaseCommand.PARTITIONED_METADATA)

    def on_producer(self) -> Rule:
        return Rule(self, BaseCommand.PRODUCER)

    def on_close_producer(self) -> Rule:
        return Rule(self, BaseCommand.CLOSE_PRODUCER)

    def on_ping(self) -> Rule:
        return Rule(self, BaseCommand.PING)

    def on_send(self) -> Rule:
        return Rule(self, BaseCommand.SEND)

    def after(self, frames: int) -> Rule:
        """The next `frames` - 1 frames with messages are answered; what follows happens at the one after them."""
        return Rule(self, BaseCommand.SEND, skip=frames - 1)

    def forget_rules(self) -> None:
        with self.changed:
            self.rules.clear()

    def hold_receipts(self) -> None:
        with self.changed:
            self._held = []

    def release_receipts(self, count: int | None = None) -> None:
        """Answer the held frames, or the first `count` of them and go on holding."""
        with self.changed:
            held = self._held or []
            now, self._held = (held, None) if count is None else (held[:count], held[count:])
            for frame in now:
                frame.link.send(self.receipt(frame))

    def stop_reading(self) -> None:
        with self.changed:
            self._reads = False
            self._wake()

    def resume_reading(self) -> None:
        with self.changed:
            self._reads = True
            self._wake()

    def close_producer(
        self, frame: Frame | None = None, *, assigned: str = "", assigned_tls: str = ""
    ) -> None:
        """Tell the producer of a frame (the last one registered) that its topic is moved."""
        with self.changed:
            frame = frame or self.got(BaseCommand.PRODUCER)[-1]
            frame.link.send(self.closing(frame, assigned=assigned, assigned_tls=assigned_tls))

    def closing(self, frame: Frame, *, assigned: str = "", assigned_tls: str = "") -> bytes:
        """`CloseProducer` for the producer of a frame."""
        body = frame.command.producer if frame.kind == BaseCommand.PRODUCER else frame.command.send
        if frame.link.producers.pop(body.producer_id, None):
            frame.link.dropped.add(body.producer_id)
        return frames.close_producer(
            body.producer_id, assigned or None, assigned_tls or _over_tls(assigned) or None
        )

    def send_error(self, code: int, at: Frame, text: str = "as scripted") -> None:
        at.link.send(refusal(at, code, text))

    def send_bytes(self, raw: bytes) -> None:
        """To the last connection."""
        with self.changed:
            self.links[-1].send(raw)

    def challenge(self, data: bytes = REFRESH) -> None:
        """Ask the last connection for credentials."""
        self.send_bytes(frames.challenge(data))

    def cut_connections(self, *, reset: bool = False) -> None:
        with self.changed:
            for link in self.links:
                link.close(reset=reset)
            self._wake()

    def cut_next_connection_after(self, answered: int) -> None:
        """The next new connection ends after so many bytes of answers."""
        with self.changed:
            self._cuts.append(answered)

    def dribble(self, size: int) -> None:
        """From the next connection on, answers go out in pieces of `size` bytes."""
        with self.changed:
            self._piece_size = size

    def go_down(self) -> None:
        """Nobody listens any more, and all connections are cut."""
        with self.changed:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            self.cut_connections()

    def come_back(self) -> None:
        """Listen again, on the same port."""
        with self.changed:
            self._listener = self._listen(self.port)
            self._wake()

    # --- what happened

    def got(self, kind: int) -> list[Frame]:
        with self.changed:
            return [frame for frame in self.frames if frame.kind == kind]

    def take_frames(self) -> list[Frame]:
        """All frames so far, which the broker then forgets."""
        with self.changed:
            frames, self.frames = self.frames, []
            return frames

    @property
    def sends(self) -> list[Frame]:
        return self.got(BaseCommand.SEND)

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for frame in self.sends for message in frame.messages]

    def wait_for(self, condition: Callable[["ScriptedBroker"], object], timeout: float = 5) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: condition(self), timeout):
                kinds = Counter(BaseCommand.Type.Name(frame.kind) for frame in self.frames)
                raise AssertionError(f"not within {timeout} s; the broker got {dict(kinds)}")

    def stop(self) -> None:
        with self.changed:
            self._stopped = True
            self._wake()
        self._thread.join()

    def __enter__(self) -> "ScriptedBroker":
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
        assert self.violations == []

    # --- its usual answers

    def usual_answer(self, frame: Frame) -> None:
        """As a good broker would."""
        usual: dict[int, Callable[[Frame], bytes]] = {
            BaseCommand.CONNECT: self._connected,
            BaseCommand.AUTH_RESPONSE: lambda frame: b"" if frame.link.is_greeted else self._connected(frame),
            BaseCommand.LOOKUP: lambda frame: lookup_answer(frame, self.url, tls_url=self.tls_url),
            BaseCommand.PARTITIONED_METADATA: lambda frame: frames.partitions(frame, self.partitions),
            BaseCommand.PRODUCER: self.registered,
            BaseCommand.CLOSE_PRODUCER: self._closed,
            BaseCommand.PING: lambda frame: frames.pong(),
            BaseCommand.SEND: self.receipt,
        }
        if frame.kind == BaseCommand.SEND and self._held is not None:
            self._held.append(frame)
        elif frame.kind in usual:
            frame.link.send(usual[frame.kind](frame))

    def _connected(self, frame: Frame) -> bytes:
        frame.link.is_greeted = True
        return frames.connected(self.max_message_size)

    def registered(self, frame: Frame) -> bytes:
        """`ProducerSuccess`; from here on the producer may send."""
        asked = frame.command.producer
        self._names += not asked.producer_name
        name = asked.producer_name or f"scripted-{self._names}"
        frame.link.dropped.discard(asked.producer_id)
        frame.link.producers[asked.producer_id] = name
        frame.link.topics[asked.producer_id] = asked.topic
        frame.link.last_ids[asked.producer_id] = -1
        self._registrations += 1
        frame.link.registrations[asked.producer_id] = self._registrations
        return frames.registered(frame, name, self.last_sequence_id, self.schema_version)

    def _closed(self, frame: Frame) -> bytes:
        frame.link.producers.pop(frame.command.close_producer.producer_id, None)
        return frames.success(frame)

    def receipt(self, frame: Frame, *, duplicate: bool = False) -> bytes:
        """Of the next entry of the ledger."""
        if duplicate:
            return frames.receipt(frame, frames.NOWHERE, frames.NOWHERE)
        self._entries += 1
        return frames.receipt(frame, LEDGER, self._entries - 1)

    # --- its thread

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # so that it is soon full
        listener.bind((self._host, port))
        listener.listen(64)
        return listener

    def _wake(self) -> None:
        self._waker.send(b"!")

    def _run(self) -> None:
        while not self._stopped:
            with self.changed:
                watched: list[socket.socket] = [self._waked]
                watched += [self._listener] if self._listener is not None else []
                watched += [link.socket for link in self.links if link.is_open and self._reads]
            try:
                ready, _, _ = select.select(watched, [], [])
            except (OSError, ValueError):  # one was closed meanwhile
                continue
            with self.changed:
                self._take_in(ready)
                self.changed.notify_all()
        for sock in (self._listener, self._waked, self._waker):
            if sock is not None:
                sock.close()
        for link in self.links:
            link.close()

    def _take_in(self, ready: list[socket.socket]) -> None:
        if self._waked in ready:
            self._waked.recv(4096)
        if self._listener in ready and self._listener is not None:
            self._accept(self._listener)
        for link in self.links:
            if link.is_open and self._reads and link.socket in ready:
                self._read(link)

    def _accept(self, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(sock, self._context)
        link.bytes_left = self._cuts.pop(0) if self._cuts else None
        link.piece_size = self._piece_size
        self.links.append(link)

    def _read(self, link: Link) -> None:
        try:
            data = link.socket.recv(256 * 1024)
        except OSError:
            data = b""
        if not data:
            link.close()
            return
        try:
            link.inbox.add(link.receive(data))
            for frame in link.inbox.frames(link):
                self.frames.append(frame)
                self._check(frame)
                for core in list(live_counters.watched):
                    self.violations += live_counters.broken_rules(core)
                self._answer(frame)
                if not link.is_open:
                    return
        except Exception as error:
            self.violations.append(f"{type(error).__name__}: {error}")
            link.close()

    def _check(self, frame: Frame) -> None:
        if frame.kind != BaseCommand.SEND or _is_dropped(frame):
            return
        sent = frame.command.send
        name = frame.link.producers.get(sent.producer_id)
        assert name is not None, (
            f"frame {sent.sequence_id} for producer {sent.producer_id}, which is not registered"
        )
        assert frame.metadata.producer_name == name, frame.metadata.producer_name
        assert len(frame.messages) == sent.num_messages, (len(frame.messages), sent.num_messages)
        ids = [message.sequence_id for message in frame.messages]
        assert (ids[0], ids[-1]) == (frame.lowest_id, frame.highest_id), (ids[0], ids[-1], sent)
        before = frame.link.last_ids[sent.producer_id]
        assert [before, *ids] == sorted({before, *ids}), f"ids {ids} after {before}"
        frame.link.last_ids[sent.producer_id] = ids[-1]
        self._check_resend(frame, name)

    def _check_resend(self, frame: Frame, name: str) -> None:
        """An id that was sent on an earlier registration repeats the bytes (on the same one it is another message)."""
        registration = frame.link.registrations[frame.producer_id]
        key = frame.link.topics[frame.producer_id], name, frame.lowest_id
        before, raw = self._sent.get(key, (registration, frame.raw))
        assert before == registration or raw == frame.raw, (
            f"frame {frame.lowest_id} is resent with other bytes"
        )
        self._sent[key] = registration, frame.raw

    def _answer(self, frame: Frame) -> None:
        if _is_dropped(frame):
            return
        for rule in self.rules:
            if rule.kind != frame.kind:
                continue
            if rule.skip:
                rule.skip -= 1
                continue
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    self.rules.remove(rule)
            assert rule.act is not None
            rule.act(frame)
            return
        self.usual_answer(frame)


def _over_tls(url: str) -> str:
    return url if url.startswith("pulsar+ssl:") else ""


def _is_dropped(frame: Frame) -> bool:
    return frame.kind == BaseCommand.SEND and frame.command.send.producer_id in frame.link.dropped
