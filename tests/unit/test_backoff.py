"""How long a client waits between its attempts."""

import random

import pytest

from pulsar_fast.backoff import Backoff


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """No jitter: each delay is as long as it can be."""
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)


def delays(backoff: Backoff, count: int) -> list[int]:
    return [round(1000 * backoff.next()) for _ in range(count)]


@pytest.mark.usefixtures("longest")
class TestDelays:
    def test_the_defaults(self) -> None:
        backoff = Backoff(100, 10_000)
        assert delays(backoff, 11) == [100, *[200] * 10]
        assert delays(backoff, 7) == [400, 800, 1600, 3200, 6400, 10_000, 10_000]

    def test_starting_over(self) -> None:
        backoff = Backoff(100, 10_000)
        delays(backoff, 15)
        backoff.reset()
        assert delays(backoff, 12) == [100, *[200] * 10, 400]

    @pytest.mark.parametrize("initial", [1, 3, 150, 200])
    def test_short_outages_are_soon_noticed_to_be_over(self, initial: int) -> None:
        waited = 0
        backoff = Backoff(initial, 60_000)
        while waited < 2000:
            (delay,) = delays(backoff, 1)
            assert delay <= 200
            waited += delay

    def test_never_below_the_initial_delay_or_above_the_bound(self) -> None:
        assert delays(Backoff(500, 10_000), 5) == [500, 500, 500, 500, 1000]
        assert delays(Backoff(5000, 10_000), 3) == [5000, 10_000, 10_000]
        assert delays(Backoff(1, 50), 8) == [1, 2, 4, 8, 16, 32, 50, 50]
        assert delays(Backoff(7, 7), 3) == [7, 7, 7]


def test_jitter_only_shortens() -> None:
    backoff = Backoff(100, 100)
    seen = [backoff.next() for _ in range(1000)]
    assert 0.08 <= min(seen) < 0.085
    assert 0.095 < max(seen) <= 0.1
