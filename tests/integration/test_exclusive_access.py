"""Exclusive access to topics of Apache Pulsar."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pulsar_fast import Client, ProducerAccessMode, ProducerBusy, ProducerFenced
from tests.waiting import until

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("service_url", ["apache"], indirect=True)]


@pytest.fixture
def client(service_url: str) -> Iterator[Client]:
    with Client(service_url, operation_timeout_seconds=2) as client:
        yield client


def test_exclusive(client: Client, topic: str) -> None:
    with client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive) as producer:
        producer.send(b"x")
        with pytest.raises(ProducerBusy):
            client.create_producer(topic)
        with pytest.raises(ProducerFenced):
            client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with client.create_producer(topic) as producer:
        producer.send(b"y")
        with pytest.raises(ProducerFenced):
            client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)


def test_waiting_for_it(client: Client, topic: str) -> None:
    holder = client.create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    made: list[Any] = []
    waiting = threading.Thread(
        target=lambda: made.append(
            client.create_producer(topic, access_mode=ProducerAccessMode.WaitForExclusive)
        )
    )
    waiting.start()
    waiting.join(2.5)  # longer than operations may take
    assert waiting.is_alive()
    holder.send(b"x")
    holder.close()
    waiting.join(20)
    made[0].send(b"y")
    made[0].close()


def test_taking_it_over(client: Client, service_url: str, topic: str) -> None:
    holder = client.create_producer(
        topic, access_mode=ProducerAccessMode.Exclusive, send_timeout_millis=10_000
    )
    holder.send(b"x")
    with (
        Client(service_url) as other,
        other.create_producer(topic, access_mode=ProducerAccessMode.ExclusiveWithFencing) as producer,
    ):
        producer.send(b"y")
        with pytest.raises(ProducerFenced):
            holder.send(b"z")
        until(lambda: not holder.is_connected())
        with pytest.raises(ProducerFenced):
            holder.send(b"z")
        holder.close()
        producer.send(b"w")
