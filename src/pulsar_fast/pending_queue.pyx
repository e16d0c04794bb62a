"""What was accepted and has not been answered: complete, resend, expire."""

cdef int64_t UNTIMED = (<int64_t>1 << 62)


cdef inline int32_t _expired_runs(Batch* batch, int64_t accepted_before, int64_t* messages) noexcept nogil:
    """How many unanswered runs at the head were accepted before that time, and how many messages they hold."""
    cdef int32_t run = batch.first_run
    messages[0] = 0
    while run < batch.run_count and batch.runs[run].accepted <= accepted_before:
        messages[0] += batch.runs[run].count
        run += 1
    return run - batch.first_run


cdef void _cut_entries(Batch* batch, int64_t messages) noexcept nogil:
    """Take the first entries out of a body that was never begun; others follow them."""
    cdef SingleMetadata entry
    for _ in range(messages):
        read_single(batch.bytes + batch.start, batch.end - batch.start, &entry)
        batch.start += entry.size
    read_single(batch.bytes + batch.start, batch.end - batch.start, &entry)
    batch.lowest_id = entry.sequence_id
    batch.count -= messages


@cython.final
cdef class PendingQueue:
    """The frames and framed-to-be batches of one producer, in order. Only the loop's thread uses it.

    `observer(count, error)` hears of failed messages that were sent without a callback.
    """

    def __cinit__(
        self, Accumulator accumulator not None, *, result_ok, observer, int32_t partition, int64_t timeout_ns
    ):
        self.accumulator = accumulator
        self.pool = accumulator.pool
        self.budget = accumulator.budget
        self.result_ok = result_ok
        self.observer = observer
        self.partition = partition
        self.timeout_ns = timeout_ns
        self.marks = []
        self.latency = LatencyHistogram()
        self.last_sequence_id = -1

    def absorb(self):
        """Take over what the accumulator has sealed."""
        cdef BatchList sealed
        cdef Batch* batch
        cdef Batch* following
        with cython.critical_section(self.accumulator):
            sealed = self.accumulator.sealed
            self.accumulator.sealed.first = self.accumulator.sealed.last = NULL
        batch = sealed.first
        while batch is not NULL:
            following = batch.next
            list_append(&self.batches, batch)
            self.pool.hold_for_pending(batch)
            if self.unsent is NULL:
                self.unsent = batch
            batch = following

    # --- answers

    cdef void remove(self, Batch* batch) noexcept:
        """Out of the queue; the caller still answers it and lets go of it."""
        if self.unsent is batch:
            self.unsent = batch.next
        list_remove(&self.batches, batch)

    cdef void release(self, size_t size, int64_t messages) noexcept:
        """Give permits and bytes back and let waiting senders go on."""
        cdef Accumulator accumulator = self.accumulator
        with cython.critical_section(accumulator):
            accumulator.pending_messages -= messages
            PF_CHECK(accumulator.pending_messages >= 0, "more permits are given back than were taken")
        if size:
            self.budget.give_back(size)
        if accumulator.waiters:
            accumulator.grant()
        if size and self.budget.waiting:
            self.budget.grant()

    cdef void finish(self, Batch* batch, const Answer* answer) noexcept:
        """Answer all that is left of a batch that was removed: permits back, then whoever asked.

        What hears of it may do anything, also end the producer: nothing of the batch is used after that.
        """
        cdef Run* runs = batch.runs
        cdef size_t run_capacity = batch.run_capacity
        cdef int first_run = batch.first_run
        cdef int run_count = batch.run_count - first_run
        cdef int first_message = batch.answered
        cdef int messages = batch.count - batch.answered
        cdef int64_t position = batch.position
        cdef int64_t started
        cdef int unheard = 0
        cdef Batch described = batch[0]
        batch.runs = NULL
        if answer.error is NULL:
            self.acknowledged += messages
            self.acknowledged_bytes += batch.charge
            self.last_sequence_id = max(self.last_sequence_id, batch.highest_id)
            self.latency.add(self.accumulator.clock.precise() - batch.opened, messages)
        else:
            self.failed += messages
            for run in range(first_run, first_run + run_count):
                unheard += 0 if runs[run].target is not NULL else runs[run].count
        self.release(self.pool.let_go_of_pending(batch), messages)
        started = self.accumulator.clock.now()
        complete_runs(runs + first_run, run_count, &described, first_message, answer)
        self.pool.give_back(<char*>runs, run_capacity)
        self.after_callbacks(started, unheard, position, answer)

    cdef void after_callbacks(self, int64_t started, int unheard, int64_t position, const Answer* answer) noexcept:
        cdef int64_t held_for = self.accumulator.clock.now() - started
        error = None if answer.error is NULL else <object>answer.error
        self.check_marks(position, error)
        if held_for > 100_000_000:
            self.observer.callbacks_held_loop(held_for / 1e9)
        if unheard:
            self.observer.nobody_heard(unheard, error)

    cdef void fail(self, Batch* batch, error) noexcept:
        """Answer a batch that was removed with an error."""
        cdef Answer answer
        self.set_failure(&answer, error)
        self.finish(batch, &answer)

    cdef void set_failure(self, Answer* answer, error) noexcept:
        answer.result = <PyObject*>error.result
        answer.error = <PyObject*>error
        answer.ledger_id = answer.entry_id = -1
        answer.partition = -1

    def fail_all(self, error not None):
        """Answer everything that was accepted with `error`; not what callbacks send meanwhile."""
        cdef BatchList doomed
        cdef Batch* batch
        PF_CHECK(self.registration is None, "frames in flight are failed while their slots point to them")
        self.accumulator.mark()
        self.absorb()
        doomed = self.batches
        self.batches.first = self.batches.last = self.unsent = NULL
        while doomed.first is not NULL:
            batch = doomed.first
            list_remove(&doomed, batch)
            self.fail(batch, error)

    # --- deadlines

    def next_deadline(self):
        """Monotonic ns of the earliest deadline in the queue, or None."""
        if self.timeout_ns == 0 or self.batches.first is NULL:
            return None
        return self.batches.first.runs[self.batches.first.first_run].accepted + self.timeout_ns

    def last_deadline(self):
        """Monotonic ns of the latest deadline in the queue, or None."""
        if self.timeout_ns == 0 or self.batches.last is NULL:
            return None
        return self.batches.last.runs[self.batches.last.run_count - 1].accepted + self.timeout_ns

    def expire(self, error not None):
        """Fail the messages whose deadline has passed: a prefix, since deadlines rise."""
        cdef int64_t before = self.accumulator.clock.now() - self.timeout_ns
        cdef int64_t messages = 0
        cdef Batch* batch
        cdef int32_t runs
        if self.timeout_ns == 0:
            return
        batch = self.batches.first
        while batch is not NULL:
            runs = _expired_runs(batch, before, &messages)
            if runs == 0:
                return
            if batch.first_run + runs == batch.run_count:
                self.expired += messages
                if self.registration is not None:
                    self.registration.forget(batch)
                self.remove(batch)
                self.fail(batch, error)
                batch = self.batches.first
            else:
                self.expire_prefix(batch, runs, messages, error)
                return

    cdef void expire_prefix(self, Batch* batch, int32_t count, int64_t messages, error) noexcept:
        """Fail the first runs of a batch: cut out if it was never begun, else its bytes stay as they are."""
        cdef size_t capacity = 0
        # Moved out first: what hears of it may end everything, this batch included.
        cdef Run* runs = <Run*>self.pool.take(count * sizeof(Run), &capacity)
        cdef Answer answer
        cdef int first_message = batch.answered
        cdef int64_t position = batch.position
        cdef int unheard = 0
        cdef int64_t started = self.accumulator.clock.now()
        cdef Batch described = batch[0]
        if runs is NULL:
            return  # the next turn tries again
        memcpy(runs, batch.runs + batch.first_run, count * sizeof(Run))
        batch.first_run += count
        batch.position += messages
        if batch.begun:
            batch.answered += messages
        else:
            self.pool.drop_frame(batch)
            _cut_entries(batch, messages)
        self.expired += messages
        self.failed += messages
        for run in range(count):
            unheard += 0 if runs[run].target is not NULL else runs[run].count
        self.set_failure(&answer, error)
        self.release(0, messages)
        complete_runs(runs, count, &described, first_message, &answer)
        self.pool.give_back(<char*>runs, capacity)
        self.after_callbacks(started, unheard, position, &answer)

    # --- flush

    cdef int64_t low_position(self) noexcept:
        """Everything in front of this position has been answered."""
        cdef Accumulator accumulator = self.accumulator
        if self.batches.first is not NULL:
            return self.batches.first.position
        if accumulator.sealed.first is not NULL:
            return accumulator.sealed.first.position
        if accumulator.open_batch is not NULL:
            return accumulator.open_batch.position
        return accumulator.position

    def when_complete(self, int64_t position, future not None):
        """Resolve `future` once every message in front of `position` is answered: None, or their first error."""
        self.marks.append([position, future, None])
        self.check_marks(0, None)

    cdef int check_marks(self, int64_t position, error) except -1:
        """`position` is that of a message that has just failed with `error` (None: of one stored)."""
        cdef int64_t low
        if not self.marks:
            return 0
        low = self.low_position()
        for mark in self.marks:
            if error is not None and mark[2] is None and position < mark[0]:
                mark[2] = error
        for mark in [mark for mark in self.marks if mark[0] <= low]:
            self.marks.remove(mark)
            if not mark[1].done():
                mark[1].set_result(mark[2])
        return 0

    # --- handoff

    def attach(self, Registration registration not None):
        """The one step of a handoff: everything pending goes to this registration, from the first batch on.

        What has begun is resent as it is, or fails when it exceeds the new limits; the rest is framed anew.
        """
        cdef BatchList refused
        cdef Batch* batch
        cdef Batch* following
        refused.first = refused.last = NULL
        self.accumulator.mark()
        self.absorb()
        batch = self.batches.first
        while batch is not NULL:
            following = batch.next
            if not batch.begun:
                self.pool.drop_frame(batch)
            elif message_size(batch) > registration.max_message_size:
                list_remove(&self.batches, batch)
                list_append(&refused, batch)
            else:
                self.resent += 1
            batch = following
        self.unsent = self.batches.first
        self.registration = registration
        while refused.first is not NULL:
            batch = refused.first
            list_remove(&refused, batch)
            self.fail(batch, registration.too_big(message_size(batch), registration.max_message_size))

    def detach(self):
        """No live registration: nothing of this queue is begun from now on."""
        if self.registration is not None:
            self.registration.end()
            self.registration = None
