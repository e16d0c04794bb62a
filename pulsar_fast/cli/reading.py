"""Turns input bytes into messages: pure functions, no files, no broker.

A splitter takes the input in chunks of any size and yields lists of whole messages, holding no more
than one unfinished message and one chunk. A key function takes one message and returns what to send
and its partition key, or None to skip it. Both raise :class:`InputError`, which says what is wrong and where.
"""

import json
from collections.abc import Callable, Iterable, Iterator

MESSAGE_LIMIT = 64 << 20
"""Bytes of the largest message that is read at all; brokers refuse far smaller ones (5 MiB by default)."""

Splitter = Callable[[Iterable[bytes]], Iterator[list[bytes]]]
KeyFunction = Callable[[bytes], tuple[bytes, str | None] | None]

_LENGTH_SIZE = 4


class InputError(ValueError):
    """The input cannot be read as the chosen format says.

    `column` counts the characters of the message from 1; None if the place is not known.
    """

    def __init__(self, what: str, column: int | None = None) -> None:
        super().__init__(what)
        self.column = column


def split_lines(chunks: Iterable[bytes], limit: int = MESSAGE_LIMIT) -> Iterator[list[bytes]]:
    r"""One message a line. Only ``\n`` ends a line, so a ``\r`` stays part of the message.

    Empty lines are empty messages; a last line without a newline counts.
    """
    tail: list[bytes] = []  # the parts of the line that has not ended yet
    held = 0
    number = 1
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        tail.append(first)
        held += len(first)
        if rest:
            lines = [b"".join(tail), *rest[:-1]]
            tail = [rest[-1]]
            held = len(rest[-1])
            number += len(lines)
            yield lines
        if held > limit:
            raise InputError(f"line {number} is longer than {limit} bytes")
    if held:
        yield [b"".join(tail)]


def split_records(chunks: Iterable[bytes], limit: int = MESSAGE_LIMIT) -> Iterator[list[bytes]]:
    """Each message after its length: an unsigned 32-bit big-endian number, then that many bytes."""
    held = bytearray()
    offset = 0  # of held[0] in the input
    for chunk in chunks:
        held += chunk
        records: list[bytes] = []
        used = 0
        size = 0
        with memoryview(held) as view:
            while len(view) - used >= _LENGTH_SIZE:
                begin = used + _LENGTH_SIZE
                size = int.from_bytes(view[used:begin], "big")
                if size > limit or begin + size > len(view):
                    break
                records.append(bytes(view[begin : begin + size]))
                used = begin + size
        del held[:used]
        offset += used
        if records:
            yield records
        if size > limit:
            raise InputError(f"offset {offset}: a message of {size} bytes, the limit is {limit}")
    if held:
        raise InputError(f"offset {offset}: the input ends {len(held)} bytes into a message")


def whole(chunks: Iterable[bytes], limit: int = MESSAGE_LIMIT) -> Iterator[list[bytes]]:
    """All of the input as one message, be it empty."""
    parts: list[bytes] = []
    held = 0
    for chunk in chunks:
        parts.append(chunk)
        held += len(chunk)
        if held > limit:
            raise InputError(f"larger than {limit} bytes")
    yield [b"".join(parts)]


def key_before(separator: bytes) -> KeyFunction:
    """The text before the first separator is the key, what follows it the message; no separator, no key."""

    def key_function(line: bytes) -> tuple[bytes, str | None]:
        key, found, content = line.partition(separator)
        if not found:
            return line, None
        try:
            return content, key.decode()
        except UnicodeDecodeError:
            raise InputError(f"the key is not UTF-8: {key[:40]!r}") from None

    return key_function


def json_checker(field: str | None) -> KeyFunction:
    """Check that a message is JSON, and skip it if it is blank; its member ``field``, if named, is the key.

    A string is the key itself, another scalar its JSON text as written; ``null`` or no such member: no key.
    """

    # Numbers stay as written: that is the text a key needs, and nothing is lost to rounding.
    decoder = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant)

    def key_function(line: bytes) -> tuple[bytes, str | None] | None:
        if not line.strip():
            return None
        value = _decoded(decoder, line)
        key = value.get(field) if field is not None and isinstance(value, dict) else None
        return line, _key_text(key)

    return key_function


def _decoded(decoder: json.JSONDecoder, line: bytes) -> object:
    try:
        return decoder.decode(line.decode())
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg}", error.colno) from None
    except UnicodeDecodeError as error:
        raise InputError("not JSON: not UTF-8", len(line[: error.start].decode()) + 1) from None
    except RecursionError:
        raise InputError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from None


def _key_text(value: object) -> str | None:
    if isinstance(value, bool):
        return json.dumps(value)
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError("the key field is neither a string nor another scalar")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError("the key field has half a surrogate pair, which UTF-8 cannot express") from None
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
