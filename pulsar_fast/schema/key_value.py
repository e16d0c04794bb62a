"""Pairs of a key and a value, each with a schema of its own, as Java's clients have them."""

import json
import struct
from typing import Any, NamedTuple

from ..enums import NamedInt
from .info import SchemaInfo, SchemaType
from .schema import Schema, payload_from

__all__ = ["KeyValue", "KeyValueEncodingType", "KeyValueSchema"]

_DEFINED = (
    SchemaType.JSON,
    SchemaType.PROTOBUF,
    SchemaType.AVRO,
    SchemaType.KEY_VALUE,
    SchemaType.PROTOBUF_NATIVE,
)
_SIZE = struct.Struct(">i")


class KeyValueEncodingType(NamedInt):
    """Where the key travels: in the message's `partition_key`, or in front of the value."""

    SEPARATED = 0
    INLINE = 1


class KeyValue(NamedTuple):
    """A key and a value; any pair serves."""

    key: Any
    value: Any


class KeyValueSchema(Schema):
    """Pairs of a key and a value, `KeyValue` or any tuple of two.

    key_schema, value_schema: schemas, of the official client too. encoding_type: with `SEPARATED` the encoded key
    is the message's `partition_key`, which must not be given then, and a value of None makes a tombstone of that
    key.
    """

    def __init__(
        self,
        key_schema: Any,
        value_schema: Any,
        encoding_type: KeyValueEncodingType = KeyValueEncodingType.INLINE,
    ) -> None:
        self._key_schema = key_schema
        self._value_schema = value_schema
        self.encoding_type = KeyValueEncodingType(encoding_type)
        key, value = SchemaInfo.of(key_schema), SchemaInfo.of(value_schema)
        properties = {"kv.encoding.type": self.encoding_type.name}
        for place, info in (("key", key), ("value", value)):
            properties[f"{place}.schema.name"] = info.name()
            properties[f"{place}.schema.type"] = info.schema_type().name
            properties[f"{place}.schema.properties"] = json.dumps(info.properties(), separators=(",", ":"))
        definition = _sized(_definition(key)) + _sized(_definition(value))
        super().__init__(tuple, SchemaType.KEY_VALUE, definition, "KeyValue", properties)

    def encode(self, obj: Any) -> bytes:
        """Key and value in one, whatever the encoding type."""
        key, value = self._pair(obj)
        return _sized(_encoded(self._key_schema, key)) + _sized(_encoded(self._value_schema, value))

    def encode_separated(self, obj: Any) -> tuple[bytes, bytes | None]:
        """The encoded key, and the payload or None. Raises `ValueError` for a key of None."""
        key, value = self._pair(obj)
        encoded = _encoded(self._key_schema, key)
        if encoded is None:
            raise ValueError("the key of a separated KeyValueSchema must not be None")
        return encoded, _encoded(self._value_schema, value)

    def decode(self, data: bytes, key: bytes | None = None) -> KeyValue:
        """The pair. key: the encoded key, where it is separated."""
        if self.encoding_type is KeyValueEncodingType.INLINE:
            key, rest = _unsized(data)
            data, _ = _unsized(rest)
        return KeyValue(_decoded(self._key_schema, key), _decoded(self._value_schema, data))

    def _pair(self, obj: Any) -> tuple[Any, Any]:
        self._validate_object_type(obj)
        if len(obj) != 2:
            raise TypeError(f"{self} takes pairs, not {len(obj)} values")
        return obj[0], obj[1]


def _definition(info: SchemaInfo) -> bytes:
    """As Java has it: empty where there is nothing to define."""
    return info.data if info.schema_type() in _DEFINED else b""


def _encoded(schema: Any, part: Any) -> bytes | None:
    return None if part is None else bytes(payload_from(schema, part))


def _decoded(schema: Any, part: bytes | None) -> Any:
    return None if part is None else schema.decode(part)


def _sized(part: bytes | None) -> bytes:
    return _SIZE.pack(-1) if part is None else _SIZE.pack(len(part)) + part


def _unsized(data: bytes) -> tuple[Any, bytes]:
    """The first part, and what is behind it. Raises `ValueError` for bytes that end too early."""
    if len(data) < _SIZE.size:
        raise ValueError("the pair ends within a size")
    (size,) = _SIZE.unpack_from(data)
    end = _SIZE.size + max(size, 0)
    if end > len(data):
        raise ValueError(f"the pair ends {end - len(data)} bytes too early")
    return None if size < 0 else data[_SIZE.size : end], data[end:]
