"""Which partition of a topic a message goes to."""


@cython.final
cdef class Router:
    """The senders of all partitions, and the choice among them. Any thread may use it.

    Messages of one key go to one partition. Those without go to a partition until its batch is sealed (or it takes
    no more), then to the next one; not `round_robin`: always to `first`. `function` chooses instead, if given.
    """

    def __cinit__(self, list senders not None, int hashing, bint round_robin, Py_ssize_t first, function=None):
        if not 0 <= first < len(senders):
            raise ValueError("there is no such partition to begin with")
        self.senders = list(senders)
        self.hashing = hashing
        self.round_robin = round_robin
        self.current = first
        self.function = function
        self.turn = -1

    def add(self, Sender sender not None):
        """There is one more partition, which has the next number."""
        self.senders.append(sender)

    def mark(self):
        """`Accumulator.mark` of each partition, by number."""
        return [(<Sender>sender)._accumulator.mark() for sender in self.senders]

    def all(self):
        """The senders, by number of their partition."""
        return list(self.senders)

    cdef bint has_ended(self) except -1:
        """Whether no partition takes messages any more."""
        for sender in self.senders:
            if (<Sender>sender)._accumulator.refusal is None:
                return False
        return True

    cdef Sender choose(
        self, content, properties, partition_key, ordering_key, sequence_id, replication_clusters,
        disable_replication, event_timestamp, deliver_at, deliver_after
    ):
        cdef Py_ssize_t index
        if type(partition_key) is BinaryKey:
            partition_key = (<BinaryKey>partition_key).text
        if self.function is not None:
            index = self.function(
                len(self.senders), content, properties, partition_key, ordering_key, sequence_id,
                replication_clusters, disable_replication, event_timestamp, deliver_at, deliver_after,
            )
        elif partition_key is not None:
            index = self.index_by_key(partition_key)
        else:
            index = self.index_in_turn()
        return <Sender>self.senders[index]

    cdef Py_ssize_t index_by_key(self, partition_key) except -1:
        cdef Py_ssize_t size = 0
        cdef const char* key = _utf8("partition_key", partition_key, &size)
        return hash_key(self.hashing, key, size) % <size_t>len(self.senders)

    cdef Py_ssize_t index_in_turn(self) noexcept:
        cdef int64_t turn
        if self.round_robin:
            turn = (<Sender>self.senders[self.current])._accumulator.turn
            if self.turn >= 0 and self.turn != turn:
                self.current = (self.current + 1) % len(self.senders)
                turn = (<Sender>self.senders[self.current])._accumulator.turn
            self.turn = turn
        return self.current
