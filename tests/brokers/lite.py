"""The embedded broker, where there is one."""

from collections.abc import Iterator
from contextlib import contextmanager

from pulsar_fast.embedded import EmbeddedBroker

from . import unavailable


@contextmanager
def running_lite() -> Iterator[EmbeddedBroker]:
    """A running pulsar-lite; the test is skipped, or fails where brokers are required, if there is none."""
    broker = EmbeddedBroker()
    try:
        broker.start()
    except ImportError as error:
        unavailable(str(error))
    try:
        yield broker
    finally:
        broker.stop()
