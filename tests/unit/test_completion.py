"""Whoever asked hears exactly once what became of a message."""

import asyncio
import collections.abc
import contextvars
import gc
import sys
import threading
import weakref

import pytest

from pulsar_fast._core import (
    Feed,
    SendFuture,
    SendHandle,
    SendWaiter,
    answer_at_once,
    fresh_copy,
    mark_loop_thread,
    refuse_to_block,
    unmark_loop_thread,
)
from pulsar_fast.exceptions import AlreadyClosed, NotAllowedError, ProducerQueueIsFull, Timeout
from pulsar_fast.result import Result
from tests.unit.harness import NOWHERE, Heard, Rig, receipt


@pytest.fixture
def unraisable(monkeypatch):
    """What went to `sys.unraisablehook`."""
    seen = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda report: seen.append((report.exc_type, str(report.exc_value)))
    )
    return seen


# --- callbacks


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_callback_that_raises_stops_nobody(kind, unraisable):
    def fail():
        raise kind("in a callback")

    with Rig() as rig:
        link = rig.connect()
        heard = [Heard(fail), Heard(), Heard(fail), Heard()]
        for one in heard:
            rig.sender.send_async(b"x", one)
        rig.flush()
        link.feed(receipt(0))
        assert [one.result for one in heard] == [Result.Ok] * 4
    assert unraisable == [(kind, "in a callback")] * 2


def test_a_callback_that_raises_at_once(unraisable):
    def fail():
        raise ValueError("in a callback")

    with Rig(max_pending=1) as rig:
        rig.send()
        heard = Heard(fail)
        rig.sender.send_async(b"x", heard)
        assert heard.result is Result.ProducerQueueIsFull
    assert unraisable == [(ValueError, "in a callback")]


def test_an_observer_that_raises_is_heard_of(unraisable):
    with Rig() as rig:
        rig.observer.nobody_heard = None
        rig.sender.send_async(b"x", None)
        rig.queue.fail_all(AlreadyClosed("closed"))
    assert [kind for kind, _ in unraisable] == [TypeError]


def test_callbacks_run_in_order_and_after_the_permits_went_back():
    with Rig() as rig:
        link = rig.connect()
        seen = []

        def look(number):
            return lambda result, message_id: seen.append((number, rig.accumulator.pending_messages))

        for number in range(5):
            rig.sender.send_async(b"x", look(number))
        rig.flush()
        link.feed(receipt(0))
        assert seen == [(number, 0) for number in range(5)]


def test_a_callback_may_send_and_the_next_receipt_comes():
    with Rig(batching=False) as rig:
        link = rig.connect()
        second = Heard()
        rig.sender.send_async(b"first", Heard(lambda: rig.sender.send_async(b"second", second)))
        rig.flush()
        link.feed(receipt(0))
        rig.flush()
        link.feed(receipt(1))
        assert second.result is Result.Ok


def test_the_same_callback_hears_of_each_message():
    with Rig() as rig:
        link = rig.connect()
        heard = Heard()
        for _ in range(3):
            rig.sender.send_async(b"x", heard)
        rig.flush()
        link.feed(receipt(0, 1, 2))
        assert [message_id.batch_index() for _, message_id in heard.answers] == [0, 1, 2]


def test_a_destructor_may_send():
    """Dropping the reference to a callback runs whatever hangs on it."""
    with Rig() as rig:
        link = rig.connect()
        heard = Heard()

        class Owner:
            def __call__(self, result, message_id):
                pass

            def __del__(self):
                rig.sender.send_async(b"from a destructor", heard)

        rig.sender.send_async(b"x", Owner())
        rig.flush()
        link.feed(receipt(0))
        rig.flush()
        link.feed(receipt(1))
        assert heard.result is Result.Ok


def test_an_answer_at_once():
    heard = Heard()
    error = ProducerQueueIsFull("full")
    answer_at_once(heard, error.result, error)
    assert heard.result is Result.ProducerQueueIsFull
    assert str(heard.message_id) == "(-1,-1,-1,-1)"


# --- errors


