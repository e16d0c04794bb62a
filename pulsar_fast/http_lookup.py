"""Finding the broker of a topic by the cluster's HTTP interface."""

import asyncio
import http.client
import io
import json
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urljoin, urlsplit

from ._core import Clock
from .bounds import TimeIsUp, within
from .connection import BrokerAddress
from .dialer import connect, host_and_port
from .exceptions import (
    AuthenticationError,
    AuthorizationError,
    ConnectError,
    LookupError,
    PulsarException,
    Timeout,
    TopicNotFound,
)
from .hosts import Host, Hosts
from .options import ClientOptions
from .service_url import ServiceUrl
from .topic_name import TopicName

__all__ = ["HttpLookup"]

MAX_REDIRECTS = 20
MAX_ANSWER = 64 * 1024  # bytes, head and body
_MOST_AT_ONCE = 16  # requests, each on a connection of its own
_REFUSALS: dict[int, type[PulsarException]] = {
    401: AuthenticationError,
    403: AuthorizationError,
    404: TopicNotFound,
}


class _Answer(NamedTuple):
    url: str
    status: int
    location: str | None
    content: Any
    """The JSON of the body, None if it is none."""


class HttpLookup:
    """Asks any host of the service URL; goes on to the next one when a host fails. Owned by the event loop."""

    def __init__(self, service_url: ServiceUrl, clock: Clock, options: ClientOptions) -> None:
        self.service_url = service_url
        self._hosts = Hosts(service_url.hosts, clock.now_ns, options.operation_timeout_seconds)
        self._listener_name = options.listener_name
        self._connection_timeout = options.connection_timeout_ms / 1000
        self._operation_timeout = options.operation_timeout_seconds
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    def __str__(self) -> str:
        return ", ".join(f"http://{host_and_port(host)}" for host in self.service_url.hosts)

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves a topic. One attempt; raises what stopped it."""
        listener = {} if self._listener_name is None else {"listenerName": self._listener_name}
        url, found = await self._ask(f"/lookup/v2/topic/{_path(topic)}", listener)
        try:
            broker = self.service_url.of_broker(found.get("brokerUrl", ""), found.get("brokerUrlTls", ""))
        except (TypeError, ValueError) as error:
            raise LookupError(f"{url}: {error}") from error
        return BrokerAddress(broker, broker)

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 for one without. One attempt; raises what stopped it."""
        path = f"/admin/v2/{_path(topic)}/partitions"
        url, found = await self._ask(path, {"checkAllowAutoCreation": "true"})
        partitions = found.get("partitions")
        if not isinstance(partitions, int) or partitions < 0:
            raise LookupError(f"{url} named no number of partitions")
        return partitions

    async def probe(self) -> None:
        """Raises what keeps every host from answering, whatever it says."""
        await self._hosts.first_to_answer(lambda host: self._get(host, "/"))

    async def _ask(self, path: str, query: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """The URL that gave the answer, and the answer; redirects are followed."""
        target = f"{path}?{urlencode(query)}" if query else path
        async with self._slots:
            _, answer = await self._hosts.first_to_answer(lambda host: self._get(host, target))
            for _ in range(MAX_REDIRECTS):
                if answer.location is None:
                    break
                answer = await self._get_redirected(answer)
        return answer.url, _content(answer)

    async def _get_redirected(self, redirect: _Answer) -> _Answer:
        """What is at the place that an answer names."""
        try:
            parts = urlsplit(urljoin(redirect.url, redirect.location))
            to = ServiceUrl.parse(f"{parts.scheme}://{parts.netloc}", "the URL")
            if not to.is_http:
                raise ValueError(f"{parts.geturl()} is no http:// URL")
        except (ValueError, NotImplementedError) as error:
            raise LookupError(f"{redirect.url} redirected: {error}") from error
        target = parts._replace(scheme="", netloc="", fragment="").geturl()
        timeout = self._operation_timeout
        try:
            return await within(timeout, self._get(to.hosts[0], target))
        except TimeIsUp:
            raise Timeout(f"{parts.geturl()} did not answer within {timeout:g} s") from None

    async def _get(self, host: Host, target: str) -> _Answer:
        url = f"http://{host_and_port(host)}{target}"
        request = (
            f"GET {target} HTTP/1.1\r\nHost: {host_and_port(host)}\r\n"
            "Accept: application/json\r\nConnection: close\r\n\r\n"
        )
        sock = await connect(*host, self._connection_timeout)
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            writer.write(request.encode())
            received = await _read_to_the_end(reader)
            if len(received) > MAX_ANSWER:
                raise LookupError(f"{url}: an answer of more than {MAX_ANSWER} bytes")
            return _parse(url, received)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectError(f"{url}: no HTTP answer: {error or type(error).__name__}") from error
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


def _path(topic: TopicName) -> str:
    """As it stands in URLs: what follows the namespace is one escaped part."""
    domain, _, rest = topic.full.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(name, safe='')}"


async def _read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    """What comes before the end of the stream, or a bit more than the longest answer."""
    received = b""
    while len(received) <= MAX_ANSWER and (piece := await reader.read(MAX_ANSWER)):
        received += piece
    return received


class _Received:
    """As much of a socket as the parser of the standard library wants to see."""

    def __init__(self, received: bytes) -> None:
        self._received = received

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._received)


def _parse(url: str, received: bytes) -> _Answer:
    response = http.client.HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    response.begin()
    body = response.read()
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    location = response.getheader("Location") if 300 <= response.status < 400 else None
    return _Answer(url, response.status, location, content)


def _content(answer: _Answer) -> dict[str, Any]:
    """What was asked for. Raises the refusal otherwise."""
    content = answer.content if isinstance(answer.content, dict) else None
    if answer.location is not None:
        raise LookupError(f"{answer.url}: redirected more than {MAX_REDIRECTS} times")
    if answer.status != 200:
        # Of a server that gives no reason as Pulsar does, a 404 says nothing about the topic.
        reason = "" if content is None else str(content.get("reason", ""))
        kind = _REFUSALS.get(answer.status, LookupError) if reason or answer.status != 404 else LookupError
        raise kind(f"{answer.url}: HTTP {answer.status} {_short(reason)}".rstrip())
    if content is None:
        raise LookupError(
            f"{answer.url} answered no JSON object; is it Pulsar's HTTP port (8080 by default)?"
        )
    return content


def _short(reason: str) -> str:
    """The line that tells something, of a text that may hold a stack trace."""
    lines = [line for line in reason.splitlines() if line.strip(" -")]
    told = [line for line in lines if line.startswith("Message: ")] or lines
    return told[0][:200] if told else ""
