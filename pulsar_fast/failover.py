"""Going to another cluster when the one in use does not answer, and coming back."""

from collections.abc import Callable, Sequence

from .cluster import Cluster, Service
from .exceptions import AlreadyClosed
from .log import Log
from .service_info import AutoClusterFailover

__all__ = ["Failover"]


class Failover:
    """Checks the clusters of an `AutoClusterFailover` and says which one to use. Owned by the event loop."""

    def __init__(
        self,
        rules: AutoClusterFailover,
        services: Sequence[Service],
        observe: Callable[[Service], Cluster],
        use: Callable[[Service], None],
        logger: Log,
    ) -> None:
        """`services`: the primary one, which is in use now, and the others. `observe` makes a cluster to be asked."""
        self._rules = rules
        self._services = services
        self._clusters = [observe(service) for service in services]
        self._use = use
        self._logger = logger
        self._current = 0
        self._failures = 0  # of the current one, in a row
        self._successes = 0  # of the primary one while it is not the current one, in a row

    def close(self) -> None:
        for cluster in self._clusters:
            cluster.close(AlreadyClosed("the client is closed"))

    async def check(self) -> None:
        """Look at the cluster in use, and at others where that may lead to going there; done regularly."""
        if await self._answers(self._current):
            self._failures = 0
            if self._current != 0:
                await self._check_primary()
            return
        self._failures += 1
        if self._failures >= self._rules.failover_threshold:
            await self._leave_current()

    async def _check_primary(self) -> None:
        self._successes = self._successes + 1 if await self._answers(0) else 0
        if self._successes >= self._rules.switch_back_threshold:
            self._go_to(0)

    async def _leave_current(self) -> None:
        for index in range(len(self._services)):
            if index != self._current and await self._answers(index):
                self._go_to(index)
                return

    async def _answers(self, index: int) -> bool:
        error = await self._clusters[index].unreachable()
        if error is not None:
            self._logger.info("the cluster at %s: %s", self._services[index].info.service_url, error.message)
        return error is None

    def _go_to(self, index: int) -> None:
        self._current = index
        self._failures = self._successes = 0
        self._use(self._services[index])
