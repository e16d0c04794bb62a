"""An Apache Pulsar producer whose hot path is compiled. `import pulsar_fast as pulsar` serves for producing."""

from . import exceptions
from ._core import MessageId, SendHandle
from ._version import __version__
from .client import Client
from .enums import BatchingType, CompressionType, PartitionsRoutingMode, ProducerAccessMode
from .exceptions import *  # noqa: F403
from .producer import Producer
from .result import Result
from .stats import ProducerStats

__all__ = [
    "BatchingType",
    "Client",
    "CompressionType",
    "MessageId",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "ProducerStats",
    "Result",
    "SendHandle",
    "__version__",
    *exceptions.__all__,
]
