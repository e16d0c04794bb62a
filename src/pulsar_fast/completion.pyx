"""Telling callers what became of their messages: exactly once, outside every lock, whatever the callee does."""

import asyncio
import collections.abc
import contextvars
import os
import threading

cdef object _NO_MESSAGE_ID = new_message_id(-1, -1, -1, -1, 0)


cdef void complete_runs(Run* runs, int count, Batch* batch, int first_message, const Answer* answer) noexcept:
    """Answer `count` runs and drop their references. `first_message` is the batch index of the first one."""
    # What the broker did not store (a duplicate, a drop) has no place in a batch either.
    cdef int batch_size = 0 if batch.alone or answer.entry_id == -1 else batch.count
    cdef int message = first_message
    cdef Run* run
    cdef PyObject* target
    for i in range(count):
        run = &runs[i]
        target = run.target
        if target is not NULL:
            if Py_TYPE(<object>target) is <PyTypeObject*>SendHandle:
                (<SendHandle>target).complete(run.index, run.count, message, batch_size, answer)
            else:
                _complete_singly(target, run.count, message, batch_size, answer)
            run.target = NULL
            Py_DECREF(<object>target)
        message += run.count


cdef void _complete_singly(
    PyObject* target, int count, int message, int batch_size, const Answer* answer
) noexcept:
    cdef MessageId message_id
    for i in range(count):
        if answer.error is NULL:
            message_id = new_message_id(
                answer.ledger_id, answer.entry_id, answer.partition, message + i if batch_size else -1, batch_size
            )
        else:
            message_id = _NO_MESSAGE_ID
        _tell(target, message_id, answer)


cdef inline void _tell(PyObject* target, MessageId message_id, const Answer* answer) noexcept:
    cdef PyObject* arguments[2]
    cdef PyObject* returned
    if Py_TYPE(<object>target) is <PyTypeObject*>SendWaiter:
        (<SendWaiter>target).complete(message_id, answer.error)
    elif Py_TYPE(<object>target) is <PyTypeObject*>SendFuture:
        (<SendFuture>target).complete(message_id, answer.error)
    else:
        arguments[0] = answer.result
        arguments[1] = <PyObject*>message_id
        returned = PyObject_Vectorcall(target, arguments, 2, NULL)
        if returned is NULL:
            PyErr_WriteUnraisable(target)
        else:
            Py_DECREF(<object>returned)


def answer_at_once(target not None, result, error not None):
    """Run a callback, or complete a future, for a message that was refused before it joined a batch."""
    cdef Answer answer
    answer.result = <PyObject*>result
    answer.error = <PyObject*>error
    answer.ledger_id = answer.entry_id = -1
    answer.partition = -1
    _complete_singly(<PyObject*>target, 1, 0, 0, &answer)


def fresh_copy(error):
    """The error for one more raiser: a shared instance would pile up tracebacks."""
    copied = type(error).__new__(type(error), *error.args)
    copied.__dict__.update(error.__dict__)
    copied.args = error.args
    copied.__cause__ = error.__cause__
    return copied


@cython.final
cdef class SendWaiter:
    def __cinit__(self):
        self.lock = threading.Lock()
        self.lock.acquire()

    cdef void complete(self, MessageId message_id, PyObject* error) noexcept:
        self.message_id = message_id
        self.error = <object>error if error is not NULL else None
        self.lock.release()

    def wait(self, timeout=None):
        """Block until the answer is there: the message id, or its error is raised. Signals interrupt it.

        None after `timeout` seconds without one: nobody hears of the message any more.
        """
        if not self.lock.acquire(timeout=-1 if timeout is None else timeout):
            return None
        if self.error is not None:
            raise fresh_copy(self.error)
        return self.message_id


