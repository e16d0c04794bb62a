"""The ``pulsar-fast`` command as its users run it: a process, its exit status and what it prints."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_fast._version import __version__
from pulsar_fast.embedded import EmbeddedBroker
from tests.brokers.readback import Subscription

pytestmark = pytest.mark.broker
on_lite = pytest.mark.parametrize("service_url", ["lite"], indirect=True)

COMMAND = [sys.executable, "-m", "pulsar_fast.cli"]
TIMEOUT = 30.0  # seconds; any run takes far less
WITHOUT_URL = {name: value for name, value in os.environ.items() if name != "PULSAR_FAST_SERVICE_URL"}
COUNTING = [sys.executable, "-c", "import itertools\nfor i in itertools.count(): print(i, flush=True)"]

Subscribe = Callable[[str], Subscription]


def run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end; ``input``, ``env`` and the like are those of ``subprocess.run``."""
    options.setdefault("env", WITHOUT_URL)
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=TIMEOUT, **options)


@contextmanager
def running(*arguments: object, **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """The command while it runs; it is killed in the end if it still does."""
    pipe = subprocess.PIPE
    options = {"env": WITHOUT_URL, "stdout": pipe, "stderr": pipe, **options}
    with subprocess.Popen([*COMMAND, *map(str, arguments)], **options) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def endless_input() -> Iterator[Any]:
    """A pipe that gives line after line: 0, 1, 2 and so on."""
    with subprocess.Popen(COUNTING, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield process.stdout
        finally:
            process.kill()


def figures(output: bytes) -> dict[str, str]:
    """The summary, by the name of each line."""
    return dict(re.split(r"\s{2,}", line, maxsplit=1) for line in output.decode().splitlines())


def assert_all_acknowledged(result: "subprocess.CompletedProcess[bytes]", messages: int) -> None:
    assert result.returncode == 0, result.stderr.decode()
    summary = figures(result.stdout)
    assert (summary["messages"], summary["acknowledged"]) == (str(messages), str(messages))
    assert summary["failed"] == "0"


def assert_refused(result: "subprocess.CompletedProcess[bytes]", status: int, error: str) -> None:
    """It failed with this error, in one line and without a traceback."""
    assert result.returncode == status, result.stderr.decode()
    last = result.stderr.decode().rstrip().splitlines()[-1]
    assert last.startswith("Error: "), result.stderr.decode()
    assert error in last
    assert b"Traceback" not in result.stderr


# What is sent


@on_lite
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\ntwo\n", [b"one", b"two"]),
        (b"one\n\n\nlast without newline", [b"one", b"", b"", b"last without newline"]),
        (b"dos\r\n\xff\0\n", [b"dos\r", b"\xff\0"]),
        (b"", []),
    ],
)
def test_lines(service_url: str, topic: str, subscribe: Subscribe, data: bytes, lines: list[bytes]) -> None:
    subscription = subscribe(topic)
    result = run("produce", topic, "--url", service_url, input=data)
    assert_all_acknowledged(result, len(lines))
    assert figures(result.stdout)["bytes"] == str(sum(map(len, lines)))
    received = subscription.read_all()
    assert [message.data for message in received] == lines
    assert {message.partition_key for message in received} <= {""}


@on_lite
def test_files_are_sent_in_order(service_url: str, topic: str, subscribe: Subscribe, tmp_path: Path) -> None:
    subscription = subscribe(topic)
    first, last = tmp_path / "first", tmp_path / "last"
    first.write_bytes(b"1\nno newline")
    last.write_bytes(b"".join(b"%d\n" % i for i in range(20_000)))
    result = run("produce", topic, first, "-", last, "--url", service_url, input=b"from standard input\n")
    assert_all_acknowledged(result, 20_003)
    assert re.fullmatch(r"\d+\.\d\d µs a message", figures(result.stdout)["client CPU"])
    expected = [b"1", b"no newline", b"from standard input", *(b"%d" % i for i in range(20_000))]
    assert [message.data for message in subscription.read(20_003)] == expected


