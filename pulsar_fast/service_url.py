"""Where the cluster is: the `service_url` of a client, and the URLs that brokers send."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address

__all__ = ["ServiceUrl"]

_DEFAULT_PORTS = {"pulsar": 6650, "http": 8080}
_FORM = "pulsar://host:6650"

_BRACKETED = re.compile(r"\[(?P<host>[^\[\]]*)\](?::(?P<port>.*))?", re.DOTALL)
_PLAIN = re.compile(r"(?P<host>[^:\[\]]*)(?::(?P<port>[^:]*))?", re.DOTALL)


@dataclass(frozen=True)
class ServiceUrl:
    """A parsed URL: one or several hosts of a cluster, to be tried in turn."""

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    """Names or addresses (IPv6 ones without brackets), each with its port."""
    tls: bool

    @classmethod
    def parse(cls, text: str, argument: str = "service_url") -> "ServiceUrl":
        """Parse `pulsar://host[:port][,host[:port]...]`, or the same with `http://`.

        The port is 6650 if none is given, of `http://` 8080.

        `argument` is what error messages call the text. Raises TypeError if it is not a `str`,
        NotImplementedError for `pulsar+ssl://` and `https://`, and ValueError, which says what is wrong, otherwise.
        """
        if not isinstance(text, str):
            raise TypeError(f"{argument} must be a str such as {_FORM!r}, not {type(text).__name__}")
        scheme, separator, authority = text.partition("://")
        scheme = scheme.lower()
        if "@" in text:  # the text itself is left out, it may hold a password
            raise ValueError(f"{argument} must not hold a user name or password, only {_FORM!r}")
        try:
            if not separator:
                raise ValueError(f"it must start with pulsar://, as in {_FORM}")
            _check_scheme(scheme)
            port = _DEFAULT_PORTS[scheme]
            hosts = tuple(_parse_host(part, port) for part in authority.removesuffix("/").split(","))
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"{argument} {text!r} cannot be used: {error}") from None
        return cls(scheme, hosts, tls=False)

    @classmethod
    def of_broker(cls, text: str) -> "ServiceUrl":
        """Parse what a broker calls itself or another one; raises as `parse`, ValueError also for `http://`."""
        argument = "the broker's URL"
        url = cls.parse(text, argument)
        if url.is_http:
            raise ValueError(f"{argument} {text!r} cannot be used: it is not that of a binary port, {_FORM}")
        return url

    @property
    def is_http(self) -> bool:
        """Whether look-ups go over the cluster's HTTP interface."""
        return self.scheme == "http"


def _check_scheme(scheme: str) -> None:
    if scheme == "pulsar+ssl":
        raise NotImplementedError(f"pulsar+ssl:// (TLS) is not supported yet, use {_FORM}")
    if scheme == "https":
        raise NotImplementedError(f"https:// (TLS) is not supported yet, use http:// or {_FORM}")
    if scheme not in _DEFAULT_PORTS:
        raise ValueError(f"the scheme {scheme!r} is unknown, use {_FORM}")


def _parse_host(text: str, default_port: int) -> tuple[str, int]:
    match = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not host:port (an IPv6 address goes in brackets, [::1]:6650)")
    host, port = match["host"], match["port"]
    if text.startswith("["):
        try:
            IPv6Address(host)
        except AddressValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
    elif not host:
        raise ValueError(f"a host is missing, write {_FORM} (several are separated by commas)")
    elif not host.isprintable() or re.search(r"[\s/?#;\\%]", host):
        raise ValueError(f"the host {host!r} holds characters that no host name has")
    return host, default_port if port is None else _parse_port(port)


def _parse_port(text: str) -> int:
    # int() alone takes signs, spaces, underscores and other scripts' digits.
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= 65535:
        return int(text)
    raise ValueError(f"the port {text!r} is not a number from 1 to 65535")
