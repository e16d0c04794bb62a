"""What a broker really stored: entries with their metadata as written, which no official consumer shows.

A small consumer of its own, with its own decoder, so that it shares no code with what it checks.
"""

import socket
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .admin import Login

_CONNECT, _CONNECTED, _SUBSCRIBE, _MESSAGE, _FLOW, _SUCCESS, _PING, _PONG = 2, 3, 4, 9, 11, 13, 18, 19
_LOOKUP, _LOOKUP_RESPONSE = 23, 24
_EARLIEST = (1 << 64) - 1  # as ledger and as entry

# Field number: name, and the kind of what is no plain unsigned number; a list is a repeated field.
_KEY_VALUE = {1: ("key", str), 2: ("value", str)}
_ENCRYPTION_KEY = {1: ("key", str), 2: ("value", bytes), 3: ("metadata", [_KEY_VALUE])}
_METADATA = {
    1: ("producer_name", str),
    2: ("sequence_id", int),
    3: ("publish_time", int),
    4: ("properties", [_KEY_VALUE]),
    5: ("replicated_from", str),
    6: ("partition_key", str),
    7: ("replicate_to", [str]),
    8: ("compression", int),
    9: ("uncompressed_size", int),
    11: ("num_messages_in_batch", int),
    12: ("event_time", int),
    13: ("encryption_keys", [_ENCRYPTION_KEY]),
    14: ("encryption_algo", str),
    15: ("encryption_param", bytes),
    16: ("schema_version", bytes),
    17: ("partition_key_b64_encoded", bool),
    18: ("ordering_key", bytes),
    19: ("deliver_at_time", int),
    22: ("txnid_least_bits", int),
    23: ("txnid_most_bits", int),
    24: ("highest_sequence_id", int),
    25: ("null_value", bool),
    26: ("uuid", str),
    27: ("num_chunks_from_msg", int),
    28: ("total_chunk_msg_size", int),
    29: ("chunk_id", int),
    30: ("null_partition_key", bool),
}
_SINGLE = {
    1: ("properties", [_KEY_VALUE]),
    2: ("partition_key", str),
    3: ("payload_size", int),
    4: ("compacted_out", bool),
    5: ("event_time", int),
    6: ("partition_key_b64_encoded", bool),
    7: ("ordering_key", bytes),
    8: ("sequence_id", int),
    9: ("null_value", bool),
    10: ("null_partition_key", bool),
}
_MESSAGE_ID = {1: ("ledger", int), 2: ("entry", int)}
_COMMAND = {
    1: ("type", int),
    9: ("message", {2: ("id", _MESSAGE_ID)}),
    14: ("error", {2: ("code", int), 3: ("message", str)}),
    24: ("lookup", {1: ("url", str), 3: ("response", int), 6: ("error", int), 7: ("message", str)}),
}


@dataclass(frozen=True)
class Entry:
    """One entry of a topic. Metadata maps the protocol's field names to values, without absent fields."""

    ledger: int
    entry: int
    metadata: dict[str, Any]
    payload: bytes  # as stored: compressed, with the metadata of single messages

    def messages(self) -> list[tuple[dict[str, Any], bytes]]:
        """Metadata and payload of each message of a batch; of the one message, if it is none.

        Raises:
            NotImplementedError: the compression is neither none nor zlib.
        """
        data = self.payload
        if (compression := self.metadata.get("compression", 0)) == 2:
            data = zlib.decompress(data)
        elif compression != 0:
            raise NotImplementedError(f"compression {compression}")
        if "num_messages_in_batch" not in self.metadata:
            return [(self.metadata, data)]
        messages = []
        while data:
            (size,) = struct.unpack_from(">I", data)
            single = _decode(data[4 : 4 + size], _SINGLE)
            end = 4 + size + single["payload_size"]
            messages.append((single, data[4 + size : end]))
            data = data[end:]
        return messages


def peek(service_url: str, topic: str, entries: int, timeout: float = 10.0) -> list[Entry]:
    """The first ``entries`` entries of a topic (not of a partitioned one: name the partition).

    Args:
        service_url: ``pulsar://host:port`` of the broker that serves the topic.
        timeout: seconds for all of it.

    Raises:
        AssertionError: fewer entries came in time, or the broker refused.
    """
    address = urlsplit(service_url)
    with socket.create_connection((address.hostname, address.port), timeout=timeout) as connection:
        connection.settimeout(0.1)
        found: list[Entry] = []
        try:
            _run(_Frames(connection, time.monotonic() + timeout), topic, entries, found)
        except TimeoutError:
            raise AssertionError(
                f"{len(found)} of {entries} entries of {topic} came in {timeout:g} s"
            ) from None
    return found


