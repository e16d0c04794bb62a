"""What must hold for the counters of a client at any moment, and once it has ended."""

import weakref

from pulsar_fast.client_core import ClientCore

watched: "weakref.WeakSet[ClientCore]" = weakref.WeakSet()
"""Clients of the running test: a scripted broker looks at them with every frame that it gets."""


def broken_rules(core: ClientCore) -> list[str]:
    """Now, whatever the client is doing. Any thread."""
    broken = []
    budget, pool = core.budget, core.buffers
    if not 0 <= budget.used <= (budget.limit or 1 << 62):
        broken.append(f"{budget.used} bytes of {budget.limit}")
    connections = len(core.cluster.pool._open)
    if not 0 <= pool.write_holds <= max(connections, len(core.cluster.pool._open)):
        broken.append(f"{pool.write_holds} frames are held by writes of {connections} connections")
    for producer in list(core._producers):
        pending, most = producer.accumulator.pending_messages, producer._options.max_pending_messages
        if not 0 <= pending <= (most or 1 << 62):
            broken.append(f"{pending} pending messages of {most}")
    return broken


def left_over(core: ClientCore) -> dict[str, int]:
    """What a client that has ended still holds; empty if all is well."""
    accounts = {
        "bytes": core.budget.used,
        "batches": core.buffers.live_batches,
        "frames held by pending queues": core.buffers.pending_holds,
        "frames held by writes": core.buffers.write_holds,
        "memory of batches": core.buffers.live_bytes,
        "permits": sum(producer.accumulator.pending_messages for producer in core._producers),
        "producers": len(core._producers),
        "connections": len(core.cluster.pool._open),
    }
    return {name: count for name, count in accounts.items() if count}
