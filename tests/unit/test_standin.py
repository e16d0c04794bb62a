"""The stand-in broker of the benchmarks: what it answers, and that it catches a client in the wrong."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "standin.c"
CHECKSUMS: dict[str, list[str]] = {"tables": []}
if platform.machine() in ("x86_64", "AMD64"):
    CHECKSUMS["instruction"] = ["-msse4.2"]

PRODUCER, SEND, RECEIPT = 5, 6, 7
SUCCESS, CLOSE_PRODUCER, PRODUCER_SUCCESS, PING, PONG = 13, 15, 17, 18, 19
PARTITIONS, PARTITIONS_RESPONSE, LOOKUP, LOOKUP_RESPONSE = 21, 22, 23, 24

GOLDEN_SINGLE = bytes.fromhex(
    "0e010836b466000000310a0f7374616e64616c6f6e652d37342d30100018acefe8a0e22d"
    "22060a016112013122060a01621201324805600582010068656c6c6f"
)
GOLDEN_BATCH = bytes.fromhex(
    "0e011f8009680000001f0a0f7374616e64616c6f6e652d37342d31100018db80f4a0e22d5801820100"
    "000000160a060a01611201310a060a016212013218052805400068656c6c6f"
)


def varint(value: int) -> bytes:
    out = b""
    while value >= 0x80:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def frame(kind: int, fields: bytes = b"", rest: bytes = b"") -> bytes:
    command = number(1, kind) + text(kind, fields)
    return (
        (4 + len(command) + len(rest)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + rest
    )


def crc32c(data: bytes) -> int:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def payload_section(payload: bytes) -> bytes:
    metadata = text(1, b"p") + number(2, 0) + number(3, 0)
    covered = len(metadata).to_bytes(4, "big") + metadata + payload
    return b"\x0e\x01" + crc32c(covered).to_bytes(4, "big") + covered


def send(
    sequence: int, messages: int = 1, highest: int = 0, section: bytes = GOLDEN_SINGLE, producer: int = 7
) -> bytes:
    fields = number(1, producer) + number(2, sequence) + number(3, messages)
    return frame(SEND, fields + (number(6, highest) if highest else b""), section)


def receipt(sequence: int, highest: int, entry: int, producer: int = 7) -> bytes:
    message_id = number(1, 1) + number(2, entry)
    fields = number(1, producer) + number(2, sequence) + text(3, message_id) + number(4, highest)
    return frame(RECEIPT, fields)


class Wire:
    """A raw connection to the stand-in."""

    def __init__(self, port: int, receive_buffer: int | None) -> None:
        self._socket = socket.socket()
        self._socket.settimeout(10)
        if receive_buffer is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._socket.connect(("127.0.0.1", port))

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def expect(self, answer: bytes) -> None:
        got = bytearray()
        while len(got) < len(answer) and (more := self._socket.recv(len(answer) - len(got))):
            got += more
        assert bytes(got) == answer

    def read_until(self, answer: bytes) -> bytes:
        got = bytearray()
        while not got.endswith(answer):
            more = self._socket.recv(65536)
            assert more, "the stand-in closed the connection"
            got += more
        return bytes(got)

    def expect_end(self) -> None:
        try:
            assert self._socket.recv(1) == b""
        except ConnectionResetError:
            pass  # what the stand-in had not read was thrown away with the connection

    def open_producer(self, producer: int = 7) -> None:
        self.send(frame(PRODUCER, text(1, b"t") + number(2, producer) + number(3, 1) + text(4, b"mine")))
        self.expect(frame(PRODUCER_SUCCESS, number(1, 1) + text(2, b"mine") + number(3, 2**64 - 1)))


class Standin:
    """The running program."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.output = self.process.stdout
        word, port = self.output.readline().split()
        assert word == b"port"
        self.port = int(port)
        self._wires: list[Wire] = []

    def connect(self, receive_buffer: int | None = None) -> Wire:
        wire = Wire(self.port, receive_buffer)
        self._wires.append(wire)
        return wire

    def counters(self) -> dict[str, float]:
        self.process.send_signal(signal.SIGUSR1)
        return self.read_counters()

    def read_counters(self) -> dict[str, float]:
        counters: dict[str, float] = json.loads(self.output.readline())
        return counters

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        with self.process:
            self.process.kill()


