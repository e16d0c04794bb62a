"""Topics with partitions: where messages go, what one failing partition does to the others, and new partitions."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import (
    AutoClusterFailover,
    HashingScheme,
    PartitionsRoutingMode,
    ProducerQueueIsFull,
    Result,
    ServiceInfo,
    TopicNotFound,
)
from pulsar_fast._core import hash_of_key
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import Frame, error_answer
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.waiting import until

MakeProducer = Callable[..., Any]


def failing_over(url: str) -> AutoClusterFailover:
    return AutoClusterFailover(ServiceInfo(url), [ServiceInfo(url)], check_interval_ms=1000)


def partition_of(frame: Frame) -> int:
    """Of a Producer command."""
    return int(frame.command.producer.topic.rpartition("-")[2])


def arrived(broker: ScriptedBroker) -> list[tuple[int, bytes]]:
    """Partition and payload of every message, in the order of arrival."""
    numbers = {
        (frame.link, frame.command.producer.producer_id): partition_of(frame)
        for frame in broker.got(BaseCommand.PRODUCER)
    }
    return [
        (numbers[frame.link, frame.command.send.producer_id], message.payload)
        for frame in broker.sends
        for message in frame.messages
    ]


@pytest.fixture
def partitioned(broker: ScriptedBroker) -> ScriptedBroker:
    broker.partitions = 3
    return broker


def test_one_producer_over_all(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t")
    commands = [frame.command.producer for frame in partitioned.got(BaseCommand.PRODUCER)]
    assert sorted(command.topic for command in commands) == [
        f"persistent://public/default/t-partition-{number}" for number in range(3)
    ]
    assert producer.topic() == "persistent://public/default/t"
    names = [command.producer_name for command in commands]
    assert names == ["", producer.producer_name(), producer.producer_name()], "the first one's name for all"
    assert {command.user_provided_producer_name for command in commands} == {False}
    assert producer.is_connected()
    ids = [producer.send(b"x") for _ in range(3)]
    assert sorted(message_id.partition() for message_id in ids) == [0, 1, 2]
    producer.close()
    assert len(partitioned.got(BaseCommand.CLOSE_PRODUCER)) == 3
    assert producer.stats().acknowledged == 3


@pytest.mark.parametrize("scheme", HashingScheme)
def test_keys_find_their_partitions(
    partitioned: ScriptedBroker, make_producer: MakeProducer, scheme: HashingScheme
) -> None:
    producer = make_producer("t", hashing_scheme=scheme, max_pending_messages=0)
    keys = [f"key-{number}-é" for number in range(50)]
    for key in keys:
        producer.send_async(key.encode(), None, partition_key=key)
    producer.send_many([b"many"] * 5, partition_key=keys[7])
    producer.flush()
    where = {payload: partition for partition, payload in arrived(partitioned)}
    for key in keys:
        assert where[key.encode()] == hash_of_key(scheme, key) % 3
    assert Counter(arrived(partitioned))[where[keys[7].encode()], b"many"] == 5


def test_in_turn_a_batch_each(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", batching_max_messages=10, batching_max_publish_delay_ms=10_000)
    for number in range(60):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    by_partition: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for partition, payload in arrived(partitioned):
        by_partition[partition].append(int(payload))
    first = next(partition for partition, numbers in by_partition.items() if 0 in numbers)
    for offset in range(3):
        start = 10 * offset
        expected = [*range(start, start + 10), *range(start + 30, start + 40)]
        assert by_partition[(first + offset) % 3] == expected


def test_in_turn_without_batches(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", batching_enabled=False)
    ids = [producer.send(b"x").partition() for _ in range(9)]
    assert ids == [(ids[0] + step) % 3 for step in range(9)]


def test_starting_at_random(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    firsts: set[int] = set()

    def one_more() -> bool:
        firsts.add(make_producer("t").send(b"x").partition())
        return len(firsts) == 3

    until(one_more)


def test_a_single_partition(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", message_routing_mode=PartitionsRoutingMode.UseSinglePartition)
    assert len({producer.send(b"x").partition() for _ in range(10)}) == 1
    keyed = {producer.send(b"x", partition_key=f"k{number}").partition() for number in range(30)}
    assert keyed == {0, 1, 2}, "keys find their own ones all the same"


def test_the_callers_own_choice(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    seen = []

    def route(message: Any, partitions: int) -> int:
        seen.append((
            message.data(), message.properties(), message.partition_key(), message.ordering_key(),
            message.event_timestamp(), partitions,
        ))  # fmt: skip
        return len(message.data()) % partitions

    producer = make_producer(
        "t", message_router=route, message_routing_mode=PartitionsRoutingMode.CustomPartition
    )
    assert producer.send(b"a").partition() == 1
    assert producer.send(b"ab", {"p": "v"}, "key", "order", event_timestamp=7).partition() == 2
    assert producer.send(None).partition() == 0
    handle = producer.send_many([b"abc", bytearray(b"abcd")], partition_key="key")
    assert handle.result() == 2
    assert [message_id.partition() for _, message_id in handle.message_ids()] == [0, 1]
    assert seen == [
        (b"a", {}, "", "", 0, 3),
        (b"ab", {"p": "v"}, "key", "order", 7, 3),
        (b"", {}, "", "", 0, 3),
        (b"abc", {}, "key", "", 0, 3),
        (b"abcd", {}, "key", "", 0, 3),
    ]


@pytest.mark.parametrize(
    ("choice", "kind", "says"),
    [
        (3, ValueError, "message_router chose partition 3 of 3"),
        (-1, ValueError, "message_router chose partition -1 of 3"),
        ("1", TypeError, "message_router must return an int, not str"),
        (True, TypeError, "not bool"),
        (ZeroDivisionError("mine"), ZeroDivisionError, "mine"),
    ],
)
def test_a_choice_that_is_none(
    partitioned: ScriptedBroker, make_producer: MakeProducer, choice: Any, kind: type[Exception], says: str
) -> None:
    def route(message: Any, _partitions: int) -> Any:
        if message.data() != b"bad":
            return 0
        if isinstance(choice, Exception):
            raise choice
        return choice

    producer = make_producer("t", message_router=route)
    for call in (lambda: producer.send(b"bad"), lambda: producer.send_async(b"bad", None)):
        with pytest.raises(kind, match=says):
            call()
    handle = producer.send_many([b"good", b"bad", b"good"])
    producer.flush()
    assert [(index, type(error)) for index, error in handle.errors.items()] == [(1, kind)]
    assert [payload for _, payload in arrived(partitioned)] == [b"good", b"good"]
    assert producer.stats().accepted == 2


def test_a_partition_that_fails(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    """The others go on; what is meant for it hears why it does not."""
    producer = make_producer("t", message_router=lambda message, _n: int(message.data()))
    with partitioned.changed:
        lost = next(frame for frame in partitioned.got(BaseCommand.PRODUCER) if partition_of(frame) == 1)
        partitioned.on_producer().do(
            lambda frame: (
                frame.link.send(error_answer(frame, ServerError.TopicNotFound, "gone"))
                if partition_of(frame) == 1
                else partitioned.usual_answer(frame)
            )
        )
        partitioned.close_producer(lost)
    with pytest.raises(TopicNotFound, match="gone"):
        producer.send(b"1")
    outcomes = Outcomes()
    for number in range(30):
        producer.send_async(b"%d" % (number % 3), outcomes.of(number))
    outcomes.wait_for(30)
    assert {number for number, result in outcomes.results.items() if result is Result.Ok} == {
        number for number in range(30) if number % 3 != 1
    }
    assert not producer.is_connected()
    with pytest.raises(TopicNotFound):
        producer.flush()
    producer.close()


def test_a_partition_that_is_stuck(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    """Messages without a key pass it once it takes no more."""
    producer = make_producer("t", batching_enabled=False, max_pending_messages=2)
    stuck = next(
        frame for frame in partitioned.got(BaseCommand.PRODUCER) if partition_of(frame) == 1
    ).command.producer.producer_id
    partitioned.on_send().do(
        lambda frame: None if frame.command.send.producer_id == stuck else partitioned.usual_answer(frame)
    )
    stored = 0
    refused = 0
    while stored < 20:
        outcomes = Outcomes()
        producer.send_async(b"x", outcomes.of(0))
        if outcomes.results.get(0) is Result.ProducerQueueIsFull:
            refused += 1
        else:
            stored += 1
            until(lambda: producer.stats().pending_messages <= 2)
    assert 5 <= refused <= 12, "about every third one"


def test_the_limit_across_partitions(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", max_pending_messages_across_partitions=9, batching_enabled=False)
    partitioned.hold_receipts()
    for _ in range(9):
        producer.send_async(b"x", None)
    with pytest.raises(ProducerQueueIsFull):
        producer.send_async(b"x", None)
    partitioned.release_receipts()
    producer.flush()


def test_waiting_for_room_of_its_own_partition(
    partitioned: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(
        "t",
        message_router=lambda message, _n: message.data()[0] % 3,
        max_pending_messages=1,
        block_if_queue_full=True,
    )
    partitioned.hold_receipts()
    producer.send_async(b"\1a", None)
    waiting = threading.Thread(target=lambda: producer.send_many([b"\1b", b"\1c"]).result())
    waiting.start()
    partitioned.wait_for(lambda b: len(b.sends) == 1)
    producer.send_async(b"\2", None)
    producer.send_async(b"\3", None)
    partitioned.wait_for(lambda b: len(b.sends) == 3)
    partitioned.release_receipts()
    waiting.join(10)
    producer.flush()
    assert [payload for number, payload in arrived(partitioned) if number == 1] == [b"\1a", b"\1b", b"\1c"]


def test_a_failed_partition_keeps_send_many_from_no_other(
    partitioned: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer("t", message_router=lambda message, _n: int(message.data()))
    with partitioned.changed:
        lost = next(frame for frame in partitioned.got(BaseCommand.PRODUCER) if partition_of(frame) == 1)
        partitioned.on_producer().answer_error(ServerError.TopicNotFound, "gone")
        partitioned.close_producer(lost)
    with pytest.raises(TopicNotFound, match="gone"):
        producer.send(b"1")
    handle = producer.send_many(b"%d" % (number % 3) for number in range(6))
    with pytest.raises(TopicNotFound):
        producer.flush()
    assert {index: type(error) for index, error in handle.errors.items()} == {
        1: TopicNotFound,
        4: TopicNotFound,
    }
    assert Counter(arrived(partitioned)) == {(0, b"0"): 2, (2, b"2"): 2}
    producer.close()
    with pytest.raises(pulsar_fast.AlreadyClosed):
        producer.send_many(b"0" for _ in iter(int, 1))


def test_room_stays_with_its_partition(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    """An element that got room, and is too big for the broker that came meanwhile, takes none elsewhere."""
    producer = make_producer(
        "t", message_router=lambda message, _n: message.data()[0] % 3, max_pending_messages=1
    )
    partitioned.on_send().say_nothing(times=1)
    producer.send_async(b"\1", None)
    partitioned.wait_for(lambda b: b.sends)
    handles: list[Any] = []
    payloads = [b"\1" + bytes(200_000), b"\2", b"\1"]
    sending = threading.Thread(target=lambda: handles.append(producer.send_many(payloads)))
    sending.start()
    accumulator = producer._core._partitions[1].accumulator
    until(accumulator.waiting)
    partitioned.max_message_size = 100_000
    partitioned.cut_connections()
    sending.join(10)
    producer.flush()
    assert {index: type(error) for index, error in handles[0].errors.items()} == {
        0: pulsar_fast.MessageTooBig
    }
    assert producer.stats().pending_messages == 0
    for _ in range(2):  # each partition has its one place still
        for payload in (b"\1", b"\2"):
            producer.send(payload)


def test_flush_and_close_cover_all(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", batching_max_publish_delay_ms=10_000, batching_max_messages=5)
    for _ in range(12):
        producer.send_async(b"x", None)
    producer.flush()
    assert len(arrived(partitioned)) == 12
    assert {number for number, _ in arrived(partitioned)} == {0, 1, 2}
    for _ in range(12):
        producer.send_async(b"y", None)
    producer.close()
    assert len(arrived(partitioned)) == 24
    with pytest.raises(pulsar_fast.AlreadyClosed):
        producer.send(b"z")
    producer.close()


def test_creation_fails_as_a_whole(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    partitioned.on_producer().do(
        lambda frame: (
            frame.link.send(error_answer(frame, ServerError.TopicNotFound, "gone"))
            if partition_of(frame) == 2
            else partitioned.usual_answer(frame)
        )
    )
    with pytest.raises(TopicNotFound, match="gone"):
        make_producer("t")
    partitioned.wait_for(
        lambda b: len(b.got(BaseCommand.CLOSE_PRODUCER)) == len(b.got(BaseCommand.PRODUCER)) - 1
    )


def test_more_partitions_than_there_can_be(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    broker.partitions = 2**32 - 1
    client = make_client(broker.url, operation_timeout_seconds=0.3)
    for call in (client.create_producer, client.get_topic_partitions):
        with pytest.raises(pulsar_fast.LookupError, match="has 4294967295 partitions"):
            call("t")


def test_a_handle_keeps_no_producer_alive(partitioned: ScriptedBroker) -> None:
    with pulsar_fast.Client(partitioned.url, **QUICK) as client:
        producer = client.create_producer("t")
        handle = producer.send_many([b"x"] * 3)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del producer
        assert handle.result() == 3


# --- later


def test_new_partitions_are_taken_up(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer("t", partitions_update_interval_seconds=0.02)
    producer.send(b"x")
    partitioned.partitions = 5
    found: set[int] = set()

    def one_more() -> bool:
        found.add(producer.send(b"x").partition())
        return found == set(range(5))

    until(one_more)
    names = {frame.command.producer.producer_name for frame in partitioned.got(BaseCommand.PRODUCER)[1:]}
    assert names == {producer.producer_name()}
    keyed = producer.send(b"x", partition_key="key").partition()
    assert keyed == hash_of_key(HashingScheme.BoostHash, "key") % 5
    producer.close()
    asked = len(partitioned.got(BaseCommand.PARTITIONED_METADATA))
    other = make_producer("u", partitions_update_interval_seconds=0.02)
    partitioned.wait_for(lambda b: len(b.got(BaseCommand.PARTITIONED_METADATA)) > asked + 3)
    topics = {
        frame.command.partitionMetadata.topic
        for frame in partitioned.got(BaseCommand.PARTITIONED_METADATA)[asked:]
    }
    assert topics == {other.topic()}, "a closed producer asks no more"


def test_looking_for_new_partitions_goes_on(
    partitioned: ScriptedBroker, make_producer: MakeProducer, caplog: pytest.LogCaptureFixture
) -> None:
    producer = make_producer("t", {"operation_timeout_seconds": 0.3}, partitions_update_interval_seconds=0.02)
    partitioned.partitions = 4
    partitioned.on_partitions().answer_error(ServerError.AuthorizationError, times=1)
    partitioned.on_producer().answer_error(ServerError.AuthorizationError, times=1)

    def fourth() -> bool:
        return bool(producer.send(b"x").partition() == 3)

    until(fourth)
    assert caplog.text.count("looking for new partitions") == 2


def test_never_looking(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    make_producer("t", partitions_update_interval_seconds=None).send(b"x")
    other = make_producer("u", partitions_update_interval_seconds=0.01)
    partitioned.wait_for(lambda b: len(b.got(BaseCommand.PARTITIONED_METADATA)) > 6)
    asked = Counter(
        frame.command.partitionMetadata.topic for frame in partitioned.got(BaseCommand.PARTITIONED_METADATA)
    )
    assert asked["persistent://public/default/t"] == 1
    other.close()


def test_started_with_the_first_message(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(
        "t", lazy_start_partitioned_producers=True, message_router=lambda message, _n: int(message.data())
    )
    (first,) = partitioned.got(BaseCommand.PRODUCER)
    assert producer.is_connected()
    producer.flush()
    later = (partition_of(first) + 1) % 3
    assert producer.send(b"%d" % later).partition() == later
    assert [partition_of(frame) for frame in partitioned.got(BaseCommand.PRODUCER)] == [
        partition_of(first),
        later,
    ]
    assert partitioned.got(BaseCommand.PRODUCER)[1].command.producer.producer_name == producer.producer_name()
    producer.close()
    assert len(partitioned.got(BaseCommand.PRODUCER)) == 2


def test_a_name_of_its_own_starts_all(partitioned: ScriptedBroker, make_producer: MakeProducer) -> None:
    """Ids go on from what each partition has of that name."""
    partitioned.last_sequence_id = 41
    producer = make_producer("t", producer_name="mine", lazy_start_partitioned_producers=True)
    commands = [frame.command.producer for frame in partitioned.got(BaseCommand.PRODUCER)]
    assert [command.producer_name for command in commands] == ["mine"] * 3
    assert {command.user_provided_producer_name for command in commands} == {True}
    producer.send(b"x")
    assert partitioned.sends[0].lowest_id == 42
    assert producer.last_sequence_id() == 42


def test_partitions_come_back_after_an_outage(
    partitioned: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer("t", send_timeout_millis=0)
    partitioned.cut_connections()
    outcomes = Outcomes()
    for number in range(300):
        producer.send_async(b"%d" % number, outcomes.of(number), partition_key=f"k{number % 7}")
    outcomes.wait_for(300)
    for key in range(7):
        numbers = [int(payload) for _, payload in arrived(partitioned) if int(payload) % 7 == key]
        assert numbers == sorted(numbers)
    assert producer.stats().accepted == producer.stats().acknowledged == 300


def test_asyncio(partitioned: ScriptedBroker) -> None:
    async def main() -> None:
        async with pulsar_fast.asyncio.Client(partitioned.url, **QUICK) as client:
            producer = await client.create_producer(
                "t", max_pending_messages=5, block_if_queue_full=True, batching_enabled=False
            )
            ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(60)))
            assert Counter(message_id.partition() for message_id in ids) == {0: 20, 1: 20, 2: 20}
            sends = [producer.send(b"%d" % number, partition_key="key") for number in range(60, 80)]
            await producer.flush()
            assert {send.result().partition() for send in sends} == {
                hash_of_key(HashingScheme.BoostHash, "key") % 3
            }
            assert await producer.send_many(b"%d" % number for number in range(80, 200)) == 120
            assert producer.stats().accepted == 200

    asyncio.run(main())
    assert sorted(int(payload) for _, payload in arrived(partitioned)) == list(range(200))


def answer_held(broker: ScriptedBroker, held: list[Frame], *payloads: bytes) -> None:
    with broker.changed:
        for frame in held:
            if frame.messages[0].payload in payloads:
                frame.link.send(broker.receipt(frame))


def by_first_digit(message: Any, _partitions: int) -> int:
    return int(message.data()[:1])


def test_flush_covers_input_that_waits(partitioned: ScriptedBroker) -> None:
    """Also where it comes back to a partition that had nobody waiting."""

    async def main() -> None:
        async with pulsar_fast.asyncio.Client(partitioned.url, **QUICK) as client:
            producer = await client.create_producer(
                "t", message_router=by_first_digit, max_pending_messages=1, batching_enabled=False
            )
            held: list[Frame] = []
            partitioned.on_send().do(held.append)
            sends = [producer.send(b"2a"), producer.send(b"0b")]
            await asyncio.to_thread(partitioned.wait_for, lambda b: len(held) == 2)
            handle = producer.send_many([b"2c", b"0d"])
            flushing = asyncio.ensure_future(producer.flush())
            answer_held(partitioned, held, b"2a")
            await asyncio.to_thread(partitioned.wait_for, lambda b: len(held) == 3)
            answer_held(partitioned, held, b"0b", b"2c")
            await asyncio.to_thread(partitioned.wait_for, lambda b: len(held) == 4)
            await asyncio.gather(*sends)
            assert not flushing.done(), "the last element has no receipt"
            answer_held(partitioned, held, b"0d")
            await flushing
            assert handle.is_done()

    asyncio.run(main())


def test_input_takes_its_place_at_each_partition(partitioned: ScriptedBroker) -> None:
    async def main() -> None:
        async with pulsar_fast.asyncio.Client(partitioned.url, **QUICK) as client:
            producer = await client.create_producer(
                "t",
                message_router=by_first_digit,
                max_pending_messages=1,
                batching_enabled=False,
                block_if_queue_full=True,
            )
            held: list[Frame] = []
            partitioned.on_send().do(held.append)
            sends = [producer.send(payload) for payload in (b"2", b"0", b"0 earlier")]
            handle = producer.send_many([b"2 many", b"0 later"])
            await asyncio.to_thread(partitioned.wait_for, lambda b: len(held) == 2)
            answer_held(partitioned, held, b"2")
            await asyncio.to_thread(partitioned.wait_for, lambda b: len(held) == 3)
            partitioned.forget_rules()
            answer_held(partitioned, held, b"0", b"2 many")
            await asyncio.gather(*sends)
            await handle

    asyncio.run(main())
    assert [payload for number, payload in arrived(partitioned) if number == 0] == [
        b"0",
        b"0 earlier",
        b"0 later",
    ]


@pytest.mark.parametrize("url_of", [str, failing_over], ids=["partitions", "fail-over"])
def test_a_loop_that_is_closed_first(partitioned: ScriptedBroker, url_of: Callable[[str], Any]) -> None:
    """Nothing is left half done on it that anybody would complain about."""
    loop = asyncio.new_event_loop()

    async def main() -> tuple[Any, Any]:
        client = pulsar_fast.asyncio.Client(url_of(partitioned.url), **QUICK)
        producer = await client.create_producer("t")
        await producer.send(b"x")
        return client, producer

    client, producer = loop.run_until_complete(main())
    loop.close()
    with pytest.warns(ResourceWarning, match="was not closed"):
        del producer
    with pytest.warns(ResourceWarning, match="was not closed"):
        del client


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"message_routing_mode": 7}, TypeError, "message_routing_mode must be a pulsar_fast.Partitions"),
        (
            {"message_routing_mode": PartitionsRoutingMode.CustomPartition},
            ValueError,
            "needs a message_router",
        ),
        ({"message_router": 1}, TypeError, "message_router must be callable"),
        ({"hashing_scheme": "Boost"}, TypeError, "hashing_scheme must be a pulsar_fast.HashingScheme"),
        ({"partitions_update_interval_seconds": 0}, ValueError, "partitions_update_interval_seconds"),
        ({"max_pending_messages_across_partitions": -1}, ValueError, "max_pending_messages_across"),
        ({"lazy_start_partitioned_producers": 1}, TypeError, "lazy_start_partitioned_producers"),
    ],
)
def test_bad_options(
    make_producer: MakeProducer, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        make_producer("t", **options)
