"""Which host of the service URL to ask first."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from .bounds import TimeIsUp, within
from .dialer import host_and_port
from .exceptions import ConnectError, PulsarException, Timeout

__all__ = ["Host", "Hosts"]

Host = tuple[str, int]

_FIRST_QUARANTINE = 30.0  # seconds, of a host that fails; doubled each time that it fails after it
_LONGEST_QUARANTINE = 600.0
_NS = 1_000_000_000

_T = TypeVar("_T")


class Hosts:
    """The hosts of a client, in the order to try them. Owned by the event loop.

    The one that answered last stays the first. One that failed goes to the end for a while, so that it costs its
    timeout seldom, and is not forgotten either: with nothing better it is tried all the same.
    """

    def __init__(self, hosts: Sequence[Host], now_ns: Callable[[], int], timeout: float) -> None:
        """`timeout`: seconds that a question may take."""
        self._hosts = hosts
        self._now_ns = now_ns
        # Seconds for one host: of several a mute one must leave time for the next one.
        self.patience = timeout / min(2, len(hosts))
        self._first = 0
        self._quarantines: dict[Host, tuple[float, float]] = {}  # when each ends, and how long it lasts

    async def first_to_answer(self, ask: Callable[[Host], Awaitable[_T]]) -> tuple[Host, _T]:
        """Ask one after the other until one answers; raises its refusal, or the last failure if none answers."""
        failure: PulsarException | None = None
        for host in self.in_turn():
            try:
                answer = await within(self.patience, ask(host))
            except (ConnectError, Timeout) as error:
                failure = error
            except TimeIsUp:
                failure = Timeout(f"{host_and_port(host)} did not answer within {self.patience:g} s")
            except PulsarException:
                self.answered(host)
                raise
            else:
                self.answered(host)
                return host, answer
            self.failed(host)
        assert failure is not None
        raise failure

    def in_turn(self) -> list[Host]:
        """All of them, those in quarantine last, by the ends of their quarantines."""
        now = self._now_ns() / _NS
        in_order = [*self._hosts[self._first :], *self._hosts[: self._first]]
        return sorted(in_order, key=lambda host: self._ends(host) if self._ends(host) > now else 0)

    def failed(self, host: Host) -> None:
        """It could not be reached, or gave no answer."""
        now = self._now_ns() / _NS
        ends, lasted = self._quarantines.get(host, (0.0, 0.0))
        if ends <= now:
            lasts = min(max(_FIRST_QUARANTINE, 2 * lasted), _LONGEST_QUARANTINE)
            self._quarantines[host] = now + lasts, lasts

    def answered(self, host: Host) -> None:
        """It is good, whatever it has answered."""
        self._first = self._hosts.index(host)
        self._quarantines.pop(host, None)

    def _ends(self, host: Host) -> float:
        return self._quarantines.get(host, (0.0, 0.0))[0]
