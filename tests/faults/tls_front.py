"""What stands between clients and brokers: the end of TLS, with its faults, and a proxy that reads names alone."""

import contextlib
import select
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_FrontT = TypeVar("_FrontT", bound="Front")


@dataclass(frozen=True)
class Handshake:
    """What a client showed."""

    server_name: str | None
    resumed: bool
    common_name: str | None  # of its certificate
    version: str | None  # of TLS, as the ssl module names it
    cipher: str


class Front:
    """Listens at once, on loopback, with a thread for each connection until `stop`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self._stopped = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, port))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    @property
    def url(self) -> str:
        return f"pulsar+ssl://{self._host}:{self.port}"

    def cut_connections(self) -> None:
        for sock in list(self._sockets):
            _end(sock)

    def stop(self) -> None:
        self._stopped = True
        _end(self._listener)
        self.cut_connections()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def __enter__(self: _FrontT) -> _FrontT:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work, name="TLS front", daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._start(lambda client=client: self._serve(client))  # type: ignore[misc]

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with client, contextlib.suppress(OSError):
            self._speak_with(client)
        self._sockets.remove(client)

    def _speak_with(self, client: socket.socket) -> None:
        """Until the connection ends."""
        raise NotImplementedError

    def _connect(self, port: int) -> socket.socket:
        """A connection to what is behind, which ends with this."""
        behind = socket.create_connection(("127.0.0.1", port))
        behind.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets.append(behind)
        return behind


class TlsFront(Front):
    """TLS in front of the broker at a port. `context` may change meanwhile."""

    def __init__(self, port: int, context: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        self.context = context
        self.handshakes: list[Handshake] = []
        self.said_goodbye = 0  # connections that the client ended with close_notify
        self.failures: list[str] = []  # of handshakes
        self.bytes_in = 0  # of ciphertext
        self._broker_port = port
        self._cuts: list[int] = []
        self._piece_size: int | None = None
        self._flows = threading.Event()
        self._flows.set()
        self._names: weakref.WeakKeyDictionary[object, str | None] = weakref.WeakKeyDictionary()
        super().__init__(host)

    def cut_next_connection_after(self, answered: int) -> None:
        """The next new connection ends after so many bytes of ciphertext to the client."""
        self._cuts.append(answered)

    def dribble(self, size: int) -> None:
        """From the next connection on, ciphertext goes to the client in pieces of `size` bytes."""
        self._piece_size = size

    def stall(self) -> None:
        """Nothing is read or written any more."""
        self._flows.clear()

    def go_on(self) -> None:
        self._flows.set()

    def stop(self) -> None:
        self._stopped = True
        self.go_on()
        super().stop()

    def _note_name(self, tls: object, name: str | None, _context: ssl.SSLContext) -> None:
        self._names[tls] = name

    def _speak_with(self, client: socket.socket) -> None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # so that it is soon full
        cut = self._cuts.pop(0) if self._cuts else None
        session = _Session(self, client, cut, self._piece_size)
        session.shake_hands()
        with self._connect(self._broker_port) as broker:
            session.relay(broker)


class SniProxy(Front):
    """Passes connections on, unread, to the port of the name in their `ClientHello`; others get an alert."""

    def __init__(self, routes: dict[str | None, int], port: int = 0) -> None:
        self.routes = routes
        self.names: list[str | None] = []  # of all connections, as they came
        super().__init__(port=port)

    def _speak_with(self, client: socket.socket) -> None:
        hello, name, alert = self._read_hello(client)
        self.names.append(name)
        if name not in self.routes:
            client.sendall(alert)
            return
        with self._connect(self.routes[name]) as behind:
            behind.sendall(hello)
            ways = {client: behind, behind: client}
            while True:
                for source in select.select(list(ways), [], [])[0]:
                    data = source.recv(64 * 1024)
                    if not data:
                        return
                    ways[source].sendall(data)

    def _read_hello(self, client: socket.socket) -> tuple[bytes, str | None, bytes]:
        """All that came, the name in it, and the alert that no such name is known."""
        names: list[str | None] = []

        def note(_tls: object, name: str | None, _context: ssl.SSLContext) -> int:
            names.append(name)
            return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = note  # type: ignore[assignment]
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing, server_side=True)
        hello = b""
        while not names:
            received = client.recv(64 * 1024)
            if not received:
                raise ConnectionError("the client is gone")
            hello += received
            incoming.write(received)
            with contextlib.suppress(ssl.SSLError):
                tls.do_handshake()
        return hello, names[0], outgoing.read()


class Canned(Front):
    """Something that gives everybody the same answer, whatever they say, and then hangs up."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        super().__init__()

    def _speak_with(self, client: socket.socket) -> None:
        client.recv(4096)
        client.sendall(self._answer)
        client.shutdown(socket.SHUT_WR)
        while client.recv(4096):
            pass  # closed with bytes unread, the answer could be lost


class _Session:
    """One connection: the server's side of TLS over memory, so that every byte of ciphertext passes here."""

    def __init__(
        self, front: TlsFront, client: socket.socket, bytes_left: int | None, piece_size: int | None
    ) -> None:
        self._front = front
        self._client = client
        self._bytes_left = bytes_left
        self._piece_size = piece_size
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        front.context.sni_callback = front._note_name
        self._tls = front.context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._tell()
                self._listen()
                continue
            except ssl.SSLError as error:
                self._front.failures.append(str(error.reason))
                self._tell()
                self._client.shutdown(socket.SHUT_WR)
                while self._client.recv(4096):
                    pass  # closed with bytes unread, the alert could be lost
                raise
            break
        subject = dict(pair for (pair,) in (self._tls.getpeercert() or {}).get("subject", ()))
        resumed = bool(self._tls.session_reused)
        name = self._front._names.get(self._tls)
        cipher, _, _ = self._tls.cipher() or ("", "", 0)
        self._front.handshakes.append(
            Handshake(name, resumed, subject.get("commonName"), self._tls.version(), cipher)
        )
        self._tell()

    def relay(self, broker: socket.socket) -> None:
        self._pass_on(broker)  # what came right behind the handshake
        while True:
            ready, _, _ = select.select([self._client, broker], [], [])
            self._front._flows.wait()
            if self._client in ready:
                self._listen()
                self._pass_on(broker)
            if broker in ready:
                answer = broker.recv(64 * 1024)
                if not answer:
                    return
                self._tls.write(answer)
                self._tell()

    def _pass_on(self, broker: socket.socket) -> None:
        while inside := self._inside():
            broker.sendall(inside)

    def _inside(self) -> bytes:
        try:
            received = self._tls.read(64 * 1024)
        except ssl.SSLWantReadError:
            return b""
        if not received:
            self._front.said_goodbye += 1
            raise ConnectionError("the client is gone")
        return received

    def _listen(self) -> None:
        received = self._client.recv(64 * 1024)
        if not received:
            raise ConnectionError("the client is gone")
        self._front.bytes_in += len(received)
        self._incoming.write(received)

    def _tell(self) -> None:
        data = self._outgoing.read()
        cut = self._bytes_left is not None and len(data) >= self._bytes_left
        if self._bytes_left is not None:
            data = data[: self._bytes_left]
            self._bytes_left -= len(data)
        size = self._piece_size or max(len(data), 1)
        for start in range(0, len(data), size):
            self._front._flows.wait()
            self._client.sendall(data[start : start + size])
            if self._piece_size:
                time.sleep(0.0002)  # or the kernel joins the pieces again
        if cut:
            raise ConnectionError("cut, as scripted")


def _end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
