"""OAuth 2.0 servers that are not what they should be: the client's secret stays with the one that was named."""

from pathlib import Path

import pytest

from pulsar_fast import AuthenticationError, AuthenticationOauth2
from tests.brokers.token_server import TokenServer
from tests.certificates import Authority
from tests.faults.tls_front import Canned, TlsFront


def oauth2(issuer: str, secret: str) -> AuthenticationOauth2:
    return AuthenticationOauth2({"issuer_url": issuer, "client_id": "me", "client_secret": secret})


def port_of(server: TokenServer) -> int:
    return int(server.url.rpartition(":")[2])


def test_an_endpoint_that_redirects() -> None:
    with TokenServer(lambda form: "token") as server:
        elsewhere = f"HTTP/1.1 307 Go\r\nLocation: {server.url}/token\r\nContent-Length: 0\r\n\r\n"
        with Canned(elsewhere.encode()) as front:
            server.discovery = {"token_endpoint": f"http://127.0.0.1:{front.port}/token"}
            with pytest.raises(AuthenticationError, match=r"/token failed: HTTP 307$"):
                oauth2(server.url, server.secret).initial_data()
        assert server.forms == []


def test_an_answer_without_end() -> None:
    token = b'{"access_token": "' + b"x" * 2_000_000 + b'"}'
    with TokenServer(lambda form: "token") as server, Canned(b"HTTP/1.1 200 OK\r\n\r\n" + token) as front:
        server.discovery = {"token_endpoint": f"http://127.0.0.1:{front.port}/token"}
        with pytest.raises(AuthenticationError, match=r"/token failed: HTTP 200$"):
            oauth2(server.url, server.secret).initial_data()


def test_an_issuer_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is verified, and it cannot lead to an endpoint without TLS."""
    ca = Authority(tmp_path)
    identity = ca.issue("issuer", ("127.0.0.1",))
    with TokenServer(lambda form: "token") as server, TlsFront(port_of(server), identity.server()) as front:
        issuer = f"https://127.0.0.1:{front.port}"
        with pytest.raises(AuthenticationError, match="certificate verify failed"):
            oauth2(issuer, server.secret).initial_data()
        monkeypatch.setenv("SSL_CERT_FILE", ca.path)
        with pytest.raises(AuthenticationError, match=f"{issuer} names no https token_endpoint"):
            oauth2(issuer, server.secret).initial_data()
        assert server.forms == []
        server.discovery = {"token_endpoint": f"{issuer}/token"}
        assert oauth2(issuer, server.secret).initial_data() == b"token"
