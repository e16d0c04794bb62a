"""What each kind of authentication says, which arguments it takes, and the token server's side of OAuth 2.0."""

import asyncio
import base64
import builtins
import contextlib
import gc
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar  # type: ignore[import-untyped]
import pytest

import pulsar_fast
import pulsar_fast.asyncio
from pulsar_fast import (
    Authentication,
    AuthenticationBasic,
    AuthenticationError,
    AuthenticationOauth2,
    AuthenticationTLS,
    AuthenticationToken,
)
from pulsar_fast.credentials import Authenticator
from tests.brokers.token_server import TokenServer

CHALLENGE = b"PulsarAuthRefresh"


def said(authentication: Authentication, challenges: int = 0, timeout: float = 5) -> list[tuple[str, bytes]]:
    """Method and data of one conversation."""

    async def converse() -> list[tuple[str, bytes]]:
        conversation = Authenticator(authentication, timeout).converse("broker")
        words = [await conversation.begin()]
        words += [await conversation.answer(CHALLENGE) for _ in range(challenges)]
        return [(one.method, one.data) for one in words]

    return asyncio.run(converse())


# --- what is said


def test_a_token_as_text() -> None:
    assert said(AuthenticationToken("abc"), 1) == [("token", b"abc")] * 2


def test_a_token_of_a_callable_is_asked_for_anew() -> None:
    tokens = iter(["one", "two", "three"])
    threads = []

    def supply() -> str:
        threads.append(threading.current_thread())
        return next(tokens)

    assert said(AuthenticationToken(supply), 2) == [("token", b"one"), ("token", b"two"), ("token", b"three")]
    assert all(thread.daemon and thread is not threading.main_thread() for thread in threads)


def test_an_async_callable_runs_on_the_loop() -> None:
    threads = []

    async def supply() -> str:
        await asyncio.sleep(0)
        threads.append(threading.current_thread())
        return "abc"

    assert said(AuthenticationToken(supply), 1) == [("token", b"abc")] * 2
    assert threads == [threading.current_thread()] * 2


@pytest.mark.parametrize("prefix", ["file://", "file:"])
def test_a_token_in_a_file_is_read_anew(tmp_path: Path, prefix: str) -> None:
    path = tmp_path / "token"
    authentication = AuthenticationToken(f"{prefix}{path}")
    for token in ("one", "two"):
        path.write_text(f"{token}\n")
        assert said(authentication) == [("token", token.encode())]
    path.unlink()
    with pytest.raises(AuthenticationError, match=f"{path} cannot be read: No such file"):
        said(authentication)


def test_basic() -> None:
    assert said(AuthenticationBasic("me", "pass:word")) == [("basic", b"me:pass:word")]
    assert said(AuthenticationBasic("me", "é", "oms3.0"), 1) == [("oms3.0", "me:é".encode())] * 2
    parameters = json.dumps({"username": "me", "password": "p"})
    assert said(AuthenticationBasic(auth_params_string=parameters)) == [("basic", b"me:p")]


def test_tls_says_nothing_but_its_name() -> None:
    authentication = AuthenticationTLS("/certificate.pem", "/key.pem")
    assert (authentication.certificate_path, authentication.private_key_path) == (
        "/certificate.pem",
        "/key.pem",
    )
    assert said(authentication, 1) == [("tls", b"")] * 2


class Sasl(Authentication):
    """Keeps state for each conversation, and needs the host."""

    name = "sasl"

    def __init__(self, host: str = "") -> None:
        self.host, self.steps = host, 0

    def for_host(self, host: str) -> Authentication:
        return Sasl(host)

    def initial_data(self) -> bytes:
        return f"to {self.host}".encode()

    async def answer(self, challenge: bytes) -> bytes:
        self.steps += 1
        return b"%d %s" % (self.steps, challenge)


def test_a_method_with_steps_of_its_own() -> None:
    authentication = Sasl()
    for _ in range(2):
        steps = [b"to broker", b"1 PulsarAuthRefresh", b"2 PulsarAuthRefresh"]
        assert said(authentication, 2) == [("sasl", step) for step in steps]


# --- what suppliers do wrong


def raising() -> str:
    raise KeyError("secret")


def leaving() -> str:
    raise SystemExit("secret")


def stopping() -> str:
    raise StopIteration("secret")


def refusing() -> str:
    raise AuthenticationError("the vault is closed") from KeyError("secret")


def failing() -> str:
    raise ConnectionRefusedError(111, "secret")


async def raising_async() -> str:
    raise KeyError("secret")


