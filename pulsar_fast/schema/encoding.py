"""A schema in use by a producer."""

from collections.abc import Iterable, Iterator
from typing import Any

from .._core import BinaryKey, Keyed, Unsendable
from ..wire.messages import Schema as WireSchema
from .info import SchemaInfo, SchemaType
from .key_value import KeyValueEncodingType, KeyValueSchema
from .schema import BytesSchema, payload_from

__all__ = ["Encoding"]


class Encoding:
    """Encodes contents, on the threads that send, and says what brokers are told.

    schema: any object with `encode` and `schema_info`. Raises `TypeError` for others.
    """

    def __init__(self, schema: Any) -> None:
        methods = (getattr(schema, name, None) for name in ("encode", "schema_info"))
        if isinstance(schema, type) or not all(map(callable, methods)):
            raise TypeError(f"schema must be an object with encode() and schema_info(), not {schema!r}")
        self._schema = schema
        self.on_wire = _on_wire(SchemaInfo.of(schema))

    @classmethod
    def of(cls, schema: Any) -> "Encoding | None":
        """That of an argument `schema`; None where contents are payloads already."""
        kind = type(schema)
        official = kind.__name__ == "BytesSchema" and kind.__module__.partition(".")[0] == "pulsar"
        if schema is None or kind is BytesSchema or official:
            return None
        separated = (
            isinstance(schema, KeyValueSchema) and schema.encoding_type is KeyValueEncodingType.SEPARATED
        )
        return SeparatedEncoding(schema) if separated else Encoding(schema)

    def encode(self, content: Any, partition_key: Any) -> tuple[Any, Any]:
        """Payload and partition key; for None no payload: a tombstone.

        Raises what the schema raises, and `TypeError` for what is no payload.
        """
        return None if content is None else payload_from(self._schema, content), partition_key

    def encode_each(self, contents: Iterable[Any], partition_key: Any) -> Iterator[Any]:
        """For the elements of `send_many` what goes in their place: payloads, and errors of what cannot be encoded."""
        return map(self._element_or_error, contents)

    def _element_or_error(self, content: Any) -> Any:
        try:
            return self._element(content)
        except Exception as error:
            return Unsendable(error)

    def _element(self, content: Any) -> Any:
        return self.encode(content, None)[0]


class SeparatedEncoding(Encoding):
    """Of pairs whose key travels as the message's partition key."""

    def __init__(self, schema: KeyValueSchema) -> None:
        super().__init__(schema)
        self._separated = schema

    def encode(self, content: Any, partition_key: Any) -> tuple[Any, Any]:
        _refuse_key(partition_key)
        if content is None:
            return None, None
        key, payload = self._separated.encode_separated(content)
        return payload, BinaryKey(key)

    def encode_each(self, contents: Iterable[Any], partition_key: Any) -> Iterator[Any]:
        _refuse_key(partition_key)
        return super().encode_each(contents, None)

    def _element(self, content: Any) -> Any:
        payload, key = self.encode(content, None)
        return None if key is None else Keyed(payload, key)


def _refuse_key(partition_key: Any) -> None:
    if partition_key is not None:
        raise ValueError("partition_key is the key of the pair, with a separated KeyValueSchema")


def _on_wire(info: SchemaInfo) -> WireSchema | None:
    """As a `Producer` command carries it; None for the kinds that brokers are not told of."""
    if info.schema_type() <= SchemaType.NONE:
        return None
    schema = WireSchema(name=info.name(), schema_data=info.data, type=info.schema_type())
    for key, value in info.properties().items():
        schema.properties.add(key=key, value=value)
    return schema
