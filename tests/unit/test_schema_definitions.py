"""Schemas are, byte for byte, those of the official client."""

import enum
import json
import sys
from types import SimpleNamespace

import fastavro
import pulsar
import pytest

import pulsar_fast.schema
from pulsar_fast.schema import (
    Array,
    AvroSchema,
    Bytes,
    BytesSchema,
    CustomEnum,
    Float,
    Integer,
    JsonSchema,
    Map,
    Null,
    ProtobufNativeSchema,
    Record,
    Schema,
    SchemaInfo,
    SchemaType,
    String,
    StringSchema,
)
from pulsar_fast.wire.messages import CommandProducer

OFFICIAL, OURS = pulsar.schema, pulsar_fast.schema


class Color(enum.Enum):
    red = 1
    green = 2


class Word(enum.Enum):
    hello = "Hello"


def classes(s):
    """The same records, declared with the names of either package."""

    class Primitives(s.Record):
        null = s.Null()
        boolean = s.Boolean()
        integer = s.Integer()
        long = s.Long()
        float_ = s.Float()
        double = s.Double()
        bytes_ = s.Bytes()
        string = s.String()

    class Required(s.Record):
        null = s.Null(required=True)
        boolean = s.Boolean(required=True)
        integer = s.Integer(required=True)
        long = s.Long(required=True)
        float_ = s.Float(required=True)
        double = s.Double(required=True)
        bytes_ = s.Bytes(required=True)
        string = s.String(required=True)
        array = s.Array(s.String(), required=True)
        map_ = s.Map(s.Long(), required=True)
        color = s.CustomEnum(Color, required=True)

    class Defaults(s.Record):
        boolean = s.Boolean(default=True, required_default=True)
        unset = s.Boolean(required_default=True)
        integer = s.Integer(default=5, required_default=True)
        silent = s.Integer(default=6)
        zero = s.Long(default=0, required=True, required_default=True)
        float_ = s.Float(default=1, required_default=True)
        double = s.Double(default=2.5, required_default=True)
        string = s.String(default="é", required_default=True)
        none = s.String(required_default=True)
        color = s.CustomEnum(Color, default=Color.green, required_default=True)
        array = s.Array(s.Integer(), default=[1, 2], required_default=True)
        map_ = s.Map(s.String(), default={"a": "b"}, required_default=True)

    class Inner(s.Record):
        number = s.Integer()
        text = s.String(default="inner")

    class Deep(s.Record):
        number = s.Integer()

    class Namespaced(s.Record):
        _avro_namespace = "org.example"
        _sorted_fields = True
        zebra = s.String()
        deep = Deep()
        also = s.Array(Deep())
        ant = s.Integer()

    class Nested(s.Record):
        inner = Inner()
        again = Inner
        needed = Inner(required=True)
        color = Color
        hue = s.CustomEnum(Color)
        word = Word
        many = s.Array(Inner())
        by_name = s.Map(Inner())
        grid = s.Array(s.Array(s.Long()))
        maps = s.Map(s.Map(s.Array(s.String())))
        spaced = Namespaced()
        spaced_again = s.Array(Namespaced())

    class Names(s.Record):
        type = s.String()
        name = s.String()
        fields = s.Array(s.String())
        coerce = s.Integer()
        required = s.Boolean()

    class Around(s.Record):
        names = Names()
        many = s.Array(Names())

    class Empty(s.Record):
        ignored = 5

    class Child(Inner):
        own = s.Long()

    found = {name: value for name, value in locals().items() if isinstance(value, type)}
    return SimpleNamespace(**found)


THEIR_RECORDS, OUR_RECORDS = classes(OFFICIAL), classes(OURS)
NAMES = sorted(vars(OUR_RECORDS))


def told(schema):
    """What a broker is told, but for the client."""
    info = schema.schema_info()
    data = info.schema()
    return int(info.schema_type()), info.name(), data.encode() if isinstance(data, str) else data


