"""Regenerate `messages.py` and `messages.pyi` from `pulsar_fast.proto`.

Run `python -m pulsar_fast.wire.generate` after a change of the `.proto`; it needs `grpcio-tools`, a
development dependency. The generated module carries the definition as data instead of protoc's own
Python output, which refuses protobuf runtimes older than its compiler and registers its names for the
whole process.
"""

import base64
import importlib
import re
import sys
import tempfile
import textwrap
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

HERE = Path(__file__).parent
PROTO = "pulsar_fast.proto"

_HEADER = "Generated from pulsar_fast.proto by `python -m pulsar_fast.wire.generate`; do not edit."

_MODULE = '''\
"""The messages a producer speaks, in a descriptor pool of their own.

{header}
"""
# ruff: noqa
# fmt: off

import base64

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message_factory import GetMessageClass

_POOL = DescriptorPool()
_POOL.AddSerializedFile(base64.b64decode("""
{blob}
"""))

DESCRIPTOR = _POOL.FindFileByName({name!r})


def _enum(name):
    return EnumTypeWrapper(DESCRIPTOR.enum_types_by_name[name])


def _message(name):
    return GetMessageClass(DESCRIPTOR.message_types_by_name[name])


{definitions}
'''


def compile_proto() -> tuple[FileDescriptorProto, str]:
    """The compiled definition and protoc's type stub for it.

    Raises RuntimeError if grpcio-tools is missing or the definition does not compile.
    """
    try:
        protoc = importlib.import_module("grpc_tools.protoc")  # it has no types
    except ImportError as error:
        raise RuntimeError("generating the messages needs grpcio-tools: pip install grpcio-tools") from error
    with tempfile.TemporaryDirectory() as directory:
        descriptors = Path(directory, "descriptors")
        arguments = [f"--proto_path={HERE}", f"--descriptor_set_out={descriptors}", f"--pyi_out={directory}"]
        if protoc.main(["protoc", *arguments, PROTO]) != 0:
            raise RuntimeError(f"{HERE / PROTO} does not compile, see protoc's message above")
        (definition,) = FileDescriptorSet.FromString(descriptors.read_bytes()).file
        return definition, Path(directory, "pulsar_fast_pb2.pyi").read_text(encoding="utf-8")


def render_module(definition: FileDescriptorProto) -> str:
    """The text of `messages.py`."""
    blob = base64.b64encode(definition.SerializeToString(deterministic=True)).decode("ascii")
    lines = [f'{enum.name} = _enum("{enum.name}")' for enum in definition.enum_type]
    lines += [f'{message.name} = _message("{message.name}")' for message in definition.message_type]
    return _MODULE.format(
        header=_HEADER, blob=textwrap.fill(blob, 100), name=definition.name, definitions="\n".join(lines)
    )


def render_stub(stub: str) -> str:
    """The text of `messages.pyi`, from protoc's stub."""
    # Values of top-level enums are reached through their enum only: `ServerError.ChecksumError`.
    body = re.sub(r"^(?!DESCRIPTOR\b)\w+: \w+\n", "", stub, flags=re.MULTILINE)
    body = body.replace("_Mapping]", "_Mapping[str, object]]")  # as mypy --strict wants it
    return f"# {_HEADER}\n# ruff: noqa\n# fmt: off\n{body}"


def main() -> None:
    try:
        definition, stub = compile_proto()
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    (HERE / "messages.py").write_text(render_module(definition), encoding="utf-8")
    (HERE / "messages.pyi").write_text(render_stub(stub), encoding="utf-8")


if __name__ == "__main__":
    main()
