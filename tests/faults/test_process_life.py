"""Forks, exits, signals, garbage, logging, cancelled tasks: a client in a process that does all of it at any time."""

import asyncio
import gc
import logging
import multiprocessing
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pulsar_fast.asyncio
from pulsar_fast import AlreadyClosed, Client, PulsarException, Result, Timeout
from pulsar_fast.wire.messages import BaseCommand, ServerError
from tests.faults.conftest import QUICK
from tests.faults.outcomes import Outcomes
from tests.faults.scripted_broker import ScriptedBroker
from tests.faults.scripts import run_often, run_script

# --- forks


def only(*payloads: bytes) -> Callable[[ScriptedBroker, str], None]:
    """A check: nobody but one connection has said anything, and these messages are all."""

    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() == ["done"]
        assert broker.payloads == list(payloads)
        assert len(broker.links) == 1
        kinds = [frame.kind for frame in broker.frames if frame.kind != BaseCommand.SEND]
        asked = [BaseCommand.CONNECT, BaseCommand.PARTITIONED_METADATA, BaseCommand.LOOKUP]
        assert kinds == [*asked, BaseCommand.PRODUCER, BaseCommand.CLOSE_PRODUCER]

    return check


def test_children_that_drop_what_they_inherited() -> None:
    """In every way in which a process may end; the parent sends meanwhile, and has an open batch of its own."""
    run_often(
        6,
        """
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t", batching_max_publish_delay_ms=60000)

        def nothing():
            pass

        def drop():
            global client, producer
            client = producer = None
            gc.collect()

        def use():
            calls = [
                lambda: producer.send(b"child"),
                lambda: producer.send_async(b"child", None),
                lambda: producer.send_many([b"child"]),
                handle.result,
                producer.flush,
                producer.close,
                client.close,
                client.shutdown,
                lambda: client.create_producer("child"),
                lambda: client.get_topic_partitions("child"),
            ]
            for call in calls:
                try:
                    call()
                    raise AssertionError("it worked")
                except RuntimeError as error:
                    assert "fork" in str(error)

        for work in (nothing, drop, use):
            for how in ("_exit", "exit"):
                handle = producer.send_many([b"many"])
                producer.send_async(b"open", None)
                pid = fork(work, how)
                producer.send(b"meanwhile")
                assert os.waitpid(pid, 0)[1] == 0
                assert handle.result() == 1
        producer.send(b"after")
        client.close()
        say("done")
        """,
        only(*[b"many", b"open", b"meanwhile"] * 6, b"after"),
    )


def test_hooks_that_drop_the_client_in_the_child() -> None:
    run_often(
        6,
        """
        holder = [pulsar_fast.Client(url)]
        holder.append(holder[0].create_producer("t"))
        holder.append(holder)

        def drop():
            holder.clear()
            gc.collect()

        os.register_at_fork(after_in_child=drop)
        for _ in range(3):
            pid = fork(gc.collect, "exit")
            holder[1].send(b"parent")
            assert os.waitpid(pid, 0)[1] == 0
        holder[0].close()
        say("done")
        """,
        only(b"parent", b"parent", b"parent"),
    )


def test_children_forked_while_all_threads_send() -> None:
    """Whatever the other threads were doing at that moment, the child does not wait for it."""

    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() == ["done"]
        assert broker.payloads.count(b"child") == 12
        assert len(broker.links) == 13

    run_often(
        3,
        """
        from tests.faults.scripts import produce
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t", max_pending_messages=50, block_if_queue_full=True)
        stopped = False

        def send():
            while not stopped:
                producer.send_async(b"parent", None)

        def child():
            global client, producer
            client = producer = None
            gc.collect()
            produce(url, b"child")

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(12):
            assert os.waitpid(fork(child, ("exit", "_exit")[number % 2]), 0)[1] == 0
        stopped = True
        for thread in threads:
            thread.join()
        client.close()
        say("done")
        """,
        check,
    )


def test_threads_of_a_child_may_wait() -> None:
    """They get the idents of the parent's threads, those of its loops among them."""
    run_often(
        4,
        """
        client = pulsar_fast.Client(url)

        def child():
            own, failed = [], []
            made = threading.Event()

            def work():
                made.wait()
                try:
                    own[0].create_producer("t").send(b"child")
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work) for _ in range(3)]
            for thread in threads:
                thread.start()
            own.append(pulsar_fast.Client(url))
            made.set()
            for thread in threads:
                thread.join()
            own[0].close()
            assert not failed, failed

        assert os.waitpid(fork(child), 0)[1] == 0
        client.close()
        """,
        lambda broker, said: (said == "" and broker.payloads == [b"child"] * 3) or pytest.fail(said),
    )


