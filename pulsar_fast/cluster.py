"""A cluster as a client sees it: how to get there, the connections, and whom to ask for topics."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ._core import Clock
from .bounds import TimeIsUp, within
from .connection import BrokerAddress
from .connection_pool import ConnectionPool
from .dialer import Dial
from .exceptions import ConnectError, LookupError, PulsarException, Timeout
from .log import Log
from .lookup import Lookup
from .options import ClientOptions
from .service_info import ServiceInfo
from .service_url import ServiceUrl
from .tls import dial_for
from .topic_name import TopicName

if TYPE_CHECKING:
    from .http_lookup import HttpLookup

__all__ = ["Cluster", "Service"]

_MOST_PARTITIONS = 1_000_000


@dataclass(frozen=True)
class Service:
    """A `ServiceInfo` whose parts have been checked and put together; made on any thread."""

    info: ServiceInfo
    url: ServiceUrl
    options: ClientOptions
    dial: Dial

    @classmethod
    def of(cls, info: ServiceInfo, options: ClientOptions) -> "Service":
        """With the credentials and the trust of `info`. Raises `ValueError` for what cannot be used."""
        options = replace(
            options,
            authentication=info.authentication,
            tls_trust_certs_file_path=info.tls_trust_certs_file_path,
        )
        url = ServiceUrl.parse(info.service_url, use_tls=options.use_tls)
        return cls(info, url, options, dial_for(url, options))


class Cluster:
    """Owned by the event loop, and used until it is closed: for another `Service` there is another one.

    `on_reached(address)` hears of each new connection.
    """

    def __init__(
        self,
        service: Service,
        clock: Clock,
        logger: Log,
        on_reached: Callable[[BrokerAddress], None] = lambda address: None,
    ) -> None:
        self.service = service
        self.pool = ConnectionPool(service.dial, clock, service.options, logger, on_reached)
        self._lookup_slots = asyncio.Semaphore(service.options.concurrent_lookup_requests)
        self._clock = clock
        self.lookup = self._http_lookup() if service.url.is_http else self.lookup_at(service.url)

    def _http_lookup(self) -> "HttpLookup":
        # Here, since most clients never need the HTTP parser: 20 ms, 5 MB.
        from .http_lookup import HttpLookup

        return HttpLookup(self.service.url, self.pool.authenticator, self._clock, self.service.options)

    async def broker_of(self, topic: TopicName, migrated_to: Lookup | None) -> BrokerAddress:
        """The broker that serves a topic. One attempt; raises what stopped it, or why the cluster was closed."""
        async with self._lookup_slots:
            return await self.pool.unless_closed((migrated_to or self.lookup).broker_of(topic))

    async def partitions_of(self, topic: TopicName) -> int:
        """How many partitions a topic has, 0 for one without. One attempt; raises as `broker_of`."""
        async with self._lookup_slots:
            count = await self.pool.unless_closed(self.lookup.partitions_of(topic))
        if count > _MOST_PARTITIONS:
            raise LookupError(
                f"{topic.full} has {count} partitions by {self.lookup}, more than any cluster can"
            )
        return count

    def lookup_at(self, url: ServiceUrl) -> Lookup:
        """Whom to ask in a cluster where topics of this one have migrated to; the connections are kept here."""
        return Lookup(url, self.pool, self._clock, self.service.options)

    async def unreachable(self) -> PulsarException | None:
        """What keeps every host from being reached now, on a connection of its own; None if one is there.

        A broker that refuses the client's credentials is there.
        """
        timeout = self.service.options.connection_timeout_ms / 1000
        try:
            await within(timeout, self.lookup.probe())
        except (ConnectError, Timeout) as error:
            return error
        except TimeIsUp:
            return Timeout(f"{self.lookup} did not answer within {timeout:g} s")
        except PulsarException:
            return None
        return None

    def close(self, error: PulsarException) -> None:
        """Close all connections: whoever uses them or waits for one gets the error."""
        self.pool.close(error)
