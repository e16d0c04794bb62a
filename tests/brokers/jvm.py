"""Java servers as child processes, from the class path of the Apache Pulsar broker."""

import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pulsar_fast.embedded import ServerProcess

from .admin import Login
from .maven import class_path
from .peek import greets

CONF = Path(__file__).parent / "conf"


class JavaServer(ServerProcess):
    """A server of the JVM, which lives in a folder of its own, log included, and ends with this process.

    Args:
        options: JVM options on top of ``conf/jvm.options``.
    """

    def __init__(
        self, folder: Path, main: str, arguments: Sequence[str], options: Sequence[str] = ()
    ) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(java(folder, main, arguments, options), folder)

    def start_broker(
        self, url: str, ready: Callable[[], bool], timeout: float, login: Login | None = None
    ) -> float:
        """``start`` of a broker with that URL, asked whether it is ready only when it answers the handshake.

        Returns when it first did, in seconds of the monotonic clock.
        """
        answered: list[float] = []

        def answers_and_is_ready() -> bool:
            if not answered and greets(url, login):
                answered.append(time.monotonic())
            return bool(answered) and ready()

        self.start(answers_and_is_ready, timeout)
        return answered[0]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within, it gets no CPU (SIGSTOP), while the system goes on to accept connections and bytes for it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)


def java(folder: Path, main: str, arguments: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The command line of a program on the broker's class path."""
    return [
        "java",
        f"@{CONF / 'jvm.options'}",
        *options,
        f"-Djava.io.tmpdir={folder}",  # native libraries are unpacked there, and stay after a kill
        f"-Dlog4j2.configurationFile={CONF / 'log4j2.properties'}",
        "-cp",
        class_path(),
        main,
        *arguments,
    ]


def configured(template: str, folder: Path, settings: Mapping[str, str | int]) -> str:
    """The path of a copy of ``conf/TEMPLATE`` in that folder, with the settings added."""
    folder.mkdir(exist_ok=True)
    lines = [f"{key}={value}" for key, value in settings.items()]
    path = folder / template
    path.write_text("\n".join([(CONF / template).read_text(), *lines]))
    return str(path)


def accepts(port: int) -> bool:
    """Whether somebody listens on that loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