def test_each_raiser_has_a_copy_of_the_error():
    error = NotAllowedError("no")
    error.__cause__ = ValueError("why")
    error.extra = 5
    copied = fresh_copy(error)
    assert copied is not error
    assert type(copied) is NotAllowedError
    assert (str(copied), copied.message, copied.extra, copied.args) == (str(error), "no", 5, ("no",))
    assert copied.__cause__ is error.__cause__
    assert copied.__traceback__ is None


@pytest.mark.parametrize("error", [TypeError("content"), ValueError("x"), OSError(2, "gone"), MemoryError()])
def test_copies_of_builtin_errors(error):
    copied = fresh_copy(error)
    assert (type(copied), copied.args, str(copied)) == (type(error), error.args, str(error))


# --- waiting threads


def test_a_waiter_gets_the_id():
    with Rig() as rig:
        link = rig.connect()
        waiter = SendWaiter()
        rig.offer(waiter)
        rig.flush()
        got = []
        thread = threading.Thread(target=lambda: got.append(waiter.wait()))
        thread.start()
        link.feed(receipt(0, 3, 4))
        thread.join(10)
        assert [str(one) for one in got] == ["(3,4,-1,0)"]


def test_a_waiter_raises_its_error():
    with Rig(batching=False) as rig:
        rig.connect()
        waiter = SendWaiter()
        rig.offer(waiter)
        rig.flush()
        error = NotAllowedError("no")
        rig.registration.fail_slot(0, error)
        with pytest.raises(NotAllowedError, match="no") as caught:
            waiter.wait()
        assert caught.value is not error


def test_a_waiter_is_answered_when_nothing_is_accepted():
    with Rig() as rig:
        rig.accumulator.end(AlreadyClosed("closed"))
        waiter = SendWaiter()
        rig.offer(waiter)
        with pytest.raises(AlreadyClosed):
            waiter.wait()


def test_blocking_is_refused_on_a_loop_thread():
    refuse_to_block("anything")
    mark_loop_thread(threading.get_ident())
    try:
        with pytest.raises(RuntimeError, match=r"SendHandle\.result\(\).*loop thread"):
            SendHandle(lambda: None).result()
    finally:
        unmark_loop_thread(threading.get_ident())
    refuse_to_block("anything")


# --- asyncio


def run(scene, **options):
    """Play a scene on a loop, with a producer whose broker is the scene."""

    async def play():
        with Rig(batching=False, **options) as rig:
            await scene(rig, rig.connect())

    asyncio.run(play())


def send(rig):
    future = SendFuture(asyncio.get_running_loop())
    rig.offer(future)
    rig.flush()
    return future


def soon(function, *arguments):
    asyncio.get_running_loop().call_soon(function, *arguments)


def refuse(rig, sequence_id=0):
    rig.registration.fail_slot(sequence_id, NotAllowedError("no"))


def test_a_future_is_awaited():
    async def scene(rig, link):
        future = send(rig)
        assert isinstance(future, collections.abc.Coroutine)
        assert asyncio.isfuture(future)
        assert asyncio.iscoroutine(future)
        assert future.get_loop() is asyncio.get_running_loop()
        assert not future.done()
        soon(link.feed, receipt(0, 5, 6))
        assert str(await future) == "(5,6,-1,-1)"
        assert future.done()
        assert str(await future) == str(future.result()) == "(5,6,-1,-1)"
        assert future.exception() is None

    run(scene)


def test_a_future_that_fails():
    async def scene(rig, link):
        future = send(rig)
        soon(refuse, rig)
        errors = []
        for _ in range(2):
            with pytest.raises(NotAllowedError, match="no") as caught:
                await future
            errors.append(caught.value)
        assert errors[0] is not errors[1]
        assert isinstance(future.exception(), NotAllowedError)
        with pytest.raises(NotAllowedError):
            future.result()

    run(scene)


def test_a_future_before_its_answer():
    async def scene(rig, link):
        future = send(rig)
        with pytest.raises(asyncio.InvalidStateError):
            future.result()
        with pytest.raises(asyncio.InvalidStateError):
            future.exception()
        assert not future.cancelled()
        link.feed(receipt(0))

    run(scene)


def test_a_future_that_was_answered_before_it_is_awaited():
    async def scene(rig, link):
        future = send(rig)
        link.feed(receipt(0, 1, 2))
        assert (await future).entry_id() == 2

    run(scene)


