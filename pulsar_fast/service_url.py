"""Where the cluster is: the `service_url` of a client, and the URLs that brokers send."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address

__all__ = ["ServiceUrl"]

_DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 8080, "https": 8443}
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
    """Whether brokers are reached over TLS."""

    @classmethod
    def parse(cls, text: str, argument: str = "service_url", *, use_tls: bool = False) -> "ServiceUrl":
        """Parse `pulsar://host[:port][,host[:port]...]`, or the same with `pulsar+ssl://`, `http://` or `https://`.

        The port is 6650, 6651, 8080 or 8443 if none is given. `use_tls` asks for TLS to brokers whatever the scheme.
        `argument` is what error messages call the text. Raises TypeError if it is not a `str`, and ValueError,
        which says what is wrong.
        """
        if not isinstance(text, str):
            raise TypeError(f"{argument} must be a str such as {_FORM!r}, not {type(text).__name__}")
        scheme, separator, authority = text.partition("://")
        scheme = scheme.lower()
        if "@" in text:  # the text itself is left out, it may hold a password
            raise ValueError(f"{argument} must not hold a user name or password, only {_FORM!r}")
        try:
            if not separator:
                raise ValueError(f"it must start with pulsar:// (or pulsar+ssl://), as in {_FORM}")
            if scheme not in _DEFAULT_PORTS:
                raise ValueError(f"the scheme {scheme!r} is unknown, use {_FORM}")
            port = _DEFAULT_PORTS[scheme]
            hosts = tuple(_parse_host(part, port) for part in authority.removesuffix("/").split(","))
        except ValueError as error:
            raise ValueError(f"{argument} {text!r} cannot be used: {error}") from None
        return cls(scheme, hosts, tls=use_tls or scheme in ("pulsar+ssl", "https"))

    def of_broker(self, plain: str, tls: str, argument: str = "the broker's URL") -> tuple[str, int]:
        """The host of a broker that is known by two URLs: of the one for TLS where this one is, else of the plain one.

        Raises TypeError and ValueError, which say what is wrong.
        """
        return self.of_cluster(plain, tls, argument).hosts[0]

    def of_cluster(self, plain: str, tls: str, argument: str) -> "ServiceUrl":
        """The one of two URLs of a cluster that suits this one, as `of_broker`."""
        text, scheme = (tls, "pulsar+ssl") if self.tls else (plain, "pulsar")
        if not text:
            raise ValueError(f"{argument}: there is none with {scheme}://")
        scheme_of_it = text.partition("://")[0].lower() if isinstance(text, str) else scheme
        if scheme_of_it != scheme:
            raise ValueError(f"{argument} {text!r} must start with {scheme}://")
        return ServiceUrl.parse(text, argument)

    @property
    def is_http(self) -> bool:
        """Whether look-ups go over the cluster's HTTP interface."""
        return self.scheme in ("http", "https")


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
