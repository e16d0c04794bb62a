"""The broker's name for a stored message."""

cdef class MessageId:
    """Where a message is stored: ledger, entry, partition and index within its batch.

    Same names as in the official client. `MessageId(-1, -1, -1, -1)` names no message: a duplicate that the
    broker dropped, or a failed send.
    """

    def __init__(self, partition=-1, ledger_id=-1, entry_id=-1, batch_index=-1):
        self._partition = _in_range("partition", partition, 32)
        self._ledger_id = _in_range("ledger_id", ledger_id, 64)
        self._entry_id = _in_range("entry_id", entry_id, 64)
        self._batch_index = _in_range("batch_index", batch_index, 32)
        self._batch_size = 0

    def ledger_id(self):
        return self._ledger_id

    def entry_id(self):
        return self._entry_id

    def partition(self):
        """Index of the partition, -1 for a topic without partitions."""
        return self._partition

    def batch_index(self):
        """Index within its batch, -1 for a message outside of a batch."""
        return self._batch_index

    def serialize(self):
        """The id as a `MessageIdData` message, byte for byte as the official client writes it."""
        cdef char[64] bytes
        cdef char* at = bytes
        at = put_varint_field(at, 1, <uint64_t>self._ledger_id)
        at = put_varint_field(at, 2, <uint64_t>self._entry_id)
        if self._partition != -1:
            at = put_varint_field(at, 3, <uint64_t><int64_t>self._partition)
        if self._batch_index != -1:
            at = put_varint_field(at, 4, <uint64_t><int64_t>self._batch_index)
        if self._batch_size:
            at = put_varint_field(at, 6, <uint64_t><int64_t>self._batch_size)
        return PyBytes_FromStringAndSize(bytes, at - bytes)

    @staticmethod
    def deserialize(data, topic=None):
        """Read what `serialize` wrote, here or in another client.

        Raises `ValueError` when `data` is not a serialized message id. `topic` is accepted for the official
        client's sake and changes nothing, since an id here does not carry its topic.
        """
        cdef const uint8_t[::1] view
        cdef Cursor cursor
        if not isinstance(data, bytes):
            raise TypeError(f"data must be bytes, not {type(data).__name__}")
        view = data
        cursor.at = &view[0] if len(data) else NULL
        cursor.end = cursor.at + len(data)
        return _read_message_id(cursor)

    @classmethod
    def wrap(cls, message_id):
        """A copy of any object with the methods of a message id (such as the official client's)."""
        return cls(
            message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index()
        )

    def __reduce__(self):
        return MessageId.deserialize, (self.serialize(),)

    def __str__(self):
        return f"({self._ledger_id},{self._entry_id},{self._partition},{self._batch_index})"

    def __repr__(self):
        return (
            f"MessageId(partition={self._partition}, ledger_id={self._ledger_id}, "
            f"entry_id={self._entry_id}, batch_index={self._batch_index})"
        )

    cdef tuple order(self):
        return self._ledger_id, self._entry_id, self._batch_index

    def __hash__(self):
        return hash((self.order(), self._partition))

    def __eq__(self, other):
        if not isinstance(other, MessageId):
            return NotImplemented
        return self.order() == (<MessageId>other).order() and self._partition == (<MessageId>other)._partition

    def __lt__(self, other):
        if not isinstance(other, MessageId):
            return NotImplemented
        return self.order() < (<MessageId>other).order()

    def __le__(self, other):
        return self < other or self == other

    def __gt__(self, other):
        if not isinstance(other, MessageId):
            return NotImplemented
        return self.order() > (<MessageId>other).order()

    def __ge__(self, other):
        return self > other or self == other


cdef int64_t _in_range(str name, value, int bits) except? -2:
    """An id of `bits` bits; the broker's unsigned ones wrap to negative, as in the official client."""
    limit = 2 ** (<object>bits - 1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if not -limit <= value < limit:
        raise ValueError(f"{name} must fit in {bits} bits, not {value}")
    return value


cdef MessageId new_message_id(
    int64_t ledger_id, int64_t entry_id, int32_t partition, int32_t batch_index, int32_t batch_size
):
    cdef MessageId self = MessageId.__new__(MessageId)
    self._ledger_id = ledger_id
    self._entry_id = entry_id
    self._partition = partition
    self._batch_index = batch_index
    self._batch_size = batch_size
    return self


cdef MessageId _read_message_id(Cursor cursor):
    cdef MessageId self = new_message_id(0, 0, -1, -1, 0)
    cdef uint32_t number = 0, kind = 0
    cdef uint64_t value = 0
    cdef int missing = 3
    while cursor.at < cursor.end:
        if read_tag(&cursor, &number, &kind) < 0:
            raise ValueError("data is not a serialized message id")
        if kind != VARINT or number == 5:
            if skip_field(&cursor, kind) < 0:
                raise ValueError("data is not a serialized message id")
            continue
        if read_varint(&cursor, &value) < 0:
            raise ValueError("data is not a serialized message id")
        if number == 1:
            self._ledger_id = <int64_t>value
            missing &= ~1
        elif number == 2:
            self._entry_id = <int64_t>value
            missing &= ~2
        elif number == 3:
            self._partition = <int32_t>value
        elif number == 4:
            self._batch_index = <int32_t>value
        elif number == 6:
            self._batch_size = <int32_t>value
    if missing:
        raise ValueError("data is not a serialized message id: ledger or entry is missing")
    return self


EARLIEST = new_message_id(-1, -1, -1, -1, 0)
LATEST = new_message_id(0x7FFFFFFFFFFFFFFF, 0x7FFFFFFFFFFFFFFF, -1, -1, 0)

# An extension type takes no class attributes from Python code.
cdef extern from "Python.h":
    void PyType_Modified(type)

(<dict>(<PyTypeObject*>MessageId).tp_dict)["earliest"] = EARLIEST
(<dict>(<PyTypeObject*>MessageId).tp_dict)["latest"] = LATEST
PyType_Modified(MessageId)
