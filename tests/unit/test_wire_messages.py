import copy
import re
import sys

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import EncodeError

from pulsar_fast.wire import generate, messages
from pulsar_fast.wire.messages import (
    BaseCommand,
    CommandError,
    CommandLookupTopicResponse,
    KeyValue,
    MessageIdData,
    MessageMetadata,
    ServerError,
    SingleMessageMetadata,
)


@pytest.fixture(scope="module")
def compiled():
    return generate.compile_proto()


def test_the_module_is_what_the_definition_compiles_to(compiled):
    committed = FileDescriptorProto()
    messages.DESCRIPTOR.CopyToProto(committed)
    expected = copy.deepcopy(compiled[0])
    # Runtimes differ in whether they hand back the derived JSON names.
    assert without_json_names(committed) == without_json_names(expected)


def without_json_names(file):
    todo = list(file.message_type)
    for message in todo:
        todo += message.nested_type
        for field in message.field:
            field.ClearField("json_name")
    return file


def test_the_module_and_its_stub_have_the_same_names(compiled):
    top_level = {item.name for item in (*compiled[0].message_type, *compiled[0].enum_type)}
    stub = (generate.HERE / "messages.pyi").read_text(encoding="utf-8")
    assert set(re.findall(r"^class (\w+)", stub, re.MULTILINE)) == top_level
    assert set(re.findall(r"^(\w+):", stub, re.MULTILINE)) == {"DESCRIPTOR"}
    assert {name for name in top_level if not hasattr(messages, name)} == set()


def test_the_generated_text_is_a_module_that_works(compiled):
    module = {}
    exec(generate.render_module(compiled[0]), module)
    assert module["BaseCommand"](type=module["BaseCommand"].PING).SerializeToString() == b"\x08\x12"
    assert module["ServerError"].Name(16) == "ProducerBusy"
    compile(generate.render_stub(compiled[1]), "messages.pyi", "exec")


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "grpc_tools.protoc", None)
    with pytest.raises(RuntimeError, match="pip install grpcio-tools"):
        generate.compile_proto()


def test_the_pool_is_private():
    default = descriptor_pool.Default()
    assert messages.DESCRIPTOR.pool is not default
    with pytest.raises(KeyError):
        default.FindFileByName(messages.DESCRIPTOR.name)
    with pytest.raises(KeyError):
        default.FindMessageTypeByName("pulsar_fast.wire.BaseCommand")


def test_an_unknown_command_is_recognised_and_its_content_kept_apart():
    # type = 99, and a field 99 that we do not know.
    command = BaseCommand.FromString(bytes.fromhex("0863 9a06 02 0801"))
    assert command.type == 99
    assert command.type not in BaseCommand.Type.values()
    assert command.IsInitialized()
    assert [field.name for field, _ in command.ListFields()] == ["type"]


def test_a_command_without_a_type_is_recognised():
    command = BaseCommand.FromString(b"")
    assert command.type == 0
    assert command.type not in BaseCommand.Type.values()
    assert not command.IsInitialized()


def test_an_unknown_error_code_is_kept():
    command = BaseCommand.FromString(bytes.fromhex("080e 7207 0805 1063 1a01 78"))
    assert command.type == BaseCommand.ERROR
    assert command.error == CommandError(request_id=5, error=99, message="x")
    assert command.IsInitialized()


def test_an_unknown_kind_of_look_up_answer_is_kept():
    answer = CommandLookupTopicResponse.FromString(bytes.fromhex("1807 2001"))
    assert answer.response == 7
    assert answer.response not in CommandLookupTopicResponse.LookupType.values()


def test_a_command_that_lacks_what_it_must_have_is_not_sent():
    with pytest.raises(EncodeError, match="type"):
        BaseCommand().SerializeToString()


def test_enum_names():
    assert ServerError.Name(16) == "ProducerBusy"
    assert BaseCommand.Type.Name(BaseCommand.SEND_RECEIPT) == "SEND_RECEIPT"


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (MessageIdData(ledgerId=2, entryId=3, partition=1, batch_index=4), "0802 1003 1801 2004"),
        (MessageIdData(ledgerId=2**64 - 1, entryId=1), "08ffffffffffffffffff01 1001"),
        (
            MessageMetadata(
                producer_name="standalone-74-0",
                sequence_id=0,
                publish_time=1572563728300,
                properties=[KeyValue(key="a", value="1"), KeyValue(key="b", value="2")],
                uncompressed_size=5,
                event_time=5,
                schema_version=b"",
            ),
            "0a0f7374616e64616c6f6e652d37342d30 1000 18acefe8a0e22d 22060a0161120131 22060a0162120132"
            " 4805 6005 820100",
        ),
        (
            SingleMessageMetadata(
                properties=[KeyValue(key="a", value="1"), KeyValue(key="b", value="2")],
                payload_size=5,
                event_time=5,
                sequence_id=0,
            ),
            "0a060a0161120131 0a060a0162120132 1805 2805 4000",
        ),
    ],
)
def test_the_bytes_are_those_of_the_other_clients(message, wire):
    assert message.SerializeToString() == bytes.fromhex(wire)
    assert type(message).FromString(bytes.fromhex(wire)) == message


def test_messages_can_be_copied():
    command = BaseCommand(type=BaseCommand.PING)
    assert copy.copy(command) == copy.deepcopy(command) == command
