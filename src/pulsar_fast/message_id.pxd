@cython.final
@cython.freelist(1024)
cdef class MessageId:
    # all immutable after creation
    cdef int64_t _ledger_id
    cdef int64_t _entry_id
    cdef int32_t _partition
    cdef int32_t _batch_index
    cdef int32_t _batch_size   # 0: not in a batch

    cdef tuple order(self)

cdef MessageId new_message_id(
    int64_t ledger_id, int64_t entry_id, int32_t partition, int32_t batch_index, int32_t batch_size
)
