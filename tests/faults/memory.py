"""Damage to bytes that only the core holds (Linux)."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_WRITABLE = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ \S+ *(\S*)$", re.MULTILINE)

_LARGEST = 256 << 20  # bytes of a mapping that may hold ours; sanitizers keep books in larger ones


def damage(text: bytes) -> None:
    """Change the first byte of `text` wherever this process holds it, in the argument too."""
    places = list(_places(text))  # all of them first: the argument is one
    size, digest, changed = len(text), sha256(text).digest(), bytes([text[0] ^ 0xFF])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for address in places:
            with suppress(OSError):  # gone meanwhile, as copies are that the search has made itself
                if sha256(os.pread(memory.fileno(), size, address)).digest() == digest:
                    os.pwrite(memory.fileno(), changed, address)


def _places(text: bytes) -> Iterator[int]:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for match in _WRITABLE.finditer(Path("/proc/self/maps").read_text()):
            start, end = (int(match[number], 16) for number in (1, 2))
            if match[3].startswith("[stack") or end - start > _LARGEST:
                continue
            try:
                memory.seek(start)
                region = memory.read(end - start)
            except OSError:  # gone meanwhile
                continue
            at = region.find(text)
            while at >= 0:
                yield start + at
                at = region.find(text, at + 1)
