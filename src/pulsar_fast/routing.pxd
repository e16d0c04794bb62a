@cython.final
cdef class Router:
    """Which partition each message of a producer goes to."""
    # whoever holds the GIL
    cdef list senders           # one for each partition; only ever becomes longer
    cdef int hashing            # of keys: a HashingKind; fixed
    cdef bint round_robin       # of messages without a key: else always the current one; fixed
    cdef object function        # the caller's own choice: (partitions, message's arguments) -> int, or None; fixed
    cdef Py_ssize_t current     # the partition for messages without a key
    cdef int64_t turn           # the turn of its accumulator when it was last chosen; -1: not yet

    cdef bint has_ended(self) except -1
    cdef Sender choose(
        self, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after
    )
    cdef Py_ssize_t index_by_key(self, partition_key) except -1
    cdef Py_ssize_t index_in_turn(self) noexcept