@on_lite
def test_the_url_may_come_from_the_environment(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    environment = {**WITHOUT_URL, "PULSAR_FAST_SERVICE_URL": service_url}
    assert_all_acknowledged(run("produce", topic, input=b"hello", env=environment), 1)
    assert [message.data for message in subscription.read_all()] == [b"hello"]


@on_lite
def test_keys_before_a_separator(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    data = "ä:1\nno key\nb:2:more\n:empty\n".encode()
    result = run("produce", topic, "--key-separator", ":", "--url", service_url, input=data)
    assert_all_acknowledged(result, 4)
    assert figures(result.stdout)["without key"] == "1"
    received = [(message.partition_key, message.data) for message in subscription.read_all()]
    assert sorted(received) == sorted([("ä", b"1"), ("", b"no key"), ("b", b"2:more"), ("", b"empty")])


@on_lite
def test_keys_in_json(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    keys = {b'{"id": "a"}': "a", b'{"id": 1.50}': "1.50", b'{"id": null}': "", b"[1]": ""}
    options = ["--format", "ndjson", "--key-field", "id", "--url", service_url]
    result = run("produce", topic, *options, input=b"\n".join([*keys, b" ", b""]))
    assert_all_acknowledged(result, 4)
    assert figures(result.stdout)["without key"] == "2"
    assert {message.data: message.partition_key for message in subscription.read_all()} == keys


@on_lite
def test_length_prefixed(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    contents = [b"", b"two\nlines", bytes(300_000)]
    data = b"".join(len(content).to_bytes(4, "big") + content for content in contents)
    options = ["--format", "raw-length-prefixed", "--url", service_url]
    assert_all_acknowledged(run("produce", topic, *options, input=data), 3)
    assert [message.data for message in subscription.read_all()] == contents


@on_lite
def test_whole_files(service_url: str, topic: str, subscribe: Subscribe, tmp_path: Path) -> None:
    subscription = subscribe(topic)
    contents = [b"", b"two\nlines\n", b"x" * 1_000_000]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    assert_all_acknowledged(
        run("produce", topic, *paths, "--format", "whole-file", "--url", service_url), len(contents)
    )
    assert [message.data for message in subscription.read_all()] == contents


@on_lite
@pytest.mark.parametrize("options", [[], ["--format", "ndjson"]])
def test_properties(service_url: str, topic: str, subscribe: Subscribe, options: list[str]) -> None:
    subscription = subscribe(topic)
    options = [*options, "--property", "source=a=b", "--property", "empty="]
    assert_all_acknowledged(run("produce", topic, *options, "--url", service_url, input=b"1\n2\n"), 2)
    received = subscription.read_all()
    assert [message.properties for message in received] == [{"source": "a=b", "empty": ""}] * 2


@on_lite
def test_a_terminal_is_told_what_is_waited_for(service_url: str, tmp_path: Path) -> None:
    file = tmp_path / "t.txt"
    file.write_bytes(b"not read")
    hints = {"topic": "", "t.txt": "t.txt is taken as the topic; "}
    for topic, hint in hints.items():
        keyboard, terminal = pty.openpty()
        with running("produce", topic, "--url", service_url, stdin=terminal, cwd=tmp_path) as process:
            os.close(terminal)
            assert process.stderr.readline().decode() == f"{hint}reading standard input\n"
            os.write(keyboard, b"typed\n\x04")
            assert process.wait(TIMEOUT) == 0
            assert figures(process.stdout.read())["acknowledged"] == "1"
        os.close(keyboard)


@on_lite
def test_the_library_is_heard_when_asked_for(service_url: str, topic: str) -> None:
    host = service_url.removeprefix("pulsar://").encode()
    quiet = run("produce", topic, "--url", service_url, input=b"line")
    assert quiet.stderr == b""
    verbose = run("produce", topic, "-v", "--url", service_url, input=b"line")
    assert b"DEBUG connected to " + host in verbose.stderr


@on_lite
def test_a_rate_is_kept_and_progress_told(service_url: str, topic: str) -> None:
    started = time.monotonic()
    result = run("produce", topic, "--rate", 20, "--url", service_url, input=b"line\n" * 110)
    assert 5.0 < time.monotonic() - started < 15.0
    assert_all_acknowledged(result, 110)
    (line,) = result.stderr.decode().splitlines()
    assert re.match(r"0\.0 MB read, 1\d\d sent, \d+/s, \d+ acknowledged, 0 failed", line)


@on_lite
def test_progress_on_a_terminal(service_url: str, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"line\n" * 7)
    ours, terminal = pty.openpty()
    environment = {**WITHOUT_URL, "TERM": "xterm", "COLUMNS": "100"}
    with running("produce", topic, path, "--url", service_url, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # what Linux says at the end
            while chunk := os.read(ours, 4096):
                shown += chunk
        os.close(ours)
        assert process.wait(TIMEOUT) == 0
    assert b"35/35 bytes" in shown
    assert b"7 sent" in shown
    assert b"7 acknowledged, 0 failed" in shown


# What goes wrong


@on_lite
def test_a_message_too_big_does_not_stop_the_others(
    service_url: str, topic: str, subscribe: Subscribe
) -> None:
    subscription = subscribe(topic)
    data = b"before\n" + b"x" * (6 << 20) + b"\nafter\n"
    result = run("produce", topic, "--url", service_url, input=data)
    assert result.returncode == 1
    summary = figures(result.stdout)
    assert (summary["messages"], summary["acknowledged"], summary["failed"]) == ("3", "2", "1")
    assert re.search(rb"message 2 of standard input failed: a message of about \d+ bytes;", result.stderr)
    assert [message.data for message in subscription.read_all()] == [b"before", b"after"]


@on_lite
def test_bad_json_ends_the_run(service_url: str, topic: str, subscribe: Subscribe, tmp_path: Path) -> None:
    subscription = subscribe(topic)
    path = tmp_path / "data.ndjson"
    path.write_bytes(b"{}\n \r\n[]\n{bad\n1\n")
    result = run("produce", topic, path, "--format", "ndjson", "--url", service_url)
    assert_refused(result, 1, f"{path}:4:2: not JSON: Expecting property name enclosed in double quotes")
    assert figures(result.stdout)["acknowledged"] == "2"
    assert [message.data for message in subscription.read_all()] == [b"{}", b"[]"]


@on_lite
def test_truncated_length_prefixed_input(service_url: str, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"\0\0\0\2ok\0\0\0\5cut")
    result = run("produce", topic, path, "--format", "raw-length-prefixed", "--url", service_url)
    assert_refused(result, 1, f"{path}: offset 6: the input ends 7 bytes into a message")
    assert figures(result.stdout)["acknowledged"] == "1"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["missing-file"], "missing-file"),
        (["/"], "directory"),
        (["--url", "https://localhost:8443/admin"], "--url"),
        (["--url", "pulsar://localhost:port"], "--url"),
        (["--url", "pulsar://localhost", "--embedded"], "--embedded"),
        (["--property", "no-equals-sign"], "NAME=VALUE"),
        (["--property", "name=\udcff"], "UTF-8"),
        (["--rate", "0"], "--rate"),
        (["--rate", "nan"], "--rate"),
        (["--key-field", "id"], "--format ndjson"),
        (["--key-separator", ":", "--format", "ndjson"], "--format lines"),
        (["--key-separator", ""], "empty"),
        (["--format", "csv"], "csv"),
    ],
)
def test_wrong_arguments(arguments: list[str], error: str) -> None:
    assert_refused(run("produce", "topic", *arguments, input=b"never sent"), 2, error)


@on_lite
def test_a_bad_topic(service_url: str) -> None:
    result = run("produce", "a/b/c/d/e/f", "--url", service_url, input=b"never sent")
    assert_refused(result, 1, "a/b/c/d/e/f")
    assert b"InvalidTopicName" not in result.stderr


@pytest.mark.parametrize("command", ["produce", "demo"])
def test_an_unreachable_broker(command: str) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"pulsar://127.0.0.1:{nobody.getsockname()[1]}"
        code = (
            "from functools import partial; from pulsar_fast import cli; from pulsar_fast.cli import app\n"
            "app.pulsar.Client = partial(app.pulsar.Client, operation_timeout_seconds=0.5)\n"
            "cli.main()\n"
        )
        arguments = [command, "topic"] if command == "produce" else [command, __file__]
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments, "--url", url],
            input=b"never sent",
            capture_output=True,
            timeout=TIMEOUT,
        )
        assert_refused(result, 1, f"Error: {url}: ")
        assert b"Connection refused" in result.stderr.splitlines()[-1]
        assert len(result.stderr.splitlines()) <= 3


