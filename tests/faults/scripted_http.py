"""An HTTP server on loopback that answers what a test says."""

import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Answer = bytes | None
"""The bytes of an answer, behind which the connection is closed; None to say nothing and leave it open."""


def answer(status: int, content: Any = None, **headers: str) -> bytes:
    """With JSON, as Pulsar gives it."""
    body = b"" if content is None else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status} Scripted", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class ScriptedHttp:
    """`script(target)` gives the answer for a request's target; `requests` holds their lines."""

    def __init__(self, listener: socket.socket) -> None:
        self.port = int(listener.getsockname()[1])
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self.requests: list[list[str]] = []
        self.script: Callable[[str], Answer] = lambda target: answer(404)
        self.over = threading.Event()

    @property
    def targets(self) -> list[str]:
        return [request[0].split()[1] for request in self.requests]

    def headers(self, name: str) -> list[str | None]:
        """What each request gives for a header."""
        found = [
            [value.strip() for key, _, value in (line.partition(":") for line in request) if key == name]
            for request in self.requests
        ]
        assert all(len(values) < 2 for values in found)
        return [values[0] if values else None for values in found]

    def usual(self, broker_url: str, tls_url: str | None = None) -> Callable[[str], Answer]:
        """A topic without partitions, which that broker serves."""
        return lambda target: (
            answer(200, {"brokerUrl": broker_url, "brokerUrlTls": tls_url, "httpUrl": self.url})
            if target.startswith("/lookup/")
            else answer(200, {"partitions": 0})
        )


@contextmanager
def scripted_http() -> Iterator[ScriptedHttp]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            if self.request.recv(1, socket.MSG_PEEK) == b"\x16":  # the beginning of TLS
                self.request.recv(64 * 1024)
                self.request.sendall(answer(400))
                return
            head = list(iter(lambda: self.rfile.readline().rstrip(), b""))
            if not head:  # the client has gone
                return
            scripted.requests.append([line.decode() for line in head])
            said = scripted.script(scripted.targets[-1])
            if said is None:
                scripted.over.wait(30)
            else:
                self.wfile.write(said)

        def finish(self) -> None:
            try:
                super().finish()
            except OSError:  # the client has gone
                pass

    class Server(socketserver.ThreadingTCPServer):
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        scripted = ScriptedHttp(server.socket)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield scripted
        finally:
            scripted.over.set()
            server.shutdown()
            thread.join()
