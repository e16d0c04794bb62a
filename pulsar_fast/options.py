"""The options of clients and producers, and what each of them accepts.

Names and defaults are those of the official client. Its options that are not built yet are accepted
with their default only, so that code which spells them out keeps working and nothing is ignored.
"""

import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeVar

from .authentication import Authentication, AuthenticationTLS
from .compression import Codec, codec_for
from .enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    NamedInt,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProxyProtocol,
)
from .message_routing import Message, router_of
from .schema.encoding import Encoding
from .service_url import ServiceUrl

__all__ = ["ClientOptions", "ProducerOptions"]

_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1

# A check takes an option's name and value, and raises TypeError or ValueError naming the option.
_Check = Callable[[str, Any], None]
_OptionsT = TypeVar("_OptionsT", bound="_Options")


def _type_error(name: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{name} must be {expected}, not {type(value).__name__}")


def _integer(low: int, high: int = _MAX_INT) -> _Check:
    def check(name: str, value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise _type_error(name, "an int", value)
        if not low <= value <= high:
            raise ValueError(f"{name} must be from {low} to {high}, not {value}")

    return check


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _type_error(name, "a number of seconds (int or float)", value)
    if value != value:
        raise TypeError(f"{name} must be a number of seconds (int or float), not NaN")
    if not 0 < value <= _MAX_INT:
        raise ValueError(f"{name} must be above 0 and at most {_MAX_INT}, not {value}")


def _boolean(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _type_error(name, "a bool", value)


def _text(name: str, value: object) -> None:
    _utf8(name, value)
    if not value:
        raise ValueError(f"{name} must not be empty")


def _description(name: str, value: object) -> None:
    _text(name, value)
    if len(str(value)) > 64:
        raise ValueError(f"{name} must have at most 64 characters, not {len(str(value))}")


def _utf8(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _type_error(name, "a str", value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds a surrogate, which UTF-8 cannot carry") from None


def _properties(name: str, value: object) -> None:
    if not isinstance(value, dict):
        raise _type_error(name, "a dict of str to str", value)
    for key, text in value.items():
        _utf8(f"{name}: the key {key!r}", key)
        _utf8(f"{name}[{key!r}]", text)


def _logger(name: str, value: object) -> None:
    if not isinstance(value, logging.Logger):
        raise _type_error(name, "a logging.Logger", value)


def _authentication(name: str, value: object) -> None:
    if isinstance(value, Authentication):
        return _text(f"{name}.name", getattr(value, "name", None))
    kind = type(value)
    if kind.__module__.partition(".")[0] == "pulsar":
        raise TypeError(
            f"{name} is an object of the official package (pulsar.{kind.__name__}), "
            f"which only its own client can use: make it with pulsar_fast.{kind.__name__}"
        )
    raise _type_error(name, "a pulsar_fast.Authentication", value)


def _one_of(kind: type[NamedInt]) -> _Check:
    def check(name: str, value: object) -> None:
        if not isinstance(value, kind):
            raise _type_error(name, f"a pulsar_fast.{kind.__name__}", value)

    return check


def _callable(name: str, value: object) -> None:
    if not callable(value):
        raise _type_error(name, "callable", value)


def _ssl_context(name: str, value: object) -> None:
    if not isinstance(value, ssl.SSLContext):
        raise _type_error(name, "an ssl.SSLContext", value)


def _tls_version(name: str, value: object) -> None:
    if not isinstance(value, ssl.TLSVersion):
        raise _type_error(name, "an ssl.TLSVersion", value)
    if value not in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        raise ValueError(f"{name} must be ssl.TLSVersion.TLSv1_2 or TLSv1_3, not {value.name}")


def _ciphers(name: str, value: str) -> None:
    _text(name, value)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.set_ciphers(value)
    except (ssl.SSLError, ValueError):
        raise ValueError(
            f"{name} {value!r} selects no cipher: give a list for TLS 1.2 as OpenSSL writes it, such as 'ECDHE+AESGCM'"
        ) from None
    for cipher in context.get_ciphers():
        # With these anybody could answer for the broker, or listen.
        if cipher["auth"] == "auth-null" or not cipher["strength_bits"]:
            raise ValueError(
                f"{name} {value!r} selects {cipher['name']}, which does not authenticate the broker or "
                "does not encrypt: end the list with :!aNULL:!eNULL"
            )


def _proxy_url(name: str, value: str) -> None:
    url = ServiceUrl.parse(value, name)
    if url.scheme != "pulsar+ssl" or len(url.hosts) > 1:
        raise ValueError(f"{name} {value!r} must be that of one proxy, pulsar+ssl://host:port")


def _our_enumeration(value: object, default: object) -> object:
    """Of the official client's enumerations, our member of that name; anything else as it is."""
    if isinstance(default, NamedInt) and type(value).__name__ == type(default).__name__:
        return getattr(type(default), getattr(value, "name", ""), value)
    return value


def _encoding(name: str, value: object) -> None:
    if not isinstance(value, Encoding):
        raise _type_error(name, "an Encoding", value)


def _is_default(value: object, default: object) -> bool:
    value = _our_enumeration(value, default)
    return type(value) is type(default) and value == default  # 0 and False are not each other


def _or_none(check: _Check) -> _Check:
    return lambda name, value: None if value is None else check(name, value)


def _checked_by(check: _Check) -> dict[str, _Check]:
    return {"check": check}


@dataclass(frozen=True)
class _Options:
    """Options that check themselves, each by the check in its field's metadata."""

    _UNSUPPORTED: ClassVar[Mapping[str, object]]
    """The official client's other arguments, with the only value accepted: its default."""

    def __post_init__(self) -> None:
        for option in fields(self):
            option.metadata["check"](option.name, getattr(self, option.name))

    @classmethod
    def from_arguments(cls: type[_OptionsT], **arguments: Any) -> _OptionsT:
        """The options among the arguments of a call that follows the official client's signature.

        Raises TypeError for an unknown argument or a value of the wrong type, ValueError for one out of
        range, and NotImplementedError for an argument that is not supported yet and not at its default.
        """
        known = {option.name: option.default for option in fields(cls)}
        for name, value in arguments.items():
            if name in known:
                arguments[name] = _our_enumeration(value, known[name])
                continue
            if name not in cls._UNSUPPORTED:
                raise TypeError(f"unexpected argument {name!r}")
            default = cls._UNSUPPORTED[name]
            if not _is_default(value, default):
                raise NotImplementedError(
                    f"{name} is not supported yet: leave it at its default, {default!r}"
                )
        return cls(**{name: value for name, value in arguments.items() if name in known})


@dataclass(frozen=True)
class ClientOptions(_Options):
    """The checked options of a client."""

    authentication: Authentication | None = field(
        default=None, metadata=_checked_by(_or_none(_authentication))
    )
    """Who the client is; None: nobody in particular."""
    operation_timeout_seconds: float = field(default=30, metadata=_checked_by(_seconds))
    """How long creating a producer, a look-up or closing may take."""
    connection_timeout_ms: int = field(default=10000, metadata=_checked_by(_integer(1)))
    """How long a connection may take, name resolution and handshake included."""
    keep_alive_interval_seconds: float = field(default=30, metadata=_checked_by(_seconds))
    """Between two pings; a connection that is silent for twice as long is given up."""
    logger: logging.Logger | None = field(default=None, metadata=_checked_by(_or_none(_logger)))
    """Where the client logs; None: the logger named `pulsar_fast`."""
    memory_limit_bytes: int = field(default=64 * 1024 * 1024, metadata=_checked_by(_integer(0, _MAX_LONG)))
    """Bounds the bytes of all pending messages of the client; 0: no bound."""
    listener_name: str | None = field(default=None, metadata=_checked_by(_or_none(_text)))
    """Which of the brokers' advertised listeners to connect to."""
    initial_backoff_interval_ms: int = field(default=100, metadata=_checked_by(_integer(1)))
    """Before the first attempts to reconnect; then a fifth of the time waited so far."""
    max_backoff_interval_ms: int = field(default=10000, metadata=_checked_by(_integer(1)))
    """Bounds the time between two attempts to reconnect."""
    connections_per_broker: int = field(default=1, metadata=_checked_by(_integer(1)))
    """Among which the producers are divided; each stays with its own."""
    connection_max_idle_seconds: float | None = field(default=60, metadata=_checked_by(_or_none(_seconds)))
    """A connection without producers and requests for so long is closed; None: never."""
    concurrent_lookup_requests: int = field(default=50000, metadata=_checked_by(_integer(1)))
    """How many look-ups may be under way; further ones wait for their turn."""
    stats_interval_in_seconds: int = field(default=600, metadata=_checked_by(_integer(0)))
    """How often the counters of each producer go to the log, at level INFO; 0: never."""
    description: str | None = field(default=None, metadata=_checked_by(_or_none(_description)))
    """Told to brokers behind the version of the client, which they show in the statistics of topics."""
    use_tls: bool = field(default=False, metadata=_checked_by(_boolean))
    """Whether to use TLS also with `pulsar://`; `pulsar+ssl://` always does."""
    tls_trust_certs_file_path: str | None = field(default=None, metadata=_checked_by(_or_none(_text)))
    """PEM file with the CAs to trust; None: the system's, or those of `certifi` if there are none."""
    tls_allow_insecure_connection: bool = field(default=False, metadata=_checked_by(_boolean))
    """Whether to accept any certificate of a broker, whatever its name."""
    tls_validate_hostname: bool = field(default=True, metadata=_checked_by(_boolean))
    """Whether a broker's certificate must be for the host that was dialled (the official default is False)."""
    tls_certificate_file_path: str | None = field(default=None, metadata=_checked_by(_or_none(_text)))
    """PEM file with the certificate of this client, and the CAs between it and one that brokers trust."""
    tls_private_key_file_path: str | None = field(default=None, metadata=_checked_by(_or_none(_text)))
    """PEM file with the key to that certificate, not encrypted."""
    tls_minimum_version: ssl.TLSVersion = field(
        default=ssl.TLSVersion.TLSv1_2, metadata=_checked_by(_tls_version)
    )
    """The oldest version of TLS to speak; 1.2 at least."""
    tls_ciphers: str | None = field(default=None, metadata=_checked_by(_or_none(_ciphers)))
    """The ciphers to offer for TLS 1.2, as a list of OpenSSL's; None: Python's choice."""
    proxy_service_url: str | None = field(default=None, metadata=_checked_by(_or_none(_proxy_url)))
    """Where every connection goes instead of the broker that is meant, `pulsar+ssl://host:port`."""
    proxy_protocol: ProxyProtocol | None = field(
        default=None, metadata=_checked_by(_or_none(_one_of(ProxyProtocol)))
    )
    """How that proxy learns which broker is meant."""
    ssl_context: ssl.SSLContext | None = field(default=None, metadata=_checked_by(_or_none(_ssl_context)))
    """Used as it is, instead of all `tls_` options."""

    _UNSUPPORTED = {
        "io_threads": 1,
        "message_listener_threads": 1,
        "log_conf_file_path": None,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.initial_backoff_interval_ms > self.max_backoff_interval_ms:
            raise ValueError(
                f"initial_backoff_interval_ms ({self.initial_backoff_interval_ms}) must not be above "
                f"max_backoff_interval_ms ({self.max_backoff_interval_ms})"
            )
        if (self.tls_certificate_file_path is None) != (self.tls_private_key_file_path is None):
            raise ValueError("tls_certificate_file_path and tls_private_key_file_path go together")
        if (self.proxy_service_url is None) != (self.proxy_protocol is None):
            raise ValueError("proxy_service_url and proxy_protocol go together")
        if isinstance(self.authentication, AuthenticationTLS):
            for name in ("tls_certificate_file_path", "ssl_context"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} and AuthenticationTLS both say what certificate to use: give one"
                    )
        if self.tls_ciphers is not None and self.tls_minimum_version > ssl.TLSVersion.TLSv1_2:
            raise ValueError("tls_ciphers is for TLS 1.2, which tls_minimum_version excludes")
        if self.ssl_context is not None:
            for option in fields(self):
                if option.name.startswith("tls_") and getattr(self, option.name) != option.default:
                    raise ValueError(f"{option.name} has no effect with ssl_context: set it in the context")

    @property
    def identity(self) -> tuple[str, str] | None:
        """Paths of this client's certificate and key, by option or by `AuthenticationTLS`."""
        if isinstance(self.authentication, AuthenticationTLS):
            return self.authentication.certificate_path, self.authentication.private_key_path
        if self.tls_certificate_file_path is None or self.tls_private_key_file_path is None:
            return None
        return self.tls_certificate_file_path, self.tls_private_key_file_path

    @property
    def proxy(self) -> tuple[str, int] | None:
        """Host and port of the proxy to dial in place of brokers."""
        return None if self.proxy_service_url is None else ServiceUrl.parse(self.proxy_service_url).hosts[0]


@dataclass(frozen=True)
class ProducerOptions(_Options):
    """The checked options of a producer."""

    producer_name: str | None = field(default=None, metadata=_checked_by(_or_none(_text)))
    """Unique on the topic; None: the broker chooses one."""
    # One below the most that the broker's signed counter holds: the first message has the next id.
    initial_sequence_id: int | None = field(
        default=None, metadata=_checked_by(_or_none(_integer(0, _MAX_LONG - 1)))
    )
    """The first message has the id after this one; None: the broker's last one counts."""
    send_timeout_millis: int = field(default=30000, metadata=_checked_by(_integer(0)))
    """From the call of `send` to the failure of an unacknowledged message; 0: never."""
    max_pending_messages: int = field(default=1000, metadata=_checked_by(_integer(0)))
    """How many messages may wait for their acknowledgement; 0: no bound."""
    block_if_queue_full: bool = field(default=False, metadata=_checked_by(_boolean))
    """Whether `send` waits for room or fails with `ProducerQueueIsFull`."""
    batching_enabled: bool | None = field(default=None, metadata=_checked_by(_or_none(_boolean)))
    """None: not passed, which batches too, but by key once a message has a key."""
    batching_max_messages: int = field(default=1000, metadata=_checked_by(_integer(2)))
    """A batch of so many messages is sent at once."""
    batching_max_allowed_size_in_bytes: int = field(default=128 * 1024, metadata=_checked_by(_integer(1)))
    """A batch of so many bytes is sent at once."""
    batching_max_publish_delay_ms: int = field(default=10, metadata=_checked_by(_integer(0)))
    """How long a batch waits for further messages."""
    access_mode: ProducerAccessMode = field(
        default=ProducerAccessMode.Shared, metadata=_checked_by(_one_of(ProducerAccessMode))
    )
    """Whether others may produce to the topic meanwhile, and what happens if somebody does."""
    compression_type: CompressionType = field(
        default=CompressionType.NONE, metadata=_checked_by(_one_of(CompressionType))
    )
    """How each batch, or message alone, is compressed; where that makes it no smaller, it is not."""
    compression_level: int | None = field(default=None, metadata=_checked_by(_or_none(_integer(-_MAX_INT))))
    """Of ZLib (1 to 9) and ZSTD (-7 to 22); None: 6 and 3."""
    properties: dict[str, str] | None = field(default=None, metadata=_checked_by(_or_none(_properties)))
    """Shown by the broker in the topic's statistics."""
    schema: Encoding | None = field(default=None, metadata=_checked_by(_or_none(_encoding)))
    """What contents are encoded with; None: they are bytes."""

    max_pending_messages_across_partitions: int = field(default=50000, metadata=_checked_by(_integer(0)))
    """How many may wait on all partitions together, divided among them; 0: no bound."""
    message_routing_mode: PartitionsRoutingMode = field(
        default=PartitionsRoutingMode.RoundRobinDistribution,
        metadata=_checked_by(_one_of(PartitionsRoutingMode)),
    )
    """Where messages without a key go: to each partition in turn, a batch each, or to one of them."""
    message_router: Callable[[Message, int], int] | None = field(
        default=None, metadata=_checked_by(_or_none(_callable))
    )
    """Chooses the partition of every message, by the message and the number of partitions."""
    hashing_scheme: HashingScheme = field(
        default=HashingScheme.BoostHash, metadata=_checked_by(_one_of(HashingScheme))
    )
    """What finds the partition of a key."""
    lazy_start_partitioned_producers: bool = field(default=False, metadata=_checked_by(_boolean))
    """Whether partitions are registered with their first message (not with a `producer_name`, whose last sequence
    ids have to be known before, nor with an access mode other than `Shared`)."""
    partitions_update_interval_seconds: float | None = field(
        default=60, metadata=_checked_by(_or_none(_seconds))
    )
    """How often to look for new partitions; None: never."""

    _UNSUPPORTED = {
        "chunking_enabled": False,
        "batching_type": BatchingType.Default,
        "encryption_key": None,
        "crypto_key_reader": None,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        mode = self.message_routing_mode
        if mode is PartitionsRoutingMode.CustomPartition and self.message_router is None:
            raise ValueError("message_routing_mode CustomPartition needs a message_router")
        if self.properties is not None:  # the caller may go on changing its own
            object.__setattr__(self, "properties", dict(self.properties))
        self.codec()  # says what is wrong with the level, or not installed

    def codec(self) -> Codec | None:
        """A new one for one producer; None: nothing is compressed."""
        return codec_for(self.compression_type, self.compression_level)

    @property
    def send_timeout_seconds(self) -> float | None:
        """None: messages live as long as it takes."""
        return self.send_timeout_millis / 1000 if self.send_timeout_millis else None

    @property
    def router_function(self) -> Callable[..., int] | None:
        """`message_router` for the compiled core."""
        return None if self.message_router is None else router_of(self.message_router)

    @classmethod
    def from_arguments(cls: type[_OptionsT], **arguments: Any) -> _OptionsT:
        schema = Encoding.of(arguments.pop("schema", None))
        return super().from_arguments(schema=schema, **arguments)
