"""Batches, the memory they live in, and who holds it."""


cdef void list_append(BatchList* self, Batch* batch) noexcept nogil:
    batch.next = NULL
    batch.previous = self.last
    if self.last is NULL:
        self.first = batch
    else:
        self.last.next = batch
    self.last = batch


cdef void list_remove(BatchList* self, Batch* batch) noexcept nogil:
    if batch.previous is NULL:
        self.first = batch.next
    else:
        batch.previous.next = batch.next
    if batch.next is NULL:
        self.last = batch.previous
    else:
        batch.next.previous = batch.previous
    batch.next = batch.previous = NULL


cdef inline int class_of(size_t size) noexcept nogil:
    """Power of two that holds `size` bytes."""
    cdef int power = SMALLEST_CLASS
    while (<size_t>1 << power) < size:
        power += 1
    return power


# Free memory of one size, linked through its first bytes; nobody may touch it but these two.

cdef inline void free_list_push(void** first, void* memory, size_t size) noexcept nogil:
    (<void**>memory)[0] = first[0]
    first[0] = memory
    pf_poison(memory, size)


cdef inline void* free_list_pop(void** first, size_t size) noexcept nogil:
    """NULL when there is none."""
    cdef void* memory = first[0]
    if memory is not NULL:
        pf_unpoison(memory, size)
        first[0] = (<void**>memory)[0]
    return memory


