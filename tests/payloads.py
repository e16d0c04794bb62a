"""Messages that say whose they are and which one, and show if a byte of them was changed."""

import struct
import zlib

_HEAD = struct.Struct(">II")
_LEAST = _HEAD.size + 4


def make(owner: int, number: int, size: int = 0) -> bytes:
    """The message with that number of an owner (a producer, a thread), with `size` bytes of its own."""
    body = _HEAD.pack(owner, number) + bytes([(owner * 31 + number) % 251]) * size
    return body + zlib.crc32(body).to_bytes(4, "big")


def read(payload: bytes) -> tuple[int, int]:
    """Owner and number. Raises `AssertionError` if it is not what was made."""
    assert len(payload) >= _LEAST, f"a payload of {len(payload)} bytes that nobody made"
    assert zlib.crc32(payload[:-4]) == int.from_bytes(payload[-4:], "big"), "a payload was changed"
    owner, number = _HEAD.unpack_from(payload)
    return owner, number