def test_definitions_of_records():
    for name in NAMES:
        theirs, ours = getattr(THEIR_RECORDS, name), getattr(OUR_RECORDS, name)
        assert told(JsonSchema(ours)) == told(OFFICIAL.JsonSchema(theirs))
        assert told(JsonSchema(theirs)) == told(OFFICIAL.JsonSchema(theirs))
        if name != "Primitives":  # a union of null and null is none for Avro
            assert told(AvroSchema(ours)) == told(OFFICIAL.AvroSchema(theirs))


def test_schemas_without_records():
    assert told(StringSchema()) == told(OFFICIAL.StringSchema()) == (1, "STRING", b"null")
    assert told(BytesSchema()) == told(OFFICIAL.BytesSchema()) == (-1, "BYTES", b"null")
    definition = {"type": "record", "name": "X", "fields": [{"name": "a", "type": "int"}]}
    assert told(AvroSchema(None, definition)) == told(OFFICIAL.AvroSchema(None, definition))
    assert told(ProtobufNativeSchema(CommandProducer)) == told(OFFICIAL.ProtobufNativeSchema(CommandProducer))


def values(s, r):
    """Arguments of records that both packages take, by the name of the record."""
    inner = {"number": 1, "text": "x"}
    yield "Primitives", {}
    yield "Primitives", {"boolean": True, "integer": 1, "long": 2**40, "float_": 1, "double": 1.5}
    yield "Primitives", {"bytes_": "text", "string": b"bytes", "integer": True, "unknown": 5}
    yield "Primitives", dict.fromkeys(("boolean", "integer", "string", "bytes_", "null"))
    yield "Defaults", {}
    yield "Defaults", dict.fromkeys(("boolean", "integer", "string", "color", "array", "map_"))
    yield "Defaults", {"array": [], "map_": {}, "string": "", "integer": 0, "boolean": False}
    yield "Inner", {"number": -(2**31), "text": 'é"\n\u2028🗝'}
    yield "Around", {"names": {"type": "t", "coerce": 1}, "many": [{"name": "n", "fields": ["f"]}]}
    yield "Child", {"own": 5, "number": 6}
    yield "Empty", {}
    for color in (Color.red, "red", 1, None):
        yield "Nested", {"color": color, "hue": color, "word": "hello"}
    yield "Nested", {"inner": inner, "needed": {}, "many": [inner, {}], "by_name": {"a": inner}}
    yield "Nested", {"inner": r.Inner(**inner), "many": [r.Inner()], "by_name": {}, "needed": r.Inner()}
    yield "Nested", {"inner": None, "grid": [[1], []], "maps": {"a": {"b": ["c"]}}}
    yield "Nested", {"spaced": {"zebra": "z", "deep": {"number": 2}}, "spaced_again": [{"ant": 1}]}


PAIRS = [
    (name, theirs, ours)
    for (name, theirs), (_, ours) in zip(
        values(OFFICIAL, THEIR_RECORDS), values(OURS, OUR_RECORDS), strict=True
    )
]


def test_json():
    for name, theirs, ours in PAIRS:
        cls, their_cls = getattr(OUR_RECORDS, name), getattr(THEIR_RECORDS, name)
        expected = OFFICIAL.JsonSchema(their_cls).encode(their_cls(**theirs))
        payload = JsonSchema(cls).encode(cls(**ours))
        assert payload == expected
        assert JsonSchema(their_cls).encode(their_cls(**theirs)) == expected
        if name not in (
            "Nested",
            "Empty",
        ):  # whose enumerations are not decoded from every value, there neither
            assert JsonSchema(cls).decode(payload) == cls(**ours)


def test_avro():
    refused = 0
    for name, theirs, ours in PAIRS:
        if name == "Primitives":
            continue
        cls, their_cls = getattr(OUR_RECORDS, name), getattr(THEIR_RECORDS, name)
        try:
            expected = OFFICIAL.AvroSchema(their_cls).encode(their_cls(**theirs))
        except (TypeError, ValueError) as error:  # None where a value is required
            with pytest.raises(type(error)):
                AvroSchema(cls).encode(cls(**ours))
            refused += 1
            continue
        payload = AvroSchema(cls).encode(cls(**ours))
        assert payload == expected
        assert AvroSchema(cls).decode(payload) == cls(**ours)
    assert refused < len(PAIRS) // 2


