"""Memory, descriptors, threads and permits: what is taken comes back, on every path that fails too."""

import asyncio
import gc
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import ConnectError, PulsarException, Result
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripts import run_script
from tests.waiting import until

MakeProducer = Callable[..., Any]
REGISTER = BaseCommand.PRODUCER
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- memory


@pytest.mark.parametrize("batching", [None, False])
def test_large_messages_leave_no_large_buffers(
    broker: ScriptedBroker, make_client: Callable[..., Any], batching: bool | None
) -> None:
    """Of many producers: one large message each, then small ones whose receipts do not come."""
    client = make_client(broker.url)
    producers = [client.create_producer(f"t{number}", batching_enabled=batching) for number in range(40)]
    for producer in producers:
        producer.send(b"x" * 1_000_000)
    broker.frames.clear()
    broker.hold_receipts()
    outcomes = Outcomes()
    rounds, size = 5, 300
    for round_ in range(rounds):
        for number, producer in enumerate(producers):
            producer.send_async(b"x" * size, outcomes.of((number, round_)))
        broker.wait_for(lambda b, r=round_: len(b.sends) == len(producers) * (r + 1))
    pending = producers[0].stats().client_pending_bytes
    assert pending < rounds * len(producers) * (size + 100)
    # A buffer is at least a quarter full; each batch also has its header and the places of its callbacks.
    assert client._thread.core.buffers.live_bytes < 4 * pending + rounds * len(producers) * 512
    broker.release_receipts()
    outcomes.wait_for(rounds * len(producers))
    until(lambda: client._thread.core.buffers.live_bytes == 0)
    assert producers[0].stats().client_pending_bytes == 0


# --- descriptors and threads


@on_linux
def test_out_of_descriptors(broker: ScriptedBroker) -> None:
    """An error for whoever needs one, and all goes on when there are some again."""
    broker.after(frames=2).cut_connection()
    said = run_script(
        broker,
        """
        import resource
        options = dict(operation_timeout_seconds=0.5, initial_backoff_interval_ms=5, max_backoff_interval_ms=20)
        client = pulsar_fast.Client(url, **options)
        idle = pulsar_fast.Client(url, **options)
        producer = client.create_producer("t", send_timeout_millis=600)
        producer.send(b"first")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # what is open stays, and nothing comes to it
        for attempt in range(20):
            try:
                pulsar_fast.Client(url)
            except OSError as error:
                print("client:", error.strerror)
        try:
            idle.create_producer("t")
        except pulsar_fast.ConnectError as error:
            print("creation:", error)
        try:
            producer.send(b"cut")
        except pulsar_fast.Timeout as error:
            print("send:", error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        producer.send(b"last")
        other = idle.create_producer("t")
        other.send(b"other")
        client.close()
        idle.close()
        """,
        noise=(),  # asyncio complains about the loops that it could not make
    ).splitlines()
    assert said[:20] == ["client: Too many open files"] * 20
    assert said[20].startswith("creation: ")
    assert "Too many open files" in said[20]
    assert said[21].startswith("send: ")
    assert "Too many open files" in said[21]
    assert broker.payloads == [b"first", b"cut", b"last", b"other"]


