"""An Apache Pulsar producer whose hot path is compiled. `import pulsar_fast as pulsar` serves for producing."""

from typing import Any

from . import exceptions, schema
from ._core import MessageId, SendHandle
from ._version import __version__
from .authentication import (
    Authentication,
    AuthenticationBasic,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from .client import Client
from .enums import (
    BatchingType,
    CompressionType,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerAccessMode,
    ProxyProtocol,
)
from .exceptions import *  # noqa: F403
from .producer import Producer
from .result import Result
from .service_info import AutoClusterFailover, ServiceInfo, ServiceInfoProvider
from .stats import ProducerStats

__all__ = [
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
    "AutoClusterFailover",
    "BatchingType",
    "Client",
    "CompressionType",
    "HashingScheme",
    "MessageId",
    "PartitionsRoutingMode",
    "Producer",
    "ProducerAccessMode",
    "ProducerStats",
    "ProxyProtocol",
    "Result",
    "SendHandle",
    "ServiceInfo",
    "ServiceInfoProvider",
    "__version__",
    "schema",
    *exceptions.__all__,
]

_ELSEWHERE = {
    "AuthenticationAthenz": "subclass pulsar_fast.Authentication",
    **dict.fromkeys(
        ("Consumer", "ConsumerType", "InitialPosition", "Message", "Reader", "TableView"),
        "consuming stays with the official client (import pulsar)",
    ),
    "CryptoKeyReader": "it is not supported yet",
    **dict.fromkeys(
        ("ConsoleLogger", "FileLogger", "LoggerLevel"), "give a logging.Logger as Client(logger=...)"
    ),
}


def __getattr__(name: str) -> Any:
    reason = _ELSEWHERE.get(name)
    detail = f": {reason}" if reason else ""
    raise AttributeError(f"module 'pulsar_fast' has no attribute {name!r}{detail}")
