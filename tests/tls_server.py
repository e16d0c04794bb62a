"""The server's side of TLS over memory: somebody else carries the ciphertext."""

import contextlib
import ssl

_SIZE = 64 * 1024


class TlsServer:
    """One connection. What is to be sent before hands are shaken goes out behind the handshake."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._early = b""
        self._is_ready = False

    def decrypt(self, ciphertext: bytes) -> bytes:
        """What is inside, as far as it has come. Raises `ssl.SSLError`."""
        self._incoming.write(ciphertext)
        inside = bytearray()
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            if not self._is_ready:
                self._tls.do_handshake()
                self._is_ready = True
                self.encrypt(self._early)
            while received := self._tls.read(_SIZE):
                inside += received
        return bytes(inside)

    def encrypt(self, data: bytes) -> None:
        if not self._is_ready:
            self._early += data
        elif data:
            self._tls.write(data)

    def say_goodbye(self) -> None:
        with contextlib.suppress(ssl.SSLError):
            self._tls.unwrap()

    def take(self) -> bytes:
        """The ciphertext that has to go to the client."""
        return self._outgoing.read()
