"""A broker for demos and tests: pulsar-lite, run as a child process."""

from __future__ import annotations

import atexit
import importlib.util
import os
import platform
import shutil
import socket
import subprocess  # nosec B404 # what is started is said where it is
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

__all__ = ["EmbeddedBroker"]

# The started process becomes the server itself. Its watcher sleeps on a pipe whose other end only we hold, so
# the server ends with us, however we end. (PR_SET_PDEATHSIG fires when the *thread* that started it ends.)
_LAUNCHER = """
import os, signal, sys
server = os.getpid()
if os.fork() == 0:
    os.read(0, 1)
    if os.getppid() == server:
        os.kill(server, signal.SIGKILL)
    os._exit(0)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""

# Without this, metrics would be served on port 8080 of every interface.
_CONFIG = "[metrics]\nenabled = false\n"


def reserve_port(port: int = 0) -> socket.socket:
    """Bind a loopback port (0: a free one) without listening, so that nobody else gets it while this is open.

    A server that sets ``SO_REUSEADDR`` can still listen there (on Linux).

    Raises:
        OSError: somebody else has the port.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", port))
    except OSError as error:
        reserved.close()
        raise OSError(error.errno, f"cannot use port {port} of 127.0.0.1: {error.strerror}") from error
    return reserved


class ServerProcess:
    """A server program as a child process that ends with this one.

    It runs in a session of its own, so Ctrl-C in the terminal does not reach it, and writes to a log file.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool], timeout: float) -> None:
        """Start the program and poll ``ready`` for at most ``timeout`` seconds.

        Raises:
            RuntimeError: the program ended; the message holds the end of its output.
            TimeoutError: it is not ready in time (and still runs); likewise.
        """
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(  # nosec B603 # without a shell, the caller's own command
                [sys.executable, "-I", "-S", "-c", _LAUNCHER, *self._command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env={**os.environ, "RUST_BACKTRACE": "0"},  # it would push the error out of the tail
                start_new_session=True,
            )
        name = Path(self._command[0]).name
        deadline = time.monotonic() + timeout
        while True:
            answered = ready()
            if (status := self._process.poll()) is not None:
                raise RuntimeError(f"{name} ended with status {status}{self._tail()}")
            if answered:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is not ready after {timeout:g} s{self._tail()}")
            time.sleep(0.02)

    def stop(self, timeout: float = 5.0) -> None:
        """End the program: SIGTERM, `timeout` seconds later SIGKILL. Does nothing if it does not run."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End the program at once (SIGKILL). Does nothing if it does not run."""
        if self._process is None:
            return
        self._process.kill()
        self._process.communicate()  # also closes the pipe, which ends the watcher
        self._process = None

    def _tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return "; its output ends:\n" + "\n".join(lines) if lines else " without any output"


class EmbeddedBroker:
    """A pulsar-lite broker on a loopback port, for demos and tests; not for production.

    It is a child process, which ends with this one even if this one is killed, but not by Ctrl-C. Use it as a
    context manager, or call ``start()`` and ``stop()``. Not thread-safe: one thread at a time.

    Args:
        path: folder for the data, made if missing and kept. None: a temporary one, removed by ``stop()``.
        port: TCP port on 127.0.0.1. 0: a free one.

    Needs the extra ``pulsar-fast[embedded]``.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, port: int = 0) -> None:
        self._path = path
        self._port = port
        self._server: ServerProcess | None = None
        self._address = ("", 0)
        self._resources = ExitStack()
        self._owner = 0

    @property
    def service_url(self) -> str:
        """The URL to connect to, the same from ``start()`` to ``stop()``.

        Raises:
            RuntimeError: the broker is not started.
        """
        self._started()
        host, port = self._address
        return f"pulsar://{host}:{port}"

    def start(self, timeout: float = 10.0) -> None:
        """Start the broker and wait until it accepts connections, at most ``timeout`` seconds.

        Raises:
            ImportError: there is no pulsar-lite; the message says what to do.
            OSError: the port is in use.
            RuntimeError: already started, or it ended at once; then the message holds the end of its output.
            TimeoutError: it does not answer in time; likewise.
        """
        if self._server is not None:
            raise RuntimeError("the embedded broker is already started")
        binary = _find_binary()
        with ExitStack() as resources:
            reserved = resources.enter_context(reserve_port(self._port))
            self._address = reserved.getsockname()
            if self._path is None:
                folder = Path(tempfile.mkdtemp(prefix="pulsar-fast-"))
                resources.callback(shutil.rmtree, folder)
            else:
                folder = Path(self._path).absolute()
                folder.mkdir(parents=True, exist_ok=True)
            server = ServerProcess(_command(binary, folder, self._address), folder)
            resources.callback(server.stop)
            server.start(self._accepts_connections, timeout)
            self._owner = os.getpid()
            atexit.register(self._stop_at_exit)
            resources.callback(atexit.unregister, self._stop_at_exit)
            self._server = server
            self._resources = resources.pop_all()

    def stop(self) -> None:
        """Stop the broker: SIGTERM, 5 s later SIGKILL. Does nothing if it is not started."""
        self._server = None
        self._resources.close()

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL). Port and data are kept for ``restart()``.

        Raises:
            RuntimeError: the broker is not started.
        """
        self._started().kill()

    def restart(self, timeout: float = 10.0) -> None:
        """Stop the broker if it runs and start it again, on the same port and data.

        Raises:
            RuntimeError: the broker is not started, or it ended at once.
            TimeoutError: it does not answer within ``timeout`` seconds.
        """
        server = self._started()
        server.stop()
        server.start(self._accepts_connections, timeout)

    def __enter__(self) -> EmbeddedBroker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _started(self) -> ServerProcess:
        if self._server is None:
            raise RuntimeError("the embedded broker is not started")
        return self._server

    def _accepts_connections(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=1).close()
        except OSError:
            return False
        return True

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # a forked child inherits the exit handler, but not the broker
            self.stop()


def _find_binary() -> str:
    # Looked up, not imported: the package would import the official client.
    spec = importlib.util.find_spec("pulsar_lite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder, "bin", "pulsar-lite")
        if os.access(binary, os.X_OK):
            return str(binary)
    here = f"{sys.platform} {platform.machine()}"
    if here == "linux x86_64" and platform.libc_ver()[0] == "glibc":
        advice = "is not installed: pip install 'pulsar-fast[embedded]'"
    else:
        advice = (
            f"exists for Linux x86_64 with glibc only, not for {here}: "
            "run a Pulsar broker of your own and give its URL, such as pulsar://localhost:6650"
        )
    raise ImportError(f"the embedded broker (pulsar-lite) {advice}", name="pulsar_lite")


def _command(binary: str, folder: Path, address: tuple[str, int]) -> list[str]:
    config = folder / "pulsar-lite.toml"
    config.write_text(_CONFIG)
    options = {
        "--config": str(config),
        "--addr": "{}:{}".format(*address),
        "--db-path": str(folder / "data"),
        "--log-level": "warn",
    }
    return [binary, *(word for option in options.items() for word in option)]