def test_gather():
    async def scene(rig, link):
        futures = [send(rig) for _ in range(20)]
        soon(lambda: [link.feed(receipt(number, 1, number)) for number in range(20)])
        assert [one.entry_id() for one in await asyncio.gather(*futures)] == list(range(20))

    run(scene)


def test_gather_of_a_failure():
    async def scene(rig, link):
        futures = [send(rig) for _ in range(2)]
        soon(refuse, rig)
        soon(link.feed, receipt(1, 1, 1))
        first, second = await asyncio.gather(*futures, return_exceptions=True)
        assert isinstance(first, NotAllowedError)
        assert second.entry_id() == 1

    run(scene)


def test_gather_of_cancelled_ones():
    async def scene(rig, link):
        futures = [send(rig) for _ in range(3)]
        futures[0].cancel()
        futures[1].cancel("why")
        soon(link.feed, receipt(0, 1, 0), receipt(1, 1, 1), receipt(2, 1, 2))
        answers = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(answer) for answer in answers[:2]] == [asyncio.CancelledError] * 2
        assert answers[1].args == ("why",)
        assert answers[2].entry_id() == 2

    run(scene)


@pytest.mark.parametrize("early", [True, False])
def test_create_task(early):
    async def scene(rig, link):
        task = asyncio.get_running_loop().create_task(send(rig))
        if not early:
            await asyncio.sleep(0)
        soon(link.feed, receipt(0, 1, 2))
        assert (await task).entry_id() == 2
        failing = asyncio.create_task(send(rig))
        soon(refuse, rig, 1)
        with pytest.raises(NotAllowedError):
            await failing

    run(scene)


def test_as_completed():
    async def scene(rig, link):
        futures = [send(rig) for _ in range(3)]
        soon(link.feed, *[receipt(number, 1, number) for number in range(3)])
        assert sorted([(await one).entry_id() for one in asyncio.as_completed(futures)]) == [0, 1, 2]

    run(scene)


def test_wait_takes_tasks():
    """From Python 3.11 on it refuses everything that is a coroutine."""

    async def scene(rig, link):
        tasks = [asyncio.create_task(send(rig)) for _ in range(2)]
        soon(link.feed, receipt(0))
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert (done, waiting) == ({tasks[0]}, {tasks[1]})
        soon(link.feed, receipt(1))
        await asyncio.wait(waiting)

    run(scene)


def test_wait_for():
    async def scene(rig, link):
        soon(link.feed, receipt(0, 1, 2))
        assert (await asyncio.wait_for(send(rig), 10)).entry_id() == 2
        future = send(rig)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)
        assert future.cancelled()
        link.feed(receipt(1, 1, 3))  # late, and nobody minds
        assert future.cancelled()
        assert rig.queue.acknowledged == 2

    run(scene)


def test_run_until_complete():
    loop = asyncio.new_event_loop()
    try:
        with Rig(batching=False) as rig:
            link = rig.connect()
            future = SendFuture(loop)
            rig.offer(future)
            rig.flush()
            loop.call_soon(link.feed, receipt(0, 1, 2))
            assert loop.run_until_complete(future).entry_id() == 2
    finally:
        loop.close()


def test_shield():
    async def scene(rig, link):
        future = send(rig)

        async def wait():
            return await asyncio.shield(future)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not future.done()
        link.feed(receipt(0, 1, 2))
        assert (await future).entry_id() == 2

    run(scene)


@pytest.mark.parametrize("answered", [True, False])
def test_cancelling_a_task_cancels_the_waiting_only(answered):
    async def scene(rig, link):
        future = send(rig)

        async def wait():
            return await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel("enough")
        if answered:
            link.feed(receipt(0, 1, 2))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert future.cancelled()
        assert rig.accumulator.pending_messages == (0 if answered else 1)
        assert len(link.frames) == 1
        if not answered:
            refuse(rig)
        with pytest.raises(asyncio.CancelledError):
            future.result()
        with pytest.raises(asyncio.CancelledError):
            future.exception()
        with pytest.raises(asyncio.CancelledError):
            await future
        assert not future.cancel()

    run(scene)


