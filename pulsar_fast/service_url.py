"""Where the cluster is: the `service_url` of a client, and the URLs that brokers send."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address

__all__ = ["ServiceUrl"]

_DEFAULT_PORT = 6650
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
        """Parse `pulsar://host[:port][,host[:port]...]`; the port is 6650 if none is given.

        `argument` is what error messages call the text. Raises TypeError if it is not a `str`,
        NotImplementedError for `pulsar+ssl://`, and ValueError, which says what is wrong, otherwise.
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
            hosts = tuple(_parse_host(part) for part in authority.removesuffix("/").split(","))
        except (ValueError, NotImplementedError) as error:
            raise type(error)(f"{argument} {text!r} cannot be used: {error}") from None
        return cls(scheme, hosts, tls=False)


def _check_scheme(scheme: str) -> None:
    if scheme == "pulsar+ssl":
        raise NotImplementedError(f"pulsar+ssl:// (TLS) is not supported yet, use {_FORM}")
    if scheme in ("http", "https"):
        raise ValueError(f"{scheme}:// is the cluster's web (admin) URL, use the broker's, {_FORM}")
    if scheme != "pulsar":
        raise ValueError(f"the scheme {scheme!r} is unknown, use {_FORM}")


def _parse_host(text: str) -> tuple[str, int]:
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
    return host, _DEFAULT_PORT if port is None else _parse_port(port)


def _parse_port(text: str) -> int:
    # int() alone takes signs, spaces, underscores and other scripts' digits.
    if re.fullmatch(r"[0-9]{1,5}", text) and 1 <= int(text) <= 65535:
        return int(text)
    raise ValueError(f"the port {text!r} is not a number from 1 to 65535")