@pytest.fixture(scope="module", params=CHECKSUMS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CC", "cc")
    if shutil.which(compiler) is None:
        pytest.fail(f"a C compiler is needed, and {compiler!r} is not there")
    target = tmp_path_factory.mktemp("standin") / "standin"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *CHECKSUMS[request.param]]
    subprocess.run([compiler, *flags, "-o", target, SOURCE], check=True)
    return target


@pytest.fixture
def standin(program: Path) -> Iterator[Standin]:
    running = Standin(program)
    yield running
    running.close()


def faults(counters: dict[str, float]) -> dict[str, float]:
    return {name: counters[name] for name in ("bad_crc", "gaps", "repeats", "malformed") if counters[name]}


def test_handshake_and_commands(standin: Standin) -> None:
    wire = standin.connect()
    wire.send(bytes.fromhex("0000000d 00000009 0802 1205 0a0163 2014"))
    wire.expect(bytes.fromhex("00000019 00000015 0803 1a11 0a087374616e642d696e 1014 188080c002"))
    wire.send(frame(PARTITIONS, text(1, b"t") + number(2, 1)))
    wire.expect(frame(PARTITIONS_RESPONSE, number(1, 0) + number(2, 1) + number(3, 0)))
    wire.send(frame(LOOKUP, text(1, b"t") + number(2, 2)))
    url = f"pulsar://127.0.0.1:{standin.port}".encode()
    wire.expect(frame(LOOKUP_RESPONSE, text(1, url) + number(3, 1) + number(4, 2) + number(5, 1)))
    wire.send(frame(PRODUCER, text(1, b"t") + number(2, 0) + number(3, 3)))
    wire.expect(frame(PRODUCER_SUCCESS, number(1, 3) + text(2, b"standin-0") + number(3, 2**64 - 1)))
    wire.send(frame(PING))
    wire.expect(frame(PONG))
    wire.send(frame(CLOSE_PRODUCER, number(1, 0) + number(2, 4)))
    wire.expect(frame(SUCCESS, number(1, 4)))
    assert faults(standin.counters()) == {}


def test_golden_frames_get_receipts(standin: Standin) -> None:
    wire = standin.connect()
    wire.open_producer()
    wire.send(send(0, section=GOLDEN_SINGLE))
    wire.expect(receipt(0, 0, entry=0))
    wire.send(send(1, section=GOLDEN_BATCH))
    wire.expect(receipt(1, 1, entry=1))
    counters = standin.counters()
    assert faults(counters) == {}
    assert (counters["connections"], counters["frames"], counters["messages"]) == (1, 2, 2)
    assert counters["payload_bytes"] == 5 + (4 + 22 + 5)


@pytest.mark.parametrize("size", [1, 8, 3072, 3079, 300_001])
def test_checksum_of_any_length(standin: Standin, size: int) -> None:
    section = payload_section(bytes(i * 7 & 255 for i in range(size)))
    damaged = section[:-1] + bytes([section[-1] ^ 0x10])
    wire = standin.connect()
    wire.open_producer()
    wire.send(send(0, section=section))
    wire.expect(receipt(0, 0, entry=0))
    assert faults(standin.counters()) == {}
    wire.send(send(1, section=damaged))
    wire.expect(receipt(1, 1, entry=1))
    assert faults(standin.counters()) == {"bad_crc": 1}


@pytest.mark.parametrize(
    ("sends", "expected"),
    [
        ([send(0, 3), send(3, 2), send(5)], {}),
        ([send(0, 3, highest=2), send(3, 1)], {}),
        ([send(0, 1), send(1, 2, highest=9), send(10)], {}),
        ([send(1)], {"gaps": 1}),
        ([send(0, 3), send(4), send(5)], {"gaps": 1}),
        ([send(0), send(0), send(1)], {"repeats": 1}),
        ([send(0, 3), send(2, 3), send(5)], {"repeats": 1}),
        ([send(0), send(2), send(1), send(3)], {"gaps": 1, "repeats": 1}),
    ],
)
def test_sequence_ids(standin: Standin, sends: list[bytes], expected: dict[str, int]) -> None:
    wire = standin.connect()
    wire.open_producer()
    wire.send(b"".join(sends) + frame(PING))
    wire.read_until(frame(PONG))
    counters = standin.counters()
    assert faults(counters) == expected
    assert counters["frames"] == len(sends)