@pytest.mark.parametrize("how", ["close", "drop", "return"])
def test_children_of_an_asyncio_program(how: str) -> None:
    """Also when the child goes on with its copy of the loop, for as long as that takes to end."""

    def check(broker: ScriptedBroker, said: str) -> None:
        assert sorted(said.splitlines()) == ["child done", *["parent Ok"] * 5, "refused"]

    run_often(
        6,
        f"""
        from tests.faults.scripted_broker import ScriptedBroker
        parent = os.getpid()
        broker = ScriptedBroker()

        async def main():
            client = pulsar_fast.asyncio.Client(broker.url)
            producer = await client.create_producer("t")
            broker.hold_receipts()
            for number in range(5):
                producer.send_async(
                    b"pending",
                    lambda result, _: say("parent" if os.getpid() == parent else "child", result.name),
                )
            while len(broker.payloads) < 5:
                await asyncio.sleep(0.001)
            broker.release_receipts()  # to the socket, where the child must not take them from
            pid = os.fork()
            if pid == 0:
                try:
                    producer.send(b"child")
                except RuntimeError as error:
                    say("refused" if "fork" in str(error) else error)
                return 0
            assert os.waitpid(pid, 0)[1] == 0
            await producer.flush()
            await producer.send(b"after")
            await client.close()
            return pid

        async def own():
            async with pulsar_fast.asyncio.Client(broker.url) as client:
                await (await client.create_producer("own")).send(b"own")

        if {how == "return"}:
            pid = asyncio.run(main())
        else:
            loop = asyncio.new_event_loop()
            pid = loop.run_until_complete(main())
            if pid or {how == "close"}:
                loop.close()
            loop = None
            gc.collect()
        if pid == 0:
            asyncio.run(own())
            say("child done")
            sys.exit(0)
        assert broker.payloads == [*[b"pending"] * 5, b"own", b"after"]
        assert len(broker.links) == 2
        broker.stop()
        assert broker.violations == []
        """,
        check,
    )


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(method: str) -> None:
    """What was made before is refused, and workers with clients of their own work."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    refused = "a producer cannot be pickled: create a client of its own in each process"

    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() == [refused, refused, *(["exit code 0"] if method == "fork" else [refused])]
        assert sorted(broker.payloads) == [b"after", *[b"pool"] * 4, *[b"process"] * 4]

    run_often(
        2,
        f"""
        import concurrent.futures, multiprocessing
        from tests.faults.scripts import produce
        context = multiprocessing.get_context({method!r})

        def use():
            try:
                producer.flush()
            except RuntimeError as error:
                assert "fork" in str(error)
            else:
                raise AssertionError

        def main():
            global producer
            client = pulsar_fast.Client(url)
            producer = client.create_producer("t")
            with context.Pool(2) as pool:
                assert pool.starmap(produce, [(url, b"pool")] * 4) == [True] * 4
                try:
                    pool.apply(produce, (url, b"x", producer))
                except TypeError as error:
                    say(error)
                pool.close()
                pool.join()
            with concurrent.futures.ProcessPoolExecutor(2, context) as executor:
                assert list(executor.map(produce, [url] * 4, [b"process"] * 4)) == [True] * 4
                try:
                    executor.submit(produce, url, b"x", producer).result()
                except TypeError as error:
                    say(error)
            if {method == "fork"}:
                child = context.Process(target=use)
                child.start()
                child.join()
                say("exit code", child.exitcode)
            else:
                try:
                    context.Process(target=produce, args=(url, b"x", producer)).start()
                except TypeError as error:
                    say(error)
            producer.send(b"after")
            client.close()

        main()
        """,
        check,
        timeout=25,
        # Of a process that could not be given its arguments, as multiprocessing has it.
        noise=("Exception ignored", "Fatal"),
    )


# --- exits


def away(broker: ScriptedBroker) -> None:
    broker.on_send().do(lambda frame: broker.go_down())


@pytest.mark.parametrize(
    ("prepare", "told"),
    [
        (lambda broker: None, "Ok"),
        (away, "AlreadyClosed"),
        (lambda broker: broker.on_send().stop_reading(), "AlreadyClosed"),
        (lambda broker: broker.on_send().say_nothing(), "AlreadyClosed"),
    ],
    ids=["present", "away", "stalled", "silent"],
)
def test_exits_with_pending_messages(prepare: Any, told: str) -> None:
    """With exit code 0, in bounded time and in silence; and every callback runs."""

    def check(_broker: ScriptedBroker, said: str) -> None:
        how, *answers = said.splitlines()
        assert answers == [f"told {'AlreadyClosed' if 'shutdown' in how else told}"] * 20

    run_often(
        8,  # twice each end
        """
        client = pulsar_fast.Client(url, operation_timeout_seconds=1)
        producer = client.create_producer("t", batching_max_publish_delay_ms=1000)
        another = client.create_producer("another", batching_enabled=False)
        ends = {
            "of itself": lambda: None,
            "sys.exit": sys.exit,
            "close": lambda: (client.close(), sys.exit()),
            "shutdown": client.shutdown,
        }
        name, end = list(ends.items())[number % len(ends)]
        say(name)
        for _ in range(10):
            producer.send_async(b"x" * 1000, lambda result, _: say("told", result.name))
            another.send_async(b"x" * 1000, lambda result, _: say("told", result.name))
        end()
        """,
        check,
        prepare,
        timeout=10,
    )


def test_exits_in_the_middle_of_everything() -> None:
    """Other threads, daemons too, that use the client until the very end."""
    run_often(
        12,
        """
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t", max_pending_messages=100, block_if_queue_full=True)

        def work(call):
            try:
                while True:
                    call()
            except (pulsar_fast.PulsarException, RuntimeError):
                pass  # the client has ended, or no thread may start any more

        for call in (
            lambda: producer.send(b"x"),
            lambda: producer.send_async(b"x", lambda *_: None),
            lambda: producer.send_many([b"x"] * 10).result(),
            producer.flush,
            lambda: client.get_topic_partitions("t"),
            lambda: pulsar_fast.Client(url).create_producer("u").send(b"x"),
        ):
            threading.Thread(target=work, args=(call,), daemon=True).start()
        until(lambda: producer.stats().acknowledged > 200)
        """,
        lambda broker, said: None,
    )


@pytest.mark.parametrize("close", [False, True])
def test_exit_handlers_and_stages(close: bool) -> None:
    """Those that run before the client ends can use it, those after it are told."""

    def check(broker: ScriptedBroker, said: str) -> None:
        early = "AlreadyClosed" if close else "stored"
        assert said.splitlines() == ["threading stored", f"late {early}", "early AlreadyClosed"]
        assert broker.payloads == [b"threading"] + [b"late"] * (not close)

    run_often(
        4,
        f"""
        # As a process would have it that registers a handler first of all.
        atexit.unregister(pulsar_fast.loop_thread.LoopThread.close_all)

        def words(name):
            try:
                producer.send(name.encode())
                say(name, "stored")
            except Exception as error:
                say(name, type(error).__name__)
            if {close}:
                producer.close()
                client.close()

        atexit.register(words, "early")
        atexit.register(pulsar_fast.loop_thread.LoopThread.close_all)
        atexit.register(words, "late")
        threading._register_atexit(words, "threading")
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t")
        """,
        check,
    )


def test_a_first_client_behind_the_end_of_all_clients() -> None:
    """Made in an exit handler that was registered before the import."""

    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() in (["stored"], ["told RuntimeError"])

    run_often(
        6,
        """
        atexit.unregister(pulsar_fast.loop_thread.LoopThread.close_all)

        def late():
            try:
                client = pulsar_fast.Client(url)
                client.create_producer("t").send(b"x")
                say("stored")
            except Exception as error:
                say("told", type(error).__name__)

        atexit.register(late)
        atexit.register(pulsar_fast.loop_thread.LoopThread.close_all)
        """,
        check,
    )


def test_destructors_that_send_and_resurrect() -> None:
    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines()[:2] == ["last words Ok", "resurrected Ok"]
        assert set(said.splitlines()[2:]) <= {"told AlreadyClosed", "told RuntimeError"}
        assert broker.payloads == [b"last words", b"resurrected"]

    run_often(
        6,
        """
        class Owner:
            def __del__(self):
                try:
                    self.producer.send(self.words)
                    say(self.words.decode(), "Ok")
                except Exception as error:
                    say("told", type(error).__name__)
                kept.append(self)

        kept = []
        client = pulsar_fast.Client(url)
        producer = client.create_producer("t")
        owner = Owner()
        owner.producer = producer
        owner.words = b"last words"
        owner.self = owner
        del owner
        gc.collect()
        kept[0].producer.send(b"resurrected")
        say("resurrected Ok")
        second = Owner()
        second.producer, second.words = producer, b"never"
        """,
        check,
    )


def test_a_producer_that_comes_back_to_life() -> None:
    """It has been told to close, as nobody had it any more, and says so."""

    class Lazarus(pulsar_fast.Producer):
        def __del__(self) -> None:
            super().__del__()
            back.append(self)

    with ScriptedBroker() as broker, Client(broker.url, **QUICK) as client:
        back: list[Any] = []
        made = client.create_producer("t", batching_max_publish_delay_ms=1000)
        arguments = (client, made._thread, made._core, False, 5.0)
        lazarus = Lazarus(*arguments)
        outcomes = Outcomes()
        lazarus.send_async(b"x", outcomes.of(0))
        with pytest.warns(ResourceWarning):
            del lazarus
        outcomes.wait_for(1)
        back[0].close()
        with pytest.raises(AlreadyClosed):
            back[0].send(b"y")
        assert broker.payloads == [b"x"]
        del Lazarus.__del__
        back.clear()
        made.close()


# --- signals


def test_signals_in_calls_that_wait() -> None:
    """A handler that returns changes nothing, one that raises ends the wait; twice, and then all is usable."""

    def check(_broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() == ["Terminated 1", "Alarm 2", "Interrupted 3", "Terminated 4", "usable"]

    run_often(
        10,  # each call once, four times in a row
        """
        from tests.faults.scripted_broker import ScriptedBroker
        broker = ScriptedBroker()

        def kinds(kind):
            return type(kind, (Exception,), {})

        handled = 0

        def count(*_):
            global handled
            handled += 1

        def raising(kind):
            def handler(*_):
                raise kind
            return handler

        Terminated, Alarm, Interrupted = map(kinds, ("Terminated", "Alarm", "Interrupted"))
        signal.signal(signal.SIGUSR1, count)
        signal.signal(signal.SIGTERM, raising(Terminated))
        signal.signal(signal.SIGALRM, raising(Alarm))
        signal.signal(signal.SIGINT, raising(Interrupted))

        ending = pulsar_fast.Client(broker.url)
        client = pulsar_fast.Client(broker.url)
        producer = client.create_producer("t", batching_enabled=False)
        full = client.create_producer("full", max_pending_messages=1, block_if_queue_full=True)
        closing = client.create_producer("closing")
        last = ending.create_producer("last")
        broker.hold_receipts()
        broker.on_partitions().say_nothing()
        for each in (producer, full, closing, last):
            each.send_async(b"held", None)
        calls = [
            lambda: producer.send(b"x"),
            producer.flush,
            lambda: producer.send_many([b"x"]).result(),
            lambda: full.send(b"x"),
            lambda: full.send_async(b"x", None),
            lambda: full.send_many([b"x", b"y"]),
            lambda: client.create_producer("mute"),
            lambda: client.get_topic_partitions("mute"),
            closing.close,
            ending.close,
        ]
        for act in (
            lambda: os.kill(os.getpid(), signal.SIGTERM),
            lambda: signal.setitimer(signal.ITIMER_REAL, 0.001),
            lambda: os.kill(os.getpid(), signal.SIGINT),
            lambda: os.kill(os.getpid(), signal.SIGTERM),
        ):
            acting = when_blocked(lambda: os.kill(os.getpid(), signal.SIGUSR1), act)
            try:
                calls[number % len(calls)]()
                say("it returned")
            except (Terminated, Alarm, Interrupted) as error:
                say(type(error).__name__, handled)
            acting.join()
        broker.forget_rules()
        broker.release_receipts()
        producer.send(b"good")
        full.send(b"good")
        client.create_producer("another").send(b"good")
        ending.close()
        client.close()
        broker.stop()
        assert broker.violations == [], broker.violations
        say("usable")
        """,
        check,
    )


def test_signals_on_an_asyncio_loop() -> None:
    """Ctrl-C cancels the main task, a handler of the loop runs, and the client goes on."""

    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() == ["handled", "handled", "KeyboardInterrupt", "told AlreadyClosed"]

    run_often(
        4,
        """
        async def main():
            loop = asyncio.get_running_loop()
            client = pulsar_fast.asyncio.Client(url)
            producer = await client.create_producer("t")
            producer.send_async(b"x", lambda result, _: say("told", result.name))
            for name in (signal.SIGTERM, signal.SIGUSR1):
                handled = asyncio.Event()
                loop.add_signal_handler(name, handled.set)
                waiting = asyncio.ensure_future(producer.flush())
                when_blocked(lambda: os.kill(os.getpid(), name))
                await handled.wait()
                assert not waiting.done()
                waiting.cancel()
                say("handled")
            when_blocked(lambda: os.kill(os.getpid(), signal.SIGINT))
            try:
                await producer.flush()
            finally:
                client.shutdown()

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            say("KeyboardInterrupt")
        """,
        lambda broker, said: (
            sorted(said.splitlines()) == ["KeyboardInterrupt", "handled", "handled", "told AlreadyClosed"]
            or pytest.fail(said)
        ),
        lambda broker: broker.on_send().say_nothing(),
    )


# --- loops


def run_bounded(main: Callable[[], Any]) -> None:
    """As the outermost task, which alone is not cancelled; it is if it does not end in time."""

    async def bounded() -> None:
        task = asyncio.current_task()
        assert task is not None
        watchdog = asyncio.get_running_loop().call_later(20, task.cancel)
        await main()
        watchdog.cancel()

    asyncio.run(bounded())


async def settled() -> None:
    """Nothing is left but what has been cancelled and has yet to hear of it."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def wait_until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


