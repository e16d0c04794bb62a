"""The bytes between a producer and its broker, read and written from the broker's side.

What no client may ever send (a bad checksum, a wrong count) is an `AssertionError` of whoever reads it.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cramjam
import google_crc32c
import lz4.block
import zstandard

from pulsar_fast.wire.messages import (
    BaseCommand,
    CommandLookupTopicResponse,
    CommandTopicMigrated,
    CompressionType,
    MessageMetadata,
    SingleMessageMetadata,
)

_MAGIC = b"\x0e\x01"
_MOST = 6 << 20  # bytes of a frame


@dataclass(frozen=True)
class Message:
    """One message of a frame."""

    sequence_id: int
    payload: bytes
    metadata: Any  # MessageMetadata, or SingleMessageMetadata of a message in a batch


@dataclass(frozen=True)
class Frame:
    """What came in, in the order of arrival over all connections."""

    link: Any = field(repr=False)
    command: Any
    raw: bytes = field(repr=False)
    metadata: Any = None
    messages: tuple[Message, ...] = ()

    @property
    def kind(self) -> int:
        return int(self.command.type)

    @property
    def request_id(self) -> int:
        body = self.command
        asked: dict[int, Any] = {
            BaseCommand.PRODUCER: body.producer,
            BaseCommand.CLOSE_PRODUCER: body.close_producer,
            BaseCommand.LOOKUP: body.lookupTopic,
            BaseCommand.PARTITIONED_METADATA: body.partitionMetadata,
        }
        return int(asked[self.kind].request_id) if self.kind in asked else 0

    @property
    def producer_id(self) -> int:
        """Of the producer that it is about, -1 for none."""
        name = {
            BaseCommand.PRODUCER: "producer",
            BaseCommand.CLOSE_PRODUCER: "close_producer",
            BaseCommand.SEND: "send",
        }.get(self.kind)
        return -1 if name is None else int(getattr(self.command, name).producer_id)

    @property
    def lowest_id(self) -> int:
        return int(self.command.send.sequence_id)

    @property
    def message_size(self) -> int:
        """Bytes of metadata and payload, which a broker's limit is about."""
        (command_size,) = struct.unpack_from(">I", self.raw, 4)
        return len(self.raw) - 8 - command_size - 10

    @property
    def highest_id(self) -> int:
        sent = self.command.send
        return int(sent.highest_sequence_id if sent.HasField("highest_sequence_id") else sent.sequence_id)


class Inbox:
    """What a client has written and nobody has read yet."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        self._bytes += data

    def frames(self, link: object) -> Iterator[Frame]:
        """The complete frames, taken out one by one; `link` is noted in them."""
        for raw in self.take():
            yield read_frame(link, raw)

    def take(self) -> Iterator[bytes]:
        """The bytes of the complete frames, taken out one by one."""
        while len(self._bytes) >= 4:
            (total,) = struct.unpack_from(">I", self._bytes)
            assert 4 <= total <= _MOST, f"a frame of {total} bytes"
            if len(self._bytes) < 4 + total:
                return
            raw = bytes(self._bytes[: 4 + total])
            del self._bytes[: 4 + total]
            yield raw


def read_frame(link: object, raw: bytes) -> Frame:
    """Take a whole frame apart; `link` is noted in it."""
    (size,) = struct.unpack_from(">I", raw, 4)
    assert size <= len(raw) - 8, f"a command of {size} bytes in a frame of {len(raw) - 4}"
    command = BaseCommand.FromString(raw[8 : 8 + size])
    if command.type != BaseCommand.SEND:
        assert len(raw) == 8 + size, "bytes behind a command"
        return Frame(link, command, raw)
    metadata, messages = _open_payload(raw[8 + size :])
    return Frame(link, command, raw, metadata, messages)


def _open_payload(data: bytes) -> tuple[Any, tuple[Message, ...]]:
    assert data[:2] == _MAGIC, f"no magic number but {data[:2]!r}"
    checksum, size = struct.unpack_from(">II", data, 2)
    assert checksum == google_crc32c.value(data[6:]), "the checksum is wrong"
    metadata = MessageMetadata.FromString(data[10 : 10 + size])
    payload = decompressed(metadata, data[10 + size :])
    if not metadata.HasField("num_messages_in_batch"):
        return metadata, (Message(metadata.sequence_id, payload, metadata),)
    messages = []
    while payload:
        (size,) = struct.unpack_from(">I", payload)
        single = SingleMessageMetadata.FromString(payload[4 : 4 + size])
        end = 4 + size + single.payload_size
        assert end <= len(payload), "a message that reaches beyond its batch"
        messages.append(Message(single.sequence_id, payload[4 + size : end], single))
        payload = payload[end:]
    assert len(messages) == metadata.num_messages_in_batch, "a batch with a wrong count"
    return metadata, tuple(messages)


def decompressed(metadata: Any, body: bytes) -> bytes:
    """The body of a frame as it was before it was compressed."""
    kind, size = metadata.compression, metadata.uncompressed_size
    if kind == CompressionType.NONE:
        return body
    if kind == CompressionType.LZ4:
        plain = lz4.block.decompress(body, uncompressed_size=size)
    elif kind == CompressionType.ZLIB:
        plain = zlib.decompress(body)
    elif kind == CompressionType.ZSTD:
        plain = zstandard.ZstdDecompressor().decompress(body, max_output_size=size)
    else:
        assert kind == CompressionType.SNAPPY, f"the unknown compression {kind}"
        plain = bytes(cramjam.snappy.decompress_raw(body))
    assert len(plain) == size, f"{len(plain)} bytes, not the {size} that the metadata names"
    return plain


def encode(command: Any) -> bytes:
    body: bytes = command.SerializeToString()
    return struct.pack(">II", 4 + len(body), len(body)) + body


NOWHERE = 2**64 - 1
"""Ledger and entry of what was not stored: -1 as it travels."""


def connected(max_message_size: int | None = None) -> bytes:
    command = BaseCommand(type=BaseCommand.CONNECTED)
    command.connected.server_version = "of a test"
    command.connected.protocol_version = 20
    if max_message_size is not None:
        command.connected.max_message_size = max_message_size
    return encode(command)


def pong() -> bytes:
    return encode(BaseCommand(type=BaseCommand.PONG, pong={}))


def partitions(frame: Frame, count: int = 0) -> bytes:
    """How many the topic has that was asked for."""
    command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
    command.partitionMetadataResponse.request_id = frame.request_id
    command.partitionMetadataResponse.partitions = count
    command.partitionMetadataResponse.response = 0
    return encode(command)


def registered(
    frame: Frame,
    name: str,
    last_id: int = -1,
    schema_version: bytes = b"",
    *,
    ready: bool = True,
    topic_epoch: int | None = None,
) -> bytes:
    """`ProducerSuccess`."""
    command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
    success = command.producer_success
    success.request_id = frame.request_id
    success.producer_name = name
    success.last_sequence_id = last_id
    success.schema_version = schema_version
    if not ready:
        success.producer_ready = False
    if topic_epoch is not None:
        success.topic_epoch = topic_epoch
    return encode(command)


def success(frame: Frame) -> bytes:
    command = BaseCommand(type=BaseCommand.SUCCESS)
    command.success.request_id = frame.request_id
    return encode(command)


def topic_migrated(producer_id: int, url: str, resource_type: int = CommandTopicMigrated.Producer) -> bytes:
    command = BaseCommand(type=BaseCommand.TOPIC_MIGRATED)
    command.topicMigrated.resource_id = producer_id
    command.topicMigrated.resource_type = resource_type  # type: ignore[assignment]
    if url:
        command.topicMigrated.brokerServiceUrl = url
    return encode(command)


def close_producer(producer_id: int, assigned: str | None = None, assigned_tls: str | None = None) -> bytes:
    """The broker's own, with or without the URL of the new owner."""
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    command.close_producer.request_id = 0
    if assigned is not None:
        command.close_producer.assignedBrokerServiceUrl = assigned
    if assigned_tls is not None:
        command.close_producer.assignedBrokerServiceUrlTls = assigned_tls
    return encode(command)


