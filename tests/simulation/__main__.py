"""``python -m tests.simulation``: lives for as long as one likes, or one seed again."""

import argparse
import random
import sys
import time

from tests.simulation.life import Broken
from tests.simulation.runner import live, smallest_failure


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1, help="how long to go on (default: 1)")
    parser.add_argument("--first-seed", type=int, help="where to begin (default: by chance)")
    parser.add_argument("--seed", type=int, help="cut the failure of this seed down, and nothing else")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        print(smallest_failure(arguments.seed))
        return 1
    first = random.randrange(1_000_000_000) if arguments.first_seed is None else arguments.first_seed
    started = time.monotonic()
    try:
        coverage = live(first_seed=first, seconds=arguments.minutes * 60)
    except Broken as error:
        print(f"after {time.monotonic() - started:.1f} s: {error}")
        return 1
    print(coverage)
    return 0


if __name__ == "__main__":
    sys.exit(main())
