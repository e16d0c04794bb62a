"""The admin REST interface of a broker."""

import base64
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_MOST_REDIRECTS = 5


class AdminError(Exception):
    """The broker refused; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


@dataclass(frozen=True)
class Login:
    """Who asks: a method of the binary protocol, ``token`` or ``basic``, and its data."""

    method: str
    data: str

    @property
    def header(self) -> str:
        """The same for HTTP."""
        if self.method == "token":
            return f"Bearer {self.data}"
        return f"Basic {base64.b64encode(self.data.encode()).decode()}"


class Admin:
    """Calls below ``/admin/v2``; bodies and answers are JSON. No answer within 10 s is a ``TimeoutError``.

    Brokers of a cluster redirect to the one that is to answer, which is followed.

    >>> admin.put("/namespaces/public/x")
    >>> admin.post("/namespaces/public/x/maxProducersPerTopic", 1)
    """

    def __init__(self, url: str, login: Login | None = None) -> None:
        self._address = urlsplit(url).netloc
        self._headers = {"Content-Type": "application/json"}
        if login is not None:
            self._headers["Authorization"] = login.header

    def get(self, path: str) -> Any:
        return self._call("GET", f"/admin/v2{path}")

    def put(self, path: str, body: object = None) -> Any:
        return self._call("PUT", f"/admin/v2{path}", body)

    def post(self, path: str, body: object = None) -> Any:
        return self._call("POST", f"/admin/v2{path}", body)

    def delete(self, path: str) -> Any:
        return self._call("DELETE", f"/admin/v2{path}")

    def owner(self, topic: str) -> str:
        """The ``pulsar://`` URL of the broker that serves a topic, which is assigned if none does."""
        url: str = self._call("GET", f"/lookup/v2/topic/{topic.replace('://', '/')}")["brokerUrl"]
        return url

    def _call(self, method: str, path: str, body: object = None) -> Any:
        address = self._address
        for _ in range(_MOST_REDIRECTS):
            status, text, location = _request(address, method, path, body, self._headers)
            if location is None:
                break
            target = urlsplit(location)
            address, path = target.netloc, target._replace(scheme="", netloc="").geturl()
        if status >= 300:
            raise AdminError(status, text or http.client.responses.get(status, ""))
        return json.loads(text) if text else None


def _request(
    address: str, method: str, path: str, body: object, headers: dict[str, str]
) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    return answer.status, text, answer.getheader("Location")