# --- garbage


def test_garbage_of_many_kinds() -> None:
    """Collected at any moment, by any thread, in use or not: threads end, and every callback runs."""

    def check(broker: ScriptedBroker, said: str) -> None:
        assert said.splitlines() == ["answered 60", "gone", "no threads"]

    run_often(
        4,
        """
        import itertools, weakref
        gc.set_threshold(1)
        answers = itertools.count()
        answered = 0
        refs = []

        def note(*_):
            global answered
            answered = next(answers) + 1

        def make():
            client = pulsar_fast.Client(url)
            producer = client.create_producer("t", batching_max_publish_delay_ms=1000)
            refs.extend([weakref.ref(client), weakref.ref(producer)])
            return producer

        def in_a_callback():
            holder = [make()]
            def callback(*_):
                holder.clear()
                note()
            holder[0].send_async(b"x", callback)
            holder[0].send_async(b"x", note)
            holder[0].send_async(b"x", note)

        def in_a_cycle():
            holder = [make()]
            holder.append(holder)
            for _ in range(3):
                holder[0].send_async(b"x", lambda *_, holder=holder: note())

        def with_its_callbacks():
            producer = make()
            for _ in range(3):
                producer.send_async(b"x", lambda *_, producer=producer: note())

        def while_another_thread_sends():
            producer = make()
            def send(producer):
                for _ in range(2):
                    producer.send_async(b"x", note)
                producer.send(b"x")
                note()
            thread = threading.Thread(target=send, args=(producer,))
            thread.start()
            del producer
            gc.collect()
            thread.join()

        for _ in range(5):
            for work in (in_a_callback, in_a_cycle, with_its_callbacks, while_another_thread_sends):
                work()
        gc.set_threshold(700)

        def all_gone():
            gc.collect()
            return all(ref() is None for ref in refs)

        until(lambda: answered == 60)
        say("answered", answered)
        until(all_gone)
        say("gone")
        until(lambda: threading.active_count() == 1)
        say("no threads")
        """,
        check,
    )


