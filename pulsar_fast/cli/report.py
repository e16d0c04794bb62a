"""What a run shows while it goes on, on standard error, and at its end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from .ingest import Ingest

_LINE_INTERVAL = 5.0  # seconds
_BAR_INTERVAL = 0.2


@contextmanager
def progress(ingest: Ingest, console: Console, total: int | None) -> Iterator[None]:
    """Show how far the run is: a bar on a terminal, else a line every five seconds.

    `total` is how many bytes there are to read, None if nobody knows.
    """
    if not console.is_terminal:
        with _every(_LINE_INTERVAL, lambda: click.echo(_line(ingest), err=True)):
            yield
        return
    columns = BarColumn(bar_width=None), DownloadColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task("", total=total)

        def show() -> None:
            bar.update(task, completed=ingest.bytes_read, description=_figures(ingest))

        with _every(_BAR_INTERVAL, show):
            yield
        show()


def summary(ingest: Ingest) -> str:
    """The outcome of a run that is over, one figure a line."""
    seconds = ingest.seconds or float("inf")
    rows = {
        "messages": f"{ingest.messages}",
        "bytes": f"{ingest.bytes}",
        "seconds": f"{ingest.seconds:.3f}",
        "messages/s": f"{ingest.messages / seconds:.0f}",
        "MB/s": f"{ingest.bytes / seconds / 1e6:.2f}",
        "acknowledged": f"{ingest.acknowledged}",
        "failed": f"{ingest.failed}",
        "client CPU": f"{ingest.cpu_seconds * 1e6 / max(1, ingest.messages):.2f} µs a message",
    }
    return "\n".join(f"{name:<14}{value}" for name, value in rows.items())


def _line(ingest: Ingest) -> str:
    return f"{ingest.bytes_read / 1e6:.1f} MB read, {_figures(ingest)}"


def _figures(ingest: Ingest) -> str:
    rate = ingest.messages / (ingest.seconds or float("inf"))
    return f"{ingest.messages} sent, {rate:.0f}/s, {ingest.acknowledged} acknowledged, {ingest.failed} failed"


@contextmanager
def _every(interval: float, show: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(interval):
            show()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
