"""Records as JSON."""

import json
from enum import Enum
from typing import Any

from .annotations import JsonForm, form_of
from .definition import values_of
from .info import SchemaType
from .schema import Schema

__all__ = ["JsonSchema"]


class JsonSchema(Schema):
    """Records as JSON, as the official client writes it; other classes as their own library does, without spaces.

    record_cls: a `Record`, or a dataclass, pydantic model or msgspec struct, whose Avro definition follows from its
    annotations: bool, int (long), float (double), str, bytes, enumerations, classes of these kinds, list, tuple of
    one type, dict of str, and Optional of all of them. Raises `TypeError` for other classes and annotations.
    """

    def __init__(self, record_cls: Any) -> None:
        self._form = _record_form(record_cls) if hasattr(record_cls, "_fields") else form_of(record_cls)
        super().__init__(record_cls, SchemaType.JSON, self._form.definition, "JSON")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        return self._form.to_json(obj)

    def decode(self, data: bytes) -> Any:
        return self._form.from_json(data)


def _record_form(cls: Any) -> JsonForm:
    return JsonForm(cls.schema(), _to_json, lambda data: cls(**json.loads(data)))


def _to_json(record: Any) -> bytes:
    return json.dumps(values_of(record), default=_json_value, indent=True).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    if hasattr(value, "_fields"):
        return values_of(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
