# What became of some messages, as the loop tells it to whoever asked.
cdef struct Answer:
    PyObject* result       # borrowed: Result.Ok or the failure's
    PyObject* error        # borrowed exception; NULL: stored
    int64_t ledger_id
    int64_t entry_id
    int32_t partition

cdef void complete_runs(Run* runs, int count, Batch* batch, int first_message, const Answer* answer) noexcept


@cython.final
cdef class SendWaiter:
    """One synchronous send: a thread that waits for one answer."""
    cdef object lock         # held until the answer is there; released by the loop
    cdef object message_id   # set by the loop before it releases the lock
    cdef object error        # likewise

    cdef void complete(self, MessageId message_id, PyObject* error) noexcept


cdef enum FutureState:
    WAITING = 0
    STORED = 1
    REFUSED = 2
    CANCELLED = 3


@cython.final
cdef class SendFuture:
    """One message of the asyncio API: an awaitable that is a future and a coroutine in one."""
    # all of it belongs to the loop's thread
    cdef object __weakref__
    cdef object loop
    cdef Accumulator accumulator   # to seal its batch once it is awaited
    cdef object message_id
    cdef object error
    cdef readonly object _cancel_message  # the name that gather looks for
    cdef list callbacks      # pairs (callable, context)
    cdef FutureState state
    cdef bint retrieved      # somebody has seen the error
    cdef public bint _asyncio_future_blocking

    cdef void complete(self, MessageId message_id, PyObject* error) noexcept
    cdef void schedule(self) noexcept


@cython.final
cdef class SendHandle:
    """All messages of one `send_many` call."""
    cdef object __weakref__
    cdef readonly int64_t count   # accepted so far; the calling thread's until `close_input`
    cdef int64_t answered         # the loop's
    cdef bint input_ended         # no more messages will come; set by the calling thread
    cdef dict _errors             # by index; element errors by the calling thread, the rest by the loop
    cdef list segments            # (index, count, ledger, entry, partition, batch index, batch size); the loop's
    cdef object done              # threading.Event, set by whoever ends it
    cdef object loop              # asyncio: where futures below live; None in the synchronous API
    cdef list waiters             # asyncio futures of `await handle`; the loop thread's
    cdef unsigned long forks      # seen by the process that made it
    cdef object hurry             # called before waiting: seals what is open

    cdef void complete(
        self, int64_t index, int count, int first_message, int batch_size, const Answer* answer
    ) noexcept
    cdef int finish_if_ended(self) except -1
