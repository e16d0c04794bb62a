"""From arguments to encoded messages: all checks come before anything is taken."""

from base64 import b64encode
from copy import copy
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from datetime import timedelta

cdef enum:
    RESERVE_EXTRA = 64     # bytes that a reservation holds beyond payload and fields (sizes, ids)
    MESSAGES_PER_TURN = 65536   # of `send_many`, after which other threads get a chance


# --- arguments

cdef const char* _utf8(str name, value, Py_ssize_t* size) except NULL:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be str, not {type(value).__name__}")
    try:
        return PyUnicode_AsUTF8AndSize(value, size)
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be encoded as UTF-8: {error.reason}") from None


cdef object _TOO_LARGE = 2 ** 63


cdef int64_t _not_negative(str name, value) except -1:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not 0 <= value < _TOO_LARGE:
        raise ValueError(f"{name} must be from 0 to 2**63 - 1, not {value}")
    return value


cdef int64_t _delivery_time(deliver_at, deliver_after, Clock clock) except -2:
    """Wall time in ms at which a consumer may see the message, -1 for at once."""
    if deliver_after is None:
        return -1 if deliver_at is None else _not_negative("deliver_at", deliver_at)
    if deliver_at is not None:
        raise ValueError("give deliver_at or deliver_after, not both")
    if not isinstance(deliver_after, timedelta):
        raise TypeError(f"deliver_after must be a datetime.timedelta, not {type(deliver_after).__name__}")
    if deliver_after < timedelta(0):
        raise ValueError(f"deliver_after must not be negative, not {deliver_after}")
    return clock.wall() + deliver_after // timedelta(milliseconds=1)


cdef int _put_properties(Scratch* scratch, uint32_t number, properties) except -1:
    cdef Py_ssize_t key_size = 0, value_size = 0
    cdef const char* key
    cdef const char* value
    if not isinstance(properties, dict):
        raise TypeError(f"properties must be a dict of str to str, not {type(properties).__name__}")
    for name, text in (<dict>properties).items():
        key = _utf8("a key in properties", name, &key_size)
        value = _utf8("a value in properties", text, &value_size)
        scratch_pair_field(scratch, number, key, key_size, value, value_size)
    return 0


cdef int _put_clusters(Scratch* scratch, replication_clusters, bint disable_replication) except -1:
    cdef Py_ssize_t size = 0
    cdef const char* name
    if disable_replication:
        scratch_bytes_field(scratch, 7, b"__local__", 9)
        return 0
    for cluster in replication_clusters:
        name = _utf8("an element of replication_clusters", cluster, &size)
        scratch_bytes_field(scratch, 7, name, size)
    return 0


cdef int _check_replication(replication_clusters, disable_replication) except -1:
    cdef Py_ssize_t size = 0
    if not isinstance(disable_replication, (bool, type(None))):
        raise TypeError(f"disable_replication must be a bool, not {type(disable_replication).__name__}")
    if replication_clusters is None:
        return 0
    if not isinstance(replication_clusters, (list, tuple)):
        raise TypeError(
            f"replication_clusters must be a list of str, not {type(replication_clusters).__name__}"
        )
    for cluster in replication_clusters:
        _utf8("an element of replication_clusters", cluster, &size)
    return 0


@cython.final
cdef class BinaryKey:
    """A partition key of bytes."""

    def __cinit__(self, bytes key not None):
        self.text = b64encode(key).decode()