async def cancelled() -> str:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("supply", "says"),
    [
        (raising, rf"KeyError at {__file__}:\d+$"),
        (leaving, "SystemExit at"),
        (stopping, "StopIteration at"),
        (failing, r"ConnectionRefusedError \(Connection refused\) at"),
        (refusing, "the vault is closed$"),
        (raising_async, "KeyError at"),
        (cancelled, "was cancelled"),
        (lambda: b"secret", "the token must be a str, not bytes"),
        (lambda: None, "the token must be a str, not NoneType"),
        (lambda: "", "the token must not be empty"),
        (lambda: "secret\ud800", "the token holds a surrogate"),
    ],
)
def test_a_supplier_that_fails(supply: Any, says: str) -> None:
    with pytest.raises(
        AuthenticationError, match=rf"^Pulsar.*no credentials \(token\) for broker: .*{says}"
    ) as caught:
        said(AuthenticationToken(supply))
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize("data", ["secret", None, bytearray(b"secret"), 5])
def test_data_that_is_not_bytes(data: Any) -> None:
    class Own(Authentication):
        name = "own"

        def initial_data(self) -> Any:
            return data

    with pytest.raises(AuthenticationError, match=f"they must be bytes, not {type(data).__name__}"):
        said(Own())


def test_a_supplier_that_blocks_is_given_up_and_not_called_again_meanwhile() -> None:
    let_go = threading.Event()
    calls = []

    def supply() -> str:
        calls.append(threading.current_thread())
        assert let_go.wait(10)
        return "abc"

    async def converse() -> bytes:
        authenticator = Authenticator(AuthenticationToken(supply), 0.1)
        for _ in range(3):
            with pytest.raises(AuthenticationError, match=r"none within 0\.09 s"):
                await authenticator.converse("broker").begin()
        assert len(calls) == 1
        let_go.set()
        for attempt in range(2, 100):  # a loaded machine may be late
            with contextlib.suppress(AuthenticationError):
                data = (await authenticator.converse("broker").begin()).data
                assert len(calls) <= attempt  # those that nobody waited for any more were left out
                return data
        return b""

    assert asyncio.run(converse()) == b"abc"


@pytest.mark.parametrize("turns", range(6))
def test_a_coroutine_that_nobody_waits_for_any_more(turns: int) -> None:
    """Made on the thread, and its asker is cancelled at any moment: nothing warns that it was never awaited."""
    made = threading.Event()

    async def token() -> bytes:
        return b"abc"

    class Own(Authentication):
        name = "own"

        def initial_data(self) -> Any:
            try:
                return token()
            finally:
                made.set()

    async def converse() -> None:
        asking = asyncio.create_task(Authenticator(Own(), 5).converse("broker").begin())
        for _ in range(2):
            await asyncio.sleep(0)
        assert made.wait(5)
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(0.01)  # what the thread has made comes, at the latest

    asyncio.run(converse())
    gc.collect()


# --- arguments


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (lambda: AuthenticationToken(5), TypeError, "token must be a str, or a callable"),
        (lambda: AuthenticationToken(b"secret"), TypeError, "token must be a str, or a callable"),
        (lambda: AuthenticationToken(""), ValueError, "token must not be empty"),
        (lambda: AuthenticationTLS(None, "k"), TypeError, "certificate_path must be a str"),
        (lambda: AuthenticationTLS("c", ""), ValueError, "private_key_path"),
        (lambda: AuthenticationBasic("me"), TypeError, "password must be a str, not NoneType"),
        (lambda: AuthenticationBasic("m:e", "secret"), ValueError, "colon"),
        (lambda: AuthenticationBasic("me", "secret", ""), ValueError, "method"),
        (lambda: AuthenticationBasic(auth_params_string="{secret"), ValueError, "JSON object"),
        (
            lambda: AuthenticationBasic(auth_params_string='{"user": "secret"}'),
            ValueError,
            "may hold username",
        ),
        (lambda: AuthenticationOauth2(5), TypeError, "auth_params_string"),
        (lambda: AuthenticationOauth2("secret"), ValueError, "JSON object"),
        (
            lambda: AuthenticationOauth2({"client_secret": b"secret"}),
            TypeError,
            "client_secret must be a str",
        ),
        (lambda: AuthenticationOauth2({"private_key": "secret"}), ValueError, "issuer_url"),
        (
            lambda: AuthenticationOauth2({"issuer_url": "https://h", "client_id": "i"}),
            ValueError,
            "client_secret",
        ),
        (lambda: AuthenticationOauth2({"issuer_url": "https://h", "type": "x"}), ValueError, "type"),
        (lambda: AuthenticationOauth2({"issuer_url": "https://me:secret@h"}), ValueError, "issuer_url"),
        (lambda: AuthenticationBasic("me", "secret\ud800"), ValueError, "password holds a surrogate"),
    ],
)
def test_bad_arguments(make: Any, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says) as caught:
        make()
    assert "secret" not in str(caught.value).replace("client_secret", "")


class Nameless(Authentication):
    pass


