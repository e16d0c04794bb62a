import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pulsar  # type: ignore[import-untyped]
import pytest

from pulsar_fast.embedded import EmbeddedBroker

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def broker(lite_broker: EmbeddedBroker) -> Iterator[EmbeddedBroker]:
    """One that the test may treat badly. (The shared one says whether any can run here.)"""
    with EmbeddedBroker() as broker:
        yield broker


def _address(broker: EmbeddedBroker) -> tuple[str, int]:
    host, port = broker.service_url.removeprefix("pulsar://").split(":")
    return host, int(port)


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def _processes(word: str | Path) -> list[int]:
    """The processes with this in their command line, as broker and watcher have folder and address."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if os.fsencode(word) in command.read_bytes():
                found.append(int(command.parent.name))
        except OSError:
            continue
    return found


def _script(body: str, folder: Path) -> "subprocess.Popen[str]":
    """Another Python, where ``broker`` runs on ``folder``. It prints the URL first."""
    start = (
        "import os, socket, sys, time\n"
        "from pulsar_fast.embedded import EmbeddedBroker\n"
        f"broker = EmbeddedBroker({str(folder)!r})\n"
        "broker.start()\n"
        "print(broker.service_url, flush=True)\n"
        "address = ('127.0.0.1', int(broker.service_url.rpartition(':')[2]))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", start + body],
        cwd=folder.parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_until_gone(folder: Path) -> None:
    deadline = time.monotonic() + 10
    while processes := _processes(folder):
        assert time.monotonic() < deadline, f"still running: {processes}"
        time.sleep(0.02)


class TestRunning:
    def test_start_and_stop(self, lite_broker: EmbeddedBroker) -> None:
        broker = EmbeddedBroker()
        broker.start()
        address = _address(broker)
        assert _answers(address)
        broker.stop()
        assert not _answers(address)
        broker.stop()
        with pytest.raises(RuntimeError, match="not started"):
            _ = broker.service_url

    def test_can_be_started_again(self, broker: EmbeddedBroker) -> None:
        broker.stop()
        broker.start()
        assert _answers(_address(broker))

    def test_starting_twice(self, broker: EmbeddedBroker) -> None:
        with pytest.raises(RuntimeError, match="already started"):
            broker.start()
        assert _answers(_address(broker))

    def test_many_at_once(self, lite_broker: EmbeddedBroker) -> None:
        brokers = [EmbeddedBroker() for _ in range(6)]
        try:
            with ThreadPoolExecutor(6) as pool:
                list(pool.map(EmbeddedBroker.start, brokers))
            # The threads are gone, their brokers are not.
            assert len({broker.service_url for broker in brokers}) == 6
            assert all(_answers(_address(broker)) for broker in brokers)
        finally:
            for broker in brokers:
                broker.stop()

    @linux
    def test_listens_on_one_loopback_port_only(self, lite_broker: EmbeddedBroker) -> None:
        host, port = _address(lite_broker)
        processes = _processes(f"{host}:{port}")
        opened = {os.readlink(file) for pid in processes for file in Path(f"/proc/{pid}/fd").iterdir()}
        tables = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        rows = [line.split() for line in tables.splitlines()]
        listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in opened]
        assert listening == [f"0100007F:{port:04X}"]

    def test_data_survives_kill_and_restart(self, broker: EmbeddedBroker) -> None:
        client = pulsar.Client(broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        client.create_producer("kept").send(b"before the crash")
        client.close()
        url = broker.service_url
        broker.kill()
        assert not _answers(_address(broker))
        broker.restart()
        assert broker.service_url == url
        client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        consumer = client.subscribe("kept", "reader", initial_position=pulsar.InitialPosition.Earliest)
        assert consumer.receive(timeout_millis=5000).data() == b"before the crash"
        client.close()

    @linux
    def test_restart_while_running(self, lite_broker: EmbeddedBroker, tmp_path: Path) -> None:
        with EmbeddedBroker(tmp_path) as broker:
            before = _processes(tmp_path)
            broker.restart()
            assert _answers(_address(broker))
            assert set(_processes(tmp_path)).isdisjoint(before)

    def test_port_is_kept_while_killed(self, broker: EmbeddedBroker) -> None:
        broker.kill()
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(_address(broker))
        broker.restart()

    def test_kill_and_restart_need_a_start(self) -> None:
        for call in (EmbeddedBroker().kill, EmbeddedBroker().restart):
            with pytest.raises(RuntimeError, match="not started"):
                call()


class TestData:
    def test_temporary_folder_is_removed(
        self, lite_broker: EmbeddedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with EmbeddedBroker():
            assert len(list(tmp_path.iterdir())) == 1
        assert list(tmp_path.iterdir()) == []

    def test_own_folder_is_made_and_kept(self, lite_broker: EmbeddedBroker, tmp_path: Path) -> None:
        folder = tmp_path / "new" / "data"
        with EmbeddedBroker(folder):
            pass
        assert list(folder.iterdir()) != []


class TestFailingToStart:
    def test_port_in_use(self, lite_broker: EmbeddedBroker) -> None:
        port = _address(lite_broker)[1]
        with pytest.raises(OSError, match=f"cannot use port {port} of 127.0.0.1"):
            EmbeddedBroker(port=port).start()

    def test_given_port(self, broker: EmbeddedBroker) -> None:
        address = _address(broker)
        broker.stop()
        with EmbeddedBroker(port=address[1]) as second:
            assert _address(second) == address

    def test_folder_in_use(self, lite_broker: EmbeddedBroker, tmp_path: Path) -> None:
        with EmbeddedBroker(tmp_path):
            began = time.monotonic()
            with pytest.raises(RuntimeError, match=r"ended with status 1; its output ends:\n.*lock"):
                EmbeddedBroker(tmp_path).start()
            assert time.monotonic() - began < 5  # it does not wait for what cannot come

    @linux
    def test_not_ready_in_time(self, lite_broker: EmbeddedBroker, tmp_path: Path) -> None:
        with pytest.raises(TimeoutError, match="not ready after 0 s"):
            EmbeddedBroker(tmp_path).start(timeout=0)
        _wait_until_gone(tmp_path)

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
        monkeypatch.setitem(sys.modules, "pulsar_lite", None)
        with pytest.raises(ImportError, match=r"pip install 'pulsar-fast\[embedded\]'"):
            EmbeddedBroker().start()

    @pytest.mark.parametrize(
        ("system", "machine", "libc"),
        [
            ("darwin", "arm64", ""),
            ("win32", "AMD64", ""),
            ("linux", "aarch64", "glibc"),
            ("linux", "x86_64", ""),
        ],
    )
    def test_not_for_this_platform(
        self, monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: str
    ) -> None:
        monkeypatch.setattr(sys, "platform", system)
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(platform, "libc_ver", lambda: (libc, ""))
        monkeypatch.setitem(sys.modules, "pulsar_lite", None)
        with pytest.raises(ImportError, match=f"not for {system} {machine}: .* give its URL"):
            EmbeddedBroker().start()


@linux
@pytest.mark.usefixtures("lite_broker")
class TestWithItsParent:
    """The folder is in the command lines of broker and watcher, so they can be found."""

    def test_ends_at_exit(self, tmp_path: Path) -> None:
        _, errors = _script("", tmp_path).communicate(timeout=30)
        assert errors == ""
        _wait_until_gone(tmp_path)

    def test_ends_when_the_parent_is_killed(self, tmp_path: Path) -> None:
        with _script("time.sleep(60)", tmp_path) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline().startswith("pulsar://")
            assert _processes(tmp_path) != []
            parent.kill()
        _wait_until_gone(tmp_path)

    def test_outlives_the_thread_that_started_it(self, tmp_path: Path) -> None:
        with EmbeddedBroker(tmp_path) as broker:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(broker.restart).result()
            assert _answers(_address(broker))
            broker.kill()
            _wait_until_gone(tmp_path)  # the watcher too

    def test_outlives_a_forked_child(self, tmp_path: Path) -> None:
        body = (
            "import tempfile\n"
            "tempfile.tempdir = os.getcwd()\n"
            "temporary = EmbeddedBroker()\n"
            "temporary.start()\n"
            "child = os.fork()\n"
            "if child == 0: sys.exit()\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "socket.create_connection(address).close()\n"
            "print(os.listdir())\n"
        )
        parent = _script(body, tmp_path / "kept")
        output, errors = parent.communicate(timeout=30)
        assert parent.returncode == 0, errors
        assert "pulsar-fast-" in output, "the child removed the data of the temporary broker"

    def test_ctrl_c_does_not_reach_it(self, tmp_path: Path) -> None:
        with EmbeddedBroker(tmp_path):
            groups = [os.getpgid(pid) for pid in _processes(tmp_path)]
            assert groups != []
            assert os.getpgid(0) not in groups  # the terminal interrupts a whole group