def test_an_asyncio_producer_dropped_in_use(broker: ScriptedBroker) -> None:
    """Nobody has it, but the messages that it accepted are answered, and its connection ends."""

    async def main() -> None:
        results: list[Result] = []
        refs: list[Any] = []
        for kind in ("plain", "cycle", "callback", "thread"):
            client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
            producer = await client.create_producer("t", batching_max_publish_delay_ms=1000)
            refs += [weakref.ref(client), weakref.ref(producer)]
            holder: list[Any] = [client, producer]
            if kind == "cycle":
                holder.append(holder)
            for _ in range(3):
                producer.send_async(b"x", lambda result, _, holder=holder: (results.append(result), holder))
            del client, producer
            if kind == "callback":
                await asyncio.gather(*(holder[1].send(b"y") for _ in range(2)))
            if kind == "thread":
                await asyncio.to_thread(forget, holder)
            else:
                forget(holder)
        while len(results) < 12 or any(ref() is not None for ref in refs) or pulsar_fast.asyncio._cores:
            await asyncio.sleep(0.001)
            gc.collect()
        assert results == [Result.Ok] * 12

    run_bounded(main)
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


def forget(things: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # recorded, it would keep what is to go
        things.clear()
        gc.collect()


# --- logging


class Handler(logging.Handler):
    """Does something with every record, for at most `most` of them."""

    def __init__(self, act: Callable[[logging.LogRecord], Any], most: int = 1000) -> None:
        super().__init__(logging.DEBUG)
        self.act = act
        self.seen: list[str] = []
        self.most = most

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage())
        assert len(self.seen) <= self.most, "it goes on and on"
        self.act(record)


