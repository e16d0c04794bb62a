"""The enumerations among the arguments of clients and producers, with the names and values of the official client."""

from enum import IntEnum

__all__ = [
    "BatchingType",
    "CompressionType",
    "HashingScheme",
    "NamedInt",
    "PartitionsRoutingMode",
    "ProducerAccessMode",
    "ProxyProtocol",
]


class NamedInt(IntEnum):
    """An integer that shows its name, as the official client's enumerations do: `Result.Ok`, not `0`."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class CompressionType(NamedInt):
    """How payloads are compressed."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(NamedInt):
    """How the partition of a message without a key is chosen."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class HashingScheme(NamedInt):
    """How the partition of a key is found; producers of one topic have to agree. The core knows these numbers."""

    Murmur3_32Hash = 0
    BoostHash = 1
    JavaStringHash = 2


class BatchingType(NamedInt):
    """Which messages share a batch: any (`Default`), or those of one key (`KeyBased`)."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(NamedInt):
    """Whether a producer shares its topic with others."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3


class ProxyProtocol(NamedInt):
    """How a proxy learns which broker is meant (as in the official clients of Java and C++)."""

    SNI = 0
