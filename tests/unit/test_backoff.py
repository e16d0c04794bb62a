"""When attempts to reconnect are made, on a clock that stands still otherwise."""

import itertools
import random
from collections.abc import Iterator

import pytest

from pulsar_fast.backoff import Backoff


@pytest.fixture(autouse=True, params=range(20))
def _seed(request: pytest.FixtureRequest) -> Iterator[None]:
    state = random.getstate()
    random.seed(request.param)
    yield
    random.setstate(state)


def attempts(backoff: Backoff, seconds: float) -> list[float]:
    """The moments of all attempts, from the loss of the connection to the first one after so long."""
    moments = [0.0]
    while moments[-1] <= seconds:
        moments.append(moments[-1] + backoff.next())
    return moments


def test_a_broker_is_asked_again_after_a_fifth_of_its_absence() -> None:
    for before, after in itertools.pairwise(attempts(Backoff(100, 10_000), 1000)):
        assert 0.08 <= after - before <= max(0.1, before / 5 + 1e-9)
        assert after - before <= 10
        assert before < 50 or after - before >= 8


def test_a_broker_that_stays_away_is_asked_seldom() -> None:
    assert len(attempts(Backoff(100, 10_000), 60)) < 45
    assert len(attempts(Backoff(100, 100), 60)) < 800


def test_starting_over() -> None:
    backoff = Backoff(100, 10_000)
    attempts(backoff, 100)
    assert backoff.next() >= 8
    backoff.reset()
    assert backoff.next() <= 0.1
