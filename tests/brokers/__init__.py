"""Real brokers for the tests, and what reads back from them."""

import os
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """Skip what needs a broker that cannot run here; fail it where every broker is required."""
    if os.environ.get("PULSAR_FAST_REQUIRE_BROKER") == "1":
        pytest.fail(f"{reason} (PULSAR_FAST_REQUIRE_BROKER=1)", pytrace=False)
    pytest.skip(reason)
