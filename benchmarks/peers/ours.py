"""The peer that measures pulsar_fast. See measure.py for what it takes and prints.

Over TLS it also says how much of that CPU is the encryption's own.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from measure import measure

import pulsar_fast

_ENOUGH_SECONDS = 1.0  # of encrypting alone

pieces: Counter[int] = Counter()
"""How many pieces of so many bytes the client has encrypted."""


class Counting(ssl.SSLObject):
    """Counts what goes through it."""

    def write(self, data: Any) -> int:
        pieces[len(data)] += 1
        return super().write(data)


def context(kind: type[ssl.SSLObject] = ssl.SSLObject) -> ssl.SSLContext:
    """Trusts everybody: the stand-in makes its certificate for itself."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.sslobject_class = kind
    return made


def connect(url: str) -> pulsar_fast.Client:
    over_tls = url.startswith("pulsar+ssl:")
    return pulsar_fast.Client(url, ssl_context=context(Counting) if over_tls else None)


def encryption_alone(url: str) -> dict[str, float]:
    """The CPU of encrypting the same bytes in the same pieces, on a session of the same kind, and sending nothing."""
    if not url.startswith("pulsar+ssl:"):
        return {}
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context().wrap_bio(incoming, outgoing)
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as standin:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                standin.sendall(outgoing.read())
                incoming.write(standin.recv(65536))
        standin.sendall(outgoing.read())
    sent = dict(pieces)
    data = b"x" * max(sent)
    total = sum(size * count for size, count in sent.items())
    done, cpu, end = 0, time.process_time(), time.perf_counter() + _ENOUGH_SECONDS
    while time.perf_counter() < end:
        for size, count in sent.items():
            for _ in range(max(round(count * 1e8 / total), 1)):
                done += tls.write(data[:size])
                outgoing.read()
    return {"ssl_seconds": (time.process_time() - cpu) * total / done}


if __name__ == "__main__":
    measure(connect, ["callback", "nocallback", "send_many"], begin=pieces.clear, after=encryption_alone)