cdef int _encode(
    Scratch* scratch, Fields* fields, bint alone, bint null_value, properties, partition_key, ordering_key,
    replication_clusters, bint disable_replication, int64_t event_time, int64_t deliver_at
) except -1:
    """Write the fields of one message in ascending order, as they stand in a batch or alone."""
    cdef Py_ssize_t partition_size = 0, ordering_size = 0
    cdef const char* partition = NULL
    cdef const char* ordering = NULL
    cdef bint is_base64 = type(partition_key) is BinaryKey
    scratch.size = 0
    if properties is not None:
        _put_properties(scratch, 4 if alone else 1, properties)
    if is_base64:
        partition_key = (<BinaryKey>partition_key).text
    if partition_key is not None:
        partition = _utf8("partition_key", partition_key, &partition_size)
        scratch_bytes_field(scratch, 6 if alone else 2, partition, partition_size)
    if ordering_key is not None:
        ordering = _utf8("ordering_key", ordering_key, &ordering_size)
    if alone and (replication_clusters or disable_replication):
        _put_clusters(scratch, replication_clusters, disable_replication)
    fields.head_size = scratch.size
    if event_time >= 0:
        scratch_varint_field(scratch, 12 if alone else 5, event_time)
    if is_base64:
        scratch_varint_field(scratch, 17 if alone else 6, 1)
    if ordering is not NULL:
        scratch_bytes_field(scratch, 18 if alone else 7, ordering, ordering_size)
    if alone and deliver_at >= 0:
        scratch_varint_field(scratch, 19, deliver_at)
    if alone and null_value:
        scratch_varint_field(scratch, 25, 1)
    fields.head = scratch.bytes
    fields.tail = scratch.bytes + fields.head_size
    fields.tail_size = scratch.size - fields.head_size
    fields.has_key = partition is not NULL or ordering is not NULL
    fields.key = ordering if ordering is not NULL else partition
    fields.key_size = ordering_size if ordering is not NULL else partition_size
    fields.keys_size = partition_size + ordering_size
    fields.alone = alone
    fields.null_value = null_value
    return 0


