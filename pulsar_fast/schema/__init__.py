"""Schemas of a producer, with the official client's names: `create_producer(topic, schema=JsonSchema(Order))`."""

from .avro_schema import AvroSchema
from .definition import (
    Array,
    Boolean,
    Bytes,
    CustomEnum,
    Double,
    Field,
    Float,
    Integer,
    Long,
    Map,
    Null,
    Record,
    String,
)
from .info import SchemaInfo, SchemaType
from .json_schema import JsonSchema
from .key_value import KeyValue, KeyValueEncodingType, KeyValueSchema
from .protobuf_schema import ProtobufNativeSchema
from .schema import BytesSchema, Schema, StringSchema

__all__ = [
    "Array",
    "AvroSchema",
    "Boolean",
    "Bytes",
    "BytesSchema",
    "CustomEnum",
    "Double",
    "Field",
    "Float",
    "Integer",
    "JsonSchema",
    "KeyValue",
    "KeyValueEncodingType",
    "KeyValueSchema",
    "Long",
    "Map",
    "Null",
    "ProtobufNativeSchema",
    "Record",
    "Schema",
    "SchemaInfo",
    "SchemaType",
    "String",
    "StringSchema",
]
