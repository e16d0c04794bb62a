"""What `make lint` says of dependencies."""

import http.server
import json
import socket
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("pip_audit")  # of the extra `lint`

from tests import audit

ADVISORY = {
    "id": "PYSEC-2030-1",
    "affected": [
        {
            "package": {"name": "urllib3", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "999.1"}]}],
        }
    ],
}


class Advisories(http.server.BaseHTTPRequestHandler):
    """Knows of one advisory, as a server of OSV would tell it."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"vulns": [ADVISORY]} if asked["package"]["name"] == "urllib3" else {}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Where advisories are asked for; nobody listens there yet."""
    monkeypatch.setenv("PIP_AUDIT_VULNERABILITY_SERVICE", "osv")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://127.0.0.1:{port}")
        yield port


def test_an_advisory_fails(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Advisories) as server:
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            assert audit.main() == 1
        finally:
            server.shutdown()
            thread.join()
    said = capsys.readouterr().out
    version = audit.installed_with("pulsar-fast[all]")["urllib3"]
    assert f"advisory: urllib3 {version}: PYSEC-2030-1, mended in 999.1\n" in said
    assert said.count("advisory:") == 1
    assert "could not be audited" not in said


def test_silence_is_said_and_does_not_fail(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main() == 0
    assert "dependencies: NOT audited: " in capsys.readouterr().out


def test_what_the_index_does_not_know() -> None:
    found = [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}]
    assert audit.judged({"a": "1", "b": "2", "c": ""}, found) == ([], ["b", "c"])


def test_all_that_is_installed_along() -> None:
    names = audit.installed_with("pulsar-fast[all]").keys()
    assert {"protobuf", "google-crc32c", "urllib3", "click", "rich", "pygments"} <= names
    assert not names & {"pytest", "ruff", "pulsar-fast"}
