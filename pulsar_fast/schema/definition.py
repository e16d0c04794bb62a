"""Records: classes whose fields are typed, as in the official client, down to the Avro definition's bytes."""

import copy
from collections.abc import Iterable, Mapping
from enum import Enum, EnumMeta
from typing import Any, ClassVar, TypeAlias

__all__ = [
    "Array",
    "Boolean",
    "Bytes",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "Long",
    "Map",
    "Null",
    "Record",
    "String",
]

_Kind: TypeAlias = type | tuple[type, ...]


class _Typed:
    """What a place in a record may hold: a field, or a record of its own class."""

    _default: Any
    _required: bool
    _required_default: bool

    def type(self) -> str:
        """Name of the Avro type; of a record its class's name."""
        raise NotImplementedError

    def python_type(self) -> _Kind:
        """What a value must be an instance of."""
        raise NotImplementedError

    def validate_type(self, name: str, value: Any) -> Any:
        """The value to be kept for `value` in the field `name`; None stands for the default.

        Raises `TypeError` naming the field.
        """
        if value is None and not self._required:
            return self.default()
        if not isinstance(value, self.python_type()):
            raise self._wrong(name, value)
        return value

    def _wrong(self, name: str, value: object) -> TypeError:
        return TypeError(f"field {name!r} must be {_shown(self.python_type())}, not {type(value).__name__}")

    def _coerce(self, value: Any) -> Any:
        """What a constructor makes of its argument: records of the dicts that stand for them."""
        return value

    def default(self) -> Any:
        return self._default

    def required_default(self) -> bool:
        """Whether the definition names the default."""
        return self._required_default


def _shown(kind: _Kind) -> str:
    return " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))


def _own(value: Any) -> Any:
    """A default that this record alone may change."""
    if isinstance(value, Record):
        twin = copy.copy(value)
        vars(twin).update((name, _own(part)) for name, part in vars(value).items())
        return twin
    return copy.copy(value) if isinstance(value, (list, dict)) else value


def _typed(value: Any) -> Any:
    """What declares a field: classes of records and enumerations stand for a field of theirs."""
    if isinstance(value, EnumMeta):
        return CustomEnum(value)
    if isinstance(value, RecordMeta):
        return value()
    return value


class RecordMeta(type):
    """Gathers the fields that a class of records declares itself, in order."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> "RecordMeta":
        if bases:
            declared = {field: _typed(value) for field, value in body.items()}
            body["_fields"] = {field: one for field, one in declared.items() if isinstance(one, _Typed)}
        return super().__new__(cls, name, bases, body)


class Record(_Typed, metaclass=RecordMeta):
    """Base of classes whose attributes declare fields: `name = String()`, `inner = Inner()`, `color = Color`.

    As a field of another record it takes `default`, `required_default` and `required`; values of its own fields
    are given by name, nested records also as dicts. Fields that are not given have their defaults. Raises
    `TypeError` for a value of the wrong type, `AttributeError` when an undeclared attribute is set.
    """

    _avro_namespace: ClassVar[str | None] = None
    """The definition's namespace."""
    _sorted_fields: ClassVar[bool] = False
    """Whether the definition has its fields in alphabetical order."""
    _fields: ClassVar[dict[str, Any]] = {}
    _required = False

    def __init__(
        self,
        default: Any = None,
        required_default: bool = False,
        required: bool = False,
        *args: object,
        **values: Any,
    ) -> None:
        self._default = default
        self._required_default = required_default
        self._required = required
        for name, field in self._fields.items():
            if name in values:
                setattr(self, name, field._coerce(values[name]))
            else:
                default_value = field if isinstance(field, Record) else field.default()
                object.__setattr__(self, name, _own(default_value))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("_default", "_required", "_required_default"):
            field = self._fields.get(name)
            if field is None:
                raise AttributeError(f"{type(self).__name__} declares no field {name!r}")
            value = field.validate_type(name, value)
        object.__setattr__(self, name, value)

    @classmethod
    def schema(cls) -> Any:
        """The Avro definition, as JSON values."""
        return cls.schema_info(set())

    @classmethod
    def schema_info(cls, defined_names: set[str]) -> Any:
        """The same inside of another definition: only the name, if it is one of `defined_names`."""
        prefix = "" if cls._avro_namespace is None else f"{cls._avro_namespace}."
        full_name = prefix + cls.__name__
        if full_name in defined_names:
            return full_name
        defined_names.add(full_name)
        schema: dict[str, Any] = {"type": "record", "name": cls.__name__}
        if cls._avro_namespace is not None:
            schema["namespace"] = cls._avro_namespace
        names = sorted(cls._fields) if cls._sorted_fields else cls._fields
        schema["fields"] = [_field_info(name, cls._fields[name], defined_names) for name in names]
        return schema

    def type(self) -> str:
        return type(self).__name__

    def python_type(self) -> _Kind:
        return type(self)

    def _coerce(self, value: Any) -> Any:
        return type(self)(**value) if isinstance(value, dict) else value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return values_of(self) == values_of(other)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(values_of(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in values_of(self).items())})"


def values_of(record: Any) -> dict[str, Any]:
    """The values of a record's fields by name, in the order of their declaration."""
    return {name: getattr(record, name) for name in record._fields}


def _field_info(name: str, field: _Typed, defined_names: set[str]) -> dict[str, Any]:
    info: dict[str, Any] = {"name": name}
    if field.required_default():
        info["default"] = _in_definition(field.default())
    kind = field.schema_info(defined_names)  # type: ignore[attr-defined]
    info["type"] = kind if field._required else ["null", kind]
    return info


