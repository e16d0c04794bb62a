"""Reading back with the official client what was produced.

It shows neither sequence ids nor how messages were batched: for these see `peek`.
"""

import time
import uuid
from dataclasses import dataclass

import pulsar  # type: ignore[import-untyped]

_MARKER = "pulsar-fast-tests-marker"


@dataclass(frozen=True)
class Received:
    """A message as a consumer sees it; what was not set is empty, or 0. Times are in milliseconds."""

    data: bytes
    properties: dict[str, str]
    partition_key: str  # as on the wire, base64 too
    ordering_key: str
    event_timestamp: int
    publish_timestamp: int
    producer_name: str
    null_value: bool
    topic: str  # that of the partition
    message_id: tuple[int, int, int, int]  # ledger, entry, partition, batch index


class Subscription:
    """A durable subscription from the earliest message on: the broker keeps what it has not read."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._client = client
        self._topic = topic
        # Shared keeps the order for a lone consumer; pulsar-lite's Exclusive delivers entries again.
        self._consumer = client.subscribe(
            topic,
            f"readback-{uuid.uuid4().hex}",
            consumer_type=pulsar.ConsumerType.Shared,
            initial_position=pulsar.InitialPosition.Earliest,
        )

    def read(self, count: int, timeout: float = 10.0) -> list[Received]:
        """The next ``count`` messages, in order (of each partition).

        Raises:
            AssertionError: fewer came within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        messages: list[Received] = []
        while len(messages) < count:
            message = self._receive(deadline)
            assert message is not None, f"{len(messages)} of {count} messages came within {timeout:g} s"
            if _MARKER not in message.properties:
                messages.append(message)
        return messages

    def read_all(self, timeout: float = 10.0) -> list[Received]:
        """What is in the topic by now and was not read yet, in order (of each partition).

        It reads up to a marker that it appends to each partition, so it misses nothing and waits for nothing.

        Raises:
            AssertionError: the markers did not come within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        name = uuid.uuid4().hex
        partitions = self._client.get_topic_partitions(self._topic)
        for partition in partitions:
            producer = self._client.create_producer(partition)
            producer.send(b"", properties={_MARKER: name})
            producer.close()
        missing = len(partitions)
        messages: list[Received] = []
        while missing > 0:
            message = self._receive(deadline)
            assert message is not None, (
                f"the end did not come within {timeout:g} s, but {len(messages)} messages"
            )
            if _MARKER not in message.properties:
                messages.append(message)
            elif message.properties[_MARKER] == name:
                missing -= 1
        return messages

    def close(self) -> None:
        self._consumer.unsubscribe()
        self._consumer.close()

    def _receive(self, deadline: float) -> Received | None:
        remaining = max(1, int((deadline - time.monotonic()) * 1000))
        try:
            message = self._consumer.receive(timeout_millis=remaining)
        except pulsar.Timeout:
            return None
        self._consumer.acknowledge(message)
        id_ = message.message_id()
        return Received(
            data=message.data(),
            properties=message.properties(),
            partition_key=message.partition_key(),
            ordering_key=message.ordering_key(),
            event_timestamp=message.event_timestamp(),
            publish_timestamp=message.publish_timestamp(),
            producer_name=message.producer_name(),
            null_value=message.has_null_value(),
            topic=message.topic_name(),
            message_id=(id_.ledger_id(), id_.entry_id(), id_.partition(), id_.batch_index()),
        )
