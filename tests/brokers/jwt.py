"""Tokens as a broker with a secret key takes them."""

import base64
import hashlib
import hmac
import json
import time


def token_of(key: bytes, role: str, seconds: float | None = None) -> str:
    """A JWT (HS256) that is good for so many seconds, for ever if None."""
    claims: dict[str, object] = {"sub": role}
    if seconds is not None:
        claims["exp"] = int(time.time() + seconds)
    signed = f"{_base64(_json({'alg': 'HS256'}))}.{_base64(_json(claims))}"
    return f"{signed}.{_base64(hmac.digest(key, signed.encode(), hashlib.sha256))}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
