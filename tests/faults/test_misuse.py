"""Callbacks that misbehave, calls from the wrong place, forks, signals, exits: an error at once, never a hang."""

import array
import asyncio
import gc
import itertools
import os
import pickle
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import pulsar_fast
import pulsar_fast.asyncio
from pulsar_fast import (
    AlreadyClosed,
    Client,
    CompressionType,
    ProducerQueueIsFull,
    PulsarException,
    Result,
    Timeout,
)
from pulsar_fast.asyncio import Client as AsyncClient
from pulsar_fast.topic_producer import TopicProducer
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.brokers.frames import refusal
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripts import run_script
from tests.waiting import until

MakeProducer = Callable[..., Any]
NAN = float("nan")


# --- callbacks


def raise_it(error: BaseException) -> Callable[..., None]:
    def callback(_result: Result, _message_id: Any) -> None:
        raise error

    return callback


@pytest.mark.parametrize(
    ("callback", "kind"),
    [
        (raise_it(RuntimeError("as scripted")), RuntimeError),
        (raise_it(KeyboardInterrupt()), KeyboardInterrupt),
        (raise_it(SystemExit(3)), SystemExit),
        (lambda: None, TypeError),
    ],
    ids=["Exception", "KeyboardInterrupt", "SystemExit", "wrong arity"],
)
def test_a_callback_that_raises(
    make_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch, callback: Any, kind: type[BaseException]
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: reported.append(event.exc_type))
    producer = make_producer(batching_max_publish_delay_ms=1000)
    outcomes = Outcomes()
    for name in range(3):  # one batch
        producer.send_async(b"x", callback)
        producer.send_async(b"x", outcomes.of(name))
    producer.flush()
    producer.send(b"x")
    assert outcomes.results == dict.fromkeys(range(3), Result.Ok)
    assert reported == [kind] * 3


@pytest.mark.parametrize("callback", [1, "f", b"", [], object()])
def test_a_callback_that_cannot_be_called(
    broker: ScriptedBroker, make_producer: MakeProducer, callback: Any
) -> None:
    producer = make_producer()
    with pytest.raises(TypeError, match="callback"):
        producer.send_async(b"x", callback)
    assert producer.stats().pending_messages == 0