def test_a_task_of_a_future_is_cancelled_before_it_started():
    async def scene(rig, link):
        future = send(rig)
        task = asyncio.create_task(future)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        link.feed(receipt(0))
        assert rig.queue.acknowledged == 1

    run(scene)


def test_cancel_carries_its_message():
    async def scene(rig, link):
        future = send(rig)
        assert future.cancel("why")
        with pytest.raises(asyncio.CancelledError, match="why"):
            await future

    run(scene)


def test_done_callbacks():
    async def scene(rig, link):
        variable = contextvars.ContextVar("variable", default="outside")
        context = contextvars.copy_context()
        context.run(variable.set, "inside")
        future, seen = send(rig), []

        def first(done):
            seen.append(("first", done is future, variable.get()))

        def second(done):
            seen.append(("second", done is future, variable.get()))

        future.add_done_callback(first)
        future.add_done_callback(second, context=context)
        future.add_done_callback(first)
        future.add_done_callback(print)
        assert future.remove_done_callback(print) == 1
        assert future.remove_done_callback(print) == 0
        link.feed(receipt(0))
        assert seen == []  # as of any future: by the loop, later
        await asyncio.sleep(0)
        assert seen == [("first", True, "outside"), ("second", True, "inside"), ("first", True, "outside")]
        future.add_done_callback(second)
        await asyncio.sleep(0)
        assert seen[3:] == [("second", True, "outside")]

    run(scene)


def test_many_tasks_await_one_future():
    async def scene(rig, link):
        future = send(rig)

        async def wait():
            return (await future).entry_id()

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        link.feed(receipt(0, 1, 2))
        assert await asyncio.gather(*tasks) == [2, 2, 2]

    run(scene)


def test_an_error_that_nobody_awaits_reaches_the_loop(loop_errors):
    async def scene(rig, link):
        future = send(rig)
        refuse(rig)
        del future
        gc.collect()
        [context] = loop_errors
        assert isinstance(context["exception"], NotAllowedError)
        assert "nobody awaited" in context["message"]
        loop_errors.clear()

    run(scene)


@pytest.mark.parametrize("look", ["await", "exception", "result", "cancel", "stored"])
def test_no_error_reaches_the_loop_otherwise(look):
    async def scene(rig, link):
        future = send(rig)
        if look == "cancel":
            future.cancel()
        if look == "stored":
            link.feed(receipt(0))
        else:
            refuse(rig)
        if look == "await":
            with pytest.raises(NotAllowedError):
                await future
        elif look == "exception":
            future.exception()
        elif look == "result":
            with pytest.raises(NotAllowedError):
                future.result()
        del future
        gc.collect()

    run(scene)


def test_futures_are_freed():
    async def scene(rig, link):
        future = send(rig)
        watched = weakref.ref(future)
        link.feed(receipt(0))
        await future
        del future
        assert watched() is None

    run(scene)


def test_a_future_of_what_is_not_accepted():
    async def scene(rig, link):
        send(rig).cancel()
        future = send(rig)
        with pytest.raises(ProducerQueueIsFull):
            await future

    run(scene, max_pending=1)


def test_a_future_that_expires():
    async def scene(rig, link):
        future = send(rig)
        rig.tick(30_000)
        rig.expire()
        with pytest.raises(Timeout, match="too late"):
            await future

    run(scene)


def test_closing_the_coroutine_does_nothing():
    async def scene(rig, link):
        future = send(rig)
        future.close()
        assert not future.done()
        link.feed(receipt(0, 1, 2))
        assert (await future).entry_id() == 2

    run(scene)


# --- many messages as one


def send_many(rig, payloads, loop=None, hurry=None):
    handle = SendHandle(hurry or rig.accumulator.mark, loop)
    wanted = Feed(rig.sender, payloads, handle, None, None, None, None, None, False).run()
    handle._end_input()
    assert wanted == 0
    return handle


