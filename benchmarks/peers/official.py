"""The peer that measures the official client. See measure.py for what it takes and prints.

It has only one shape: that client asks for a callback and sends one message a call.
"""

from __future__ import annotations

from typing import Any

import pulsar  # type: ignore[import-untyped]
from measure import measure


def connect(url: str) -> Any:
    """A client that logs errors only: its usual log goes to standard output."""
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


if __name__ == "__main__":
    measure(connect, shapes=["callback"])
