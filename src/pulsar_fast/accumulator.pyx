"""Where messages wait to become frames: the open batch, the sealed ones, sequence ids and the two accounts.

The lock of an accumulator is the GIL, marked in the code by its critical sections (the module does not declare itself
fit for builds without one, where those would be real locks). Inside them nothing runs that could give it up: no Python
code, no allocation by Python, no decref that reaches zero.
"""

import os

from libc.stdint cimport INT32_MAX, INT64_MAX

cdef unsigned long _forks = 0  # in this process and its ancestors since import

cdef Fields PLAIN  # a message with a payload and nothing else
memset(&PLAIN, 0, sizeof(Fields))
PLAIN.sequence_id = -1

cdef enum:
    KEY_LIMIT = 1024        # bytes of keys up to which a message may join a batch, whose metadata repeats them
    SMALLEST_OPEN = 1024    # bytes
    MOST_SHRINKING = 16     # times the broker's limit that a message may have before it is compressed


def _count_fork():
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


def fork_count():
    """Forks between the import of this module and this process; objects remember it to notice a fork."""
    return _forks


cdef inline bint _continues_run(Batch* batch, PyObject* target, int64_t accepted, int64_t index) noexcept:
    """Whether one more message joins the last run; `index` is -1 where messages are not counted (no handle)."""
    cdef Run* run
    if batch.run_count == 0:
        return False
    run = batch.runs + batch.run_count - 1
    return run.target is target and run.accepted == accepted and (index < 0 or run.index + run.count == index)


@cython.final
cdef class Budget:
    """The memory limit of one client, in bytes; 0 means no limit."""

    def __cinit__(self, size_t limit):
        self.limit = limit
        self.waiting = []

    cdef inline bint has_room(self, size_t size) noexcept:
        return self.limit == 0 or self.used + size <= self.limit

    cdef void give_back(self, size_t size) noexcept:
        PF_CHECK(size <= self.used, "more bytes are given back than were taken")
        self.used -= size

    def grant(self):
        """Let senders of any producer go on that wait for bytes; called by the loop after bytes came back."""
        waiting, self.waiting = self.waiting, []
        for accumulator in waiting:
            (<Accumulator>accumulator).grant()


@cython.final
cdef class Waker:
    """Collects accumulators with news for the loop and wakes it through `fd`, or by `call()` where `fd` is -1."""

    def __cinit__(self, int fd, call=None):
        self.fd = fd
        self.call = call
        self.dirty = []

    cdef void notify(self, Accumulator accumulator) noexcept:
        self.dirty.append(accumulator)
        if not self.under_way:
            self.under_way = True
            if self.fd >= 0:
                pf_wake(self.fd)
            elif self.call is not None:
                self.call()

    def close(self):
        """Wake nobody any more: the descriptor is about to be closed, and its number may be used again."""
        self.fd = -1
        self.call = None

    def take(self):
        """Owners of the accumulators with news since the last call; the next news wakes the loop again."""
        dirty, self.dirty = self.dirty, []
        self.under_way = False
        for accumulator in dirty:
            (<Accumulator>accumulator).dirty = False
        return [(<Accumulator>accumulator).owner for accumulator in dirty]


@cython.final
cdef class RoomWaiter:
    """A place in the line for room: `wake()` is called once it has its turn, or when the producer has ended.

    `dated`: the deadline of the message counts from `wait_for_room`. With `marks` it reserves nothing.
    """

    def __cinit__(self, size_t size, wake, bint dated=True, bint marks=False):
        self.size = size
        self.wake = wake
        self.dated = dated
        self.marks = marks

    cdef void wake_up(self) noexcept:
        """Whatever `wake` raises keeps nobody else from being woken."""
        try:
            self.wake()
        except BaseException as error:
            PyErr_SetObject(type(error), error)
            PyErr_WriteUnraisable(<PyObject*>self)