@cython.final
cdef class SendFuture:
    """What `send` of the asyncio API returns.

    `await`, `create_task`, `gather`, `wait_for` and `shield` take it (`asyncio.wait` takes tasks only). The message
    is on its way whether or not somebody awaits; cancelling stops the waiting, and the sending only while it still
    waits for room.
    """

    def __cinit__(self, loop, Accumulator accumulator=None):
        self.loop = loop
        self.accumulator = accumulator
        self.state = WAITING
        self._asyncio_future_blocking = False

    cdef void complete(self, MessageId message_id, PyObject* error) noexcept:
        if self.state != WAITING:
            return
        if error is NULL:
            self.state = STORED
            self.message_id = message_id
        else:
            self.state = REFUSED
            self.error = <object>error
        self.schedule()

    cdef void schedule(self) noexcept:
        callbacks, self.callbacks = self.callbacks, None
        if callbacks:
            for callback, context in callbacks:
                self.loop.call_soon(callback, self, context=context)

    # --- as a future

    def get_loop(self):
        return self.loop

    def done(self):
        return self.state != WAITING

    def cancelled(self):
        return self.state == CANCELLED

    def cancel(self, msg=None):
        """Stop waiting for the answer. The message itself is withdrawn only if it still waits for room."""
        if self.state != WAITING:
            return False
        self.state = CANCELLED
        self._cancel_message = msg
        self.schedule()
        return True

    def result(self):
        if self.state == STORED:
            return self.message_id
        if self.state == CANCELLED:
            raise self._make_cancelled_error()
        if self.state == WAITING:
            raise asyncio.InvalidStateError("the message has not been answered yet")
        self.retrieved = True
        raise fresh_copy(self.error)

    def exception(self):
        if self.state == CANCELLED:
            raise self._make_cancelled_error()
        if self.state == WAITING:
            raise asyncio.InvalidStateError("the message has not been answered yet")
        self.retrieved = True
        return self.error

    def _make_cancelled_error(self):
        message = self._cancel_message
        return asyncio.CancelledError() if message is None else asyncio.CancelledError(message)

    def add_done_callback(self, callback, *, context=None):
        if context is None:
            context = contextvars.copy_context()
        if self.state != WAITING:
            self.loop.call_soon(callback, self, context=context)
        elif self.callbacks is None:
            self.callbacks = [(callback, context)]
        else:
            self.callbacks.append((callback, context))

    def remove_done_callback(self, callback):
        kept = [pair for pair in self.callbacks or () if pair[0] != callback]
        removed = len(self.callbacks or ()) - len(kept)
        self.callbacks = kept or None
        return removed

    # --- as a coroutine, so that create_task and gather take it

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        if self.state == WAITING:
            if self.accumulator is not None:
                self.accumulator.mark()  # somebody waits for it now: it need not wait for the batch delay
            self._asyncio_future_blocking = True
            return self
        raise StopIteration(self.result())

    def throw(self, kind, value=None, traceback=None):
        if self.state == WAITING:
            self.cancel()
        raise kind if value is None else value

    def close(self):
        pass

    def __del__(self):
        if self.state == REFUSED and not self.retrieved and self.loop is not None:
            self.loop.call_exception_handler({
                "message": "a message was refused and nobody awaited its send",
                "exception": self.error,
                "future": self,
            })


collections.abc.Coroutine.register(SendFuture)


