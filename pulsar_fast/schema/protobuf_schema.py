"""Protobuf messages in their own encoding."""

import base64
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

from .info import SchemaType
from .schema import Schema

__all__ = ["ProtobufNativeSchema"]


class ProtobufNativeSchema(Schema):
    """Protobuf messages.

    record_cls: a generated message class. Raises `TypeError` for anything else.
    """

    def __init__(self, record_cls: type[Message]) -> None:
        if not (isinstance(record_cls, type) and issubclass(record_cls, Message)):
            raise TypeError(f"record_cls must be a protobuf message class, not {record_cls!r}")
        descriptor = record_cls.DESCRIPTOR
        files = FileDescriptorSet()
        _add_with_imports(descriptor.file, files, set())
        definition = {
            "fileDescriptorSet": base64.b64encode(files.SerializeToString()).decode(),
            "rootMessageTypeName": descriptor.full_name,
            "rootFileDescriptorName": descriptor.file.name,
        }
        super().__init__(record_cls, SchemaType.PROTOBUF_NATIVE, definition, "PROTOBUF_NATIVE")

    def encode(self, obj: Any) -> bytes:
        self._validate_object_type(obj)
        encoded: bytes = obj.SerializeToString()
        return encoded

    def decode(self, data: bytes) -> Any:
        return self._record_cls.FromString(data)


def _add_with_imports(file: Any, files: FileDescriptorSet, seen: set[str]) -> None:
    """A file behind all that it imports, each once."""
    if file.name in seen:
        return
    seen.add(file.name)
    for imported in file.dependencies:
        _add_with_imports(imported, files, seen)
    file.CopyToProto(files.file.add())