@pytest.fixture
def attach() -> Iterator[Callable[[Any], tuple[logging.Logger, Handler]]]:
    """A logger with one handler that does something with every record."""
    logger = logging.Logger("mine", logging.DEBUG)

    def attach(act: Any) -> tuple[logging.Logger, Handler]:
        handler = Handler(act)
        logger.addHandler(handler)
        return logger, handler

    yield attach
    for handler in logger.handlers:
        handler.close()


def live_through_outages(broker: ScriptedBroker, producer: Any) -> Outcomes:
    """What makes the client log: lost connections, messages that nobody asked for, a slow callback."""
    outcomes = Outcomes()
    for number in range(3):
        broker.hold_receipts()
        producer.send_async(b"x", outcomes.of(number))
        producer.send_async(b"x", None)
        broker.wait_for(lambda b: b._held)
        broker.cut_connections()
        broker.release_receipts()
        outcomes.wait_for(number + 1, 10)
    return outcomes


def test_handlers_that_raise(
    broker: ScriptedBroker, make_client: Any, attach: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(record: logging.LogRecord) -> None:
        raise ValueError("as scripted")

    logger, handler = attach(fail)
    client = make_client(broker.url, logger=logger)
    outcomes = live_through_outages(broker, client.create_producer("t"))
    assert set(outcomes.results.values()) == {Result.Ok}
    broker.on_producer().answer_error(ServerError.TopicTerminatedError)
    failed = client.create_producer
    with pytest.raises(PulsarException):
        failed("other")
    client.close()
    assert len(handler.seen) >= 6
    assert capsys.readouterr().err.count("ValueError: as scripted") == len(handler.seen)


def test_a_producer_that_fails_with_handlers_that_raise(
    broker: ScriptedBroker, make_client: Any, attach: Any
) -> None:
    def fail(record: logging.LogRecord) -> None:
        raise ValueError("as scripted")

    client = make_client(broker.url, logger=attach(fail)[0])
    producer = client.create_producer("t")
    outcomes = Outcomes()
    broker.hold_receipts()
    for number in range(3):
        producer.send_async(b"x", outcomes.of(number))
    broker.wait_for(lambda b: len(b.payloads) == 3)
    broker.on_producer().answer_error(ServerError.TopicTerminatedError)
    broker.cut_connections()
    outcomes.wait_for(3)
    assert set(outcomes.results.values()) == {Result.TopicTerminated}


def test_handlers_that_send(broker: ScriptedBroker, make_client: Any, attach: Any) -> None:
    """Through the same producer and client: what cannot be done there raises, the rest is sent."""
    producers: list[Any] = []
    raised: list[BaseException] = []

    def send(record: logging.LogRecord) -> None:
        for producer in producers:
            producer.send_async(b"log", None)
            for call in (lambda p=producer: p.send(b"log"), producer.flush, producer.close):
                try:
                    call()
                except Exception as error:
                    raised.append(error)

    logger, handler = attach(send)
    client = make_client(broker.url, logger=logger)
    producers.append(client.create_producer("t"))
    outcomes = live_through_outages(broker, producers[0])
    assert set(outcomes.results.values()) == {Result.Ok}
    assert broker.payloads.count(b"log") >= 3
    assert {type(error) for error in raised} == {RuntimeError}
    assert len(handler.seen) < 60
    producers.clear()


def test_handlers_that_send_what_fails(broker: ScriptedBroker, make_client: Any, attach: Any) -> None:
    """Every failure is logged, by a handler whose own message fails: no endless round."""
    producers: list[Any] = []

    def send(record: logging.LogRecord) -> None:
        for producer in producers:
            producer.send_async(b"log", None)

    logger, handler = attach(send)
    client = make_client(broker.url, logger=logger)
    broker.on_send().answer_error(ServerError.NotAllowedError)
    producers.append(client.create_producer("t"))
    outcomes = Outcomes()
    for number in range(50):
        producers[0].send_async(b"x", outcomes.of(number))
        producers[0].send_async(b"x", None)
    outcomes.wait_for(50)
    assert Result.Ok not in outcomes.results.values()
    assert len(handler.seen) < 10
    producers.clear()


def test_a_handler_that_waits_for_what_it_sends(
    broker: ScriptedBroker, make_client: Any, attach: Any
) -> None:
    """It holds the lock that the loop needs to log: whoever waits in it is told so, and nothing stands still."""
    raised: list[BaseException] = []

    def send(record: logging.LogRecord) -> None:
        if threading.current_thread() is threading.main_thread() and record.getMessage() == "mine":
            broker.cut_connections()  # the loop says so, through the same handler
            try:
                producer.send(b"log")
            except Exception as error:
                raised.append(error)

    logger, _ = attach(send)
    producer = make_client(broker.url, logger=logger).create_producer("t", send_timeout_millis=500)
    broker.hold_receipts()
    logger.warning("mine")
    assert [type(error) for error in raised] == [Timeout]
    broker.release_receipts()
    producer.send(b"x")


@pytest.mark.parametrize("how", ["close", "shutdown"])
def test_handlers_that_end_the_client(
    broker: ScriptedBroker, make_client: Any, attach: Any, how: str
) -> None:
    clients: list[Any] = []
    raised: list[BaseException] = []

    def end(record: logging.LogRecord) -> None:
        for client in clients:
            try:
                getattr(client, how)()
            except RuntimeError as error:
                raised.append(error)

    clients.append(make_client(broker.url, logger=attach(end)[0]))
    outcomes = live_through_outages(broker, clients[0].create_producer("t"))
    assert set(outcomes.results.values()) == {Result.Ok}
    assert raised
    clients.clear()


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("ends", ["outage", "refusal", "unheard", "terminated"])
def test_asyncio_handlers_that_shut_down(broker: ScriptedBroker, attach: Any, moment: int, ends: str) -> None:
    """In the midst of whatever the client was logging: every message is answered once, nothing is left."""
    clients: list[Any] = []
    logger, handler = attach(lambda record: len(handler.seen) == moment + 1 and clients[0].shutdown())

    async def main() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK, logger=logger)
        clients.append(client)
        results: list[Result] = []
        accepted = [0]
        try:
            producer = await client.create_producer("t")
            for _ in range(3):
                broker.hold_receipts()
                accepted[0] += 1
                producer.send_async(b"x", lambda result, _: results.append(result))
                if ends == "unheard":
                    producer.send_async(b"x", None)
                await wait_until(lambda: broker._held or len(results) == accepted[0])
                if ends == "outage":
                    broker.cut_connections()
                elif ends == "terminated":
                    broker.send_error(ServerError.TopicTerminatedError, broker.sends[-1])
                elif ends == "refusal":
                    broker.send_error(
                        (ServerError.NotAllowedError, ServerError.PersistenceError)[moment % 2],
                        broker.sends[-1],
                    )
                else:
                    for frame in broker._held or ():
                        broker.send_error(ServerError.NotAllowedError, frame)
                broker.release_receipts()
                await wait_until(lambda: len(results) == accepted[0])
        except AlreadyClosed:
            pass
        except PulsarException:
            if ends != "terminated":
                raise
        await client.close()
        assert len(results) in (accepted[0], accepted[0] - 1)  # one may have been refused by the call
        await settled()

    run_bounded(main)
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))
    clients.clear()


