"""A small OAuth 2.0 server: one client secret, and tokens as the test makes them."""

import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl


class TokenServer:
    """Listens at once, on loopback; runs on a thread of its own until ``stop``.

    Args:
        make_token: gets the form of a request with the right secret.
    """

    def __init__(self, make_token: Callable[[dict[str, str]], str]) -> None:
        self.secret = secrets.token_hex(16)
        self.life: Any = 3600
        self.forms: list[dict[str, str]] = []
        self._make_token = make_token
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.discovery: dict[str, Any] = {"token_endpoint": f"{self.url}/token"}
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="token server")
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> "TokenServer":
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def answer(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path == "/.well-known/openid-configuration":
            return 200, self.discovery
        form = dict(parse_qsl(body.decode()))
        self.forms.append(form)
        if form["client_secret"] != self.secret:
            return 401, {"error": "invalid_client", "error_description": f"not {form['client_secret']}"}
        return 200, {"access_token": self._make_token(form), "token_type": "Bearer", "expires_in": self.life}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = answer(
                    self.path, self.rfile.read(int(self.headers.get("Content-Length") or 0))
                )
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_POST = do_GET

            def log_message(self, *_args: object) -> None:
                pass

        return Handler
