"""Finding the broker of a topic by the cluster's HTTP interface, over TLS or not."""

import asyncio
import http.client
import io
import json
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urljoin, urlsplit

from ._core import Clock, Transport
from .bounds import TimeIsUp, within
from .connection import BrokerAddress
from .credentials import NOBODY, Authenticator, Credentials
from .dialer import Dial, dial, host_and_port
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
from .tls import TlsDialer
from .topic_name import TopicName

__all__ = ["HttpLookup"]

MAX_REDIRECTS = 20
MAX_ANSWER = 64 * 1024  # bytes, head and body
_MOST_AT_ONCE = 16  # requests, each on a connection of its own
_PORTS_OF_REDIRECTS = {"http": 80, "https": 443}  # where they name none: those of the web
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
    """Asks any host of the service URL; goes on to the next one when a host fails. Owned by the event loop.

    With `https://` the rules of trust are those of `TlsDialer`, for the host of each request. Redirects are followed
    to any host, and away from `http://`, but never back to it. The client's credentials go along to other hosts, as
    they go to any broker that a look-up names: in a cluster another broker than the topic's own redirects to that
    one. They go nowhere but to the scheme of the service URL.
    """

    def __init__(
        self, service_url: ServiceUrl, authenticator: Authenticator, clock: Clock, options: ClientOptions
    ) -> None:
        self.service_url = service_url
        self._authenticator = authenticator
        self._options = options
        self._tls_dial = TlsDialer(options) if service_url.tls else None
        self._hosts = Hosts(service_url.hosts, clock.now_ns, options.operation_timeout_seconds)
        self._slots = asyncio.Semaphore(_MOST_AT_ONCE)

    def __str__(self) -> str:
        return ", ".join(
            f"{self.service_url.scheme}://{host_and_port(host)}" for host in self.service_url.hosts
        )

    async def broker_of(self, topic: TopicName) -> BrokerAddress:
        """The broker that serves a topic. One attempt; raises what stopped it."""
        name = self._options.listener_name
        listener = {} if name is None else {"listenerName": name}
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
        await self._hosts.first_to_answer(lambda host: self._get(self.service_url.scheme, host, "/"))

    async def _ask(self, path: str, query: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """The URL that gave the answer, and the answer; redirects are followed."""
        target = f"{path}?{urlencode(query)}" if query else path
        async with self._slots:
            scheme = self.service_url.scheme
            _, answer = await self._hosts.first_to_answer(lambda host: self._get(scheme, host, target))
            for _ in range(MAX_REDIRECTS):
                if answer.location is None:
                    break
                answer = await self._get_redirected(answer)
        return answer.url, _content(answer)

    async def _get_redirected(self, redirect: _Answer) -> _Answer:
        """What is at the place that an answer names."""
        try:
            scheme, host, target = _named_place(redirect)
        except ValueError as error:
            raise LookupError(f"{redirect.url} redirected: {error}") from error
        timeout = self._options.operation_timeout_seconds
        try:
            return await within(timeout, self._get(scheme, host, target))
        except TimeIsUp:
            raise Timeout(f"{_url(scheme, host, target)} did not answer within {timeout:g} s") from None

    async def _get(self, scheme: str, host: Host, target: str) -> _Answer:
        url = _url(scheme, host, target)
        head = (
            f"GET {target} HTTP/1.1\r\nHost: {host_and_port(host)}\r\n"
            "Accept: application/json\r\nConnection: close\r\n"
        )
        credentials = await self._credentials(scheme, host)
        transport = await self._dial(scheme)(*host, self._options.connection_timeout_ms / 1000)
        try:
            with suppress(OSError):  # it may answer, and close, before it has read everything
                await _send(transport, head.encode(), credentials)
            received = await _read_to_the_end(transport)
            if len(received) > MAX_ANSWER:
                raise LookupError(f"{url}: an answer of more than {MAX_ANSWER} bytes")
            return _parse(url, received)
        except (OSError, http.client.HTTPException) as error:
            hint = "; a TLS port needs https://" if scheme == "http" else ""
            raise ConnectError(f"{url}: no HTTP answer: {error or type(error).__name__}{hint}") from error
        finally:
            transport.close()

    async def _credentials(self, scheme: str, host: Host) -> Credentials:
        if scheme != self.service_url.scheme:
            return NOBODY
        return await self._authenticator.converse(host[0], self._hosts.patience).headers()

    def _dial(self, scheme: str) -> Dial:
        if scheme == "http":
            return dial
        if self._tls_dial is None:  # redirected from http://
            self._tls_dial = TlsDialer(self._options)
        return self._tls_dial


def _url(scheme: str, host: Host, target: str) -> str:
    return f"{scheme}://{host_and_port(host)}{target}"


def _named_place(redirect: _Answer) -> tuple[str, Host, str]:
    """Scheme, host and target that it leads to. Raises ValueError, which says why not."""
    parts = urlsplit(urljoin(redirect.url, redirect.location))
    netloc = parts.netloc
    if parts.scheme in _PORTS_OF_REDIRECTS and parts.port is None:
        netloc += f":{_PORTS_OF_REDIRECTS[parts.scheme]}"
    to = ServiceUrl.parse(f"{parts.scheme}://{netloc}", "the URL")
    if not to.is_http:
        raise ValueError(f"{parts.geturl()} is no http:// or https:// URL")
    if to.scheme == "http" and redirect.url.startswith("https://"):
        raise ValueError(f"{parts.geturl()} is without TLS, where nobody could be trusted any more")
    return to.scheme, to.hosts[0], parts._replace(scheme="", netloc="", fragment="").geturl()


def _path(topic: TopicName) -> str:
    """As it stands in URLs: what follows the namespace is one escaped part."""
    domain, _, rest = topic.full.partition("://")
    tenant, namespace, name = rest.split("/", 2)
    return f"{domain}/{tenant}/{namespace}/{quote(name, safe='')}"


async def _send(transport: Transport, head: bytes, credentials: Credentials) -> None:
    """No variable here has the credentials themselves."""
    sent, size = 0, len(head) + len(credentials.data) + 2
    writable = asyncio.Event()
    while True:
        sent += max(transport.take([(head + credentials.data + b"\r\n")[sent:]]), 0)
        if sent == size:
            return
        transport.watch_writing(writable.set)
        await writable.wait()
        transport.stop_watching_writing()
        writable.clear()


async def _read_to_the_end(transport: Transport) -> bytes:
    """What comes before the end of the stream, or a bit more than the longest answer."""
    received = b""
    readable = asyncio.Event()
    transport.watch_reading(readable.set)
    while len(received) <= MAX_ANSWER:
        piece = transport.give(MAX_ANSWER)
        if piece is None:
            await readable.wait()
            readable.clear()
        elif piece:
            received += piece
        else:
            break
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
        refusal = content or {}
        reason = str(refusal.get("reason", ""))
        # The web server has words of its own, before Pulsar is asked.
        message = reason or str(refusal.get("message", ""))
        kind = _REFUSALS.get(answer.status, LookupError) if reason or answer.status != 404 else LookupError
        raise kind(f"{answer.url}: HTTP {answer.status} {_short(message)}".rstrip())
    if content is None:
        raise LookupError(
            f"{answer.url} answered no JSON object; is it Pulsar's HTTP port (8080 by default, 8443 for https://)?"
        )
    return content


def _short(reason: str) -> str:
    """The line that tells something, of a text that may hold a stack trace."""
    lines = [line for line in reason.splitlines() if line.strip(" -")]
    told = [line for line in lines if line.startswith("Message: ")] or lines
    return told[0][:200] if told else ""