@on_lite
def test_a_full_disk_behind_standard_output(service_url: str, topic: str) -> None:
    with (
        open("/dev/full", "wb") as full,
        running("produce", topic, "--url", service_url, stdin=subprocess.DEVNULL, stdout=full) as process,
    ):
        _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (1, b"Error: standard output: No space left on device\n")


def test_a_signal_while_connecting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TIMEOUT)
        url = f"pulsar://127.0.0.1:{silent.getsockname()[1]}"
        with running("produce", "topic", "--url", url, stdin=subprocess.DEVNULL) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                assert process.wait(5) == 130
                assert process.stderr.read() == b"stopped by SIGINT\n"


@pytest.mark.parametrize("module", ["click", "rich"])
def test_without_the_extra(module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; import pulsar_fast.cli; pulsar_fast.cli.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=TIMEOUT)
    assert result.returncode == 2
    assert result.stderr.decode() == "the command line needs: pip install 'pulsar-fast[cli]'\n"


@on_lite
def test_nobody_reads_the_summary(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    with running("produce", topic, "--url", service_url, stdin=subprocess.PIPE) as process:
        process.stdout.close()
        process.stdin.write(b"line\n")
        process.stdin.close()
        assert process.wait(TIMEOUT) == 1
        assert process.stderr.read() == b""
    assert [message.data for message in subscription.read_all()] == [b"line"]


# Signals and broker failures


@on_lite
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("format_name", ["lines", "ndjson"])
def test_a_signal_ends_an_endless_input(
    service_url: str, topic: str, subscribe: Subscribe, number: int, status: int, format_name: str
) -> None:
    subscription = subscribe(topic)
    options = ["--rate", 2000, "--format", format_name, "--url", service_url]
    with endless_input() as pipe, running("produce", topic, *options, stdin=pipe) as process:
        received = subscription.read(100)
        process.send_signal(number)
        output, errors = process.communicate(timeout=TIMEOUT)
    assert process.returncode == status, errors.decode()
    assert errors == b""
    received += subscription.read_all()
    assert [message.data for message in received] == [b"%d" % i for i in range(len(received))]
    summary = figures(output)
    assert summary["messages"] == summary["acknowledged"] == str(len(received))


@on_lite
def test_a_signal_while_the_input_is_silent(service_url: str, topic: str, subscribe: Subscribe) -> None:
    subscription = subscribe(topic)
    with running("produce", topic, "--url", service_url, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"1\n2\nnot a whole line")
        process.stdin.flush()
        received = subscription.read(2)
        process.send_signal(signal.SIGINT)
        assert process.wait(TIMEOUT) == 130
        assert figures(process.stdout.read())["acknowledged"] == "2"
        assert process.stderr.read() == b""
    received += subscription.read_all()
    assert [message.data for message in received] == [b"1", b"2"]


@contextmanager
def own_broker(topic: str) -> Iterator[tuple[EmbeddedBroker, Subscription]]:
    """A broker that the test may kill, and a subscription to a topic of it."""
    with EmbeddedBroker() as broker:
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pulsar.Client(broker.service_url, logger=logger)
        try:
            yield broker, Subscription(client, topic)
        finally:
            client.shutdown()


def await_line(process: "subprocess.Popen[bytes]", pattern: bytes) -> None:
    """Read standard error up to such a line; its end, or the test's timeout, is a failure."""
    assert any(re.search(pattern, line) for line in process.stderr), f"{pattern!r} was not told"


def test_a_second_signal_gives_up() -> None:
    with (
        own_broker("topic") as (broker, subscription),
        endless_input() as pipe,
        running("produce", "topic", "-v", "--rate", 2000, "--url", broker.service_url, stdin=pipe) as process,
    ):
        subscription.read(100)
        broker.kill()
        await_line(process, rb"reconnecting failed: ")  # by then messages are pending
        process.send_signal(signal.SIGINT)
        await_line(process, rb"^waiting for [1-9]\d* messages; Ctrl-C again gives up$")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=5)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert int(figures(output)["failed"]) > 0


