"""Which cluster a client uses, when that may change: `ServiceInfo`, and who names one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .authentication import Authentication
from .service_url import ServiceUrl

__all__ = ["AutoClusterFailover", "ServiceInfo", "ServiceInfoProvider", "check_service_info"]


@dataclass(frozen=True)
class ServiceInfo:
    """How to reach one cluster.

    service_url: as of `Client`. authentication: an `Authentication`; default None, nobody in particular.
    tls_trust_certs_file_path: PEM file of the CAs to trust there; default as of `Client`.

    Raises `TypeError` or `ValueError` naming the argument.
    """

    service_url: str
    authentication: Authentication | None = field(default=None, repr=False)
    tls_trust_certs_file_path: str | None = None

    def __post_init__(self) -> None:
        ServiceUrl.parse(self.service_url)
        if not isinstance(self.authentication, Authentication | None):
            raise _type_error("authentication", "a pulsar_fast.Authentication or None", self.authentication)
        if not isinstance(self.tls_trust_certs_file_path, str | None):
            raise _type_error("tls_trust_certs_file_path", "a str or None", self.tls_trust_certs_file_path)

    @property
    def use_tls(self) -> bool:
        """Whether the URL asks for TLS."""
        return ServiceUrl.parse(self.service_url).tls


class ServiceInfoProvider:
    """Base class for what names the cluster to use, and another one later on.

    Give an instance to one client as its `service_url`. Its methods are called by that client; `authentication` and
    `tls_trust_certs_file_path` are then those of each `ServiceInfo`.
    """

    def initial_service_info(self) -> ServiceInfo:
        """The cluster to begin with; called once, when the client is created."""
        raise NotImplementedError

    def initialize(self, on_service_info_update: Callable[[ServiceInfo], None]) -> None:
        """Called once, when the client has its loop (for asyncio: with its first coroutine).

        Keep the function: each call of it, from any thread and without waiting, moves the client to another cluster,
        with all that is pending. It raises `TypeError` or `ValueError` for what cannot be used, and does nothing once
        the client is closed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Called once, when the client is closed. Does nothing by default."""


class AutoClusterFailover:
    """Have a client go to another cluster when its own does not answer, and come back.

    Give it to a client as its `service_url`. Each check is a connection with its handshake, on its own and within
    the connection timeout. What is pending moves along, in order; it may be stored by both clusters if the first one
    had taken it without saying so.

    primary: the cluster to prefer. secondary: the others, the best one first.
    check_interval_ms: between checks, of the cluster in use and of the primary. Default 5000.
    failover_threshold: so many checks of the cluster in use have to fail in a row. Default 1.
    switch_back_threshold: so many checks of the primary have to succeed in a row. Default 1.

    Raises `TypeError` or `ValueError` naming the argument.
    """

    def __init__(
        self,
        primary: ServiceInfo,
        secondary: Sequence[ServiceInfo],
        check_interval_ms: int = 5000,
        failover_threshold: int = 1,
        switch_back_threshold: int = 1,
    ) -> None:
        check_service_info("primary", primary)
        if not isinstance(secondary, list | tuple):
            raise _type_error("secondary", "a list of ServiceInfo", secondary)
        if not secondary:
            raise ValueError("secondary must name at least one cluster")
        for index, info in enumerate(secondary):
            check_service_info(f"secondary[{index}]", info)
        self.primary = primary
        self.secondary = tuple(secondary)
        self.check_interval_ms = _positive("check_interval_ms", check_interval_ms)
        self.failover_threshold = _positive("failover_threshold", failover_threshold)
        self.switch_back_threshold = _positive("switch_back_threshold", switch_back_threshold)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"AutoClusterFailover({settings})"


def check_service_info(name: str, value: object, alternative: str = "") -> ServiceInfo:
    """The value; raises `TypeError` if it is something else."""
    if not isinstance(value, ServiceInfo):
        raise _type_error(name, f"{alternative}a pulsar_fast.ServiceInfo", value)
    return value


def _positive(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _type_error(name, "an int", value)
    if not 1 <= value < 2**31:
        raise ValueError(f"{name} must be from 1 to {2**31 - 1}, not {value}")
    return value


def _type_error(name: str, expected: str, value: object) -> TypeError:
    kind = type(value)
    where = "pulsar." if kind.__module__.partition(".")[0] == "pulsar" else ""
    return TypeError(f"{name} must be {expected}, not {where}{kind.__name__}")
