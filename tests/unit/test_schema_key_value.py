"""Pairs of a key and a value: the definition, the bytes of a pair, and separated keys."""

import pulsar
import pytest

from pulsar_fast.schema import (
    BytesSchema,
    Integer,
    JsonSchema,
    KeyValue,
    KeyValueEncodingType,
    KeyValueSchema,
    Record,
    SchemaType,
    StringSchema,
)

SEPARATED = KeyValueEncodingType.SEPARATED


class Point(Record):
    x = Integer(required=True)


def test_the_definition():
    info = KeyValueSchema(StringSchema(), JsonSchema(Point), SEPARATED).schema_info()
    point = JsonSchema(Point).schema_info().data
    assert (info.schema_type(), info.name()) == (SchemaType.KEY_VALUE, "KeyValue")
    assert info.data == (0).to_bytes(4, "big") + len(point).to_bytes(4, "big") + point
    assert info.properties() == {
        "kv.encoding.type": "SEPARATED",
        "key.schema.name": "STRING",
        "key.schema.type": "STRING",
        "key.schema.properties": "{}",
        "value.schema.name": "JSON",
        "value.schema.type": "JSON",
        "value.schema.properties": "{}",
    }
    mixed = KeyValueSchema(pulsar.schema.StringSchema(), pulsar.schema.BytesSchema()).schema_info()
    assert mixed.data == bytes(8)
    assert mixed.properties()["kv.encoding.type"] == "INLINE"
    assert mixed.properties()["value.schema.type"] == "BYTES"


def test_pairs_in_one():
    schema = KeyValueSchema(StringSchema(), BytesSchema())
    for pair, expected in (
        (("key", b"value"), "00000003 6b6579 00000005 76616c7565"),
        (KeyValue("", b""), "00000000 00000000"),
        (KeyValue(None, b"v"), "ffffffff 00000001 76"),
        (KeyValue("k", None), "00000001 6b ffffffff"),
    ):
        assert schema.encode(pair) == bytes.fromhex(expected)
        assert schema.decode(schema.encode(pair)) == pair
    for cut in range(12):
        with pytest.raises(ValueError, match="the pair ends"):
            schema.decode(schema.encode(("key", b"value"))[:cut])


def test_separated_pairs():
    schema = KeyValueSchema(StringSchema(), JsonSchema(Point), SEPARATED)
    key, payload = schema.encode_separated(("k", Point(x=1)))
    assert (key, payload) == (b"k", JsonSchema(Point).encode(Point(x=1)))
    assert schema.decode(payload, key) == KeyValue("k", Point(x=1))
    assert schema.encode_separated(("k", None)) == (b"k", None)
    with pytest.raises(ValueError, match="must not be None"):
        schema.encode_separated((None, Point(x=1)))


@pytest.mark.parametrize("encoding_type", KeyValueEncodingType)
def test_what_is_no_pair(encoding_type):
    schema = KeyValueSchema(StringSchema(), StringSchema(), encoding_type)
    encode = schema.encode_separated if encoding_type is SEPARATED else schema.encode
    for wrong in ("kv", ["k", "v"], ("k",), ("k", "v", "w"), (1, "v"), ("k", b"v")):
        with pytest.raises(TypeError, match="Schema takes"):
            encode(wrong)
    for wrong in (5, StringSchema):
        with pytest.raises((TypeError, AttributeError)):
            KeyValueSchema(wrong, StringSchema())

    class Wrong(StringSchema):
        def encode(self, obj):
            return 5

    with pytest.raises(TypeError, match=r"Wrong.encode\(\) must return bytes"):
        KeyValueSchema(Wrong(), StringSchema(), SEPARATED).encode_separated(("k", "v"))