@on_linux
def test_out_of_threads_for_a_client(
    broker: ScriptedBroker, make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_client(broker.url).create_producer("t").send(b"x")
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        for _ in range(20):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                make_client(broker.url)
        gc.collect()
        assert descriptors() == before
    make_client(broker.url).create_producer("t").send(b"x")


def no_thread(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")  # as the interpreter says it


def test_out_of_threads_for_resolving(
    broker: ScriptedBroker,
    make_client: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Like a name that cannot be resolved for now: an error at creation, and a reconnect goes on trying."""
    url = f"pulsar://localhost:{broker.port}"
    producer = make_client(url).create_producer("t", send_timeout_millis=300)
    idle = make_client(url, operation_timeout_seconds=0.3)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(ConnectError, match="can't start new thread"):
            idle.create_producer("t")
        broker.cut_connections()
        with pytest.raises(pulsar_fast.Timeout, match="can't start new thread"):
            producer.send(b"x")
    producer.send(b"y")
    idle.create_producer("t").send(b"z")
    assert broker.payloads == [b"y", b"z"]
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@on_linux
def test_descriptors_and_threads_over_a_long_outage(
    broker: ScriptedBroker, make_client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve = socket.getaddrinfo
    attempts = 0

    def count(*args: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return resolve(*args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", count)
    url = f"pulsar://localhost:{broker.port}"
    client = make_client(url, initial_backoff_interval_ms=1, max_backoff_interval_ms=2)
    producers = [client.create_producer(f"t{number}", send_timeout_millis=100) for number in range(5)]
    links = len(broker.links)
    broker.go_down()
    until(lambda: attempts > 10)
    before, threads = descriptors(), threading.active_count()
    most = most_threads = 0
    while attempts < 500:
        for producer in producers:
            with suppress(PulsarException):
                producer.send_async(b"x", None)
        most, most_threads = max(most, descriptors()), max(most_threads, threading.active_count())
        time.sleep(0.002)
    assert most <= before + 3, "at most the attempt under way, and the listing itself"
    assert most_threads <= threads + 2, "at most the resolver of the attempt under way"
    broker.come_back()
    for producer in producers:
        producer.send(b"y")
    assert len(broker.links) == 2 * links


# --- permits and bytes


def fails_in_the_call(producer: Any) -> None:
    bad: list[dict[str, Any]] = [
        {"content": "text"},
        {"content": memoryview(b"abcdef")[::2]},
        {"content": b"x", "properties": {"k": 1}},
        {"content": b"x", "properties": {"fine": "v", "\ud800": "v"}},
        {"content": b"x", "partition_key": b"k"},
        {"content": b"x", "ordering_key": 1},
        {"content": b"x", "sequence_id": -1},
        {"content": b"x", "event_timestamp": 1.5},
        {"content": b"x", "replication_clusters": [1]},
        {"content": b"x", "deliver_after": 1},
        {"content": b"x" * 6_000_000},
        {"content": b"x", "properties": {"k": "v" * 6_000_000}},
    ]
    for arguments in bad * 84:
        with pytest.raises((TypeError, ValueError, PulsarException)):
            producer.send(**arguments)


def fails_in_a_callback_that_cannot_be_called(producer: Any) -> None:
    for _ in range(1000):
        with pytest.raises(TypeError):
            producer.send_async(b"x", 1)


def fails_in_a_payload_that_raises(producer: Any) -> None:
    def payloads() -> Any:
        yield b"x"
        raise KeyError

    for _ in range(1000):
        with pytest.raises(KeyError):
            producer.send_many(payloads())
        producer.flush()


class TestPermits:
    """A queue of ten, a thousand sends that fail, and then ten that must have room at once."""

    @pytest.fixture
    def producer(self, make_producer: MakeProducer) -> Any:
        return make_producer(max_pending_messages=10, send_timeout_millis=5000)

    def check(self, broker: ScriptedBroker, producer: Any) -> None:
        until(lambda: producer.stats().pending_messages == producer.stats().client_pending_bytes == 0)
        broker.hold_receipts()
        outcomes = Outcomes()
        for name in range(10):
            producer.send_async(b"good", outcomes.of(name))
        with pytest.raises(pulsar_fast.ProducerQueueIsFull):
            producer.send_async(b"one too many", None)
        broker.wait_for(lambda b: b.payloads.count(b"good") == 10)
        broker.release_receipts()
        outcomes.wait_for(10)
        assert set(outcomes.results.values()) == {Result.Ok}
        assert producer.stats().pending_messages == producer.stats().client_pending_bytes == 0

    @pytest.mark.parametrize(
        "fail",
        [fails_in_the_call, fails_in_a_callback_that_cannot_be_called, fails_in_a_payload_that_raises],
    )
    def test_in_the_call(self, broker: ScriptedBroker, producer: Any, fail: Callable[[Any], None]) -> None:
        fail(producer)
        self.check(broker, producer)

    def test_no_room(self, broker: ScriptedBroker, producer: Any) -> None:
        broker.hold_receipts()
        outcomes = Outcomes()
        for name in range(1010):
            producer.send_async(b"x", outcomes.of(name))
        broker.wait_for(lambda b: len(b.payloads) == 10)
        broker.release_receipts()
        outcomes.wait_for(1010)
        results = list(outcomes.results.values())
        assert results.count(Result.ProducerQueueIsFull) == 1000
        self.check(broker, producer)

    def test_no_memory(self, broker: ScriptedBroker, make_producer: MakeProducer) -> None:
        producer = make_producer(client={"memory_limit_bytes": 2_000}, max_pending_messages=10)
        outcomes = Outcomes()
        for name in range(1000):
            producer.send_async(b"x" * 2_000, outcomes.of(name))
        outcomes.wait_for(1000)
        assert set(outcomes.results.values()) == {Result.MemoryBufferIsFull}
        self.check(broker, producer)

    @pytest.mark.parametrize("block", [False, True])
    def test_deadlines(self, broker: ScriptedBroker, make_producer: MakeProducer, block: bool) -> None:
        """Also of those that wait for room and never get in."""
        producer = make_producer(
            max_pending_messages=10, send_timeout_millis=5 if not block else 20, block_if_queue_full=block
        )
        outcomes = Outcomes()
        broker.hold_receipts()

        def work(thread: int) -> None:
            for number in range(100):
                while producer.stats().pending_messages >= 10 and not block:
                    time.sleep(0.001)
                producer.send_async(b"x", outcomes.of((thread, number)))

        threads = [threading.Thread(target=work, args=(name,), daemon=True) for name in range(10)]
        for thread in threads:
            thread.start()
        outcomes.wait_for(1000, timeout=30)
        for thread in threads:
            thread.join(5)
        assert Result.Timeout in outcomes.results.values()
        assert Result.Ok not in outcomes.results.values()
        broker.release_receipts()
        patient = make_producer("patient", max_pending_messages=10)
        assert patient.stats().client_pending_bytes == producer.stats().pending_messages == 0
        self.check(broker, patient)

    def test_refused(self, broker: ScriptedBroker, producer: Any) -> None:
        broker.on_send().answer_error(ServerError.NotAllowedError, times=1000)
        for _ in range(1000):
            with pytest.raises(pulsar_fast.NotAllowedError):
                producer.send(b"x")
        self.check(broker, producer)

    def test_quota_with_exceptions(self, broker: ScriptedBroker, producer: Any) -> None:
        for _ in range(20):
            self.fill(broker, producer)
            broker.on_producer().answer_error(ServerError.ProducerBlockedQuotaExceededException, times=1)
            broker.close_producer()
            self.all_fail(Result.ProducerBlockedQuotaExceededException)
            broker.release_receipts()
            until(producer.is_connected)
        self.check(broker, producer)

    def test_too_big_for_the_next_broker(self, broker: ScriptedBroker, producer: Any) -> None:
        with ScriptedBroker(max_message_size=1000) as successor:
            for _ in range(20):
                self.fill(broker, producer, size=2000)
                broker.close_producer(assigned=successor.url)
                self.all_fail(Result.MessageTooBig)
                broker.release_receipts()
                registered = len(broker.got(REGISTER))
                successor.close_producer(assigned=broker.url)
                broker.wait_for(lambda b, n=registered: len(b.got(REGISTER)) > n)
                until(producer.is_connected)
        self.check(broker, producer)

    def fill(self, broker: ScriptedBroker, producer: Any, size: int = 1) -> None:
        """The whole queue waits for receipts that do not come."""
        self.outcomes = Outcomes()
        broker.hold_receipts()
        before = len(broker.payloads)
        for name in range(10):
            producer.send_async(b"x" * size, self.outcomes.of(name))
        broker.wait_for(lambda b: len(b.payloads) == before + 10)

    def all_fail(self, result: Result) -> None:
        self.outcomes.wait_for(10)
        assert set(self.outcomes.results.values()) == {result}

    def test_closed(self, broker: ScriptedBroker, make_client: Callable[..., Any]) -> None:
        client = make_client(broker.url)
        closed = client.create_producer("closed", max_pending_messages=10)
        closed.close()
        outcomes = Outcomes()
        for name in range(1000):
            closed.send_async(b"x" * 1000, outcomes.of(name))
        outcomes.wait_for(1000, timeout=0)
        assert closed.stats().pending_messages == 0
        self.check(broker, client.create_producer("open", max_pending_messages=10))

    def test_cancelled(self, broker: ScriptedBroker) -> None:
        async def run() -> None:
            async with pulsar_fast.asyncio.Client(broker.url, **QUICK) as client:
                producer = await client.create_producer(
                    "t", max_pending_messages=10, block_if_queue_full=True
                )
                broker.hold_receipts()
                sends = [asyncio.ensure_future(producer.send(b"x")) for _ in range(1010)]
                await asyncio.sleep(0)
                for send in sends:
                    send.cancel()
                await asyncio.gather(*sends, return_exceptions=True)
                assert producer.stats().pending_messages <= 10
                broker.release_receipts()
                await producer.flush()
                assert producer.stats().pending_messages == producer.stats().client_pending_bytes == 0
                before = len(broker.payloads)
                await asyncio.wait_for(asyncio.gather(*(producer.send(b"good") for _ in range(10))), 5)
                assert broker.payloads[before:] == [b"good"] * 10

        asyncio.run(run())