def receipt(frame: Frame, ledger: int, entry: int) -> bytes:
    """Of a frame that is stored there, or `NOWHERE`."""
    highest = frame.highest_id if frame.command.send.HasField("highest_sequence_id") else None
    return receipt_for(frame.producer_id, frame.lowest_id, ledger, entry, highest)


def receipt_for(
    producer_id: int, sequence_id: int, ledger: int, entry: int, highest_id: int | None = None
) -> bytes:
    """For an id, sent or not."""
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    answer = command.send_receipt
    answer.producer_id, answer.sequence_id = producer_id, sequence_id
    answer.message_id.ledgerId, answer.message_id.entryId = ledger, entry
    if highest_id is not None:
        answer.highest_sequence_id = highest_id
    return encode(command)


def error_answer(frame: Frame, code: int, text: str) -> bytes:
    """The refusal of a request, in the form that its answer has."""
    if frame.kind == BaseCommand.SEND:
        return refusal(frame, code, text)
    command = BaseCommand(type=BaseCommand.ERROR)
    answer: Any = command.error
    if frame.kind == BaseCommand.LOOKUP:
        command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
        answer = command.lookupTopicResponse
        answer.response = CommandLookupTopicResponse.Failed
    elif frame.kind == BaseCommand.PARTITIONED_METADATA:
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        answer = command.partitionMetadataResponse
        answer.response = 1
    answer.request_id = frame.request_id
    answer.error = code
    answer.message = text
    return encode(command)


def refusal(frame: Frame, code: int, text: str = "as scripted") -> bytes:
    """`SendError`, which names the highest id of a batch."""
    return refusal_of(frame.producer_id, frame.highest_id, code, text)


def refusal_of(producer_id: int, sequence_id: int, code: int, text: str = "as scripted") -> bytes:
    """`SendError` for an id, sent or not."""
    command = BaseCommand(type=BaseCommand.SEND_ERROR)
    command.send_error.producer_id = producer_id
    command.send_error.sequence_id = sequence_id
    command.send_error.error = code
    command.send_error.message = text
    return encode(command)


def lookup_answer(
    frame: Frame,
    url: str,
    kind: int = CommandLookupTopicResponse.Connect,
    *,
    tls_url: str = "",
    authoritative: bool = True,
    through_proxy: bool = False,
) -> bytes:
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    answer = command.lookupTopicResponse
    answer.request_id = frame.request_id
    answer.response = kind
    answer.brokerServiceUrl = url
    answer.brokerServiceUrlTls = tls_url
    answer.authoritative = authoritative
    answer.proxy_through_service_url = through_proxy
    return encode(command)


def challenge(data: bytes) -> bytes:
    command = BaseCommand(type=BaseCommand.AUTH_CHALLENGE)
    command.authChallenge.server_version = "scripted"
    command.authChallenge.challenge.auth_method_name = "token"
    command.authChallenge.challenge.auth_data = data
    return encode(command)