def _in_definition(default: Any) -> Any:
    """A default as Avro's JSON has it."""
    if isinstance(default, Enum):
        return default.name
    return default.decode("latin-1") if isinstance(default, bytes) else default


class Field(_Typed):
    """A field of a record.

    default: its value when none is given, or None. required: whether None is no value, else the definition is a
    union with `null`. required_default: whether the definition names the default.
    """

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self._required = required
        self._required_default = required_default
        self._default = None
        if default is not None:
            self._default = self.validate_type("default", default)

    def schema(self) -> Any:
        """The Avro definition, as JSON values."""
        return self.schema_info(set())

    def schema_info(self, defined_names: set[str]) -> Any:
        return self.type()


class Null(Field):
    """Only ever None."""

    def type(self) -> str:
        return "null"

    def python_type(self) -> _Kind:
        return type(None)


class Boolean(Field):
    """bool; False by default."""

    def type(self) -> str:
        return "boolean"

    def python_type(self) -> _Kind:
        return bool

    def default(self) -> Any:
        return False if self._default is None else self._default


class Integer(Field):
    """int of 32 bits in Avro."""

    def type(self) -> str:
        return "int"

    def python_type(self) -> _Kind:
        return int


class Long(Field):
    """int of 64 bits in Avro."""

    def type(self) -> str:
        return "long"

    def python_type(self) -> _Kind:
        return int


class Float(Field):
    """float of 32 bits in Avro; int too."""

    def type(self) -> str:
        return "float"

    def python_type(self) -> _Kind:
        return float, int


class Double(Field):
    """float; int too."""

    def type(self) -> str:
        return "double"

    def python_type(self) -> _Kind:
        return float, int


class Bytes(Field):
    """bytes; str is encoded as UTF-8. None stays None."""

    def type(self) -> str:
        return "bytes"

    def python_type(self) -> _Kind:
        return bytes, str

    def validate_type(self, name: str, value: Any) -> Any:
        if value is not None and not isinstance(value, (bytes, str)):
            raise self._wrong(name, value)
        return value.encode() if isinstance(value, str) else value


class String(Field):
    """str; bytes are decoded as UTF-8."""

    def type(self) -> str:
        return "string"

    def python_type(self) -> _Kind:
        return str, bytes

    def validate_type(self, name: str, value: Any) -> Any:
        value = super().validate_type(name, value)
        return value.decode() if isinstance(value, bytes) else value


class CustomEnum(Field):
    """A member of an enumeration; its name, or its value where that is an int, stand for it. None stays None.

    enum_type: a subclass of `enum.Enum`.
    """

    def __init__(
        self,
        enum_type: EnumMeta,
        default: Any = None,
        required: bool = False,
        required_default: bool = False,
    ) -> None:
        if not isinstance(enum_type, EnumMeta):
            raise TypeError(f"{enum_type!r} is not an enumeration")
        self.enum_type = enum_type
        super().__init__(default, required, required_default)

    def type(self) -> str:
        return "enum"

    def python_type(self) -> _Kind:
        return self.enum_type

    def validate_type(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, self.enum_type):
            return value
        members: Mapping[str, Any] = self.enum_type.__members__
        if type(value) is str:
            named = members.get(value)
        elif type(value) is int:
            named = next((member for member in members.values() if member.value == value), None)
        else:
            raise self._wrong(name, value)
        if named is None:
            raise TypeError(f"field {name!r}: {self.enum_type.__name__} has no member {value!r}")
        return named

    def schema_info(self, defined_names: set[str]) -> Any:
        name = self.enum_type.__name__
        if name in defined_names:
            return name
        defined_names.add(name)
        members: Iterable[Any] = self.enum_type
        return {"type": "enum", "name": name, "symbols": [member.name for member in members]}


def _element_type(value: Any) -> Any:
    element = _typed(value)
    if not isinstance(element, _Typed):
        raise TypeError(f"the elements must be described by a record or a field, not {value!r}")
    return element


class Array(Field):
    """A list. None stays None.

    array_type: the field, or record, that each element must suit.
    """

    def __init__(
        self, array_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        self.array_type = _element_type(array_type)
        super().__init__(default, required, required_default)

    def type(self) -> str:
        return "array"

    def python_type(self) -> _Kind:
        return list

    def validate_type(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        for element in super().validate_type(name, value):
            if not isinstance(element, self.array_type.python_type()):
                raise self.array_type._wrong(f"{name}[]", element)
        return value

    def _coerce(self, value: Any) -> Any:
        return [self.array_type._coerce(one) for one in value] if isinstance(value, list) else value

    def schema_info(self, defined_names: set[str]) -> Any:
        return {"type": "array", "items": self.array_type.schema_info(defined_names)}


class Map(Field):
    """A dict whose keys are str. None stays None.

    value_type: the field, or record, that each value must suit.
    """

    def __init__(
        self, value_type: Any, default: Any = None, required: bool = False, required_default: bool = False
    ) -> None:
        self.value_type = _element_type(value_type)
        super().__init__(default, required, required_default)

    def type(self) -> str:
        return "map"

    def python_type(self) -> _Kind:
        return dict

    def validate_type(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        for key, element in super().validate_type(name, value).items():
            if not isinstance(key, str):
                raise TypeError(f"field {name!r}: its keys must be str, not {type(key).__name__}")
            if not isinstance(element, self.value_type.python_type()):
                raise self.value_type._wrong(f"{name}[{key!r}]", element)
        return value

    def _coerce(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: self.value_type._coerce(one) for key, one in value.items()}

    def schema_info(self, defined_names: set[str]) -> Any:
        return {"type": "map", "values": self.value_type.schema_info(defined_names)}
