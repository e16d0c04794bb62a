"""The base of all schemas, and the schemas without a definition."""

import json
from typing import Any

from .info import SchemaInfo, SchemaType

__all__ = ["BytesSchema", "Schema", "StringSchema"]


class Schema:
    """Turns objects into payloads. Subclasses implement `encode`, and `decode` where they need it.

    record_cls: class of the objects. schema_type: a `SchemaType`. schema_definition: JSON values, or the bytes of
    a definition that is not JSON. schema_name: str. properties: of the schema, dict of str to str.

    Schemas are used by the threads that send, possibly by several at a time.
    """

    def __init__(
        self,
        record_cls: Any,
        schema_type: Any,
        schema_definition: Any,
        schema_name: str,
        properties: dict[str, str] | None = None,
    ) -> None:
        self._record_cls = record_cls
        definition = schema_definition
        if not isinstance(definition, bytes):
            # To the byte what the official client sends: brokers would store anything else as a new version.
            definition = json.dumps(definition, indent=True)
        self._schema_info = SchemaInfo(schema_type, schema_name, definition, properties)

    def encode(self, obj: Any) -> Any:
        """The payload for an object: bytes or another buffer. What it raises reaches the caller of `send`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement encode")

    def decode(self, data: bytes) -> Any:
        """The object that a payload stands for."""
        raise NotImplementedError(f"{type(self).__name__} does not implement decode")

    def schema_info(self) -> SchemaInfo:
        """What brokers are told."""
        return self._schema_info

    def attach_client(self, client: Any) -> None:
        """Keep the client, for subclasses that ask it for other versions of the schema."""
        self._client = client

    def _validate_object_type(self, obj: Any) -> None:
        if not isinstance(obj, self._record_cls):
            raise TypeError(f"{self} takes {self._record_cls.__name__}, not {type(obj).__name__}")

    def __str__(self) -> str:
        return type(self).__name__


class BytesSchema(Schema):
    """Payloads as they are: the same as no schema. A producer then takes any buffer, at no cost."""

    def __init__(self) -> None:
        super().__init__(bytes, SchemaType.BYTES, None, "BYTES")

    def encode(self, obj: Any) -> Any:
        self._validate_object_type(obj)
        return obj

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema(Schema):
    """str, as UTF-8."""

    def __init__(self) -> None:
        super().__init__(str, SchemaType.STRING, None, "STRING")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        encoded: bytes = obj.encode()
        return encoded

    def decode(self, data: bytes) -> str:
        return data.decode()


def payload_from(schema: Any, content: Any) -> Any:
    """What a schema of either package encodes. Raises `TypeError` naming it if that is no buffer."""
    payload = schema.encode(content)
    if type(payload) is not bytes:
        try:
            memoryview(payload)
        except TypeError:
            raise TypeError(
                f"{type(schema).__name__}.encode() must return bytes or another buffer, "
                f"not {type(payload).__name__}"
            ) from None
    return payload