def test_logging_configured_while_it_runs(broker: ScriptedBroker) -> None:
    run_script(
        broker,
        """
        import logging.config
        client = pulsar_fast.Client(url, logger=logging.getLogger("mine"), initial_backoff_interval_ms=1)
        another = pulsar_fast.Client(url)
        producers = [each.create_producer("t") for each in (client, another)]
        stopped = False

        def configure():
            while not stopped:
                for disable in (True, False):
                    logging.config.dictConfig({
                        "version": 1,
                        "disable_existing_loggers": disable,
                        "handlers": {"null": {"class": "logging.NullHandler"}},
                        "root": {"handlers": ["null"], "level": "DEBUG"},
                    })

        thread = threading.Thread(target=configure)
        thread.start()
        for number in range(20):
            for producer in producers:
                producer.send(b"x")
            say("cut")
        stopped = True
        thread.join()
        client.close()
        another.close()
        """,
    )


def test_logging_at_the_very_end() -> None:
    """Handlers that were shut down, streams that are closed: no noise, and no hang."""
    run_often(
        6,
        """
        import contextlib

        class Late(logging.StreamHandler):
            def emit(self, record):
                if self.producer is not None:
                    with contextlib.suppress(pulsar_fast.AlreadyClosed):
                        self.producer.send_async(b"log", None)
                super().emit(record)

        logger = logging.getLogger("mine")
        logger.setLevel(logging.DEBUG)
        handler = Late(sys.stdout)
        handler.producer = None
        logger.addHandler(handler)
        client = pulsar_fast.Client(url, logger=logger)
        handler.producer = client.create_producer("t")
        handler.producer.send(b"x")
        logger.warning("mine")
        """,
        lambda broker, said: b"x" in broker.payloads or pytest.fail(said),
    )


