"""A real Apache Pulsar standalone, without Docker.

``python -m tests.brokers.apache --prefetch`` fetches its jars ahead of the tests.
"""

import argparse
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from pathlib import Path
from types import TracebackType

from pulsar_fast.embedded import reserve_port

from .admin import Admin, AdminError, Login
from .jvm import JavaServer, configured
from .maven import class_path

_START_TIMEOUT = 50  # 8 s on two idle cores
_STOP_TIMEOUT = 30  # 1 s, likewise


@functools.cache
def available() -> str | None:
    """Why no broker can be started here; None if one can. Fetches the jars the first time (minutes)."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            return f"Apache Pulsar needs {program}, which is not installed"
    banner = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30).stderr
    version = re.search(r'version "(\d+)', banner)
    if version is None or int(version[1]) < 17:
        return f"Apache Pulsar needs Java 17 or newer, not: {banner.strip()}"
    try:
        class_path()
    except RuntimeError as error:
        return str(error)
    return None


class ApacheBroker:
    """A standalone (broker and bookie) on free loopback ports; ports and data last from ``start`` to ``stop``.

    Args:
        overrides: settings of ``broker.conf`` on top of ``conf/standalone.conf``.
        login: of a super user, where the settings ask for one.
        two_listeners: whether it advertises ``internal``, its own address, and ``external``, ``external_url``.
    """

    def __init__(
        self,
        overrides: Mapping[str, str | int] | None = None,
        login: Login | None = None,
        *,
        two_listeners: bool = False,
    ) -> None:
        self._two_listeners = two_listeners
        self._overrides = overrides or {}
        self._login = login
        self._resources = ExitStack()

    def start(self) -> None:
        """Start it and wait until clients can use ``public/default``.

        Raises:
            RuntimeError: it ended at once; the message holds the end of its log.
            TimeoutError: it is not ready after 50 s; likewise.
        """
        with ExitStack() as resources:
            broker, web, bookie, external = (
                resources.enter_context(reserve_port()).getsockname()[1] for _ in range(4)
            )
            self.service_url = f"pulsar://127.0.0.1:{broker}"
            self.external_url = f"pulsar://localhost:{external}"
            self.admin_url = f"http://127.0.0.1:{web}"
            self.admin = Admin(self.admin_url, self._login)
            folder = Path(tempfile.mkdtemp(prefix="pulsar-fast-apache-"))
            resources.callback(shutil.rmtree, folder)
            settings = {"brokerServicePort": broker, "webServicePort": web, **self._overrides}
            if self._two_listeners:
                settings |= {
                    "bindAddresses": f"external:pulsar://127.0.0.1:{external}",
                    "advertisedListeners": f"internal:{self.service_url},external:{self.external_url}",
                    "internalListenerName": "internal",
                }
            arguments = {
                "--config": configured("standalone.conf", folder, settings),
                "--metadata-dir": str(folder / "metadata"),
                "--bookkeeper-dir": str(folder / "bookie"),
                "--bookkeeper-port": str(bookie),
            }
            self._server = JavaServer(
                folder,
                "org.apache.pulsar.PulsarStandaloneStarter",
                ["--no-functions-worker", "--no-stream-storage", *chain(*arguments.items())],
            )
            resources.callback(self._server.stop)
            self._run()
            self._resources = resources.pop_all()

    def stop(self) -> None:
        """Stop it and remove its data. Does nothing if it is not started."""
        self._resources.close()

    def restart(self) -> float:
        """Stop it (SIGTERM) and start it again on the same ports and data.

        (There is no way to kill it: that would kill its bookie too, whose ledgers cannot always be recovered.)

        Returns when it answered a handshake again, in seconds of the monotonic clock. Raises as ``start`` does.
        """
        self._server.stop(_STOP_TIMEOUT)
        return self._run()

    def frozen(self) -> AbstractContextManager[None]:
        """Within, its process is stopped, though its ports still accept connections."""
        return self._server.frozen()

    def __enter__(self) -> "ApacheBroker":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> float:
        return self._server.start_broker(
            self.service_url, self._has_default_namespace, _START_TIMEOUT, self._login
        )

    def _has_default_namespace(self) -> bool:
        try:
            return "public/default" in self.admin.get("/namespaces/public")
        except (AdminError, OSError):
            return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.brokers.apache")
    parser.add_argument("--prefetch", action="store_true", required=True, help="fetch the jars of the broker")
    parser.parse_args()
    sys.exit(available())
