"""Classes whose fields are annotated as records of JSON: dataclasses, pydantic models, msgspec structs."""

import collections.abc
import dataclasses
import enum
import importlib
import json
import types
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["JsonForm", "form_of"]

_PRIMITIVES = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
}
_NOTHING = object()


class JsonForm(NamedTuple):
    """How the objects of a class become JSON."""

    definition: Any  # of the class, as JSON values
    to_json: Callable[[Any], bytes]
    from_json: Callable[[bytes], Any]


class _Place(NamedTuple):
    """A field as its class declares it."""

    name: str
    type: Any
    default: Any  # `_NOTHING` without


def form_of(cls: Any) -> JsonForm:
    """That of an annotated class. Raises `TypeError` for other classes, and for types that have no place in Avro."""
    if _places(cls) is None:
        raise TypeError(
            f"a JsonSchema takes a class: a Record, a dataclass, a pydantic model or a msgspec struct, not {cls!r}"
        )
    definition = _type_of(cls, _NOTHING, set(), cls.__name__)
    if dataclasses.is_dataclass(cls):
        return JsonForm(definition, _to_json, lambda data: _built(cls, json.loads(data)))
    if hasattr(cls, "model_fields"):
        return JsonForm(definition, lambda obj: obj.model_dump_json().encode(), cls.model_validate_json)
    msgspec = importlib.import_module("msgspec.json")
    return JsonForm(definition, msgspec.encode, lambda data: msgspec.decode(data, type=cls))


def _places(cls: Any) -> list[_Place] | None:
    """The fields of an annotated class, None of others."""
    if not isinstance(cls, type):
        return None
    if dataclasses.is_dataclass(cls):
        hints = typing.get_type_hints(cls)
        return [_place(one.name, hints[one.name], one.default) for one in dataclasses.fields(cls)]
    if hasattr(cls, "model_fields") and hasattr(cls, "model_dump_json"):
        return [_place(name, one.annotation, one.default) for name, one in cls.model_fields.items()]
    if hasattr(cls, "__struct_fields__"):
        fields = importlib.import_module("msgspec.structs").fields(cls)
        return [_place(one.encode_name, one.type, one.default) for one in fields]
    return None


def _place(name: str, kind: Any, default: Any) -> _Place:
    """Of defaults only the plain values count, which leaves out what stands for none."""
    plain = default is None or isinstance(default, (bool, int, float, str, bytes, enum.Enum))
    return _Place(name, kind, default if plain else _NOTHING)


def _type_of(kind: Any, default: Any, seen: set[str], where: str) -> Any:
    """The Avro type of an annotation; the name alone of one of those `seen`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type_of(arguments[0], default, seen, where)
    if origin in (typing.Union, types.UnionType):
        return _optional(arguments, default, seen, where)
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if origin in (list, collections.abc.Sequence) or (origin is tuple and arguments[1:] == (...,)):
        return {"type": "array", "items": _type_of(arguments[0], _NOTHING, seen, where)}
    if origin in (dict, collections.abc.Mapping) and arguments[0] is str:
        return {"type": "map", "values": _type_of(arguments[1], _NOTHING, seen, where)}
    if isinstance(kind, type) and kind.__name__ in seen:
        return kind.__name__
    if isinstance(kind, enum.EnumMeta):
        seen.add(kind.__name__)
        return {"type": "enum", "name": kind.__name__, "symbols": list(kind.__members__)}
    places = _places(kind)
    if places is None:
        raise TypeError(f"{where}: {kind!r} has no type in Avro")
    seen.add(kind.__name__)
    fields = [_field_of(place, seen, f"{where}.{place.name}") for place in places]
    return {"type": "record", "name": kind.__name__, "fields": fields}


def _optional(arguments: tuple[Any, ...], default: Any, seen: set[str], where: str) -> list[Any]:
    rest = [one for one in arguments if one is not type(None)]
    if len(rest) != 1:
        raise TypeError(f"{where}: of unions only those of one type and None have a type in Avro here")
    kind = _type_of(rest[0], _NOTHING, seen, where)
    # A default in Avro is of the union's first type.
    return ["null", kind] if default is None or default is _NOTHING else [kind, "null"]


def _field_of(place: _Place, seen: set[str], where: str) -> dict[str, Any]:
    field = {"name": place.name, "type": _type_of(place.type, place.default, seen, where)}
    default = place.default
    if default is not _NOTHING:
        if isinstance(default, enum.Enum):
            default = default.name
        field["default"] = default.decode("latin-1") if isinstance(default, bytes) else default
    return field


def _to_json(obj: Any) -> bytes:
    return json.dumps(obj, default=_json_value, ensure_ascii=False, separators=(",", ":")).encode()


def _json_value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode()
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no place in JSON")


def _built(kind: Any, value: Any) -> Any:
    """The value that an annotation describes, of its JSON values."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (rest,) = (one for one in arguments if one is not type(None))
        return None if value is None else _built(rest, value)
    if origin in (dict, collections.abc.Mapping):
        return {key: _built(arguments[1], one) for key, one in value.items()}
    if origin is not None:
        return (tuple if origin is tuple else list)(_built(arguments[0], one) for one in value)
    if dataclasses.is_dataclass(kind):
        make: Any = kind
        hints = typing.get_type_hints(kind)
        return make(**{name: _built(hints[name], one) for name, one in value.items() if name in hints})
    if isinstance(kind, enum.EnumMeta):
        return kind(value)
    return value.encode() if kind is bytes else value