@cython.final
cdef class BufferPool:
    """Memory for the batches of one client, shared by its producers.

    Buffers come in powers of two and are kept for reuse up to `keep_at_most` bytes; larger ones than 256 KB go
    back to the system at once. Any thread may use it while it holds the GIL. Running out of memory is told by what
    is returned (NULL, False), since a `try` costs time in each append.
    """

    def __cinit__(self, size_t keep_at_most=16 << 20):
        self.keep_at_most = keep_at_most

    def __dealloc__(self):
        cdef int power
        for power in range(SMALLEST_CLASS, LARGEST_CLASS + 1):
            while self.free_buffers[power] is not NULL:
                free(free_list_pop(&self.free_buffers[power], <size_t>1 << power))
        while self.free_batches is not NULL:
            free(free_list_pop(&self.free_batches, sizeof(Batch)))

    cdef char* take(self, size_t size, size_t* capacity) noexcept:
        """A buffer of at least `size` bytes, or NULL."""
        cdef int power
        cdef char* buffer
        if size > <size_t>1 << LARGEST_CLASS:
            capacity[0] = size
            buffer = <char*>malloc(size)
        else:
            power = class_of(size)
            capacity[0] = <size_t>1 << power
            buffer = <char*>free_list_pop(&self.free_buffers[power], capacity[0])
            if buffer is not NULL:
                self.kept -= capacity[0]
            else:
                buffer = <char*>malloc(capacity[0])
        if buffer is not NULL:
            self.live_bytes += capacity[0]
        return buffer

    cdef void give_back(self, char* buffer, size_t capacity) noexcept:
        self.live_bytes -= capacity
        if capacity > <size_t>1 << LARGEST_CLASS or self.kept + capacity > self.keep_at_most:
            pf_poison(buffer, capacity)
            free(buffer)
            return
        free_list_push(&self.free_buffers[class_of(capacity)], buffer, capacity)
        self.kept += capacity

    cdef Batch* new_batch(self, size_t size) noexcept:
        """An empty batch with room for `size` bytes, or NULL."""
        cdef size_t capacity = 0
        cdef char* buffer = self.take(size, &capacity)
        cdef Batch* batch
        if buffer is NULL:
            return NULL
        batch = <Batch*>free_list_pop(&self.free_batches, sizeof(Batch))
        if batch is not NULL:
            self.free_batch_count -= 1
        else:
            batch = <Batch*>malloc(sizeof(Batch))
            if batch is NULL:
                self.give_back(buffer, capacity)
                return NULL
        memset(batch, 0, sizeof(Batch))
        batch.bytes = buffer
        batch.capacity = capacity
        self.live_batches += 1
        return batch

    cdef bint grow(self, Batch* batch, size_t size) noexcept:
        """Make room for `size` more bytes, and as much as there was again; False when there is no memory."""
        cdef size_t capacity = 0
        cdef char* larger = self.take(max(batch.end + size, 2 * batch.capacity), &capacity)
        if larger is NULL:
            return False
        memcpy(larger, batch.bytes, batch.end)
        self.give_back(batch.bytes, batch.capacity)
        batch.bytes = larger
        batch.capacity = capacity
        return True

    cdef void fit(self, Batch* batch) noexcept:
        """Move a sealed batch that fills less than a quarter of its buffer to a smaller one."""
        cdef size_t capacity = 0
        cdef char* smaller
        if batch.end * 4 >= batch.capacity or class_of(batch.end) == class_of(batch.capacity):
            return
        smaller = self.take(batch.end, &capacity)
        if smaller is NULL:
            return
        memcpy(smaller, batch.bytes, batch.end)
        self.give_back(batch.bytes, batch.capacity)
        batch.bytes = smaller
        batch.capacity = capacity

    cdef bint add_run(self, Batch* batch, PyObject* target, int64_t accepted, int64_t index) noexcept:
        """Start a run without messages, with its own reference to `target`; False when there is no memory."""
        cdef size_t used = batch.run_count * sizeof(Run)
        cdef size_t capacity = 0
        cdef Run* runs
        cdef Run* run
        if used + sizeof(Run) > batch.run_capacity:
            runs = <Run*>self.take(max(2 * used, sizeof(Run)), &capacity)
            if runs is NULL:
                return False
            if batch.runs is not NULL:
                memcpy(runs, batch.runs, used)
                self.give_back(<char*>batch.runs, batch.run_capacity)
            batch.runs = runs
            batch.run_capacity = capacity
        run = batch.runs + batch.run_count
        run.target = target
        run.accepted = accepted
        run.index = index
        run.count = 0
        Py_XINCREF(target)
        batch.run_count += 1
        return True

    cdef void drop_frame(self, Batch* batch) noexcept:
        """Forget the frame of which no byte was ever written, or why there is none."""
        if batch.header is not NULL:
            self.give_back(batch.header, _header_capacity(batch))
            batch.header = NULL
        if batch.compressed is not NULL:
            Py_DECREF(<object>batch.compressed)
            batch.compressed = NULL
        if batch.refusal is not NULL:
            Py_DECREF(<object>batch.refusal)
            batch.refusal = NULL

    cdef void drop_original(self, Batch* batch) noexcept:
        """What is sent compressed is needed in no other form once it has begun."""
        self.give_back(batch.bytes, batch.capacity)
        batch.bytes = NULL

    cdef void hold_for_pending(self, Batch* batch) noexcept:
        PF_CHECK(not batch.pending_hold, "the pending queue takes a batch twice")
        batch.pending_hold = True
        self.pending_holds += 1

    cdef void hold_for_write(self, Batch* batch) noexcept:
        batch.write_holds += 1
        self.write_holds += 1

    cdef size_t let_go_of_pending(self, Batch* batch) noexcept:
        PF_CHECK(batch.pending_hold, "the pending queue lets go of a batch that it does not hold")
        batch.pending_hold = False
        self.pending_holds -= 1
        return self.free_if_unheld(batch)

    cdef size_t let_go_of_write(self, Batch* batch) noexcept:
        PF_CHECK(batch.write_holds > 0, "a write lets go of a batch that it does not hold")
        batch.write_holds -= 1
        self.write_holds -= 1
        return self.free_if_unheld(batch)

    cdef size_t free_if_unheld(self, Batch* batch) noexcept:
        """Free what nobody holds; returns the bytes to give back to the budget (0 while it is held)."""
        cdef size_t charge = batch.charge
        if batch.pending_hold or batch.write_holds:
            return 0
        self.discard(batch)
        return charge

    cdef void discard(self, Batch* batch) noexcept:
        """Free the memory of a batch. Its runs must have been completed or never made."""
        self.drop_frame(batch)
        if batch.runs is not NULL:
            self.give_back(<char*>batch.runs, batch.run_capacity)
        if batch.bytes is not NULL:
            self.give_back(batch.bytes, batch.capacity)
        self.live_batches -= 1
        if self.free_batch_count >= KEPT_BATCHES:
            pf_poison(batch, sizeof(Batch))
            free(batch)
            return
        free_list_push(&self.free_batches, batch, sizeof(Batch))
        self.free_batch_count += 1


cdef inline size_t _header_capacity(Batch* batch) noexcept nogil:
    """`take` rounds up to a class, but for what is too large to keep."""
    if batch.header_size > <size_t>1 << LARGEST_CLASS:
        return batch.header_size
    return <size_t>1 << class_of(batch.header_size)
