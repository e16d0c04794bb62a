"""What this process holds (Linux)."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@dataclass(frozen=True)
class Holdings:
    """At one moment."""

    resident_mb: float
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> "Holdings":
        return cls(resident_mb(), len(os.listdir("/proc/self/fd")), threading.active_count())