@cython.final
cdef class Accumulator:
    """Accepts messages from any thread; everything else about it belongs to the loop."""

    def __cinit__(
        self, BufferPool pool not None, Budget budget not None, Waker waker not None, Clock clock not None, owner,
        *, int64_t max_pending, int32_t max_messages, size_t max_bytes, bint batching, bint by_key,
        bint compresses=False,
    ):
        self.pool = pool
        self.budget = budget
        self.waker = waker
        self.clock = clock
        self.owner = owner
        self.max_pending = max_pending
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.batching = batching
        self.by_key = by_key
        self.compresses = compresses
        self.forks = _forks
        self.last_sequence_id = -1
        self.expected_size = SMALLEST_OPEN
        self.waiters = []
        self.set_limits(5 << 20, 0)

    def __dealloc__(self):
        if self.pool is not None:
            PF_CHECK(
                self.open_batch is NULL and self.sealed.first is NULL, "an accumulator is dropped with messages in it"
            )

    def set_limits(self, size_t max_message_size, size_t producer_name_size):
        """Take over what the broker allows, at a handoff."""
        # name, ids, counts and a batch's copy of its keys, each with tag and length
        cdef size_t reserve = 96 + producer_name_size + KEY_LIMIT
        with cython.critical_section(self):
            self.max_message_size = max_message_size
            self.alone_limit = max_message_size
            if self.compresses:
                self.alone_limit = min(max_message_size * MOST_SHRINKING, <size_t>INT32_MAX)
            self.name_field_size = bytes_field_size(1, producer_name_size)
            self.batch_limit = min(self.max_bytes, max_message_size - min(reserve, max_message_size))

    def start_after(self, int64_t sequence_id):
        """Automatic sequence ids rise from the one after this."""
        with cython.critical_section(self):
            self.last_sequence_id = max(self.last_sequence_id, sequence_id)

    # --- accepting

    cdef inline size_t entry_size(self, const Fields* fields, size_t size, int64_t sequence_id) noexcept:
        if fields.alone:
            return fields.head_size + fields.tail_size + size
        return 4 + single_metadata_size(fields, size, sequence_id) + size

    cdef inline Verdict check_room(self, size_t size) noexcept:
        if self.max_pending and self.pending_messages >= self.max_pending:
            return QUEUE_FULL
        if not self.budget.has_room(size):
            return MEMORY_FULL
        return ACCEPTED

    cdef inline Verdict admit(self, size_t size, RoomWaiter reserved) noexcept:
        """Whether a message may go in now: it has a reservation, or there is room and nobody waits before it."""
        cdef Verdict verdict
        if reserved is not None:
            return ACCEPTED if size <= reserved.size else MEMORY_FULL
        verdict = self.check_room(size)
        if verdict == ACCEPTED and self.budget.waiting:
            return MEMORY_FULL
        if verdict == ACCEPTED and self.waiters:
            return QUEUE_FULL
        return verdict

    cdef Verdict append(
        self, const char* payload, size_t size, const Fields* fields, PyObject* target, int64_t index,
        RoomWaiter reserved
    ) noexcept:
        """Accept one message: permits, sequence id and bytes in one step, or nothing at all.

        `target` hears of it (a reference is taken); `reserved` is a granted RoomWaiter or None.
        """
        cdef Verdict verdict
        if reserved is not None and not reserved.granted:
            reserved = None
        with cython.critical_section(self):
            if self.refusal is not None:
                verdict = ENDED
            elif fields.alone:
                verdict = self.append_alone(payload, size, fields, target, index, reserved)
            else:
                verdict = self.append_to_batch(payload, size, fields, target, index, reserved)
            if (
                verdict == QUEUE_FULL or verdict == MEMORY_FULL
                or reserved is not None and self.waiters and self.check_room(1) != ACCEPTED
            ):
                self.turn += 1
                self.seal_open()  # or everybody who waits for room waits for the delay of the open batch
        if not self.dirty and (self.sealed.first is not NULL or not self.timer_armed):
            self.tell_loop()
        return verdict

    cdef Verdict append_to_batch(
        self, const char* payload, size_t size, const Fields* fields, PyObject* target, int64_t index,
        RoomWaiter reserved
    ) noexcept:
        cdef int64_t sequence_id = self.next_sequence_id(fields)
        cdef size_t entry = self.entry_size(fields, size, sequence_id)
        cdef int64_t accepted
        cdef Batch* batch
        cdef Verdict verdict
        if sequence_id < 0:
            return IDS_EXHAUSTED
        if (
            not self.batching or entry > self.batch_limit or sequence_id <= self.last_sequence_id
            or fields.keys_size > KEY_LIMIT
        ):
            return MUST_GO_ALONE
        verdict = self.admit(entry, reserved)
        if verdict != ACCEPTED:
            return verdict
        accepted = self.time_of_acceptance(reserved)
        if self.open_batch is not NULL and not self.fits_open_batch(fields, entry):
            self.seal_open()
        if self.open_batch is NULL and not self.start_batch(fields, entry):
            return OUT_OF_MEMORY
        batch = self.open_batch
        if not self.has_space(batch, entry) or not self.has_run(batch, target, accepted, index):
            self.drop_if_empty()
            return OUT_OF_MEMORY
        self.put_entry(batch, payload, size, fields, sequence_id)
        batch.runs[batch.run_count - 1].count += 1
        self.count_message(batch, sequence_id, entry, reserved)
        if batch.count >= self.max_messages or batch.end >= self.batch_limit:
            self.seal_open()
        return ACCEPTED

    cdef int64_t next_sequence_id(self, const Fields* fields) noexcept:
        """The given id, or the one after the last; -1 when there is none left."""
        if fields.sequence_id >= 0:
            return fields.sequence_id
        return self.last_sequence_id + 1 if self.last_sequence_id < INT64_MAX else -1

    cdef int64_t time_of_acceptance(self, RoomWaiter reserved) noexcept:
        """Now, or when the call was made that has waited for room; never before the message in front."""
        cdef int64_t time = self.clock.now()
        if reserved is not None and reserved.dated:
            time = max(reserved.called, self.last_accepted)
        self.last_accepted = time
        return time

    cdef inline bint fits_open_batch(self, const Fields* fields, size_t entry) noexcept:
        cdef Batch* batch = self.open_batch
        if batch.end + entry > self.batch_limit:
            return False
        if not self.by_key or not (batch.has_key or fields.has_key):
            return True
        return (
            batch.has_key == fields.has_key and batch.key_size == fields.key_size
            and memcmp(batch.bytes, fields.key, fields.key_size) == 0
        )

    cdef bint has_space(self, Batch* batch, size_t entry) noexcept:
        return batch.end + entry <= batch.capacity or self.pool.grow(batch, entry)

    cdef bint has_run(self, Batch* batch, PyObject* target, int64_t accepted, int64_t index) noexcept:
        return _continues_run(batch, target, accepted, index) or self.pool.add_run(batch, target, accepted, index)

    cdef void drop_if_empty(self) noexcept:
        if self.open_batch.count == 0:
            self.pool.discard(self.open_batch)
            self.open_batch = NULL

    cdef bint start_batch(self, const Fields* fields, size_t entry) noexcept:
        cdef size_t room = max(self.expected_size, entry)
        cdef Batch* batch
        if self.by_key and fields.has_key:
            room += fields.key_size
        batch = self.pool.new_batch(room)
        if batch is NULL:
            return False
        if self.by_key and fields.has_key:
            # The key stands in front of the body, since the batch is compared with it at each append.
            memcpy(batch.bytes, fields.key, fields.key_size)
            batch.has_key = True
            batch.key_size = batch.start = batch.end = fields.key_size
        batch.opened = self.clock.precise()
        batch.publish_time_ms = self.clock.wall()
        batch.position = self.position
        self.open_batch = batch
        return True

    cdef inline void put_entry(
        self, Batch* batch, const char* payload, size_t size, const Fields* fields, int64_t sequence_id
    ) noexcept:
        cdef char* at = batch.bytes + batch.end
        cdef char* after = put_copy(
            put_single_metadata(at + 4, fields, size, sequence_id), payload, size
        )
        put_u32(at, <uint32_t>(after - at - 4 - size))
        batch.end = after - batch.bytes

    cdef Verdict append_alone(
        self, const char* payload, size_t size, const Fields* fields, PyObject* target, int64_t index,
        RoomWaiter reserved
    ) noexcept:
        """A batch of one on the same list, behind everything that was accepted before it."""
        cdef int64_t sequence_id = self.next_sequence_id(fields)
        cdef size_t entry = self.entry_size(fields, size, sequence_id)
        cdef Batch* batch
        cdef Verdict verdict
        cdef char* at
        cdef int64_t publish_time_ms = self.clock.wall()
        if (
            entry + self.name_field_size
            + varint_field_size(2, sequence_id) + varint_field_size(3, publish_time_ms)
            > self.alone_limit
        ):
            return TOO_BIG
        if sequence_id < 0:
            return IDS_EXHAUSTED
        verdict = self.admit(entry, reserved)
        if verdict != ACCEPTED:
            return verdict
        batch = self.pool.new_batch(max(entry, <size_t>1))
        if batch is NULL:
            return OUT_OF_MEMORY
        if not self.pool.add_run(batch, target, self.time_of_acceptance(reserved), index):
            self.pool.discard(batch)
            return OUT_OF_MEMORY
        batch.opened = self.clock.precise()
        batch.runs[0].count = 1
        batch.alone = True
        batch.alone_head = fields.head_size
        batch.alone_tail = fields.tail_size
        batch.start = fields.head_size + fields.tail_size
        batch.publish_time_ms = publish_time_ms
        batch.position = self.position
        at = put_copy(batch.bytes, fields.head, fields.head_size)
        at = put_copy(at, fields.tail, fields.tail_size)
        at = put_copy(at, payload, size)
        batch.end = at - batch.bytes
        self.seal_open()
        self.count_message(batch, sequence_id, entry, reserved)
        list_append(&self.sealed, batch)
        self.turn += 1
        return ACCEPTED

    cdef inline void count_message(
        self, Batch* batch, int64_t sequence_id, size_t entry, RoomWaiter reserved
    ) noexcept:
        """Both accounts, the sequence id and the position: what makes a message accepted."""
        if reserved is None:
            self.pending_messages += 1
            self.budget.used += entry
        else:
            self.budget.used -= reserved.size - entry
            reserved.granted = False
        if batch.count == 0:
            batch.lowest_id = sequence_id
        batch.highest_id = sequence_id
        batch.count += 1
        batch.charge += entry
        self.last_sequence_id = max(self.last_sequence_id, sequence_id)
        self.position += 1

    cdef void seal_open(self) noexcept:
        cdef Batch* batch = self.open_batch
        if batch is NULL:
            return
        self.open_batch = NULL
        self.expected_size = max(batch.end, <size_t>SMALLEST_OPEN)
        self.pool.fit(batch)
        list_append(&self.sealed, batch)
        self.turn += 1

    cdef void tell_loop(self) noexcept:
        """There is something to write, or an open batch to time."""
        if self.open_batch is not NULL or self.sealed.first is not NULL:
            self.dirty = True
            self.waker.notify(self)

    # --- the command way

    def mark(self):
        """Seal what is open; the position behind everything accepted so far. Any thread."""
        cdef int64_t position
        with cython.critical_section(self):
            self.seal_open()
            position = self.position
        if not self.dirty:
            self.tell_loop()
        return position

    def end(self, refusal not None):
        """Accept nothing more; senders that wait for room wake up. The first refusal stays. Any thread."""
        with cython.critical_section(self):
            if self.refusal is None:
                self.refusal = refusal
        while self.waiters:
            (<RoomWaiter>self.waiters.pop(0)).wake_up()
        self.budget.grant()  # it waits for bytes no longer: others need not stand behind it

    def refuse_with(self, refusal not None):
        """Change why nothing is accepted (closing became failed)."""
        self.refusal = refusal

    # --- waiting for room

    def wait_for_room(self, RoomWaiter waiter not None, bint in_front=False):
        """Queue up behind earlier waiters, or in front of them; it may have its turn at once. Any thread.

        Raises `MemoryError` when the message could never fit within the memory limit.
        """
        if self.budget.limit and waiter.size > self.budget.limit:
            raise MemoryError(f"{waiter.size} bytes never fit within memory_limit_bytes={self.budget.limit}")
        waiter.called = self.clock.now()
        if self.refusal is not None:
            waiter.wake_up()
        elif in_front:
            self.waiters.insert(0, waiter)
        else:
            self.waiters.append(waiter)
        self.grant()

    def waiting(self):
        """How many senders wait for room."""
        return len(self.waiters)

    def stop_waiting(self, RoomWaiter waiter not None):
        """Leave the queue, or give the reservation back. Any thread."""
        with cython.critical_section(self):
            if waiter.granted:
                waiter.granted = False
                self.pending_messages -= 1
                self.budget.give_back(waiter.size)
        if waiter in self.waiters:
            self.waiters.remove(waiter)
        self.grant()
        self.budget.grant()

    cdef void grant(self) noexcept:
        """Give waiters their turn, in order of arrival, as far as there is room."""
        if self.granting:
            return
        self.granting = True
        while self.grant_next():
            pass
        self.granting = False

    cdef bint grant_next(self) noexcept:
        cdef RoomWaiter waiter
        if not self.waiters:
            return False
        waiter = <RoomWaiter>self.waiters[0]
        if not waiter.marks:
            if not self.budget.has_room(waiter.size) and self not in self.budget.waiting:
                self.budget.waiting.append(self)
            if self.check_room(waiter.size) != ACCEPTED:
                return False
            self.pending_messages += 1
            self.budget.used += waiter.size
            waiter.granted = True
        self.waiters.pop(0)
        waiter.wake_up()
        return True

    # --- the loop's side

    def seal_if_due(self, int64_t delay_ns, int64_t timeout_ns):
        """Seal the open batch when it is older than `delay_ns`; ns until it will be, or -1 when none is open.

        It must leave well before its messages expire (0: never), and what has waited for room is older than it.
        """
        cdef int64_t left = -1
        with cython.critical_section(self):
            if self.open_batch is not NULL:
                left = self.open_batch.opened + delay_ns - self.clock.precise()
                if timeout_ns:
                    left = min(left, self.open_batch.runs[0].accepted + timeout_ns // 2 - self.clock.now())
                if left <= 0:
                    self.seal_open()
                    left = -1
        return left
