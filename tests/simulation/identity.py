"""Who the brokers and the client of a life are."""

import asyncio
import functools
import ssl
import tempfile
from collections import deque
from pathlib import Path

from pulsar_fast import Authentication
from pulsar_fast.exceptions import AuthenticationError
from tests.certificates import Authority
from tests.simulation.coverage import Coverage

WHO = b"somebody"
FORGED = b"forged"


@functools.cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of clients, and of brokers at all hosts of lives.

    What goes over a line in a handshake has the same size each time (signatures, tickets), so that a seed is the
    same life over TLS, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        issuer = Authority(Path(folder), even=True)
        broker = issuer.issue("brokers", ("broker-a", "broker-b", "127.0.0.1")).server()
        broker.options |= ssl.OP_NO_TICKET  # tickets are then ids, not state of which the size varies
        return ssl.create_default_context(cafile=issuer.path), broker


def proof_of(challenge: bytes) -> bytes:
    return b"proof of " + challenge


class Proof(Authentication):
    """Answers as it should, but for the faults that are planned: `slow N` (ms), `fails` or `wrong`, one for a call."""

    name = "proof"

    def __init__(self, coverage: Coverage) -> None:
        self.faults: deque[str] = deque()
        self._coverage = coverage

    async def initial_data(self) -> bytes:
        return await self._supply(WHO)

    async def answer(self, challenge: bytes) -> bytes:
        return await self._supply(proof_of(challenge))

    async def _supply(self, right: bytes) -> bytes:
        fault, _, ms = (self.faults.popleft() if self.faults else "").partition(" ")
        if fault == "slow":
            await asyncio.sleep(int(ms) / 1000)
        elif fault == "fails":
            self._coverage.count("credentials that fail")
            raise AuthenticationError("as scripted")
        return FORGED if fault == "wrong" else right
