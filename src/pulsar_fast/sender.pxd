cdef class Router


cdef class Sender:
    """The application's end of a producer: checks arguments, encodes, hands over to the accumulator."""
    cdef readonly Accumulator _accumulator   # fixed; None where a router chooses among senders
    cdef readonly Router _router             # of a topic with partitions, else None; set once, before the first message
    cdef readonly unsigned long _forks       # seen by the process that made it
    cdef readonly bint _blocks               # block_if_queue_full; fixed

    cdef size_t offer(
        self, RoomWaiter reserved, target, content, properties, partition_key, ordering_key, sequence_id,
        replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after
    ) except? 0
    cdef int submit(
        self, PyObject* target, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after, RoomWaiter reserved, size_t* wanted
    ) except -1
    cdef Sender choose(
        self, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after
    )
    cdef int append_encoded(
        self, content, PyObject* target, int64_t index, int64_t sequence_id, bint alone, properties, partition_key,
        ordering_key, replication_clusters, bint disable_replication, int64_t event_time, int64_t delivery,
        RoomWaiter reserved, size_t* wanted
    ) except -1
    cdef int append_content(
        self, content, Fields* fields, PyObject* target, int64_t index, RoomWaiter reserved, size_t* wanted
    ) except -1


@cython.final
cdef class BinaryKey:
    cdef readonly str text   # base64, as it travels; fixed


@cython.final
cdef class Unsendable:
    cdef readonly object error   # why it cannot be sent; fixed


@cython.final
cdef class Keyed:
    cdef readonly object payload   # bytes, None for a tombstone; fixed
    cdef readonly BinaryKey key    # fixed


@cython.final
cdef class Feed:
    """One `send_many` call under way."""
    # all of it belongs to the thread (or task) that feeds
    cdef Sender sender
    cdef readonly Sender chosen     # for the element that was taken last
    cdef tuple routed_by            # the arguments that a router may want to see, without the content
    cdef object items          # iterator over the input
    cdef object element        # taken from the input, but waiting for room
    cdef bint holds_element    # `element` was taken from the input and waits for room
    cdef SendHandle handle
    # what messages carry that have keys of their own; fixed
    cdef object properties
    cdef object ordering_key
    cdef int64_t event_time
    cdef object replication_clusters
    cdef bint disable_replication
    cdef list encoded          # bytes that the fields below point into
    cdef Fields[2] batched     # of a message in a batch; the second one of a tombstone
    cdef Fields[2] alone       # likewise outside of a batch

    cdef bytes encode_once(
        self, Fields* fields, bint alone, bint tombstone, properties, partition_key, ordering_key,
        int64_t event_time, replication_clusters, bint disable_replication
    )
    cdef size_t run_with(self, RoomWaiter reserved) except? 0
    cdef int choose(self, RoomWaiter reserved) except -1
    cdef int give_back(self, RoomWaiter reserved) except -1
    cdef bint nobody_takes_more(self) except -1
    cdef bint never_fits(self, size_t wanted) noexcept
    cdef int hold_element(self) except -1
    cdef bint next_element(self) except -1
    cdef int append(self, RoomWaiter reserved, size_t* wanted) except -1
    cdef int append_element(self, RoomWaiter reserved, size_t* wanted) except -1
    cdef int append_keyed(self, RoomWaiter reserved, size_t* wanted) except -1