@cython.final
cdef class SendHandle:
    """The messages of one `send_many` call, as one.

    `.result(timeout=None)` waits for all of them (timeout in seconds), raises the error with the lowest index if
    there is one and returns how many were stored; in asyncio, `await handle` does the same. `.count` is the number
    of elements taken from the input. Any thread may read it.
    """

    def __cinit__(self, hurry, loop=None):
        self.hurry = hurry
        self.forks = _forks
        self._errors = {}
        self.segments = []
        self.done = threading.Event()
        self.loop = loop
        self.waiters = []

    cdef void complete(
        self, int64_t index, int count, int first_message, int batch_size, const Answer* answer
    ) noexcept:
        if answer.error is NULL:
            self.segments.append((
                index, count, answer.ledger_id, answer.entry_id, answer.partition,
                first_message if batch_size else -1, batch_size,
            ))
        else:
            for i in range(count):
                self._errors[index + i] = <object>answer.error
        self.answered += count
        self.finish_if_ended()

    cdef int finish_if_ended(self) except -1:
        if self.input_ended and self.answered == self.count and not self.done.is_set():
            self.done.set()
            for waiter in self.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        return 0

    def _refuse(self, error):
        """The next element is not sent; called by the sending thread."""
        self._errors[self.count] = error
        self.count += 1
        self.answered += 1

    def _end_input(self):
        """No more elements will come; called by the sending thread."""
        self.input_ended = True
        if self.waiters:
            self.hurry()  # somebody waits for the last elements now: they need not wait for the batch delay
        self.finish_if_ended()

    def is_done(self):
        """Whether every message has been answered."""
        return self.done.is_set()

    @property
    def errors(self):
        """Errors of the messages that failed so far, by index."""
        return dict(sorted(self._errors.items()))

    @property
    def first(self):
        """Message id of the first stored message, None if there is none (yet)."""
        return next(iter(self.message_ids()), (None, None))[1]

    @property
    def last(self):
        """Message id of the stored message with the highest index, None if there is none (yet)."""
        if not self.segments:
            return None
        _, count, ledger, entry, partition, batch_index, batch_size = max(self.segments)
        return new_message_id(
            ledger, entry, partition, batch_index + count - 1 if batch_size else -1, batch_size
        )

    def message_ids(self):
        """Pairs (index, message id) of the messages stored so far, by index."""
        for index, count, ledger, entry, partition, batch_index, batch_size in sorted(self.segments):
            for i in range(count):
                yield index + i, new_message_id(
                    ledger, entry, partition, batch_index + i if batch_size else -1, batch_size
                )

    def _outcome(self):
        if self._errors:
            raise fresh_copy(self._errors[min(self._errors)])
        return self.count

    def result(self, timeout=None):
        """Wait until every message has been answered.

        `timeout` is in seconds, None waits as long as the send timeout lets messages live. Raises the error of the
        failed message with the lowest index, `TimeoutError` when `timeout` passes first, and `RuntimeError` on the
        loop's own thread, which would wait for itself.
        """
        if not self.done.is_set():
            if self.forks != _forks:
                raise RuntimeError(FORKED)
            refuse_to_block("SendHandle.result()")
            if self.loop is not None and asyncio._get_running_loop() is self.loop:
                raise RuntimeError("SendHandle.result() would wait for its own loop: use `await handle`")
            self.hurry()
            if not self.done.wait(timeout):
                raise TimeoutError(f"{self.count - self.answered} messages have no answer after {timeout} s")
        return self._outcome()

    def __await__(self):
        if self.loop is None:
            raise TypeError("this handle belongs to the synchronous API: use .result()")
        if not self.done.is_set():
            self.hurry()
            waiter = self.loop.create_future()
            self.waiters.append(waiter)
            yield from waiter
        return self._outcome()

    def __repr__(self):
        return f"<SendHandle of {self.count} messages, {self.answered} answered, {len(self._errors)} failed>"


cdef set _loop_threads = set()  # idents of the threads that run a client's loop

if hasattr(os, "register_at_fork"):
    # Those threads are not in the child, where new ones soon get their idents.
    os.register_at_fork(after_in_child=_loop_threads.clear)


def mark_loop_thread(ident):
    """Blocking calls on this thread raise from now on."""
    _loop_threads.add(ident)


def unmark_loop_thread(ident):
    _loop_threads.discard(ident)


def refuse_to_block(what):
    """Raise `RuntimeError` on a loop's own thread."""
    if threading.get_ident() in _loop_threads:
        raise RuntimeError(
            f"{what} was called on the client's own loop thread (in a callback?), where it would wait for itself"
        )
