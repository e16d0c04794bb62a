"""What a broker is told about a schema."""

from typing import Any, final

from ..enums import NamedInt

__all__ = ["SchemaInfo", "SchemaType"]


class SchemaType(NamedInt):
    """The kinds of schemas, with the official client's names; those below 1 are not sent to brokers."""

    AUTO_PUBLISH = -4
    AUTO_CONSUME = -3
    BYTES = -1
    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    KEY_VALUE = 15
    PROTOBUF_NATIVE = 20


@final
class SchemaInfo:
    """A schema as brokers store it.

    schema_type: a `SchemaType`, or the official client's. name: str. schema: the definition, str or bytes.
    properties: dict of str to str.
    """

    __slots__ = ("_name", "_properties", "_schema", "_type")

    def __init__(
        self, schema_type: Any, name: str, schema: str | bytes, properties: dict[str, str] | None = None
    ) -> None:
        self._type = SchemaType(int(schema_type))
        self._name = name
        self._schema = schema
        self._properties = dict(properties or {})

    @classmethod
    def of(cls, schema: Any) -> "SchemaInfo":
        """That of any schema, the official client's too. Raises `TypeError` naming its class."""
        info = schema.schema_info()
        if isinstance(info, cls):
            return info
        try:
            return cls(info.schema_type(), info.name(), info.schema())
        except (AttributeError, TypeError) as error:
            raise TypeError(
                f"schema: {type(schema).__name__}.schema_info() returned no SchemaInfo: {error}"
            ) from None

    def schema_type(self) -> SchemaType:
        return self._type

    def name(self) -> str:
        return self._name

    def schema(self) -> str | bytes:
        """The definition; bytes only where it is no text."""
        return self._schema

    def properties(self) -> dict[str, str]:
        return dict(self._properties)

    @property
    def data(self) -> bytes:
        """The definition as it is sent."""
        return self._schema.encode() if isinstance(self._schema, str) else self._schema

    def __repr__(self) -> str:
        return f"SchemaInfo({self._type}, {self._name!r}, {self._schema!r}, {self._properties!r})"