def test_a_handle_of_stored_messages():
    with Rig(max_messages=4, partition=2) as rig:
        link = rig.connect()
        handle = send_many(rig, [b"x"] * 10)
        assert (handle.count, handle.is_done(), handle.first, handle.last) == (10, False, None, None)
        rig.flush()
        link.feed(receipt(0, 1, 10), receipt(4, 1, 11))
        assert not handle.is_done()
        assert str(handle.last) == "(1,11,2,3)"
        link.feed(receipt(8, 1, 12))
        assert handle.is_done()
        assert handle.result() == 10
        assert handle.errors == {}
        assert (str(handle.first), str(handle.last)) == ("(1,10,2,0)", "(1,12,2,1)")
        ids = dict(handle.message_ids())
        assert list(ids) == list(range(10))
        assert [ids[number].entry_id() for number in range(10)] == [10] * 4 + [11] * 4 + [12] * 2
        assert [ids[number].batch_index() for number in range(10)] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
        assert "10 messages" in repr(handle)


def test_a_handle_of_single_messages():
    with Rig(batching=False) as rig:
        link = rig.connect(persistent=False)
        handle = send_many(rig, [b"x"] * 3)
        rig.flush()
        link.feed(receipt(2, 1, 3), receipt(0, 1, 1))
        assert [(number, one.entry_id()) for number, one in handle.message_ids()] == [(0, 1), (2, 3)]
        assert (str(handle.first), str(handle.last)) == ("(1,1,-1,-1)", "(1,3,-1,-1)")
        link.feed(receipt(1, NOWHERE, NOWHERE))
        assert str(dict(handle.message_ids())[1]) == "(-1,-1,-1,-1)"


def test_a_handle_counts_its_own_messages_only():
    with Rig() as rig:
        link = rig.connect()
        heard = rig.send(b"before")
        first = send_many(rig, [b"x"] * 2)
        between = rig.send(b"between")
        second = send_many(rig, [b"y"] * 3)
        rig.flush()
        link.feed(receipt(0, 1, 1))
        assert [one.batch_index() for _, one in first.message_ids()] == [1, 2]
        assert [one.batch_index() for _, one in second.message_ids()] == [4, 5, 6]
        assert (heard.message_id.batch_index(), between.message_id.batch_index()) == (0, 3)


def test_the_id_of_a_duplicate_in_a_batch():
    with Rig() as rig:
        link = rig.connect()
        heard = rig.send()
        handle = send_many(rig, [b"x"] * 2)
        rig.flush()
        link.feed(receipt(0, NOWHERE, NOWHERE))
        ids = [heard.message_id, *(one for _, one in handle.message_ids()), handle.last]
        assert [str(one) for one in ids] == ["(-1,-1,-1,-1)"] * 4


def test_a_handle_of_failures():
    with Rig(max_messages=2) as rig:
        link = rig.connect()
        handle = send_many(rig, [b"0", "1", b"2", memoryview(b"3_3_")[::2], b"4", b"5" * (6 << 20)])
        rig.flush()
        assert [frame.contents for frame in link.frames] == [[b"0", b"2"], [b"4"]]
        rig.registration.fail_slot(2, NotAllowedError("no"))
        link.feed(receipt(0, 1, 1))
        kinds = {number: type(error).__name__ for number, error in handle.errors.items()}
        assert kinds == {1: "TypeError", 3: "ValueError", 4: "NotAllowedError", 5: "MessageTooBig"}
        assert list(handle.errors) == [1, 3, 4, 5]
        assert [number for number, _ in handle.message_ids()] == [0, 2]
        assert handle.count == 6
        with pytest.raises(TypeError, match="not str"):
            handle.result()


def test_part_of_a_handle_expires():
    with Rig(timeout_ms=100) as rig:
        link = rig.connect()
        handle = SendHandle(rig.accumulator.mark)

        def payloads():
            for _ in range(3):
                yield b"x"
                rig.tick(10)

        Feed(rig.sender, payloads(), handle, None, None, None, None, None, False).run()
        handle._end_input()
        rig.flush()
        rig.tick(80)
        rig.expire()
        assert list(handle.errors) == [0, 1]
        link.feed(receipt(0, 1, 1))
        assert [(number, one.batch_index()) for number, one in handle.message_ids()] == [(2, 2)]
        with pytest.raises(Timeout):
            handle.result()


def test_a_handle_of_nothing():
    with Rig() as rig:
        handle = send_many(rig, [])
        assert handle.result(0) == 0
        assert (handle.first, handle.last, list(handle.message_ids())) == (None, None, [])


