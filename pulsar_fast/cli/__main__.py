"""``python -m pulsar_fast.cli`` is the same as ``pulsar-fast``."""

from pulsar_fast.cli import main

if __name__ == "__main__":  # a spawned child imports this module too
    main()