def test_avro_of_every_required_field():
    values = {
        "null": None,
        "boolean": True,
        "integer": 1,
        "long": 2**40,
        "float_": 0.5,
        "double": 0.1,
        "bytes_": b"\xff",
        "string": "s",
        "array": ["a"],
        "map_": {"k": 1},
        "color": "red",
    }
    theirs = THEIR_RECORDS.Required(**values)
    ours = OUR_RECORDS.Required(**values)
    payload = AvroSchema(OUR_RECORDS.Required).encode(ours)
    assert payload == OFFICIAL.AvroSchema(THEIR_RECORDS.Required).encode(theirs)
    assert AvroSchema(OUR_RECORDS.Required).decode(payload) == ours


def test_avro_of_a_definition():
    definition = {"type": "record", "name": "X", "fields": [{"name": "a", "type": ["null", "int"]}]}
    schema, official = AvroSchema(None, definition), OFFICIAL.AvroSchema(None, definition)
    assert schema.encode({"a": 5}) == official.encode({"a": 5})
    assert schema.decode(schema.encode({"a": None})) == {"a": None}
    with pytest.raises(ValueError, match="takes dict, not list"):
        schema.encode([])
    with pytest.raises(ValueError, match="record_cls or schema_definition"):
        AvroSchema(None)
    with pytest.raises(fastavro.schema.SchemaParseException):
        AvroSchema(None, {"type": "record"})


def test_protobuf():
    command = CommandProducer(topic="t", producer_id=1, request_id=2)
    schema = ProtobufNativeSchema(CommandProducer)
    assert schema.encode(command) == OFFICIAL.ProtobufNativeSchema(CommandProducer).encode(command)
    assert schema.decode(schema.encode(command)) == command
    with pytest.raises(TypeError, match="takes CommandProducer, not str"):
        schema.encode("x")
    for other in (str, command, None):
        with pytest.raises(TypeError, match="protobuf message class"):
            ProtobufNativeSchema(other)


REFUSED = [
    ("Primitives", {"null": 0}),
    ("Primitives", {"boolean": 1}),
    ("Primitives", {"integer": "1"}),
    ("Primitives", {"integer": 1.5}),
    ("Primitives", {"long": "1"}),
    ("Primitives", {"float_": "1"}),
    ("Primitives", {"double": b"1"}),
    ("Primitives", {"string": 1}),
    ("Required", {"integer": None}),
    ("Required", {"string": None}),
    ("Required", {"array": "abc"}),
    ("Required", {"array": [1]}),
    ("Required", {"array": [None]}),
    ("Required", {"map_": {1: 1}}),
    ("Required", {"map_": {"a": "b"}}),
    ("Required", {"map_": []}),
    ("Required", {"color": "purple"}),
    ("Required", {"color": 3}),
    ("Required", {"color": 1.0}),
    ("Required", {"color": Word.hello}),
    ("Nested", {"inner": 5}),
    ("Nested", {"needed": None}),
    ("Nested", {"many": [{"number": 1}, 5]}),
    ("Nested", {"inner": {"number": "x"}}),
    ("Nested", {"word": "Hello"}),
]


def test_wrong_values():
    for name, given in REFUSED:
        with pytest.raises(TypeError):
            getattr(THEIR_RECORDS, name)(**given)
        with pytest.raises(TypeError, match="field"):
            getattr(OUR_RECORDS, name)(**given)
        ((field, value),) = given.items()
        if not isinstance(value, dict):
            record = getattr(OUR_RECORDS, name)()
            before = getattr(record, field)
            with pytest.raises(TypeError, match=field):
                setattr(record, field, value)
            assert getattr(record, field) == before


def test_what_the_official_client_lets_pass():
    with pytest.raises(TypeError, match=r"'bytes_' must be bytes or str, not int"):
        OUR_RECORDS.Primitives(bytes_=5)
    with pytest.raises(TypeError, match="'inner' must be Inner, not dict"):
        OUR_RECORDS.Nested().inner = {"number": 1}