cdef class Sender:
    """Base of the public producers: the calls that carry messages."""

    def __cinit__(self, ends, bint block_if_queue_full, *args, **kwargs):
        """`ends`: the accumulator of one topic, or a router over the partitions of one."""
        if isinstance(ends, Router):
            self._router = ends
        else:
            self._accumulator = ends
        self._blocks = block_if_queue_full
        self._forks = _forks

    def send_async(
        self, content, callback, properties=None, partition_key=None, ordering_key=None, sequence_id=None,
        replication_clusters=None, disable_replication=False, event_timestamp=None, deliver_at=None,
        deliver_after=None,
    ):
        """Send a message without waiting; `callback(result, message_id)` hears what became of it.

        content: what the producer's schema encodes, before anything is taken; without a schema any contiguous
            buffer of bytes. What it holds at the time of the call is sent. None for a tombstone.
        callback: called exactly once, on the client's loop thread, with a `Result` and a `MessageId`
            (`(-1,-1,-1,-1)` on failure); it must not block. When the message cannot even be accepted (queue full,
            producer closed, message too big) it is called before `send_async` returns. None: failures are logged
            and counted, and what cannot be accepted is raised.
        properties: dict of str to str.
        partition_key, ordering_key: str.
        sequence_id: int from 0; by default one more than the highest so far.
        replication_clusters: list of str; disable_replication: True keeps the message in its cluster.
        event_timestamp: int, ms since the epoch. deliver_at: int, ms since the epoch; deliver_after: timedelta.

        Any thread may call it. Raises `TypeError` or `ValueError` naming the argument, and what the schema
        raises, before anything is taken;
        `OverflowError` once the highest sequence id has been used.
        """
        if callback is not None and not callable(callback):
            raise TypeError(f"callback must be callable or None, not {type(callback).__name__}")
        cdef Sender sender = self
        cdef size_t wanted
        if self._router is not None:
            sender = self.choose(
                content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
                disable_replication, event_timestamp, deliver_at, deliver_after,
            )
        wanted = sender.offer(
            None, callback, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
            disable_replication, event_timestamp, deliver_at, deliver_after,
        )
        if wanted:
            sender._send_when_there_is_room(
                wanted, callback, content, properties, partition_key, ordering_key, sequence_id,
                replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after,
            )

    cdef Sender choose(
        self, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after
    ):
        """Whom a message goes through: the sender of its partition."""
        if self._router is None:
            return self
        if self._forks != _forks:
            raise RuntimeError(FORKED)
        return self._router.choose(
            content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
            disable_replication, event_timestamp, deliver_at, deliver_after,
        )

    def _choose(
        self, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after
    ):
        """`choose` for the facades."""
        return self.choose(
            content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
            disable_replication, event_timestamp, deliver_at, deliver_after,
        )

    def _offer(
        self, RoomWaiter reserved, target, content, properties, partition_key, ordering_key, sequence_id,
        replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after
    ):
        """`offer` for the facades."""
        return self.offer(
            reserved, target, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
            disable_replication, event_timestamp, deliver_at, deliver_after,
        )

    cdef size_t offer(
        self, RoomWaiter reserved, target, content, properties, partition_key, ordering_key, sequence_id,
        replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after
    ) except? 0:
        """Accept a message for `target` (a callback, SendWaiter or SendFuture), or answer it at once: then 0.

        Else the bytes to reserve first (only where `block_if_queue_full` asks for it). A reservation is used up.
        """
        cdef size_t wanted = 0
        cdef PyObject* hearer = NULL if target is None else <PyObject*>target
        cdef int verdict
        if self._accumulator.forks != _forks:
            raise RuntimeError(FORKED)
        try:
            verdict = self.submit(
                hearer, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
                disable_replication, event_timestamp, deliver_at, deliver_after, reserved, &wanted,
            )
        finally:
            if reserved is not None and reserved.granted:
                self._accumulator.stop_waiting(reserved)
        if verdict == ACCEPTED:
            return 0
        if (verdict == QUEUE_FULL or verdict == MEMORY_FULL) and self._blocks:
            return wanted
        if verdict == IDS_EXHAUSTED:
            raise OverflowError(EXHAUSTED)
        self._answer(target, self._refusal(verdict, wanted))
        return 0

    def _answer(self, target, error):
        """Tell why a message was not accepted: its callback at once, or the caller where there is none."""
        if target is None:
            raise error
        answer_at_once(target, error.result, error)

    def _send_when_there_is_room(
        self, size_t wanted, target, content, properties, partition_key, ordering_key, sequence_id,
        replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after
    ):
        """Offer a message again once `wanted` bytes are reserved; a facade knows how to wait."""
        raise NotImplementedError

    def _elements(self, elements, partition_key):
        """What `send_many` sends for the elements of its input, with one key for all of them or none."""
        return elements

    def _refusal(self, int verdict, size_t size):
        """The error for a message of `size` bytes that was not accepted."""
        raise NotImplementedError

    cdef int submit(
        self, PyObject* target, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after, RoomWaiter reserved, size_t* wanted
    ) except -1:
        cdef Fields fields
        cdef int verdict
        cdef int64_t event_time = -1
        cdef int64_t delivery
        cdef bint alone
        if (
            properties is None and partition_key is None and ordering_key is None and sequence_id is None
            and replication_clusters is None and event_timestamp is None and deliver_at is None
            and deliver_after is None and disable_replication is False and content is not None
        ):
            fields = PLAIN
            fields.alone = not self._accumulator.batching
            verdict = self.append_content(content, &fields, target, -1, reserved, wanted)
            if verdict == MUST_GO_ALONE:
                fields.alone = True
                verdict = self.append_content(content, &fields, target, -1, reserved, wanted)
            return verdict
        if event_timestamp is not None:
            event_time = _not_negative("event_timestamp", event_timestamp)
        delivery = _delivery_time(deliver_at, deliver_after, self._accumulator.clock)
        _check_replication(replication_clusters, disable_replication)
        alone = (
            not self._accumulator.batching or delivery >= 0 or bool(disable_replication)
            or bool(replication_clusters)
        )
        return self.append_encoded(
            content, target, -1, -1 if sequence_id is None else _not_negative("sequence_id", sequence_id), alone,
            properties, partition_key, ordering_key, replication_clusters, bool(disable_replication), event_time,
            delivery, reserved, wanted,
        )

    cdef int append_encoded(
        self, content, PyObject* target, int64_t index, int64_t sequence_id, bint alone, properties, partition_key,
        ordering_key, replication_clusters, bint disable_replication, int64_t event_time, int64_t delivery,
        RoomWaiter reserved, size_t* wanted
    ) except -1:
        """Encode what a message carries besides its content, and append both."""
        cdef Scratch scratch
        cdef Fields fields
        cdef int verdict
        fields.sequence_id = sequence_id
        scratch_open(&scratch)
        try:
            while True:
                _encode(
                    &scratch, &fields, alone, content is None, properties, partition_key, ordering_key,
                    replication_clusters, disable_replication, event_time, delivery,
                )
                verdict = self.append_content(content, &fields, target, index, reserved, wanted)
                if verdict != MUST_GO_ALONE:
                    return verdict
                alone = True
        finally:
            scratch_close(&scratch)

    cdef inline int append_content(
        self, content, Fields* fields, PyObject* target, int64_t index, RoomWaiter reserved, size_t* wanted
    ) except -1:
        cdef Py_buffer view
        cdef int verdict
        cdef const char* payload = b""
        cdef size_t size = 0
        if type(content) is bytes or content is None:
            if content is not None:
                payload = PyBytes_AS_STRING(content)
                size = PyBytes_GET_SIZE(content)
            verdict = self._accumulator.append(payload, size, fields, target, index, reserved)
        else:
            _open_buffer(content, &view)
            size = view.len
            verdict = self._accumulator.append(<const char*>view.buf, size, fields, target, index, reserved)
            PyBuffer_Release(&view)
        if verdict != ACCEPTED:
            wanted[0] = size + fields.head_size + fields.tail_size + RESERVE_EXTRA
        return verdict