def test_each_producer_has_its_own_ids(standin: Standin) -> None:
    first, second = standin.connect(), standin.connect()
    first.open_producer(1)
    first.open_producer(2)
    second.open_producer(1)
    for entry, (wire, producer) in enumerate([(first, 1), (second, 1), (first, 2)]):
        wire.send(send(0, producer=producer))
        wire.expect(receipt(0, 0, entry=entry, producer=producer))
    counters = standin.counters()
    assert faults(counters) == {}
    assert counters["connections"] == 2


MALFORMED = {
    "endless frame": b"\xff\xff\xff\xff",
    "no command size": b"\x00\x00\x00\x03abc",
    "command beyond frame": b"\x00\x00\x00\x08\x00\x00\x00\x09" + bytes(4),
    "broken command": b"\x00\x00\x00\x08\x00\x00\x00\x04\xff\xff\xff\xff",
    "field beyond command": frame(LOOKUP, b"\x0a\x7f"),
    "field zero": frame(LOOKUP, b"\x02\x01a"),
    "endless varint": frame(LOOKUP, b"\x10" + b"\x80" * 11),
    "unknown producer": send(0, producer=99),
    "no messages": send(0, messages=0),
    "no payload": send(0, section=b""),
    "no checksum": send(0, section=b"\x0e\x02" + GOLDEN_SINGLE[2:]),
    "metadata beyond frame": send(0, section=b"\x0e\x01" + bytes(4) + b"\x00\x00\x00\x05abcd"),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_frame_ends_its_connection_only(standin: Standin, data: bytes) -> None:
    good, bad = standin.connect(), standin.connect()
    good.open_producer()
    bad.open_producer()
    bad.send(data)
    bad.expect_end()
    good.send(send(0))
    good.expect(receipt(0, 0, entry=0))
    assert faults(standin.counters()) == {"malformed": 1}


def test_cut_off_frame_is_malformed(standin: Standin) -> None:
    wire = standin.connect()
    wire.open_producer()
    wire.send(send(0)[:-1])
    wire.end()
    wire.expect_end()
    assert faults(standin.counters()) == {"malformed": 1}


def test_frame_in_pieces(standin: Standin) -> None:
    wire = standin.connect()
    wire.open_producer()
    data = send(0, section=payload_section(b"x" * 30)) + send(1)
    for byte in data:
        wire.send(bytes([byte]))
    wire.expect(receipt(0, 0, entry=0) + receipt(1, 1, entry=1))
    assert faults(standin.counters()) == {}


def test_receipts_wait_for_a_slow_reader(standin: Standin) -> None:
    count = 300_000
    smallest = send(0, section=b"\x0e\x01" + crc32c(bytes(4)).to_bytes(4, "big") + bytes(4))
    wire = standin.connect(receive_buffer=4096)
    wire.open_producer()
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(wire.send, smallest * count + frame(PING))
        wait([sending], timeout=0.5)  # until all is on its way, or the stand-in takes no more
        answers = wire.read_until(frame(PONG))
        sending.result(timeout=10)
    assert answers.count(number(1, 7) + number(2, 0) + varint(3 << 3 | 2)) == count
    assert standin.counters()["frames"] == count


def test_signal_resets_the_counters(standin: Standin) -> None:
    wire = standin.connect()
    wire.open_producer()
    wire.send(send(1))
    wire.expect(receipt(1, 1, entry=0))
    assert faults(standin.counters()) == {"gaps": 1}
    again = standin.counters()
    assert faults(again) == {}
    assert (again["frames"], again["wall_seconds"]) == (0, 0)


@pytest.mark.parametrize("how", ["input", "signal"])
def test_ends_with_its_parent_or_at_sigterm(standin: Standin, how: str) -> None:
    wire = standin.connect()
    wire.open_producer()
    wire.send(send(0))
    wire.expect(receipt(0, 0, entry=0))
    if how == "signal":
        standin.process.terminate()
    else:
        assert standin.process.stdin is not None
        standin.process.stdin.close()
    assert standin.process.wait(timeout=10) == 0
    assert standin.read_counters()["messages"] == 1
