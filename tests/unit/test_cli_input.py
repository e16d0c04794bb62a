"""What the command line makes of its input, chunk by chunk."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulsar_fast as pulsar
from pulsar_fast.cli.ingest import Ingest
from pulsar_fast.cli.reading import (
    InputError,
    Splitter,
    json_checker,
    key_before,
    split_lines,
    split_records,
    whole,
)
from pulsar_fast.cli.stopping import GaveUp, Stop


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def messages(split: Splitter, data: bytes, size: int = 7) -> list[bytes]:
    return [message for part in split(chunks(data, size)) for message in part]


def record(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


@given(st.lists(st.sampled_from([b"", b"a", b"\r", b"\n", b"\0", b"longer than a chunk"])), st.integers(1, 9))
def test_lines_do_not_depend_on_the_chunks(parts: list[bytes], size: int) -> None:
    data = b"".join(parts)
    expected = data.split(b"\n")
    if expected[-1] == b"":  # nothing follows the last newline
        del expected[-1]
    assert messages(split_lines, data, size) == expected


@given(st.binary(), st.integers(1, 9))
def test_any_bytes_are_lines(data: bytes, size: int) -> None:
    assert b"\n".join(messages(split_lines, data, size)) == data.removesuffix(b"\n")


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"\n\n", [b"", b""]),
        (b"one\ntwo", [b"one", b"two"]),
        (b"one\r\ntwo\r", [b"one\r", b"two\r"]),
    ],
)
def test_lines(data: bytes, lines: list[bytes]) -> None:
    assert messages(split_lines, data) == lines


def test_a_line_over_the_limit_ends_the_reading() -> None:
    reading = split_lines(iter([b"first\nsec", b"ond second", b"never read"]), limit=10)
    assert next(reading) == [b"first"]
    with pytest.raises(InputError, match="line 2 is longer than 10 bytes"):
        next(reading)


def test_a_line_of_the_limit_passes() -> None:
    assert list(split_lines(chunks(b"0123456789\n", 4), limit=10)) == [[b"0123456789"]]


@given(st.lists(st.binary(max_size=20)), st.integers(1, 9))
def test_records_do_not_depend_on_the_chunks(contents: list[bytes], size: int) -> None:
    assert messages(split_records, b"".join(map(record, contents)), size) == contents


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_truncated_record_is_told_where_it_starts(cut: int) -> None:
    data = record(b"good") + record(b"trunc")
    reading = split_records(chunks(data[:-cut], 8))
    assert next(reading) == [b"good"]
    with pytest.raises(InputError, match=f"offset 8: the input ends {9 - cut} bytes into a message"):
        next(reading)


def test_a_record_over_the_limit_is_refused_before_it_is_read() -> None:
    reading = split_records(iter([record(b"good") + b"\xff\xff\xff\xff", b"never read"]), limit=10)
    assert next(reading) == [b"good"]
    with pytest.raises(InputError, match="offset 8: a message of 4294967295 bytes"):
        next(reading)


@pytest.mark.parametrize("data", [b"", b"one\ntwo\n", bytes(range(256))])
def test_whole(data: bytes) -> None:
    assert messages(whole, data) == [data]


def test_whole_over_the_limit() -> None:
    with pytest.raises(InputError, match="larger than 10 bytes"):
        list(whole(chunks(b"x" * 11, 4), limit=10))


@pytest.mark.parametrize(
    ("line", "content", "key"),
    [
        (b"key=value=more", b"value=more", "key"),
        (b"no separator", b"no separator", None),
        (b"=value", b"value", ""),
        (b"key=", b"", "key"),
        ("schlüssel=".encode() + b"\xff", b"\xff", "schlüssel"),
    ],
)
def test_key_before_separator(line: bytes, content: bytes, key: str | None) -> None:
    assert key_before(b"=")(line) == (content, key)


def test_a_separator_may_be_long() -> None:
    assert key_before(b"->")(b"a-b->c->d") == (b"c->d", "a-b")


def test_a_key_must_be_text() -> None:
    with pytest.raises(InputError, match="the key is not UTF-8"):
        key_before(b"=")(b"\xff=value")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"id": "text"}', "text"),
        (b'{"id": ""}', ""),
        (b'{"id": "\\u00fc"}', "ü"),
        (b'{"id": 17}', "17"),
        (b'{"id": 1.50}', "1.50"),
        (b'{"id": 1e400}', "1e400"),
        (b'{"id": -0}', "-0"),
        (b'{"id": true}', "true"),
        (b'{"id": false}', "false"),
        (b'{"id": null}', None),
        (b'{"other": 1}', None),
        (b'["id"]', None),
        (b'"id"', None),
        (b' {"id": "with spaces"}\r', "with spaces"),
    ],
)
def test_key_in_json(line: bytes, key: str | None) -> None:
    assert json_checker("id")(line) == (line, key)


def test_json_without_a_key_field_has_no_key() -> None:
    assert json_checker(None)(b'{"id": 1}') == (b'{"id": 1}', None)


@pytest.mark.parametrize("line", [b"", b" ", b"\t \r"])
def test_blank_lines_are_skipped(line: bytes) -> None:
    assert json_checker("id")(line) is None


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (b"{", 2),
        (b"{'id': 1}", 2),
        (b'{"id": 1} {}', 11),
        ('"ü" x'.encode(), 5),
        ("ü\xff".encode("latin-1"), 1),
        ('"ü'.encode() + b"\xff", 3),
        (b'{"id": NaN}', None),
        (b"[" * 100_000, None),
        (b'\xef\xbb\xbf{"id": 1}', 1),
    ],
)
def test_what_is_not_json(line: bytes, column: int | None) -> None:
    with pytest.raises(InputError, match=r"^not JSON: [^(]*$") as raised:
        json_checker("id")(line)
    assert raised.value.column == column


@pytest.mark.parametrize("line", [b'{"id": []}', b'{"id": {}}', b'{"id": "\\ud800"}'])
def test_what_cannot_be_a_key(line: bytes) -> None:
    with pytest.raises(InputError, match="the key field"):
        json_checker("id")(line)


@pytest.mark.parametrize("error", [pulsar.AlreadyClosed("gone"), GaveUp()])
@pytest.mark.parametrize("accepted", [None, 2])
def test_what_was_accepted_before_an_error_is_accounted(error: Any, accepted: int | None) -> None:
    if accepted is not None:
        error.handle = SimpleNamespace(count=accepted, result=lambda: None)
    client = Mock()
    client.create_producer.return_value.send_many.side_effect = error
    ingest = Ingest(client, "topic", Stop())
    ingest.run(["path"], lambda chunks: iter([[b"1", b"22", b"333"]]))
    assert (ingest.messages, ingest.bytes) == ((0, 0) if accepted is None else (2, 3))
    assert ingest.problem == ("" if isinstance(error, GaveUp) else "gone")
    assert client.shutdown.called == isinstance(error, GaveUp)
