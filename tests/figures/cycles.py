"""What is left of clients that come and go."""

import asyncio
import gc
from collections.abc import Callable

import pulsar_fast
import pulsar_fast.asyncio
from tests.faults.scripted_broker import ScriptedBroker
from tests.figures.process import Holdings
from tests.figures.table import Figure

_WARM_UP = 50


def clients_that_come_and_go(cycles: int) -> Figure:
    """Client, producer, one send, `close()`."""
    return _holdings("client, producer, send, close", cycles, _once)


def asyncio_clients_that_come_and_go(cycles: int) -> Figure:
    """The same on an event loop for each."""
    return _holdings("the same with asyncio", cycles, lambda url: asyncio.run(_once_with_asyncio(url)))


def _once(url: str) -> None:
    client = pulsar_fast.Client(url)
    producer = client.create_producer("t")
    producer.send(b"x")
    client.close()


async def _once_with_asyncio(url: str) -> None:
    client = pulsar_fast.asyncio.Client(url)
    producer = await client.create_producer("t")
    await producer.send(b"x")
    await client.close()


def _holdings(what: str, cycles: int, cycle: Callable[[str], None]) -> Figure:
    with ScriptedBroker() as broker:
        sent = 0

        def run(times: int) -> None:
            nonlocal sent
            for _ in range(times):
                cycle(broker.url)
                broker.wait_for(lambda b: not any(link.is_open for link in b.links))
                sent += len([frame for frame in broker.take_frames() if frame.messages])
                broker.links.clear()
            gc.collect()

        run(_WARM_UP)
        before = Holdings.now()
        run(cycles)
        after = Holdings.now()
        return Figure(
            f"{cycles} times {what}",
            {
                "stored": sent - _WARM_UP,
                "RSS before": f"{before.resident_mb:.1f} MB",
                "RSS after": f"{after.resident_mb:.1f} MB",
                "descriptors left": after.descriptors - before.descriptors,
                "threads left": after.threads - before.threads,
            },
        )
