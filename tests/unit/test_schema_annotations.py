"""Dataclasses, pydantic models and msgspec structs as records of JSON."""

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

import fastavro
import msgspec
import pydantic
import pytest

from pulsar_fast.schema import JsonSchema, SchemaType


class Side(enum.Enum):
    buy = 1
    sell = 2


class Word(str, enum.Enum):
    hello = "Hello"


@dataclass
class DataLeg:
    symbol: str
    price: float | None = None


class ModelLeg(pydantic.BaseModel):
    symbol: str
    price: float | None = None


class StructLeg(msgspec.Struct):
    symbol: str
    price: float | None = None


def annotations(leg: type) -> dict[str, Any]:
    return {
        "number": int,
        "flag": bool,
        "raw": bytes,
        "side": Side,
        "legs": list[leg],
        "by_name": dict[str, leg],
        "pair": tuple[int, ...],
        "some": Sequence[Annotated[str, "short"]],
        "nested": Mapping[str, list[int | None]],
        "maybe": Optional[leg],  # noqa: UP045
        "word": Word,
        "text": str,
        "five": int | None,
        "none": str | None,
        "blob": bytes,
        "again": Side,
        "fresh": list[int],
    }


DEFAULTS = {"text": "é", "five": 5, "none": None, "blob": b"\xff", "again": Side.sell}


def filled(kind: Any, base: Any, leg: type, fresh: Any) -> Any:
    """A class of all kinds of annotations."""
    return kind(type("Trade", base, {"__annotations__": annotations(leg), **DEFAULTS, "fresh": fresh}))


TRADES = {
    "dataclass": (filled(dataclass, (), DataLeg, field(default_factory=list)), DataLeg),
    "pydantic": (
        filled(lambda cls: cls, (pydantic.BaseModel,), ModelLeg, pydantic.Field(default_factory=list)),
        ModelLeg,
    ),
    "msgspec": (filled(lambda cls: cls, (msgspec.Struct,), StructLeg, []), StructLeg),
}


def leg_of(name: str) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": "symbol", "type": "string"},
            {"name": "price", "type": ["null", "double"], "default": None},
        ],
    }


@pytest.mark.parametrize("kind", TRADES)
def test_the_definition(kind):
    trade, leg = TRADES[kind]
    info = JsonSchema(trade).schema_info()
    definition = json.loads(info.data)
    fields = {one["name"]: one for one in definition["fields"]}
    name = leg.__name__
    side = {"type": "enum", "name": "Side", "symbols": ["buy", "sell"]}
    assert info.schema_type() is SchemaType.JSON
    assert (definition["type"], definition["name"], list(fields)) == (
        *("record", "Trade"),
        list(annotations(leg)),
    )
    assert {field: one["type"] for field, one in fields.items()} == {
        "number": "long",
        "flag": "boolean",
        "raw": "bytes",
        "side": side,
        "legs": {"type": "array", "items": leg_of(name)},
        "by_name": {"type": "map", "values": name},
        "pair": {"type": "array", "items": "long"},
        "some": {"type": "array", "items": "string"},
        "nested": {"type": "map", "values": {"type": "array", "items": ["null", "long"]}},
        "maybe": ["null", name],
        "word": {"type": "enum", "name": "Word", "symbols": ["hello"]},
        "text": "string",
        "five": ["long", "null"],
        "none": ["null", "string"],
        "blob": "bytes",
        "again": "Side",
        "fresh": {"type": "array", "items": "long"},
    }
    assert {field: one["default"] for field, one in fields.items() if "default" in one} == {
        "text": "é",
        "five": 5,
        "none": None,
        "blob": "ÿ",
        "again": "sell",
    }
    fastavro.parse_schema(definition)


@pytest.mark.parametrize("kind", TRADES)
def test_round_trips(kind):
    trade, leg = TRADES[kind]
    values = {
        "number": 2**40,
        "flag": True,
        "raw": b"raw",
        "side": Side.buy,
        "pair": (1, 2),
        "some": ["a"],
        "legs": [leg(symbol="X", price=0.1)],
        "by_name": {"é": leg(symbol="Y")},
        "nested": {"n": [1, None]},
        "maybe": None,
        "word": Word.hello,
        "blob": b"b",
    }
    schema = JsonSchema(trade)
    payload = schema.encode(trade(**values))
    assert schema.decode(payload) == trade(**values)
    shown = json.loads(payload)
    assert list(shown) == list(annotations(leg))
    assert (shown["side"], shown["again"], shown["word"], shown["text"]) == (1, 2, "Hello", "é")
    assert shown["legs"] == [{"symbol": "X", "price": 0.1}]
    for wrong in (values, leg(symbol="Z"), None, "x"):
        with pytest.raises(TypeError, match="JsonSchema takes Trade, not"):
            schema.encode(wrong)


def test_names_that_msgspec_writes():
    class Renamed(msgspec.Struct, rename="camel"):
        user_name: str

    schema = JsonSchema(Renamed)
    assert json.loads(schema.schema_info().data)["fields"][0]["name"] == "userName"
    assert schema.encode(Renamed("x")) == b'{"userName":"x"}'


def test_a_class_within_itself():
    schema = JsonSchema(Tree)
    assert json.loads(schema.schema_info().data)["fields"][0]["type"] == {"type": "array", "items": "Tree"}
    tree = Tree([Tree([]), Tree([Tree([])])])
    assert schema.decode(schema.encode(tree)) == tree


@dataclass
class Tree:
    children: "list[Tree]"


@pytest.mark.parametrize(
    "kind", [Any, object, int | str, set[int], dict[int, int], tuple[int, str], complex, list], ids=str
)
def test_annotations_without_a_type_in_avro(kind):
    cls = dataclass(type("Trade", (), {"__annotations__": {"odd": kind}}))
    with pytest.raises(TypeError, match=r"Trade\.odd: .* in Avro"):
        JsonSchema(cls)


def test_what_is_no_record():
    for wrong in (int, dict, "x", None, DataLeg("x"), Side):
        with pytest.raises(TypeError, match="a JsonSchema takes a class"):
            JsonSchema(wrong)
