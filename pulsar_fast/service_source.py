"""What a client was given as its `service_url`: a URL, or somebody who names clusters."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ._core import fork_count
from .cluster import Service
from .exceptions import AlreadyClosed
from .log import log_of
from .options import ClientOptions
from .service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider, check_service_info

if TYPE_CHECKING:
    from .client_core import ClientCore

__all__ = ["ServiceSource"]

_OF_EACH_CLUSTER = ("authentication", "tls_trust_certs_file_path")


class ServiceSource:
    """Says which cluster a client begins with, and has it go to others. Any thread may use it.

    Raises `TypeError` and `ValueError` for what cannot be used, and what a provider raises.
    """

    def __init__(self, given: object, options: ClientOptions) -> None:
        self._options = options
        self._given = given
        self._logger = log_of(options)
        self._forks = fork_count()
        self._closed = False
        self._services = [Service.of(info, options) for info in self._named()]

    def _named(self) -> list[ServiceInfo]:
        given, options = self._given, self._options
        if not isinstance(given, AutoClusterFailover | ServiceInfoProvider):
            url: str = given  # type: ignore[assignment]  # else it is said there
            return [ServiceInfo(url, options.authentication, options.tls_trust_certs_file_path)]
        for name in _OF_EACH_CLUSTER:
            if getattr(options, name) is not None:
                kind = type(given).__name__
                raise ValueError(f"{name} is given with each ServiceInfo when the service_url is a {kind}")
        if isinstance(given, AutoClusterFailover):
            return [given.primary, *given.secondary]
        return [check_service_info("what initial_service_info() returns", given.initial_service_info())]

    @property
    def first(self) -> Service:
        """What to begin with."""
        return self._services[0]

    def start(self, core: "ClientCore", on_loop: Callable[[Callable[[], None]], None]) -> None:
        """Whoever names clusters may begin. `on_loop(call)` is for any thread; it raises `AlreadyClosed` or not."""
        given = self._given
        if isinstance(given, AutoClusterFailover):
            on_loop(lambda: core.follow(given, self._services))
        elif isinstance(given, ServiceInfoProvider):

            def update(info: ServiceInfo) -> None:
                check_service_info("the new service info", info)
                service = Service.of(info, self._options)
                if not self._closed and self._forks == fork_count():
                    with suppress(AlreadyClosed):
                        on_loop(lambda: core.use(service))

            given.initialize(update)

    def changed(self, to: object, current: ServiceInfo) -> Service:
        """What the caller of `update_service_url` wants."""
        if isinstance(self._given, AutoClusterFailover | ServiceInfoProvider):
            raise ValueError(f"the service URL of this client is up to its {type(self._given).__name__}")
        if isinstance(to, str):
            to = replace(current, service_url=to)
        return Service.of(check_service_info("service_url", to, "a str or "), self._options)

    def close(self) -> None:
        """Take leave of the provider, whose errors hurt nobody; not in a forked child."""
        if self._forks != fork_count():
            return
        self._closed = True
        if isinstance(self._given, ServiceInfoProvider):
            try:
                self._given.close()
            except Exception:
                self._logger.exception("closing the ServiceInfoProvider failed")
