"""Many lives, seed after seed, on all cores; a failure is cut down to the script that it needs."""

import concurrent.futures
import concurrent.futures.process
import itertools
import math
import multiprocessing
import os
import re
import time
from collections.abc import Iterator

from tests.simulation.coverage import Coverage
from tests.simulation.life import Broken, SimulatedLife
from tests.simulation.script import Script, cut_down, write

_CHUNK = 20  # lives in one piece of work


def failure_of(script: Script) -> str | None:
    """What goes wrong in a life, None if nothing does."""
    try:
        SimulatedLife(script, Coverage()).run()
    except Broken as error:
        return str(error)
    return None


def _kind(failure: str) -> str:
    """The first rule broken, without its numbers."""
    return re.sub(r"[\d.]+", "N", failure.splitlines()[0])[:40]


def smallest_failure(seed: int) -> str:
    """The failure of a seed, with the shortest script found that breaks the same rule."""
    failure = failure_of(write(seed))
    if failure is None:
        return f"seed {seed} breaks no rule now: if it did before, it is not deterministic"
    kind = _kind(failure)

    def fails(script: Script) -> bool:
        failure = failure_of(script)
        return failure is not None and _kind(failure) == kind

    return (
        failure_of(cut_down(write(seed), fails)) or f"seed {seed} fails now and then: it is not deterministic"
    )


def _live(first_seed: int) -> tuple[Coverage, int | None]:
    """A chunk of lives: what they covered, and the first seed that fails."""
    coverage = Coverage()
    for seed in range(first_seed, first_seed + _CHUNK):
        try:
            SimulatedLife(write(seed), coverage).run()
        except Broken:
            return coverage, seed
    return coverage, None


def live(steps: float = math.inf, first_seed: int = 0, seconds: float = math.inf) -> Coverage:
    """Lives until so many events have been delivered, or the time is up.

    Raises `Broken` with the smallest failure.
    """
    total = Coverage()
    ends = time.monotonic() + seconds
    with concurrent.futures.ProcessPoolExecutor(
        os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for coverage, failed in _in_order(pool, first_seed):
            total.add(coverage)
            if failed is not None:
                pool.shutdown(cancel_futures=True)
                raise Broken(smallest_failure(failed))
            if total.steps >= steps or time.monotonic() > ends:
                pool.shutdown(cancel_futures=True)
                return total
    raise AssertionError("unreachable")


def _in_order(pool: concurrent.futures.Executor, first_seed: int) -> Iterator[tuple[Coverage, int | None]]:
    """Chunks of lives in the order of their seeds, always some ahead."""
    seeds = itertools.count(first_seed, _CHUNK)
    ahead = [pool.submit(_live, next(seeds)) for _ in range(2 * (os.cpu_count() or 1))]
    while True:
        ahead.append(pool.submit(_live, next(seeds)))
        try:
            yield ahead.pop(0).result()
        except concurrent.futures.process.BrokenProcessPool:
            raise Broken(f"the process died in lives from seed {first_seed} on") from None
        first_seed += _CHUNK
