"""The admin REST interface of a broker."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class AdminError(Exception):
    """The broker refused; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


class Admin:
    """Calls below ``/admin/v2``; bodies and answers are JSON. No answer within 10 s is a ``TimeoutError``.

    >>> admin.put("/namespaces/public/x")
    >>> admin.post("/namespaces/public/x/maxProducersPerTopic", 1)
    """

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def put(self, path: str, body: object = None) -> Any:
        return self._call("PUT", path, body)

    def post(self, path: str, body: object = None) -> Any:
        return self._call("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path)

    def _call(self, method: str, path: str, body: object = None) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=10)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, f"/admin/v2{path}", data, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= 300:
            raise AdminError(answer.status, text or answer.reason)
        return json.loads(text) if text else None