def test_a_broker_that_is_killed_and_comes_back() -> None:
    lines = [b"%d" % i for i in range(6000)]
    with own_broker("topic") as (broker, subscription):
        options = ["--rate", 2000, "--url", broker.service_url]
        with running("produce", "topic", *options, stdin=subprocess.PIPE) as process:
            process.stdin.write(b"\n".join(lines))
            process.stdin.close()
            received = subscription.read(100)
            broker.kill()
            broker.restart()
            assert process.wait(TIMEOUT) == 0, process.stderr.read().decode()
            assert figures(process.stdout.read())["acknowledged"] == "6000"
        received += subscription.read_all(TIMEOUT)
    # What was not answered before the broker died is sent again, and perhaps stored twice.
    assert list(dict.fromkeys(message.data for message in received)) == lines, "lost or reordered"


@on_lite
@pytest.mark.parametrize(
    "place",
    [
        "app.standard_library",
        "app.pulsar.Client",
        "demo.Ingest",
        "demo._start_without_signals",
        "demo._next_answer",
        "demo._compare",
    ],
)
def test_ctrl_c_at_any_moment_of_the_demo(service_url: str, place: str) -> None:
    """The terminal sends it to all processes there are."""
    code = (
        "import os, signal; from pulsar_fast import cli; from pulsar_fast.cli import app, demo\n"
        "app.standard_library = lambda: [cli.__file__]\n"
        f"original = {place}\n"
        "def interrupted(*arguments):\n"
        "    os.killpg(0, signal.SIGINT)\n"
        "    return original(*arguments)\n"
        f"{place} = interrupted\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, "demo", "--url", service_url]
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT, start_new_session=True)
    errors = [line for line in result.stderr.decode().splitlines() if not line.startswith("ingesting ")]
    assert (result.returncode, errors) == (130, ["stopped by SIGINT"])