# --- tasks cancelled by others


def cancel_others() -> None:
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


STEPS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 25, 30, 40, 60]


async def after_steps(count: int, act: Callable[[], None] = cancel_others) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
    act()


@pytest.mark.parametrize("work", ["create", "flush", "close", "client.close", "send", "reconnect"])
def test_all_other_tasks_cancelled_at_any_moment(broker: ScriptedBroker, work: str) -> None:
    """It ends in an error or recovers; the client can then be closed, and is."""

    async def once(steps: int) -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        results: list[Result] = []
        producer = await client.create_producer("t", send_timeout_millis=0)
        accepted = 0
        made: list[Any] = []  # kept: one that is dropped warns

        async def create() -> None:
            made.extend(await asyncio.gather(*(client.create_producer(f"t{n}") for n in range(3))))
            await asyncio.gather(*(each.send(b"x") for each in made))

        def send() -> None:
            nonlocal accepted
            for _ in range(3):
                accepted += 1
                producer.send_async(b"x", lambda result, _: results.append(result))

        calls: dict[str, Callable[[], Any]] = {
            "create": create,
            "flush": producer.flush,
            "close": producer.close,
            "client.close": client.close,
            "send": lambda: producer.send(b"y"),
            "reconnect": producer.flush,
        }
        send()
        if work == "reconnect":
            broker.cut_connections()
        task = asyncio.ensure_future(calls[work]())
        await after_steps(steps)
        try:
            await task
        except (asyncio.CancelledError, PulsarException):
            pass
        if "close" not in work:
            send()
            await producer.flush()
            assert results == [Result.Ok] * accepted
            assert await producer.send(b"after")
            async with await client.create_producer("another") as another:
                await another.send(b"after")
        if work != "client.close":
            await producer.close()
        await client.close()
        assert len(results) == accepted
        await settled()
        assert not pulsar_fast.asyncio._cores

    async def main() -> None:
        for steps in STEPS:
            try:
                await once(steps)
            except BaseException as error:
                raise AssertionError(f"all was cancelled after {steps} steps") from error

    run_bounded(main)
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))


