"""Who the client is: what a broker is told when a connection opens, and whenever it asks again."""

import base64
import inspect
import json
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlencode, urlsplit

from .exceptions import AuthenticationError

__all__ = [
    "Authentication",
    "AuthenticationBasic",
    "AuthenticationOauth2",
    "AuthenticationTLS",
    "AuthenticationToken",
]

Data: TypeAlias = "bytes | Awaitable[bytes]"
Headers: TypeAlias = "Mapping[str, str] | Awaitable[Mapping[str, str]]"

_T = TypeVar("_T")


class Authentication:
    """A way to say who the client is. Subclass it for methods that are not here, such as Athenz or SASL.

    `name` is what brokers call the method. `initial_data` is asked each time a connection opens, `answer` each
    time a broker challenges an open one, `http_headers` at each request of a look-up over HTTP. They may be plain
    functions, which run on a daemon thread, one at a time for a client, and may block; or coroutine functions,
    which run on the client's event loop and must not. They must return within the operation timeout (half of it
    for a look-up over HTTP that has several hosts to ask). What goes wrong ends the attempt to connect, or the
    connection, with an `AuthenticationError`; it has the text of one that they raise, while of other exceptions
    it tells only type and place: their texts may hold secrets.

    >>> class Athenz(Authentication):
    ...     name = "athenz"
    ...     def initial_data(self) -> bytes:
    ...         return fetch_role_token()
    """

    name: str

    def for_host(self, host: str) -> "Authentication":
        """Who speaks on a new connection to that host (a proxy's, if there is one). Runs on the event loop.

        A method that keeps state between the steps of one conversation, as SASL does, or that needs the host,
        as Kerberos does, returns a new object here; others are the same for all connections.
        """
        return self

    def initial_data(self) -> Data:
        """The data of a connection's first command; `b""` for none."""
        raise NotImplementedError(f"{type(self).__name__} must define initial_data()")

    def answer(self, challenge: bytes) -> Data:
        """The data that answers a challenge: fresh credentials, where it is only `b"PulsarAuthRefresh"`."""
        return self.initial_data()

    def http_headers(self) -> Headers:
        """The headers that say it on look-ups over `http://` and `https://`; none, unless a method defines them.

        str to str, printable ASCII. They go to the hosts of the service URL, and along with redirects to other
        hosts as long as the scheme is that of the service URL.
        """
        return {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class AuthenticationTLS(Authentication):
    """The client's certificate says who it is; paths of PEM files, str, the key not encrypted.

    They are read again for each connection, in place of `tls_certificate_file_path` and `tls_private_key_file_path`.
    """

    name = "tls"

    def __init__(self, certificate_path: str, private_key_path: str) -> None:
        self.certificate_path = _text("certificate_path", certificate_path)
        self.private_key_path = _text("private_key_path", private_key_path)

    async def initial_data(self) -> bytes:
        return b""


class AuthenticationToken(Authentication):
    """A token, usually a JWT.

    token: the token itself; `file:///path` of a file that holds it; or a function without arguments, plain or a
    coroutine function, that returns it as a str, under the rules of `Authentication`. File and function are asked
    anew for each connection and challenge.
    """

    name = "token"

    def __init__(self, token: "str | Callable[[], str | Awaitable[str]]") -> None:
        if callable(token):
            self._supply = token
        elif _text("token", token, "a str, or a callable that returns one").startswith("file:"):
            path = _path(token)
            self._supply = lambda: _read(path, path).strip()
        else:
            self._supply = lambda: token

    def initial_data(self) -> Data:
        return self._supplied(_token)

    def http_headers(self) -> Headers:
        return self._supplied(_bearer)

    def _supplied(self, form: Callable[[object], _T]) -> "_T | Awaitable[_T]":
        if inspect.iscoroutinefunction(self._supply):
            return _later(form, self._supply)
        return form(self._supply())


class AuthenticationBasic(Authentication):
    """User name and password.

    method: how the broker calls it. auth_params_string: all three as a JSON object, in place of the arguments.
    """

    def __init__(
        self,
        username: str | None = None,
        password: str | None = None,
        method: str = "basic",
        auth_params_string: str | None = None,
    ) -> None:
        if auth_params_string is not None:
            given = _parameters(auth_params_string, ("username", "password", "method"))
            username, password = given.get("username"), given.get("password")
            method = given.get("method", "basic")
        if ":" in _text("username", username):
            raise ValueError("username must not hold a colon, which ends it")
        self.name = _text("method", method)
        self._data = f"{username}:{_text('password', password)}".encode()

    async def initial_data(self) -> bytes:
        return self._data

    async def http_headers(self) -> Mapping[str, str]:
        return _authorization(self.name, f"Basic {base64.b64encode(self._data).decode()}")


class AuthenticationOauth2(Authentication):
    """Tokens of an OAuth 2.0 server, by client credentials; needs `pip install 'pulsar-fast[oauth2]'`.

    auth_params_string: a JSON object, or a mapping, of str to str:

    - `issuer_url`: where `/.well-known/openid-configuration` names the server's token endpoint;
    - `client_id` and `client_secret`, or `private_key`: a JSON file that holds these two, as a path, `file:///path`
      or `data:application/json;base64,...`; a file is read anew for each token;
    - `audience` and `scope`: optional;
    - `type`: optional, `client_credentials`.

    A token serves all connections until nine tenths of its life are over; a challenge always gets a new one.
    Raises `ImportError` if urllib3 is missing. Any number of clients may share an object.
    """

    name = "token"

    def __init__(self, auth_params_string: "str | Mapping[str, str]") -> None:
        self._urllib3 = _import_urllib3()
        known = ("issuer_url", "client_id", "client_secret", "private_key", "audience", "scope", "type")
        given = _parameters(auth_params_string, known)
        if given.get("type", "client_credentials") != "client_credentials":
            raise ValueError("type must be client_credentials")
        issuer = urlsplit(given.get("issuer_url", ""))
        if issuer.scheme not in ("http", "https") or "@" in issuer.netloc:
            raise ValueError("issuer_url must be an http:// or https:// URL, without a user in it")
        if "private_key" not in given and not {"client_id", "client_secret"} <= given.keys():
            raise ValueError("client_id and client_secret are needed, or private_key")
        self._given = given
        self._lock = threading.Lock()
        self._token = b""
        self._renew_at = -float("inf")

    def initial_data(self) -> bytes:
        with self._lock:
            if not time.monotonic() < self._renew_at:
                self._renew()
            return self._token

    def answer(self, challenge: bytes) -> bytes:
        with self._lock:
            self._renew()
            return self._token

    def http_headers(self) -> Mapping[str, str]:
        return _bearer(self.initial_data().decode())

    def _renew(self) -> None:
        endpoint = self._endpoint()
        asked_at = time.monotonic()
        form = {"grant_type": "client_credentials", **self._client(), **self._wanted()}
        answer = self._ask("POST", endpoint, urlencode(form))
        self._token = _token(answer.get("access_token"))
        life = answer.get("expires_in", 0)
        self._renew_at = asked_at + 0.9 * life if isinstance(life, (int, float)) else asked_at

    def _endpoint(self) -> str:
        issuer = self._given["issuer_url"]
        discovery = self._ask("GET", f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        endpoint = discovery.get("token_endpoint")
        allowed = ("https",) if urlsplit(issuer).scheme == "https" else ("http", "https")
        if not isinstance(endpoint, str) or urlsplit(endpoint).scheme not in allowed:
            raise AuthenticationError(f"{issuer} names no {' or '.join(allowed)} token_endpoint")
        return endpoint

    def _client(self) -> dict[str, str]:
        held: Mapping[str, Any] = self._given
        if "private_key" in held:
            held = _json(_read("private_key", _path(self._given["private_key"]))) or {}
        client_id, client_secret = held.get("client_id"), held.get("client_secret")
        if not isinstance(client_id, str) or not isinstance(client_secret, str):
            raise AuthenticationError("private_key is not a JSON object with client_id and client_secret")
        return {"client_id": client_id, "client_secret": client_secret}

    def _wanted(self) -> dict[str, str]:
        """What the token is for."""
        return {name: value for name, value in self._given.items() if name in ("audience", "scope")}

    def _ask(self, method: str, url: str, form: str | None = None) -> dict[str, Any]:
        """The JSON object that an HTTP server answers; what it answers else is not repeated."""
        headers = {"Accept": "application/json"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            with self._urllib3.PoolManager(timeout=_HTTP_SECONDS, retries=False) as http:
                response = http.request(
                    method, url, body=form, headers=headers, redirect=False, preload_content=False
                )
                body = response.read(_MOST_BYTES)
                response.close()
        except self._urllib3.exceptions.HTTPError as error:
            failure = str(error)
        else:
            answer = _json(body.decode(errors="replace"))
            if response.status == 200 and answer is not None:
                return answer
            failure = f"HTTP {response.status}"
            if answer is not None and answer.get("error") in _OAUTH2_ERRORS:
                failure += f", {answer['error']}"
        raise AuthenticationError(f"{url} failed: {failure}")


_HTTP_SECONDS = 10.0
_MOST_BYTES = 1024 * 1024
_OAUTH2_ERRORS = (
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_scope",
    "unauthorized_client",
    "unsupported_grant_type",
)


def _import_urllib3() -> ModuleType:
    try:
        import urllib3
    except ImportError:
        raise ImportError(
            "AuthenticationOauth2 needs urllib3: pip install 'pulsar-fast[oauth2]'", name="urllib3"
        ) from None
    return urllib3


# None of these errors shows a value: it may be a secret.


def _text(name: str, value: object, expected: str = "a str") -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {expected}, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{name} holds a surrogate, which UTF-8 cannot carry")
    return value


def _token(token: object) -> bytes:
    try:
        return _text("the token", token).encode()
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise AuthenticationError(reason)


def _bearer(token: object) -> Mapping[str, str]:
    return _authorization("token", f"Bearer {_token(token).decode()}")


def _authorization(method: str, credentials: str) -> Mapping[str, str]:
    """With the name of the method, or a broker that knows several takes the first that lets the client in."""
    return {"Authorization": credentials, "X-Pulsar-Auth-Method-Name": method}


async def _later(form: Callable[[object], _T], supply: Callable[[], Awaitable[object]]) -> _T:
    return form(await supply())


def _parameters(given: "str | Mapping[str, str]", known: Sequence[str]) -> dict[str, str]:
    """What `auth_params_string` holds, each a str that is not empty."""
    if not isinstance(given, (str, Mapping)):
        raise TypeError(f"auth_params_string must be a str of JSON or a mapping, not {type(given).__name__}")
    held = _json(given) if isinstance(given, str) else dict(given)
    if held is None:
        raise ValueError("auth_params_string must be a JSON object")
    if not held.keys() <= set(known):
        raise ValueError(f"auth_params_string may hold {', '.join(known)}, and nothing else")
    return {name: _text(name, value) for name, value in held.items()}


def _json(text: str) -> "dict[str, Any] | None":
    """A JSON object, or None if the text is none."""
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _path(url: str) -> str:
    """What a `file:` URL names; anything else is taken as it is."""
    return url[len("file:") :].removeprefix("//") if url.startswith("file:") else url


def _read(what: str, path: str) -> str:
    """The text of a file, or of a `data:` URL; `what` names it in the error."""
    try:
        if path.startswith("data:"):
            return base64.b64decode(path.partition(",")[2]).decode()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    except ValueError:
        reason = "it is not UTF-8 text"
    raise AuthenticationError(f"{what} cannot be read: {reason}")
