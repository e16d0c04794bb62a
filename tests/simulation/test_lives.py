"""A million events in the lives of whole clients: look-up, reconnecting, timers and all, in virtual time."""

import os

import pytest

from tests.simulation.coverage import Coverage
from tests.simulation.identity import contexts
from tests.simulation.life import SimulatedLife
from tests.simulation.runner import failure_of, live
from tests.simulation.script import cut_down, write
from tests.simulation.sockets import SocketLife, ThreadedLife, live_on_sockets

STEPS = int(os.environ.get("PULSAR_FAST_STEPS", 1_000_000))
"""Events to deliver; fewer where a build is slow, and then without a claim about what they cover."""


@pytest.mark.timeout(900)
def test_no_life_breaks_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    coverage = live(STEPS)
    with capsys.disabled():
        print(f"\n{coverage}")
    assert coverage.steps >= STEPS
    if STEPS >= 1_000_000:
        assert coverage.missing(100) == []
        assert coverage.counted["events over TLS"] >= 50_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [SocketLife, ThreadedLife])
def test_no_life_over_real_sockets_breaks_a_rule(kind: type[SocketLife]) -> None:
    """An asyncio application, and one of threads; real time, real connections."""
    steps = max(STEPS // 180, 500)
    assert live_on_sockets(kind, steps).steps >= steps


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_the_same_seed_is_the_same_life(tls: bool) -> None:
    """Over TLS too, whatever keys and random numbers a handshake has."""
    scripts = [script for script in map(write, range(60)) if script.settings["tls"] is tls]
    first, second = Coverage(), Coverage()
    for coverage in (first, second):
        contexts.cache_clear()
        for script in scripts[:10]:
            SimulatedLife(script, coverage).run()
    assert (first.seen, first.counted, first.steps) == (second.seen, second.counted, second.steps)


def test_a_script_is_cut_down_to_what_a_failure_needs() -> None:
    script = write(3)
    needed = {script.acts[5], script.acts[20]}
    assert set(cut_down(script, lambda shorter: needed <= set(shorter.acts)).acts) == needed


def test_a_broken_rule_shows_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.checker.Checker.stored", lambda checker, frame, number: None)
    broken = next(failure for seed in range(50) if (failure := failure_of(write(seed))))
    assert "was acknowledged and is not stored" in broken
    assert "seed" in broken
    assert "create(topic=" in broken