def test_waiting_inside_a_callback(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t", batching_max_publish_delay_ms=200)
    handle = producer.send_many([b"later"])
    broker.hold_receipts()
    calls: dict[str, Callable[[], Any]] = {
        "send": lambda: producer.send(b"x"),
        "flush": producer.flush,
        "close": producer.close,
        "create_producer": lambda: client.create_producer("other"),
        "client.close": client.close,
        "client.shutdown": client.shutdown,
        "get_topic_partitions": lambda: client.get_topic_partitions("t"),
        "handle": lambda: producer.send_many([b"y"]).result(),
    }
    raised: dict[str, Any] = {}
    outcomes = Outcomes()

    def callback(_result: Result, _message_id: Any) -> None:
        for name, call in calls.items():
            try:
                raised[name] = call()
            except BaseException as error:
                raised[name] = error
        producer.send_async(b"from a callback", outcomes.of("nested"))

    producer.send_async(b"a", callback)
    producer.send_async(b"b", outcomes.of("b"))
    started = time.monotonic()
    broker.wait_for(lambda b: b.sends)
    broker.release_receipts()
    outcomes.wait_for(2)
    assert time.monotonic() - started < 3
    assert {name: type(error) for name, error in raised.items()} == dict.fromkeys(calls, RuntimeError)
    assert all("callback" in str(error) for error in raised.values())
    assert handle.result(5) == 1
    producer.send(b"still usable")
    assert b"x" not in broker.payloads


def test_sending_from_callbacks_without_end(make_producer: MakeProducer) -> None:
    producer = make_producer(batching_enabled=False)
    done = threading.Event()
    sent = 0

    def again(result: Result, _message_id: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == 200 or result is not Result.Ok:
            done.set()
        else:
            producer.send_async(b"x", again)

    producer.send_async(b"x", again)
    producer.flush()
    assert done.wait(10)
    assert sent == 200


def test_a_full_queue_in_a_callback(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """It cannot wait for room there: that would be for itself."""
    producer = make_producer(max_pending_messages=2, block_if_queue_full=True, batching_enabled=False)
    outcomes = Outcomes()
    broker.hold_receipts()

    def callback(_result: Result, _message_id: Any) -> None:
        for name in range(3):
            producer.send_async(b"x", outcomes.of(name))

    producer.send_async(b"x", callback)
    producer.send_async(b"x", outcomes.of("second"))
    broker.wait_for(lambda b: len(b.sends) == 2)
    broker.release_receipts(1)
    outcomes.wait_for(2)
    broker.release_receipts()
    outcomes.wait_for(4)
    assert outcomes.results == {
        "second": Result.Ok,
        0: Result.Ok,
        1: Result.ProducerQueueIsFull,
        2: Result.ProducerQueueIsFull,
    }


# --- a full queue


def test_a_full_queue_at_once(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(max_pending_messages=3)
    outcomes = Outcomes()
    broker.hold_receipts()
    for name in range(5):
        producer.send_async(b"x", outcomes.of(name))
    outcomes.wait_for(2, timeout=0)  # the two without room, before send_async returned
    assert outcomes.results == {3: Result.ProducerQueueIsFull, 4: Result.ProducerQueueIsFull}
    with pytest.raises(ProducerQueueIsFull, match="max_pending_messages"):
        producer.send_async(b"x", None)
    with pytest.raises(ProducerQueueIsFull):
        producer.send(b"x")
    broker.wait_for(lambda b: b.sends)
    broker.release_receipts()
    outcomes.wait_for(5)
    assert len(broker.payloads) == 3
    producer.send(b"x")


def test_a_full_queue_waits_for_room_but_not_for_ever(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    producer = make_producer(
        max_pending_messages=2, block_if_queue_full=True, batching_enabled=False, send_timeout_millis=800
    )
    outcomes = Outcomes()
    broker.hold_receipts()
    producer.send_async(b"0", outcomes.of(0))
    producer.send_async(b"1", outcomes.of(1))
    threads = []
    for name in range(2, 5):
        thread = threading.Thread(
            target=producer.send_async, args=(str(name).encode(), outcomes.of(name)), daemon=True
        )
        thread.start()
        threads.append(thread)
        until(lambda n=name: producer._accumulator.waiting() == n - 1)
    for name in range(2, 5):  # room for one at a time
        broker.wait_for(lambda b, n=name: len(b.payloads) == n)
        broker.release_receipts(1)
    broker.wait_for(lambda b: len(b.payloads) == 5)
    broker.release_receipts()
    outcomes.wait_for(5)
    assert broker.payloads == [b"0", b"1", b"2", b"3", b"4"]
    broker.hold_receipts()
    producer.send_async(b"5", None)
    producer.send_async(b"6", None)
    with suppress(PulsarException):  # theirs is the earlier deadline
        started = time.monotonic()
        producer.send(b"7")
    assert time.monotonic() - started < 2
    for thread in threads:
        thread.join(1)


def test_closing_wakes_who_waits_for_room(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(max_pending_messages=1, block_if_queue_full=True)
    outcomes = Outcomes()
    broker.hold_receipts()
    producer.send_async(b"x", None)
    threads = [
        threading.Thread(target=producer.send_async, args=(b"x", outcomes.of(name)), daemon=True)
        for name in range(3)
    ]
    for thread in threads:
        thread.start()
    until(lambda: producer._accumulator.waiting() == 3)
    producer.close(timeout=0.3)
    outcomes.wait_for(3)
    for thread in threads:
        thread.join(2)
        assert not thread.is_alive()
    assert set(outcomes.results.values()) == {Result.AlreadyClosed}


def test_failures_leave_no_trace(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(max_pending_messages=10)
    for _ in range(100):
        for arguments in (
            {"content": "text"},
            {"content": b"x", "properties": {"k": 1}},
            {"content": b"x", "properties": {"k" * 10: "v", "\ud800": "v"}},
            {"content": b"x", "event_timestamp": -1},
            {"content": memoryview(b"abcdef")[::2]},
            {"content": b"x" * 6_000_000},
        ):
            with pytest.raises((TypeError, ValueError, PulsarException)):
                producer.send(**arguments)
    assert (producer.stats().pending_messages, producer.stats().client_pending_bytes) == (0, 0)
    outcomes = Outcomes()
    for name in range(10):
        producer.send_async(b"x", outcomes.of(name))
    outcomes.wait_for(10)
    assert set(outcomes.results.values()) == {Result.Ok}


# --- payloads that change


@pytest.mark.parametrize("block", [False, True])
def test_a_payload_is_what_it_was_at_the_call(
    broker: ScriptedBroker, make_producer: MakeProducer, block: bool
) -> None:
    producer = make_producer(block_if_queue_full=block)
    payload = bytearray(8)
    for number in range(100):
        payload[:] = b"%08d" % number
        producer.send_async(payload, None)
    payload.clear()  # nothing holds on to it
    numbers = array.array("i", [1, 2, 3])
    producer.send_async(numbers, None)
    numbers[0] = 4
    view = memoryview(b"abcdef")
    producer.send_async(view[1:3], None)
    view.release()
    with pytest.raises(ValueError, match="released"):
        producer.send_async(view, None)
    with pytest.raises(ValueError, match="content"):
        producer.send_async(memoryview(b"abcdef")[::2], None)
    producer.flush()
    expected = [b"%08d" % number for number in range(100)]
    assert broker.payloads == [*expected, array.array("i", [1, 2, 3]).tobytes(), b"bc"]


# --- closed


def test_sending_after_close(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t")
    producer.close()
    producer.close()
    outcomes = Outcomes()
    for send in (
        lambda: producer.send(b"x"),
        lambda: producer.send_async(b"x", None),
        lambda: producer.send_many([b"x"]),
    ):
        with pytest.raises(AlreadyClosed):
            send()
    producer.send_async(b"x", outcomes.of(0))
    assert outcomes.results == {0: Result.AlreadyClosed}
    client.close()
    client.close()
    with pytest.raises(AlreadyClosed):
        client.create_producer("t")
    with pytest.raises(AlreadyClosed):
        client.get_topic_partitions("t")
    producer.close()
    assert broker.payloads == []


def test_closing_the_client_ends_a_creation(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    for step in (broker.on_partitions, broker.on_lookup, broker.on_producer):
        broker.forget_rules()
        step().say_nothing()
        client = make_client(broker.url)
        raised: list[BaseException] = []

        def create(create: Any = client.create_producer, raised: Any = raised) -> None:
            with pytest.raises(PulsarException) as caught:
                create("t")
            raised.append(caught.value)

        before = len(broker.got(step().kind))
        thread = threading.Thread(target=create, daemon=True)
        thread.start()
        broker.wait_for(lambda b, s=step, n=before: len(b.got(s().kind)) > n)
        client.close()
        thread.join(2)
        assert not thread.is_alive()
        assert [type(error) for error in raised] == [AlreadyClosed]


def test_closing_the_client_twice_at_once(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    """The second call waits with the first, and takes nothing away from it."""
    client = make_client(broker.url)
    producer = client.create_producer("t")
    broker.hold_receipts()
    outcomes = Outcomes()
    for name in range(3):
        producer.send_async(b"x", outcomes.of(name))
    broker.wait_for(lambda b: b.sends)
    ended: list[Any] = []

    def close() -> None:
        client.close()
        ended.append(outcomes.results)

    threads = [threading.Thread(target=close, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join(0.1)
    broker.release_receipts()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert ended == [dict.fromkeys(range(3), Result.Ok)] * 3


def test_shutting_down_ends_everything(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t")
    broker.hold_receipts()
    outcomes = Outcomes()
    for name in range(3):
        producer.send_async(b"x", outcomes.of(name))
    raised: list[Any] = []

    def wait() -> None:
        for call in (lambda: producer.send(b"x"), producer.flush):
            try:
                raised.append(call())
            except BaseException as error:
                raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    broker.wait_for(lambda b: len(b.payloads) == 4)
    client.shutdown()
    outcomes.wait_for(3)
    thread.join(2)
    assert not thread.is_alive()
    assert set(outcomes.results.values()) == {Result.AlreadyClosed}
    assert [type(error) for error in raised] == [AlreadyClosed, AlreadyClosed]


def test_shutting_down_under_calls(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    """Whatever waits on the loop at that moment is told."""
    for _ in range(60):
        client = make_client(broker.url)
        producer = client.create_producer("t")
        started = threading.Barrier(5)

        def work(call: Callable[[], Any], started: Any = started) -> None:
            started.wait(5)
            with suppress(AlreadyClosed):
                while True:
                    call()

        calls = [
            lambda p=producer: (p.send_async(b"x", None), p.flush()),
            lambda p=producer: p.send(b"x"),
            lambda c=client: c.get_topic_partitions("t"),
            lambda p=producer: p.send_many([b"x"]).result(),
        ]
        threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        started.wait(5)
        client.shutdown()
        for thread in threads:
            thread.join(3)
            assert not thread.is_alive()


# --- garbage


def forget(things: list[Any]) -> None:
    things.clear()
    gc.collect()


def test_a_producer_keeps_its_client(broker: ScriptedBroker) -> None:
    producer = Client(broker.url, **QUICK).create_producer("t")
    gc.collect()
    for _ in range(10):
        producer.send(b"x")
    assert len(broker.payloads) == 10
    producer._client.close()


def test_dropped_without_close(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = Client(broker.url, **QUICK)
    producer = client.create_producer("t", batching_max_publish_delay_ms=1000)
    outcomes = Outcomes()
    producer.send_async(b"x", outcomes.of(0))
    gone = weakref.ref(producer)
    forgotten: list[Any] = [producer]
    del producer
    with pytest.warns(ResourceWarning, match=r"Producer.*was not closed"):
        forget(forgotten)
    assert gone() is None
    broker.wait_for(lambda b: b.got(BaseCommand.CLOSE_PRODUCER))
    outcomes.wait_for(1)
    assert outcomes.results == {0: Result.Ok}
    assert broker.payloads == [b"x"]
    forgotten.append(client)
    del client
    with pytest.warns(ResourceWarning, match=r"Client.*was not closed"):
        forget(forgotten)
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


def test_dropped_in_a_cycle(broker: ScriptedBroker) -> None:
    client = Client(broker.url, **QUICK)
    cycle: list[Any] = [client.create_producer("t"), client]
    cycle.append(cycle)
    forgotten: list[Any] = [cycle]
    del cycle, client
    with pytest.warns(ResourceWarning):
        forget(forgotten)
    broker.wait_for(lambda b: b.got(BaseCommand.CLOSE_PRODUCER))
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


# --- many threads, and the clock


def test_refused_sends_from_many_threads(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    """Every third frame is refused, and what failed is sent again by its callback."""
    producer = make_producer(max_pending_messages=0, batching_max_messages=10)
    numbers = itertools.count()
    broker.on_send().do(
        lambda frame: (
            frame.link.send(refusal(frame, ServerError.NotAllowedError))
            if next(numbers) % 3 == 0
            else broker.usual_answer(frame)
        )
    )
    outcomes = Outcomes()

    def resend(payload: bytes) -> Callable[..., None]:
        stored = outcomes.of(payload)

        def callback(result: Result, message_id: Any) -> None:
            if result is Result.Ok:
                stored(result, message_id)
            else:
                producer.send_async(payload, callback)

        return callback

    def work(name: int) -> None:
        for number in range(200):
            payload = b"%d %d" % (name, number)
            producer.send_async(payload, resend(payload))

    threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcomes.wait_for(1600, timeout=15)
    assert producer.stats().pending_messages == 0


def test_everything_at_once(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url)
    for _ in range(10):
        producer = client.create_producer("t", max_pending_messages=100, block_if_queue_full=True)
        unexpected: list[BaseException] = []
        together = threading.Barrier(9)

        def work(call: Callable[[], Any], together: Any = together, note: Any = unexpected.append) -> None:
            together.wait(5)
            for _ in range(30):
                try:
                    with suppress(AlreadyClosed):
                        call()
                except BaseException as error:
                    note(error)

        def close_soon(together: Any = together, producer: Any = producer) -> None:
            together.wait(5)
            time.sleep(0.005)
            producer.close()

        calls = [
            lambda p=producer: p.send(b"x"),
            lambda p=producer: p.send(b"y"),
            lambda p=producer: p.send_async(b"z", lambda *_: None),
            lambda p=producer: p.send_many([b"1", b"2"]).result(5),
            producer.flush,
            lambda p=producer: (p.stats(), p.last_sequence_id(), p.is_connected(), repr(p)),
        ]
        threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
        threads += [threading.Thread(target=close_soon, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert unexpected == []
        assert producer.stats().pending_messages == producer.stats().client_pending_bytes == 0


def test_no_open_batch_is_forgotten(make_producer: MakeProducer) -> None:
    """Messages sent at the very moment at which the loop looks for a batch that is due."""
    producer = make_producer(batching_max_publish_delay_ms=1, send_timeout_millis=20_000)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(1000):
            stored = threading.Event()
            producer.send_async(b"x", lambda *_, stored=stored: stored.set())
            assert stored.wait(3), "the batch was not sent after its delay"
    finally:
        sys.setswitchinterval(before)


def test_steps_of_the_wall_clock(
    broker: ScriptedBroker, make_producer: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = make_producer(send_timeout_millis=300)
    real = time.time
    for step in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        producer.send(b"x")
        broker.hold_receipts()
        started = time.monotonic()
        with pytest.raises(Timeout):
            producer.send(b"y")
        assert 0.25 < time.monotonic() - started < 1
        broker.release_receipts()
        producer.flush()
    started = time.monotonic()
    producer.close()
    assert time.monotonic() - started < 1


# --- tasks and loops of asyncio


def test_all_tasks_cancelled_by_others(broker: ScriptedBroker) -> None:
    """As test frameworks do; here while the producer reconnects."""

    async def run() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        producer = await client.create_producer("t", send_timeout_millis=3000)
        broker.go_down()
        sent = producer.send(b"x")
        while producer.is_connected():
            await asyncio.sleep(0.001)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
        broker.come_back()
        await sent
        await client.close()

    asyncio.run(run())


def test_a_task_cancelled_right_behind_its_handoff(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registration is there: it must not be taken for one that nobody uses, and closed at the broker."""
    hand_over = TopicProducer._hand_over

    def hand_over_and_cancel(core: TopicProducer, *arguments: Any) -> None:
        hand_over(core, *arguments)
        if core._connecting is not None and core.stats().reconnects:
            core._connecting.cancel()

    monkeypatch.setattr(TopicProducer, "_hand_over", hand_over_and_cancel)

    async def run() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        producer = await client.create_producer("t", send_timeout_millis=3000)
        broker.cut_connections()
        for number in range(5):
            await producer.send(b"%d" % number)
        assert producer.stats().reconnects == 1
        assert broker.got(BaseCommand.CLOSE_PRODUCER) == []
        await client.close()

    asyncio.run(run())


def test_closing_an_asyncio_client_again(broker: ScriptedBroker) -> None:
    """After a close that was given up, another one finishes the work."""

    async def run() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **{**QUICK, "operation_timeout_seconds": 0.5})
        producer = await client.create_producer("t")
        broker.hold_receipts()
        sent = producer.send(b"x")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.close(), 0.1)
        await asyncio.gather(client.close(), client.close())
        assert sent.done()
        with pytest.raises(AlreadyClosed):
            await sent
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


def test_waits_given_up_in_bulk(broker: ScriptedBroker) -> None:
    """Late answers to cancelled waits are nobody's business, also in asyncio's debug mode."""

    async def run() -> None:
        async with pulsar_fast.asyncio.Client(broker.url, **QUICK) as client:
            producer = await client.create_producer("t")
            broker.hold_receipts()
            waits = [asyncio.wait_for(producer.send(b"%d" % number), 0.01) for number in range(200)]
            results = await asyncio.gather(*waits, return_exceptions=True)
            assert {type(result) for result in results} == {asyncio.TimeoutError}
            broker.wait_for(lambda b: len(b.payloads) == 200)
            broker.release_receipts()
            await producer.flush()
            await producer.send(b"after")
            assert producer.stats().acknowledged == 201

    asyncio.run(run(), debug=True)


def test_a_second_loop(broker: ScriptedBroker) -> None:
    kept: list[Any] = []

    async def first() -> None:
        kept.append(pulsar_fast.asyncio.Client(broker.url, **QUICK))
        kept.append(await kept[0].create_producer("t"))
        await kept[0].close()

    async def second() -> None:
        client, producer = kept
        for call in (
            lambda: producer.send(b"x"),
            lambda: producer.send_many([b"x"]),
            producer.flush,
            producer.close,
            lambda: client.create_producer("t"),
            client.close,
        ):
            with pytest.raises(RuntimeError, match="another event loop"):
                await call()

    asyncio.run(first())
    asyncio.run(second())


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"content": "text"}, TypeError),
        ({"content": 5}, TypeError),
        ({"content": [b"x"]}, TypeError),
        ({"content": object()}, TypeError),
        ({"properties": [("a", "b")]}, TypeError),
        ({"properties": {"a": 1}}, TypeError),
        ({"properties": {1: "a"}}, TypeError),
        ({"properties": {"a": b"b"}}, TypeError),
        ({"properties": {"a": None}}, TypeError),
        ({"properties": {"a": "\ud800"}}, ValueError),
        ({"properties": {"\ud800": "a"}}, ValueError),
        ({"properties": 0}, TypeError),
        ({"properties": ""}, TypeError),
        ({"partition_key": b"key"}, TypeError),
        ({"partition_key": 1}, TypeError),
        ({"partition_key": "\ud800"}, ValueError),
        ({"ordering_key": b"key"}, TypeError),
        ({"ordering_key": "\udfff"}, ValueError),
        ({"sequence_id": -1}, ValueError),
        ({"sequence_id": 2**63}, ValueError),
        ({"sequence_id": 1.0}, TypeError),
        ({"sequence_id": True}, TypeError),
        ({"sequence_id": "1"}, TypeError),
        ({"event_timestamp": -1}, ValueError),
        ({"event_timestamp": 2**64}, ValueError),
        ({"event_timestamp": 1.5}, TypeError),
        ({"event_timestamp": False}, TypeError),
        ({"deliver_at": -1}, ValueError),
        ({"deliver_at": "now"}, TypeError),
        ({"deliver_after": 5}, TypeError),
        ({"deliver_after": __import__("datetime").timedelta(seconds=-1)}, ValueError),
        ({"deliver_at": 5, "deliver_after": __import__("datetime").timedelta(seconds=1)}, ValueError),
        ({"replication_clusters": "east"}, TypeError),
        ({"replication_clusters": [1]}, TypeError),
        ({"replication_clusters": 5}, TypeError),
        ({"replication_clusters": 0}, TypeError),
        ({"replication_clusters": ["\ud800"]}, ValueError),
        ({"disable_replication": 1}, TypeError),
        ({"disable_replication": "yes"}, TypeError),
    ],
    ids=lambda value: ascii(value) if isinstance(value, dict) else value.__name__,
)
@pytest.mark.parametrize("call", ["send", "send_async"])
def test_bad_arguments_of_a_message(
    broker: ScriptedBroker, make_producer: MakeProducer, arguments: dict[str, Any], kind: Any, call: str
) -> None:
    producer = make_producer()
    outcomes = Outcomes()
    given = {"content": b"x", **arguments}
    if call == "send_async":
        given["callback"] = outcomes.of(0)
    (name, *_) = arguments
    with pytest.raises(kind, match=name) as caught:
        getattr(producer, call)(**given)
    assert type(caught.value) is kind
    assert producer.stats().accepted == producer.stats().client_pending_bytes == 0
    producer.send(b"good")
    assert [frame.command.send.sequence_id for frame in broker.sends] == [0]
    assert outcomes.answers == []


NUMBERS = [-1, 2**31, NAN, "5", None, True, 1.5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in ("connection_timeout_ms", "initial_backoff_interval_ms")
            for value in [0, *NUMBERS]
        ],
        *[("max_backoff_interval_ms", value) for value in [0, *NUMBERS]],
        *[("memory_limit_bytes", value) for value in (-1, 2**63, NAN, "5", None, True)],
        *[("operation_timeout_seconds", value) for value in (-1, 0, 2**31, NAN, "5", None, True)],
        *[("keep_alive_interval_seconds", value) for value in (-1, 0, 2**31, NAN, "5", None, True)],
        *[("connections_per_broker", value) for value in (0, *NUMBERS)],
        *[("connection_max_idle_seconds", value) for value in (-1, 0, 2**31, NAN, "5", True)],
        ("logger", "root"),
        ("listener_name", ""),
        ("listener_name", 5),
        ("listener_name", "\ud800"),
        ("authentication", object()),
        ("io_threads", 2),
        ("use_tls", "yes"),
        ("tls_validate_hostname", 1),
        ("tls_trust_certs_file_path", "no-such-file.pem"),
        ("ssl_context", object()),
        *[
            ("service_url", url)
            for url in (
                "",
                "localhost:6650",
                "http://h:8080/admin",
                "https://h:8443/admin",
                "pulsar://",
                "pulsar://h:0",
                "pulsar://h:99999",
                "pulsar://h:",
                "pulsar://h h",
                " pulsar://h",
                "pulsar://h,",
                "pulsar+ssl://",
                None,
                5,
                b"pulsar://h",
            )
        ],
    ],
    ids=ascii,
)
@pytest.mark.parametrize("api", [pulsar_fast, pulsar_fast.asyncio], ids=["sync", "asyncio"])
def test_bad_arguments_of_a_client(broker: ScriptedBroker, api: Any, name: str, value: Any) -> None:
    arguments = {"service_url": broker.url, name: value}
    threads = threading.active_count()
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=name):
        api.Client(**arguments)
    assert threading.active_count() == threads
    assert broker.links == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("topic", value) for value in (None, 5, b"t", "", "a/b", "http://a/b/c", "persistent://a/b/")],
        *[("send_timeout_millis", value) for value in NUMBERS],
        *[("max_pending_messages", value) for value in NUMBERS],
        *[("batching_max_messages", value) for value in [0, 1, *NUMBERS]],
        *[("batching_max_allowed_size_in_bytes", value) for value in [0, *NUMBERS]],
        *[("batching_max_publish_delay_ms", value) for value in NUMBERS],
        *[("initial_sequence_id", value) for value in (-1, 2**63, NAN, "5", True)],
        *[("producer_name", value) for value in ("", 5, b"p", "\ud800")],
        *[("properties", value) for value in ([("a", "b")], {"a": 1}, {1: "a"}, {"a": "\ud800"})],
        ("block_if_queue_full", 1),
        ("batching_enabled", 1),
        ("chunking_enabled", True),
        *[("compression_type", value) for value in (1, 99, "LZ4", None)],
        *[("compression_level", value) for value in (1, 1.5, "9", True)],
        ("schema", object()),
    ],
    ids=ascii,
)
def test_bad_arguments_of_a_producer(
    broker: ScriptedBroker, make_client: Callable[..., Any], name: str, value: Any
) -> None:
    arguments = {"topic": "t", name: value}
    with pytest.raises((TypeError, ValueError, NotImplementedError), match=name):
        Client.create_producer(make_client(broker.url), **arguments)
    assert broker.links == []


def test_text_that_utf8_can_carry_arrives(broker: ScriptedBroker, make_producer: MakeProducer) -> None:
    class Text(str):
        __slots__ = ()

    properties = {"": "", "nul": "\0", "emoji": "🙂", "subclass": Text("é"), "long": "x" * 100_000}
    make_producer().send(b"x", properties=properties, partition_key="k" * 70_000)
    (frame,) = broker.sends
    pairs = frame.metadata.properties or frame.messages[0].metadata.properties
    assert {pair.key: pair.value for pair in pairs} == properties


@pytest.mark.parametrize("what", ["client", "producer"])
def test_pickling(make_client: Callable[..., Any], broker: ScriptedBroker, what: str) -> None:
    client = make_client(broker.url)
    given = client if what == "client" else client.create_producer("t")
    with pytest.raises(TypeError, match=f"{what} cannot be pickled"):
        pickle.dumps(given)


# --- forks


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child(broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
    client = make_client(broker.url)
    producer = client.create_producer("t", batching_max_publish_delay_ms=1000)
    producer.send_async(b"before", None)  # an open batch, which is the parent's
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            calls: list[Callable[[], Any]] = [
                lambda: producer.send_async(b"child", None),
                lambda: producer.send(b"child"),
                lambda: producer.send_many([b"child"]),
                producer.flush,
                producer.close,
                lambda: client.create_producer("other"),
                lambda: client.get_topic_partitions("t"),
                client.close,
                client.shutdown,
            ]
            for number, call in enumerate(calls):
                try:
                    call()
                    os.write(write, b"call %d worked;" % number)
                except RuntimeError as error:
                    if "fork" not in str(error):
                        os.write(write, f"call {number}: {error};".encode())
                except BaseException as error:
                    os.write(write, f"call {number}: {error!r};".encode())
            producer = client = None
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    deadline = time.monotonic() + 5
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    with os.fdopen(read) as said:
        assert said.read() == ""
    assert ended[1] == 0
    producer.send(b"after")
    assert broker.payloads == [b"before", b"after"]
    assert len(broker.links) == 1


# --- whole processes


@pytest.mark.parametrize(
    "call",
    [
        "producer.send(b'x')",
        "full.send(b'x')",
        "full.send_async(b'x', None)",
        "producer.flush()",
        "closing.close()",
        "client.create_producer('mute')",
        "producer.send_many([b'x']).result()",
        "full.send_many([b'x', b'y'])",
    ],
)
def test_control_c(broker: ScriptedBroker, call: str) -> None:
    broker.on_lookup().do(
        lambda frame: None if frame.command.lookupTopic.topic.endswith("mute") else broker.usual_answer(frame)
    )
    broker.on_send().do(
        lambda frame: broker.usual_answer(frame) if frame.messages[0].payload == b"good" else None
    )
    said = run_script(
        broker,
        f"""
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t", batching_enabled=False)
        full = client.create_producer("full", max_pending_messages=1, block_if_queue_full=True)
        closing = client.create_producer("closing")
        for each in (producer, full, closing):
            each.send_async(b"held", None)
        print("ready")
        for attempt in range(2):
            started = time.monotonic()
            if attempt:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                {call}
            except KeyboardInterrupt:
                print("interrupted", attempt, time.monotonic() - started < 2)
        client.create_producer("another").send(b"good")
        print("usable")
        client.shutdown()
        """,
        interrupt_at="ready",
        timeout=8,
    )
    expected = ["ready", "interrupted 0 True", "interrupted 1 True", "usable"]
    assert said.splitlines() == expected


def test_control_c_in_closing_the_client(broker: ScriptedBroker) -> None:
    """Close again, and every message gets its answer."""
    broker.on_send().say_nothing()
    said = run_script(
        broker,
        """
        client = pulsar_fast.Client(url, operation_timeout_seconds=2)
        producer = client.create_producer("t")
        for number in range(3):
            producer.send_async(b"x", lambda result, message_id: print("answered", result.name))
        print("ready")
        try:
            client.close()
        except KeyboardInterrupt:
            print("interrupted")
        client.close()
        print("closed")
        """,
        interrupt_at="ready",
        timeout=8,
    )
    lines = said.splitlines()
    assert lines == ["ready", "interrupted", *["answered AlreadyClosed"] * 3, "closed"]


@pytest.mark.parametrize("is_silent", [False] * 8 + [True])
def test_exit_without_close(broker: ScriptedBroker, is_silent: bool) -> None:
    """Pending and open messages get their chance, and a broker that is silent does not hold up the exit."""
    if is_silent:
        broker.on_send().say_nothing()
    said = run_script(
        broker,
        """
        def work():
            logger = logging.getLogger("mine")
            logger.addHandler(logging.StreamHandler(sys.stdout))
            logger.setLevel(logging.DEBUG)
            client = pulsar_fast.Client(url, logger=logger)
            producer = client.create_producer("t", batching_max_publish_delay_ms=1000)
            for number in range(10):
                producer.send_async(b"x", lambda result, message_id: print("answered", result.name))
            return producer
        producer = work()
        """,
        timeout=6,
    )
    assert said.count("answered") == said.count(f"answered {'AlreadyClosed' if is_silent else 'Ok'}") == 10
    assert len(broker.payloads) == 10


def test_exit_of_what_was_dropped(broker: ScriptedBroker) -> None:
    for _ in range(6):
        run_script(
            broker,
            """
            def work():
                client = pulsar_fast.Client(url, logger=logging.getLogger("mine"))
                client.create_producer("t").send_async(b"x", None)
            work()
            gc.collect()
            """,
        )
    assert broker.payloads == [b"x"] * 6


def test_exit_while_the_broker_is_away(broker: ScriptedBroker) -> None:
    broker.after(frames=1).do(lambda frame: broker.go_down())
    run_script(
        broker,
        """
        producer = pulsar_fast.Client(url).create_producer("t")
        producer.send_async(b"x", None)
        while producer.is_connected():
            time.sleep(0.005)
        """,
        timeout=7,
    )


def test_sending_in_an_exit_handler(broker: ScriptedBroker) -> None:
    """Handlers that were registered after the import run before the client ends; those before it are told."""
    said = run_script(
        broker,
        """
        producer = pulsar_fast.Client(url).create_producer("t")
        def last_words():
            print("stored", producer.send(b"last words"))
        atexit.register(last_words)
        """,
    )
    assert "stored" in said
    assert broker.payloads == [b"last words"]


def test_sending_after_the_client_has_ended_with_the_process(broker: ScriptedBroker) -> None:
    said = run_script(
        broker,
        """
        class Late:
            def __del__(self):
                try:
                    self.producer.send(b"too late")
                except Exception as error:
                    print("told", type(error).__name__)
        late = Late()
        late.producer = pulsar_fast.Client(url).create_producer("t")
        """,
    )
    assert said.strip() in ("told AlreadyClosed", "told RuntimeError")


def test_children_that_end_like_any_process(broker: ScriptedBroker) -> None:
    said = run_script(
        broker,
        """
        import multiprocessing
        warnings.simplefilter("ignore")
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t", batching_max_publish_delay_ms=500)
        producer.send_async(b"before", None)

        def work():
            global client, producer
            try:
                producer.flush()
            except RuntimeError as error:
                print("child:", "fork" in str(error))
            client = producer = None
            gc.collect()
            with pulsar_fast.Client(url) as own:
                own.create_producer("t").send(b"child")

        child = multiprocessing.get_context("fork").Process(target=work)
        child.start()
        child.join(3)
        print("exit code", child.exitcode)
        pid = os.fork()
        if pid == 0:
            sys.exit(7)
        print("exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        producer.send(b"after")
        client.close()
        """,
    )
    assert said.splitlines() == ["child: True", "exit code 0", "exit code 7"]
    assert sorted(broker.payloads) == [b"after", b"before", b"child"]


def test_a_process_that_only_imports(broker: ScriptedBroker) -> None:
    assert run_script(broker, "print(threading.active_count())") == "1\n"


def test_a_first_client_in_an_exit_handler(broker: ScriptedBroker) -> None:
    """Threads may not start that late, from Python 3.12 on: an error at most, and never a hang."""
    said = run_script(
        broker,
        """
        def late():
            try:
                client = pulsar_fast.Client(url)
                client.create_producer("t").send(b"x")
                client.close()
                print("stored")
            except RuntimeError as error:
                print("told", error)
        atexit.register(late)
        """,
    )
    assert said.startswith(("stored", "told"))


# --- asyncio: what its callers may do wrong


def test_what_waits_for_room_is_what_it_was(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with AsyncClient(broker.url, **QUICK) as client:
            producer = await client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
            properties, content = {"n": "0"}, bytearray(b"0")
            sendings = []
            for number in range(4):
                properties["n"] = str(number)
                content[:] = str(number).encode()
                sendings.append(producer.send(content, properties))
            await asyncio.gather(*sendings, producer.flush())

    asyncio.run(main())
    seen = [
        (message.payload, [(pair.key, pair.value) for pair in message.metadata.properties])
        for frame in broker.sends
        for message in frame.messages
    ]
    assert seen == [(str(n).encode(), [("n", str(n))]) for n in range(4)]


def test_waiting_for_its_own_loop(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with AsyncClient(broker.url, **QUICK) as client:
            producer = await client.create_producer("t")
            handle = producer.send_many([b"x"] * 3)
            with pytest.raises(RuntimeError, match="await handle"):
                handle.result()
            assert await handle == 3
            assert handle.result() == 3

    asyncio.run(main())


def test_one_await_does_not_wait_for_the_batch_delay(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with AsyncClient(broker.url, **QUICK) as client:
            producer = await client.create_producer("t", batching_max_publish_delay_ms=60_000)
            await producer.send(b"x")

    asyncio.run(asyncio.wait_for(main(), 10))


def test_an_asyncio_producer_on_another_thread(broker: ScriptedBroker) -> None:
    async def main() -> None:
        async with AsyncClient(broker.url, **QUICK) as client:
            producer = await client.create_producer("t")
            for call in (producer.send, lambda content: producer.send_async(content, None)):
                with pytest.raises(RuntimeError, match="event loop"):
                    await asyncio.to_thread(call, b"x")

    asyncio.run(main())


def test_a_callback_that_is_missing_while_waiting_for_room(
    broker: ScriptedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is there to tell, so the log is told, and closing goes on."""

    async def main() -> None:
        broker.hold_receipts()
        client = AsyncClient(broker.url, **QUICK)
        producer = await client.create_producer("t", max_pending_messages=1, block_if_queue_full=True)
        for _ in range(3):
            producer.send_async(b"x", None)
        client.shutdown()

    asyncio.run(main())
    assert "messages without a callback failed" in caplog.text


@pytest.mark.parametrize("kind", ["producer", "client"])
def test_a_loop_that_ends_before_its_client(broker: ScriptedBroker, kind: str) -> None:
    """What has no answer then is counted in the log."""
    run_script(
        broker,
        f"""
import asyncio, logging, sys
from pulsar_fast.asyncio import Client
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record.getMessage())
logging.getLogger("pulsar_fast").addHandler(Keep())
kept = []
async def main():
    client = Client(url)
    producer = await client.create_producer("t", batching_max_publish_delay_ms=60000)
    for _ in range(5):
        producer.send_async(b"x", None)
    kept.extend([client, producer] if {kind == "client"} else [producer])
asyncio.run(main())
import atexit
del kept[:]
import gc
gc.collect()
if not any("5 messages had no answer" in record for record in records):
    sys.exit(f"nothing was said: {{records}}")
""",
    )


# --- small things that callers see


def test_enumerations_show_their_names() -> None:
    assert (
        f"{Result.Ok} {Result.Timeout!s} {CompressionType.LZ4}"
        == "Result.Ok Result.Timeout CompressionType.LZ4"
    )
    assert Result.Ok == 0


def test_what_the_package_does_not_have() -> None:
    for name, reason in {
        "CryptoKeyReader": "not supported yet",
        "AuthenticationAthenz": "subclass pulsar_fast.Authentication",
        "ConsumerType": "official client",
    }.items():
        with pytest.raises(AttributeError, match=reason):
            getattr(pulsar_fast, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        pulsar_fast.nonsense  # noqa: B018


@pytest.mark.parametrize(("timeout", "kind"), [("1", TypeError), (True, TypeError), (-1, ValueError)])
def test_bad_timeouts(make_producer: MakeProducer, timeout: Any, kind: type[Exception]) -> None:
    producer = make_producer()
    for call in (producer.flush, producer.close):
        with pytest.raises(kind, match="timeout"):
            call(timeout)


@pytest.mark.parametrize("end", ["close", "shutdown", "drop"])
def test_no_asyncio_client_is_kept_after_its_end(broker: ScriptedBroker, end: str) -> None:
    """Neither its core nor the memory of its batches."""
    cores = pulsar_fast.asyncio._cores
    cores.clear()

    async def main() -> None:
        client = AsyncClient(broker.url, **QUICK)
        producer = await client.create_producer("t")
        await producer.send(b"x")
        if end == "close":
            await client.close()
        elif end == "shutdown":
            client.shutdown()
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # recorded, it would keep the producer
                del client, producer
                gc.collect()
            while cores:
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 10))
    assert not cores


def test_the_last_sequence_id_that_the_broker_knows(
    broker: ScriptedBroker, make_producer: MakeProducer
) -> None:
    broker.last_sequence_id = 7
    producer = make_producer(producer_name="known")
    assert producer.last_sequence_id() == 7
    producer.send(b"x")
    assert producer.last_sequence_id() == 8
