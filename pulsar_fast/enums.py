"""The enumerations of `create_producer()`, with the names and values of the official client."""

from enum import IntEnum

__all__ = ["BatchingType", "CompressionType", "PartitionsRoutingMode", "ProducerAccessMode"]


class CompressionType(IntEnum):
    """How payloads are compressed."""

    NONE = 0
    LZ4 = 1
    ZLib = 2
    ZSTD = 3
    SNAPPY = 4


class PartitionsRoutingMode(IntEnum):
    """How the partition of a message without a key is chosen."""

    UseSinglePartition = 0
    RoundRobinDistribution = 1
    CustomPartition = 2


class BatchingType(IntEnum):
    """Which messages share a batch: any (`Default`), or those of one key (`KeyBased`)."""

    Default = 0
    KeyBased = 1


class ProducerAccessMode(IntEnum):
    """Whether a producer shares its topic with others."""

    Shared = 0
    Exclusive = 1
    WaitForExclusive = 2
    ExclusiveWithFencing = 3