def test_an_input_that_raises_keeps_what_was_accepted():
    with Rig() as rig:
        link = rig.connect()

        def payloads():
            yield b"x"
            raise KeyboardInterrupt("in the input")

        handle = SendHandle(rig.accumulator.mark)
        with pytest.raises(KeyboardInterrupt, match="in the input"):
            Feed(rig.sender, payloads(), handle, None, None, None, None, None, False).run()
        handle._end_input()
        rig.flush()
        link.feed(receipt(0))
        assert handle.result() == 1


def test_an_ended_producer_ends_the_feed():
    with Rig() as rig:
        link = rig.connect()

        def payloads():
            yield b"x"
            rig.accumulator.end(AlreadyClosed("closed"))
            yield b"y"

        handle = SendHandle(rig.accumulator.mark)
        with pytest.raises(AlreadyClosed):
            Feed(rig.sender, payloads(), handle, None, None, None, None, None, False).run()
        handle._end_input()
        rig.flush()
        link.feed(receipt(0))
        assert handle.result() == 1


def test_a_feed_waits_for_room_and_goes_on():
    with Rig(max_pending=2, batching=False) as rig:
        link = rig.connect()
        handle = SendHandle(rig.accumulator.mark)
        feed = Feed(
            rig.sender, [b"%d" % number for number in range(5)], handle, None, None, None, None, None, False
        )
        answered = 0
        while feed.run():
            rig.flush()
            link.feed(receipt(answered, 1, answered))
            answered += 1
        handle._end_input()
        rig.flush()
        link.feed(*[receipt(number, 1, number) for number in range(answered, 5)])
        assert [frame.payload for frame in link.frames] == [b"0", b"1", b"2", b"3", b"4"]
        assert handle.result() == 5


def test_a_result_hurries_and_times_out():
    with Rig() as rig:
        link = rig.connect()
        hurried = []
        handle = send_many(rig, [b"x"] * 3, hurry=lambda: hurried.append(rig.accumulator.mark()))
        with pytest.raises(TimeoutError, match="3 messages have no answer"):
            handle.result(0.01)
        assert hurried == [3]
        rig.write()
        link.feed(receipt(0))
        assert handle.result(0) == 3


def test_a_result_waits_for_another_thread():
    with Rig() as rig:
        link = rig.connect()
        sealed = threading.Event()

        def hurry():
            rig.accumulator.mark()
            sealed.set()

        handle = send_many(rig, [b"x"] * 3, hurry=hurry)
        got = []
        thread = threading.Thread(target=lambda: got.append(handle.result(10)))
        thread.start()
        assert sealed.wait(10)
        rig.write()
        link.feed(receipt(0))
        thread.join(10)
        assert got == [3]


def test_handles_are_awaited():
    async def scene(rig, link):
        loop = asyncio.get_running_loop()
        handle = send_many(rig, [b"x"] * 3, loop)
        rig.flush()
        soon(link.feed, *[receipt(number) for number in range(3)])

        async def wait():
            return await handle

        assert await asyncio.gather(wait(), wait()) == [3, 3]
        assert await handle == 3
        failing = send_many(rig, [b"x", "y"], loop)
        rig.flush()
        waiting = asyncio.create_task(asyncio.wait_for(failing, 10))
        soon(link.feed, receipt(3))
        with pytest.raises(TypeError, match="not str"):
            await waiting

    run(scene)


def test_a_cancelled_wait_leaves_the_handle():
    async def scene(rig, link):
        handle = send_many(rig, [b"x"], asyncio.get_running_loop())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(handle, 0.01)
        rig.flush()
        soon(link.feed, receipt(0))
        assert await handle == 1

    run(scene)


def test_a_handle_of_the_synchronous_api_is_not_awaited():
    async def scene(rig, link):
        handle = send_many(rig, [])
        with pytest.raises(TypeError, match="synchronous"):
            await handle

    run(scene)


def test_references_of_a_handle_come_back():
    with Rig() as rig:
        link = rig.connect()
        handle = SendHandle(rig.accumulator.mark)
        before = sys.getrefcount(handle)
        Feed(rig.sender, [b"x"] * 100, handle, None, None, None, None, None, False).run()
        handle._end_input()
        rig.flush()
        link.feed(receipt(0))
        assert sys.getrefcount(handle) == before
