"""Records as Avro, by way of fastavro."""

import importlib
import io
from enum import Enum
from typing import Any

from .definition import values_of
from .info import SchemaType
from .schema import Schema

__all__ = ["AvroSchema"]


class AvroSchema(Schema):
    """Records as Avro.

    record_cls: a `Record`, or None: the objects are dicts that suit `schema_definition` (JSON values).
    Raises `ImportError` without `fastavro`.
    """

    def __init__(self, record_cls: Any, schema_definition: Any = None) -> None:
        if record_cls is None and schema_definition is None:
            raise ValueError("give record_cls or schema_definition")
        self._avro = _fastavro()
        definition = schema_definition if record_cls is None else record_cls.schema()
        super().__init__(record_cls, SchemaType.AVRO, definition, "AVRO")
        self._schema = self._avro.parse_schema(definition)

    def encode(self, obj: Any) -> bytes:
        if self._record_cls is not None:
            self._validate_object_type(obj)
        elif not isinstance(obj, dict):
            raise ValueError(f"an AvroSchema without record_cls takes dict, not {type(obj).__name__}")
        buffer = io.BytesIO()
        self._avro.schemaless_writer(buffer, self._schema, _avro_value(obj))
        return buffer.getvalue()

    def decode(self, data: bytes) -> Any:
        values = self._avro.schemaless_reader(io.BytesIO(data), self._schema, self._schema)
        return values if self._record_cls is None else self._record_cls(**values)


def _fastavro() -> Any:
    try:
        return importlib.import_module("fastavro")  # it has no types
    except ImportError as error:
        raise ImportError("AvroSchema needs fastavro: pip install 'pulsar-fast[avro]'") from error


def _avro_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, dict):
        return {key: _avro_value(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_avro_value(one) for one in value]
    return _avro_value(values_of(value)) if hasattr(value, "_fields") else value