@pytest.mark.parametrize("api", [pulsar_fast, pulsar_fast.asyncio], ids=["sync", "asyncio"])
@pytest.mark.parametrize(
    ("authentication", "says"),
    [
        (pulsar.AuthenticationToken("t"), "official package.*pulsar_fast.AuthenticationToken"),
        (pulsar.AuthenticationTLS("c", "k"), "official package.*pulsar_fast.AuthenticationTLS"),
        ("token", "must be a pulsar_fast.Authentication, not str"),
        (Nameless(), "authentication.name must be a str"),
    ],
    ids=["official token", "official tls", "text", "nameless"],
)
def test_what_a_client_does_not_take(api: Any, authentication: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        api.Client("pulsar://localhost", authentication=authentication)


def test_the_same_names_in_both_apis() -> None:
    for name in ("", "Basic", "Oauth2", "TLS", "Token"):
        assert getattr(pulsar_fast, f"Authentication{name}") is getattr(
            pulsar_fast.asyncio, f"Authentication{name}"
        )


# --- OAuth 2.0


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer(lambda form: f"token-of-{form['client_id']}") as server:
        yield server


def client_of(server: TokenServer, **more: str) -> dict[str, str]:
    return {"issuer_url": server.url, "client_id": "me", "client_secret": server.secret, **more}


def test_the_form_that_a_token_server_gets(server: TokenServer) -> None:
    given = client_of(server, audience="urn:pulsar", scope="a b", type="client_credentials")
    assert said(AuthenticationOauth2(json.dumps(given))) == [("token", b"token-of-me")]
    (form,) = server.forms
    assert form == {
        "grant_type": "client_credentials",
        "client_id": "me",
        "client_secret": server.secret,
        "audience": "urn:pulsar",
        "scope": "a b",
    }


def test_a_token_is_kept_for_its_life_but_not_for_a_challenge(server: TokenServer) -> None:
    authentication = AuthenticationOauth2(client_of(server))
    said(authentication)
    said(authentication)
    assert len(server.forms) == 1
    said(authentication, 1)
    assert len(server.forms) == 2


@pytest.mark.parametrize("life", [0, None, "soon", float("nan")])
def test_a_token_without_a_life_is_asked_for_each_time(server: TokenServer, life: Any) -> None:
    server.life = life
    authentication = AuthenticationOauth2(client_of(server))
    said(authentication)
    said(authentication)
    assert len(server.forms) == 2


def test_a_token_is_renewed_before_it_expires(server: TokenServer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("pulsar_fast.authentication.time.monotonic", lambda: now)
    authentication = AuthenticationOauth2(client_of(server))  # tokens for an hour
    authentication.initial_data()
    now += 3200
    authentication.initial_data()
    assert len(server.forms) == 1
    now += 100
    authentication.initial_data()
    assert len(server.forms) == 2


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "data"])
def test_the_client_in_a_file(server: TokenServer, tmp_path: Path, form: str) -> None:
    held = json.dumps({"client_id": "filed", "client_secret": server.secret, "type": "client_credentials"})
    path = tmp_path / "key.json"
    path.write_text(held)
    inline = f"data:application/json;base64,{base64.b64encode(held.encode()).decode()}"
    key = inline if form == "data" else form.format(path)
    authentication = AuthenticationOauth2({"issuer_url": server.url, "private_key": key})
    assert said(authentication) == [("token", b"token-of-filed")]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("/no/such/secret", "private_key cannot be read: No such file"),
        ('{"client_secret": "secret"}', "private_key cannot be read"),
        ("data:application/json;base64secret", "private_key is not a JSON object"),
        ("data:application/json;base64,/w==", "private_key cannot be read: it is not UTF-8"),
    ],
)
def test_a_client_file_that_is_none(server: TokenServer, key: str, says: str) -> None:
    with pytest.raises(AuthenticationError, match=says) as caught:
        said(AuthenticationOauth2({"issuer_url": server.url, "private_key": key}))
    assert "secret" not in str(caught.value).replace("client_secret", "")


def test_a_token_server_that_refuses(server: TokenServer) -> None:
    given = {**client_of(server), "client_secret": "wrong-secret"}
    with pytest.raises(AuthenticationError, match=r"/token failed: HTTP 401, invalid_client$") as caught:
        said(AuthenticationOauth2(given))
    assert "wrong-secret" not in str(caught.value)


def test_a_token_server_that_is_away(server: TokenServer) -> None:
    given = client_of(server)
    server.stop()
    with pytest.raises(AuthenticationError, match=r"openid-configuration failed: .*Connection refused"):
        said(AuthenticationOauth2(given))


@pytest.mark.parametrize("found", [{}, {"token_endpoint": 5}, {"token_endpoint": "file:///etc/passwd"}])
def test_an_issuer_without_an_endpoint(server: TokenServer, found: dict[str, Any]) -> None:
    server.discovery = found
    with pytest.raises(AuthenticationError, match="names no http or https token_endpoint"):
        said(AuthenticationOauth2(client_of(server)))


def test_without_urllib3(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def missing(name: str, *args: Any, **more: Any) -> Any:
        if name == "urllib3":
            raise ImportError(name)
        return really(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"pip install 'pulsar-fast\[oauth2\]'"):
        AuthenticationOauth2({"issuer_url": "https://h", "client_id": "i", "client_secret": "s"})


# --- secrets


def test_no_secret_in_a_repr(server: TokenServer) -> None:
    secret = server.secret
    shown = [
        AuthenticationToken(secret),
        AuthenticationToken(lambda: secret),
        AuthenticationBasic("me", secret),
        AuthenticationOauth2(client_of(server)),
        pulsar_fast.options.ClientOptions(authentication=AuthenticationToken(secret)),
    ]
    assert secret not in repr(shown) + str(shown)
