"""Memory while the broker reads nothing and a sender goes on at full speed."""

import time

from pulsar_fast import Client
from tests.faults.scripted_broker import ScriptedBroker
from tests.figures.process import resident_mb
from tests.figures.table import Figure
from tests.figures.traffic import Traffic

_LIMIT = 16_000_000
_LARGEST = 10_000


def memory_while_stalled(seconds: float) -> Figure:
    """One thread, messages of up to 10 kB that expire after 50 ms, a memory limit of 16 MB."""
    with ScriptedBroker() as broker:
        client = Client(broker.url, memory_limit_bytes=_LIMIT)
        producer = client.create_producer(
            "t", send_timeout_millis=50, max_pending_messages=0, block_if_queue_full=True
        )
        broker.stop_reading()
        before = resident_mb()
        with Traffic(producer, threads=1, sizes=(20, _LARGEST)) as traffic:
            resident, pending = [], []
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                time.sleep(0.01)
                resident.append(resident_mb())
                pending.append(producer.stats().client_pending_bytes)
            left = len(resident) // 4  # of a warm-up, in which buffers are made for the first time
        client.shutdown()
        return Figure(
            f"{seconds:g} s without reading",
            {
                **traffic.counts(),
                "limit": _LIMIT,
                "most pending bytes": max(pending),
                "RSS before": f"{before:.1f} MB",
                "RSS after a quarter": f"{resident[left]:.1f} MB",
                "RSS at the end": f"{resident[-1]:.1f} MB",
                "highest RSS": f"{max(resident):.1f} MB",
            },
        )