def test_undeclared_attributes():
    record = OUR_RECORDS.Inner()
    with pytest.raises(AttributeError, match="Inner declares no field 'nubmer'"):
        record.nubmer = 5


def test_records_do_not_share_their_defaults():
    first, second = OUR_RECORDS.Nested(), OUR_RECORDS.Nested()
    first.inner.number = 5
    first.spaced.deep.number = 6
    assert second.inner.number is None
    assert second.spaced.deep.number is None
    first, second = OUR_RECORDS.Defaults(), OUR_RECORDS.Defaults()
    first.array.append(3)
    first.map_["c"] = "d"
    assert (second.array, second.map_) == ([1, 2], {"a": "b"})
    assert first != second
    assert second == OUR_RECORDS.Defaults()


def test_fields_are_described_by_fields():
    for wrong in (5, str, "x", None):
        for kind in (Array, Map):
            with pytest.raises(TypeError, match="described by a record or a field"):
                kind(wrong)
    with pytest.raises(TypeError, match="is not an enumeration"):
        CustomEnum(str)
    for kind, default in ((Integer, "x"), (Float, "x"), (String, 5), (Null, 0)):
        with pytest.raises(TypeError, match="default"):
            kind(default=default)


def test_classes_and_enumerations_as_elements():
    class Holder(Record):
        many = Array(OUR_RECORDS.Inner)
        colors = Array(Color)
        by_name = Map(Color)
        blob = Bytes(default=b"\xff", required_default=True)

    names = [field["type"][1] for field in Holder.schema()["fields"]]
    assert names[0]["items"]["name"] == "Inner"
    assert names[1:3] == [
        {"type": "array", "items": {"type": "enum", "name": "Color", "symbols": ["red", "green"]}},
        {"type": "map", "values": "Color"},
    ]
    assert Holder.schema()["fields"][3]["default"] == "ÿ"
    holder = Holder(many=[{"number": 1}], colors=[Color.red], by_name={"a": Color.green}, blob=b"x")
    assert json.loads(JsonSchema(Holder).encode(holder))["colors"] == [1]
    assert AvroSchema(Holder).encode(holder)
    for field in (String(), Integer(), Array(Color), Map(OUR_RECORDS.Inner)):
        assert json.dumps(field.schema())


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        (StringSchema(), b"bytes"),
        (BytesSchema(), "text"),
        (JsonSchema(OUR_RECORDS.Inner), {"number": 1}),
        (JsonSchema(OUR_RECORDS.Inner), OUR_RECORDS.Empty()),
        (AvroSchema(OUR_RECORDS.Inner), OUR_RECORDS.Empty()),
        (AvroSchema(OUR_RECORDS.Inner), None),
    ],
    ids=str,
)
def test_objects_of_other_classes(schema, wrong):
    with pytest.raises(TypeError, match=f"{type(schema).__name__} takes .*, not {type(wrong).__name__}"):
        schema.encode(wrong)


def test_round_trips_without_records():
    assert StringSchema().decode(StringSchema().encode("é🗝")) == "é🗝"
    assert BytesSchema().decode(BytesSchema().encode(b"\0")) == b"\0"


def test_schemas_of_ones_own():
    class Upper(Schema):
        def __init__(self):
            super().__init__(str, SchemaType.STRING, None, "STRING", {"a": "b"})

    info = Upper().schema_info()
    assert (info.name(), info.schema_type(), info.properties()) == ("STRING", SchemaType.STRING, {"a": "b"})
    for call in (Upper().encode, Upper().decode):
        with pytest.raises(NotImplementedError, match="Upper does not implement"):
            call("x")
    assert SchemaInfo(pulsar.schema.StringSchema().schema_info().schema_type(), "n", "s").schema_type() == 1


def test_avro_without_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ImportError, match=r"pip install 'pulsar-fast\[avro\]'"):
        AvroSchema(OUR_RECORDS.Inner)