# The other commands


def refuses_connections(url: str) -> bool:
    host, port = url.removeprefix("pulsar://").split(":")
    with socket.socket() as connection:
        return connection.connect_ex((host, int(port))) != 0


@pytest.mark.parametrize("options", [[], ["--embedded"]])
def test_without_a_url_a_broker_is_started(lite_broker: EmbeddedBroker, options: list[str]) -> None:
    result = run("produce", "topic", *options, input=b"one\ntwo\n")
    assert_all_acknowledged(result, 2)
    assert ("data" in figures(result.stdout)) == (not options)  # that it is gone, unless that was asked for
    match = re.search(r"started pulsar-lite at (\S+);", result.stderr.decode())
    assert match is not None
    assert refuses_connections(match[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_broker_runs_until_a_signal(lite_broker: EmbeddedBroker, tmp_path: Path, number: int) -> None:
    data = tmp_path / "data"
    for _ in range(2):
        with running("broker", "--path", data) as process:
            url = process.stdout.readline().decode().strip()
            assert_all_acknowledged(run("produce", "topic", "--url", url, input=b"line\n"), 1)
            process.send_signal(number)
            output, errors = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, output, errors) == (0, b"", b"")
        assert refuses_connections(url)
    assert list(data.iterdir()) != []


def test_broker_on_a_port_in_use(lite_broker: EmbeddedBroker) -> None:
    port = lite_broker.service_url.rpartition(":")[2]
    assert_refused(run("broker", "--port", port), 1, f"port {port}")


def test_version() -> None:
    assert run("--version").stdout.decode() == f"pulsar-fast {__version__}\n"


@on_lite
def test_demo(service_url: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\r\n\n\xff\nlast")
    result = run("demo", path, "--url", service_url)
    assert_all_acknowledged(result, 4)
    summary = figures(result.stdout)
    assert summary["read back"].startswith("4 messages in ")
    assert summary["client CPU"] == "–  (too few messages to tell)"
    assert result.stderr.decode() == f"ingesting {path}\n"


@on_lite
@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("[line for line in part if line != b'2']", "message 2: expected b'2', got b'3'"),
        ("[line.replace(b'4', b'5') for line in part]", "message 4: expected b'4', got b'5'"),
        ("[*part, b'more']", "message 5: expected none, got b'more'"),
        ("part[::-1]", "message 0: expected b'0', got b'4'"),
    ],
)
def test_demo_tells_the_first_difference(
    service_url: str, tmp_path: Path, change: str, difference: str
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"0\n1\n2\n3\n4\n")
    code = (
        "from pulsar_fast import cli; from pulsar_fast.cli import demo\n"
        "split_lines = demo.split_lines\n"
        f"demo.split_lines = lambda chunks: ({change} for part in split_lines(chunks))\n"
        "cli.main()\n"
    )
    command = [sys.executable, "-c", code, "demo", str(path), "--url", service_url]
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
    assert_refused(result, 1, difference)


@on_lite
def test_demo_without_the_official_client(service_url: str) -> None:
    code = "import sys; sys.modules['pulsar'] = None; from pulsar_fast import cli; cli.main()"
    command = [sys.executable, "-c", code, "demo", "--url", service_url]
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
    assert_refused(result, 1, "pip install pulsar-client")
