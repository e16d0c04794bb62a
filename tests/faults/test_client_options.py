"""What a client tells of itself, what it writes to the log, and how many look-ups it has under way."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pulsar_fast.connection import CLIENT_VERSION
from pulsar_fast.wire.messages import BaseCommand
from tests.faults.scripted_broker import ScriptedBroker
from tests.waiting import until

MakeClient = Callable[..., Any]


def test_the_description_follows_the_version(broker: ScriptedBroker, make_client: MakeClient) -> None:
    make_client(broker.url).create_producer("t")
    make_client(broker.url, description="orders @ node 7").create_producer("t")
    told = [frame.command.connect.client_version for frame in broker.got(BaseCommand.CONNECT)]
    assert told == [CLIENT_VERSION, f"{CLIENT_VERSION}-orders @ node 7"]


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"description": ""}, ValueError, "description must not be empty"),
        ({"description": "x" * 65}, ValueError, "description must have at most 64 characters, not 65"),
        ({"description": 1}, TypeError, "description must be a str"),
        ({"stats_interval_in_seconds": -1}, ValueError, "stats_interval_in_seconds must be from 0"),
        ({"stats_interval_in_seconds": 1.5}, TypeError, "stats_interval_in_seconds must be an int"),
        ({"concurrent_lookup_requests": 0}, ValueError, "concurrent_lookup_requests must be from 1"),
    ],
)
def test_bad_values(
    make_client: MakeClient, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        make_client("pulsar://h", **options)


def test_statistics_in_the_log(
    broker: ScriptedBroker, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pulsar_fast")
    client = make_client(broker.url, stats_interval_in_seconds=1)
    client.create_producer("t").send(b"x")
    client.create_producer("u")

    def told(topic: str, accepted: int) -> int:
        start = f"persistent://public/default/{topic}: ProducerStats(accepted={accepted}, "
        return sum(record.getMessage().startswith(start) for record in caplog.records)

    until(lambda: told("t", 1) and told("u", 0))
    assert make_client(broker.url, stats_interval_in_seconds=0).create_producer("v").is_connected()
    before = told("t", 1)
    until(lambda: told("t", 1) > before)
    assert told("v", 0) == 0


def test_look_ups_wait_for_their_turn(broker: ScriptedBroker, make_client: MakeClient) -> None:
    client = make_client(broker.url, concurrent_lookup_requests=2)
    broker.on_partitions().say_nothing()
    threads = [threading.Thread(target=client.create_producer, args=[f"t{number}"]) for number in range(5)]
    for thread in threads:
        thread.start()
    broker.wait_for(lambda b: len(b.got(BaseCommand.PARTITIONED_METADATA)) == 2)
    with broker.changed:
        broker.forget_rules()
        first = broker.got(BaseCommand.PARTITIONED_METADATA)
        assert len(first) == 2
        for frame in first:
            broker.usual_answer(frame)
    for thread in threads:
        thread.join(10)
    assert len(broker.got(BaseCommand.PRODUCER)) == 5