def greets(service_url: str, login: Login | None = None) -> bool:
    """Whether a broker answers the handshake there, which it does a while after it listens, within 1 s."""
    address = urlsplit(service_url)
    try:
        with socket.create_connection((address.hostname, address.port), timeout=1) as connection:
            connection.settimeout(0.1)
            _shake_hands(_Frames(connection, time.monotonic() + 1), login)
    except (OSError, AssertionError):
        return False
    return True


def _shake_hands(frames: "_Frames", login: Login | None = None) -> None:
    fields: dict[int, int | bytes] = {1: b"pulsar-fast tests", 4: 19}
    if login is not None:
        fields |= {3: login.data.encode(), 5: login.method.encode()}
    frames.send(_CONNECT, fields)
    frames.receive(_CONNECTED)


def _run(frames: "_Frames", topic: str, entries: int, found: list[Entry]) -> None:
    _shake_hands(frames)
    frames.send(_LOOKUP, {1: topic.encode(), 2: 1})
    answer, _ = frames.receive(_LOOKUP_RESPONSE)
    assert answer["lookup"]["response"] == 1, answer["lookup"]
    # Not durable (8), from the earliest message on (9): a reader, which leaves nothing behind.
    earliest = _encode({1: _EARLIEST, 2: _EARLIEST})
    frames.send(_SUBSCRIBE, {1: topic.encode(), 2: b"peek", 3: 0, 4: 1, 5: 2, 8: 0, 9: earliest})
    frames.receive(_SUCCESS)
    frames.send(_FLOW, {1: 1, 2: 1_000_000})
    while len(found) < entries:
        command, body = frames.receive(_MESSAGE)
        found.append(_entry(command["message"]["id"], body))


def _entry(message_id: dict[str, int], body: bytes) -> Entry:
    if body.startswith(b"\x0e\x01"):
        body = body[6:]  # the checksum
    (size,) = struct.unpack_from(">I", body)
    return Entry(**message_id, metadata=_decode(body[4 : 4 + size], _METADATA), payload=body[4 + size :])


class _Frames:
    """Commands over a connection, until a deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline

    def send(self, kind: int, fields: dict[int, int | bytes]) -> None:
        # Up to 40 the field of a command has the number of its type.
        command = _encode({1: kind, kind: _encode(fields)})
        self._connection.sendall(struct.pack(">II", len(command) + 4, len(command)) + command)

    def receive(self, kind: int) -> tuple[dict[str, Any], bytes]:
        """The next command of this type, and what follows it in its frame."""
        while True:
            (size,) = struct.unpack(">I", self._read(4))
            frame = self._read(size)
            (length,) = struct.unpack_from(">I", frame)
            command = _decode(frame[4 : 4 + length], _COMMAND)
            if command["type"] == kind:
                return command, frame[4 + length :]
            if command["type"] == _PING:
                self.send(_PONG, {})
            assert "error" not in command, command

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if time.monotonic() > self._deadline:
                raise TimeoutError
            try:
                chunk = self._connection.recv(size - len(data))
            except TimeoutError:
                continue
            assert chunk, "the broker closed the connection"
            data += chunk
        return bytes(data)


def _encode(fields: dict[int, int | bytes]) -> bytes:
    out = bytearray()
    for number, value in fields.items():
        if isinstance(value, bytes):
            out += _varint(number << 3 | 2) + _varint(len(value)) + value
        else:
            out += _varint(number << 3) + _varint(value)
    return bytes(out)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _decode(data: bytes, fields: dict[int, tuple[str, Any]]) -> dict[str, Any]:
    decoded: dict[str, Any] = {}
    for number, value in _fields(data):
        if number not in fields:
            continue
        name, kind = fields[number]
        if isinstance(kind, list):
            decoded.setdefault(name, []).append(_convert(value, kind[0]))
        else:
            decoded[name] = _convert(value, kind)
    return decoded


def _convert(value: Any, kind: Any) -> Any:
    if isinstance(kind, dict):
        return _decode(value, kind)
    return value.decode() if kind is str else kind(value)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while position < len(data):
        number, wire_type = divmod(varint(), 8)
        value = varint()
        if wire_type == 0:
            yield number, value
        else:
            assert wire_type == 2, f"wire type {wire_type}"
            yield number, data[position : position + value]
            position += value
