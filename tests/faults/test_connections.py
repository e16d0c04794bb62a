"""Which connection a producer uses, how many there are, and how long they stay."""

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_fast import Timeout
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import Frame, error_answer
from tests.faults.scripted_broker import Link, ScriptedBroker

PRODUCER = BaseCommand.PRODUCER


def links_of(frames: list[Frame]) -> dict[int, set[Link]]:
    """By producer, the connections that its commands came on."""
    links: dict[int, set[Link]] = {}
    for frame in frames:
        links.setdefault(frame.command.producer.producer_id, set()).add(frame.link)
    return links


def groups(frames: list[Frame]) -> set[frozenset[int]]:
    """Which producers share a connection."""
    by_link: dict[Link, set[int]] = {}
    for frame in frames:
        by_link.setdefault(frame.link, set()).add(frame.command.producer.producer_id)
    return set(map(frozenset, by_link.values()))


def is_open(broker: ScriptedBroker, number: int) -> bool:
    with broker.changed:
        return broker.links[number].is_open


# --- several connections a broker


@pytest.mark.parametrize(("given", "expected"), [({}, 1), ({"connections_per_broker": 3}, 3)])
def test_producers_are_divided_among_them(
    broker: ScriptedBroker, make_client: Callable[..., Any], given: dict[str, int], expected: int
) -> None:
    client = make_client(broker.url, **given)
    for number in range(6):
        client.create_producer(f"t{number}").send(b"x")
    assert len(broker.links) == expected
    assert {len(group) for group in groups(broker.got(PRODUCER))} == {6 // expected}


def test_a_producer_registers_anew_on_its_own_connection(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    """On another one it would be refused while the broker knows it on the first."""
    client = make_client(broker.url, connections_per_broker=3)
    producers = [client.create_producer(f"t{number}") for number in range(6)]

    def refuse(frame: Frame) -> None:
        frame.link.send(error_answer(frame, ServerError.ServiceNotReady, "in a moment"))

    for count in (6, 12, 18):
        broker.on_producer().do(refuse, times=1)
        for frame in broker.got(PRODUCER)[count - 6 : count]:
            broker.close_producer(frame)
        for producer in producers:
            producer.send(b"x")
    assert {len(links) for links in links_of(broker.got(PRODUCER)).values()} == {1}
    assert len(broker.links) == 3


def test_producers_come_back_to_the_same_neighbours(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    client = make_client(broker.url, connections_per_broker=3)
    producers = [client.create_producer(f"t{number}") for number in range(6)]
    before = groups([f for f in broker.take_frames() if f.kind == PRODUCER])
    broker.cut_connections()
    for producer in producers:
        producer.send(b"x")
    assert groups(broker.got(PRODUCER)) == before
    assert len(broker.links) == 6


def test_one_connection_that_is_lost_concerns_its_own_producers(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    client = make_client(broker.url, connections_per_broker=2)
    first, second = client.create_producer("t1"), client.create_producer("t2")
    with broker.changed:
        broker.got(PRODUCER)[0].link.close()
    first.send(b"1")
    second.send(b"2")
    assert (first.stats().reconnects, second.stats().reconnects) == (1, 0)


# --- connections that nobody uses


def test_an_idle_connection_is_closed(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url, connection_max_idle_seconds=0.1)
    with client.create_producer("t1") as producer:
        producer.send(b"1")
    broker.wait_for(lambda b: not b.links[0].is_open)
    client.create_producer("t2").send(b"2")
    assert broker.payloads == [b"1", b"2"]
    assert len(broker.links) == 2


def test_idle_connections_beside_used_ones(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    """The one for look-ups goes, the one with a producer stays, sending or not."""
    with broker.another() as owner:
        broker.on_lookup().send_to(owner.url)
        client = make_client(broker.url, connection_max_idle_seconds=0.05)
        patient = make_client(broker.url, connection_max_idle_seconds=None)
        producer = client.create_producer("t1")
        patient.create_producer("t2").close()
        for _ in range(5):
            broker.wait_for(lambda b: b.links[0 if len(b.links) == 2 else -1].is_open is False)
            client.create_producer("another").close()
        assert is_open(broker, 1), "the patient client's"
        assert is_open(owner, 0)
        assert producer.is_connected()
        producer.send(b"x")
        assert producer.stats().reconnects == 0


def test_a_connection_with_a_request_is_not_idle(
    broker: ScriptedBroker, make_client: Callable[..., Any]
) -> None:
    broker.on_partitions().say_nothing()
    client = make_client(broker.url, connection_max_idle_seconds=0.05, operation_timeout_seconds=0.6)
    with pytest.raises(Timeout):
        client.create_producer("t")
    assert len(broker.got(BaseCommand.PARTITIONED_METADATA)) == len(broker.links) == 1
