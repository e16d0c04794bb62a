"""How bodies are compressed: by well-kept libraries, of which only those that are used need be installed.

All of them give up the interpreter's lock while they compress.
"""

import functools
import importlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .enums import CompressionType
from .exceptions import PulsarException, UnknownError

__all__ = ["Codec", "codec_for"]

_LEVELS = {CompressionType.ZLib: (1, 9, 6), CompressionType.ZSTD: (-7, 22, 3)}
"""The lowest and highest level, and the default."""


@dataclass(frozen=True)
class Codec:
    """What a producer compresses with; to be used by one thread at a time."""

    type: CompressionType
    compress: Callable[[memoryview], Any]
    """Makes bytes (or a buffer) of the bytes that it is given, which it keeps no hold of."""

    def failure(self, error: Exception) -> PulsarException:
        """What the messages of a frame get that could not be compressed."""
        failure = UnknownError(f"{self.type.name} compression failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def codec_for(kind: CompressionType, level: int | None) -> Codec | None:
    """A new codec, or None for `CompressionType.NONE`.

    Raises `ValueError` for a level that the kind does not have, `ImportError` when its library is not installed.
    """
    if level is not None and kind not in _LEVELS:
        raise ValueError(f"compression_level is for ZLib and ZSTD, not for {kind.name}")
    if kind is CompressionType.NONE:
        return None
    return Codec(kind, _FUNCTIONS[kind](_checked(kind, level)))


def _checked(kind: CompressionType, level: int | None) -> int:
    low, high, default = _LEVELS.get(kind, (0, 0, 0))
    if level is None:
        return default
    if not low <= level <= high:
        raise ValueError(f"compression_level must be from {low} to {high} for {kind.name}, not {level}")
    return level


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ImportError(
            f"{extra} compression needs {package}: pip install 'pulsar-fast[{extra}]'", name=package
        ) from error


# Each takes the level and gives a function without a frame of Python's own: nothing else runs on the loop's thread
# while a write is laid out.


def _lz4(level: int) -> Callable[[memoryview], Any]:
    return functools.partial(_library("lz4.block", "lz4").compress, store_size=False)


def _zlib(level: int) -> Callable[[memoryview], Any]:
    return functools.partial(zlib.compress, level=level)


def _zstd(level: int) -> Callable[[memoryview], Any]:
    compress: Callable[[memoryview], Any] = _library("zstandard", "zstd").ZstdCompressor(level=level).compress
    return compress


def _snappy(level: int) -> Callable[[memoryview], Any]:
    compress: Callable[[memoryview], Any] = _library("cramjam", "snappy").snappy.compress_raw
    return compress


_FUNCTIONS = {
    CompressionType.LZ4: _lz4,
    CompressionType.ZLib: _zlib,
    CompressionType.ZSTD: _zstd,
    CompressionType.SNAPPY: _snappy,
}