cdef int _open_buffer(content, Py_buffer* view) except -1:
    if isinstance(content, str):
        raise TypeError("content must be bytes, not str: encode it first, as in text.encode()")
    try:
        return PyObject_GetBuffer(content, view, PyBUF_SIMPLE)
    except TypeError:
        raise TypeError(
            f"content must be bytes, another buffer or None, not {type(content).__name__}"
        ) from None
    except (BufferError, ValueError) as error:  # which of them is for the object to choose
        raise ValueError(f"content must be a contiguous buffer: {error}") from None


FORKED = (
    "this producer was created before os.fork() and cannot be used in the child process: "
    "create the client after the fork"
)


EXHAUSTED = "no sequence_id is left above 2**63 - 1, which was given for an earlier message"


@cython.final
cdef class Unsendable:
    """Stands in the input of `send_many` for an element that could not be encoded."""

    def __cinit__(self, error):
        self.error = error


@cython.final
cdef class Keyed:
    """Stands in the input of `send_many` for a payload with a partition key of its own."""

    def __cinit__(self, payload, BinaryKey key not None):
        self.payload = payload
        self.key = key


@cython.final
cdef class Feed:
    """Takes elements from the input of one `send_many` call as long as there is room.

    `run(reserved)` returns 0 once the input has ended, else the bytes to reserve before it is called again. An
    element that cannot be sent becomes an error at its index; what the input itself raises goes through.
    """

    def __cinit__(
        self, Sender sender not None, payloads, SendHandle handle not None, properties, partition_key, ordering_key,
        event_timestamp, replication_clusters, disable_replication,
    ):
        cdef int64_t event_time = -1
        if event_timestamp is not None:
            event_time = _not_negative("event_timestamp", event_timestamp)
        _check_replication(replication_clusters, disable_replication)
        if isinstance(payloads, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"payloads must be an iterable of messages, not one {type(payloads).__name__}")
        self.sender = sender
        self.chosen = sender if sender._router is None else <Sender>sender._router.senders[0]
        self.routed_by = (
            properties, partition_key, ordering_key, None, replication_clusters, disable_replication, event_timestamp,
            None, None,
        )
        self.handle = handle
        self.encoded = []
        for tombstone in range(2):
            for form in range(2):
                self.encoded.append(self.encode_once(
                    &self.alone[tombstone] if form else &self.batched[tombstone],
                    form or not self.chosen._accumulator.batching or bool(replication_clusters)
                    or bool(disable_replication),
                    tombstone, properties, partition_key, ordering_key, event_time, replication_clusters,
                    bool(disable_replication),
                ))
        self.properties = copy(properties)  # the caller may go on changing its own
        self.ordering_key = ordering_key
        self.event_time = event_time
        self.replication_clusters = copy(replication_clusters)
        self.disable_replication = bool(disable_replication)
        self.items = sender._elements(iter(payloads), partition_key)

    cdef bytes encode_once(
        self, Fields* fields, bint alone, bint tombstone, properties, partition_key, ordering_key,
        int64_t event_time, replication_clusters, bint disable_replication
    ):
        """The encoded fields, with the key behind them, as bytes that `fields` points into."""
        cdef Scratch scratch
        cdef bytes kept
        scratch_open(&scratch)
        try:
            _encode(
                &scratch, fields, alone, tombstone, properties, partition_key, ordering_key, replication_clusters,
                disable_replication, event_time, -1,
            )
            kept = scratch.bytes[:scratch.size]
            if fields.has_key:
                kept += fields.key[:fields.key_size]
        finally:
            scratch_close(&scratch)
        fields.head = PyBytes_AS_STRING(kept)
        fields.tail = fields.head + fields.head_size
        fields.key = fields.tail + fields.tail_size
        fields.sequence_id = -1
        return kept

    def run(self, RoomWaiter reserved=None):
        cdef size_t wanted
        try:
            wanted = self.run_with(reserved)
        finally:
            self.give_back(reserved)
        return wanted

    cdef int give_back(self, RoomWaiter reserved) except -1:
        """What is left of a reservation, which is one with the partition that was chosen last."""
        if reserved is not None and reserved.granted:
            self.chosen._accumulator.stop_waiting(reserved)
        return 0

    cdef size_t run_with(self, RoomWaiter reserved) except? 0:
        cdef size_t wanted = 0
        cdef int turn = 0
        cdef int verdict
        while self.holds_element or self.next_element():
            verdict = self.append(reserved, &wanted)
            if (verdict == QUEUE_FULL or verdict == MEMORY_FULL) and not self.never_fits(wanted):
                self.hold_element()
                return wanted
            if verdict == ENDED and self.nobody_takes_more():
                raise self.chosen._refusal(verdict, wanted)
            if verdict == IDS_EXHAUSTED:
                raise OverflowError(EXHAUSTED)
            if verdict != ACCEPTED and verdict != ELEMENT_REFUSED:
                self.handle._refuse(self.chosen._refusal(MEMORY_FULL if verdict == QUEUE_FULL else verdict, wanted))
            self.holds_element = False
            turn += 1
            if turn == MESSAGES_PER_TURN:
                turn = 0
                PyErr_CheckSignals()
                with nogil:
                    pass
        self.element = None
        return 0

    cdef bint nobody_takes_more(self) except -1:
        """Not even another partition."""
        return self.sender._router is None or self.sender._router.has_ended()

    cdef bint never_fits(self, size_t wanted) noexcept:
        cdef Budget budget = self.chosen._accumulator.budget
        return budget.limit != 0 and wanted > budget.limit

    cdef int hold_element(self) except -1:
        """Keep it until there is room, as it is now: others may change a buffer meanwhile."""
        self.holds_element = True
        if type(self.element) is not bytes and type(self.element) is not Keyed and self.element is not None:
            self.element = bytes(self.element)
        return 0

    cdef bint next_element(self) except -1:
        cdef PyObject* element = PyIter_Next(self.items)
        if element is NULL:
            return False
        self.element = <object>element
        Py_DECREF(<object>element)
        return True

    cdef int choose(self, RoomWaiter reserved) except -1:
        cdef Sender chosen
        cdef Keyed keyed
        if self.sender._router is None or self.holds_element:
            return 0
        if type(self.element) is Keyed:
            keyed = self.element
            chosen = self.sender._choose(keyed.payload, self.properties, keyed.key, *self.routed_by[2:])
        else:
            chosen = self.sender._choose(self.element, *self.routed_by)
        if chosen is not self.chosen:
            self.give_back(reserved)
            self.chosen = chosen
        return 0

    cdef int append(self, RoomWaiter reserved, size_t* wanted) except -1:
        if type(self.element) is bytes and self.sender._router is None:
            return self.append_element(reserved, wanted)
        if type(self.element) is Unsendable:
            self.handle._refuse((<Unsendable>self.element).error)
            return ELEMENT_REFUSED
        try:
            self.choose(reserved)
            if type(self.element) is Keyed:
                return self.append_keyed(reserved, wanted)
            return self.append_element(reserved, wanted)
        except Exception as error:
            self.handle._refuse(error)
            return ELEMENT_REFUSED

    cdef int append_element(self, RoomWaiter reserved, size_t* wanted) except -1:
        cdef bint tombstone = self.element is None
        cdef PyObject* target = <PyObject*>self.handle
        cdef int verdict = self.chosen.append_content(
            self.element, &self.batched[tombstone], target, self.handle.count, reserved, wanted
        )
        if verdict == MUST_GO_ALONE:
            verdict = self.chosen.append_content(
                self.element, &self.alone[tombstone], target, self.handle.count, reserved, wanted
            )
        if verdict == ACCEPTED:
            self.handle.count += 1
        return verdict

    cdef int append_keyed(self, RoomWaiter reserved, size_t* wanted) except -1:
        cdef Keyed keyed = self.element
        cdef int verdict = self.chosen.append_encoded(
            keyed.payload, <PyObject*>self.handle, self.handle.count, -1, self.batched[0].alone, self.properties,
            keyed.key, self.ordering_key, self.replication_clusters, self.disable_replication, self.event_time, -1,
            reserved, wanted,
        )
        if verdict == ACCEPTED:
            self.handle.count += 1
        return verdict