@pytest.mark.parametrize("stage", ["connect", "partitions", "lookup", "producer"])
def test_what_several_producers_wait_for_is_cancelled(broker: ScriptedBroker, stage: str) -> None:
    """While the broker is silent at one stage; the next attempts succeed."""

    async def main() -> None:
        getattr(broker, f"on_{stage}")().say_nothing()
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        tasks = [asyncio.ensure_future(client.create_producer("t")) for _ in range(3)]
        kinds = {"connect": BaseCommand.CONNECT, "partitions": BaseCommand.PARTITIONED_METADATA}
        kinds |= {"lookup": BaseCommand.LOOKUP, "producer": BaseCommand.PRODUCER}
        await wait_until(lambda: broker.got(kinds[stage]))
        cancel_others()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, (asyncio.CancelledError, AlreadyClosed))
        broker.forget_rules()
        for _ in range(3):
            async with await client.create_producer("t") as producer:
                await producer.send(b"x")
        await client.close()

    run_bounded(main)


# --- loops that are closed before their clients


async def as_asyncio_run_ends() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    cancel_others()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("kind", ["pending", "waits for room", "reconnecting", "begun"])
def test_a_loop_closed_with_everything_pending(
    broker: ScriptedBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Callbacks, futures and handles are answered once, with `AlreadyClosed`, when the client is dropped."""
    answers: list[tuple[str, Result]] = []
    kept: list[Any] = []

    async def awaiting(name: str, waited: Any) -> None:
        try:
            await waited
        except AlreadyClosed:
            answers.append((name, Result.AlreadyClosed))

    async def main() -> None:
        client = pulsar_fast.asyncio.Client(broker.url, **QUICK)
        options = {"max_pending_messages": 4, "block_if_queue_full": True} if kind == "waits for room" else {}
        producer = await client.create_producer("t", **options)
        broker.hold_receipts()
        if kind == "begun":
            broker.on_send().stop_reading()
            for _ in range(4):
                producer.send_async(b"x" * 4_000_000, lambda result, _: answers.append(("large", result)))
            await wait_until(lambda: not broker._reads)
        for number in range(3):
            producer.send_async(b"x", lambda result, _, n=number: answers.append((f"callback {n}", result)))
        kept.extend([producer.send(b"y"), producer.send_many([b"z"] * 3)])
        if kind == "reconnecting":
            broker.go_down()
            await wait_until(lambda: not producer.is_connected())
        kept.append(asyncio.ensure_future(awaiting("awaited", producer.send(b"w"))))
        kept.append(asyncio.ensure_future(awaiting("handle", producer.send_many([b"v"]))))
        for _ in range(5):
            await asyncio.sleep(0)
        kept.extend([client, producer])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    loop.run_until_complete(as_asyncio_run_ends())
    loop.close()
    future, handle = kept[:2]
    forget(kept)
    if kind == "waits for room":  # whose places in the line keep the producer
        pulsar_fast.asyncio._abandon_rest()  # as the end of the interpreter does
    expected = [(f"callback {n}", Result.AlreadyClosed) for n in range(3)]
    if kind == "begun":
        expected = [("large", Result.AlreadyClosed)] * 4 + expected
    assert sorted(answers, key=lambda pair: pair[0]) == sorted(expected)
    with pytest.raises(AlreadyClosed):
        future.result()
    with pytest.raises(AlreadyClosed):
        handle.result()
    assert set(map(type, handle.errors.values())) == {AlreadyClosed}
    assert "had no answer when the event loop was closed" in caplog.text
    broker.resume_reading()
    broker.wait_for(lambda b: not any(link.is_open for link in b.links))
