"""What a run shows while it goes on, on standard error, and at its end."""

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from .ingest import STANDARD_INPUT, Ingest

_LINE_INTERVAL = 5.0  # seconds
_LOOK_INTERVAL = 0.2
_ENOUGH = 10_000  # messages, for the CPU time of one to be more than that of starting up


@contextmanager
def progress(ingest: Ingest, console: Console, paths: Sequence[str]) -> Iterator[None]:
    """Show how far the run is: a bar on a terminal, else a line every five seconds.

    Also, after a signal, what keeps the run from ending.
    """
    shown = _bar(ingest, console, _total_size(paths)) if console.is_terminal else _lines(ingest)
    with shown, _every(_LOOK_INTERVAL, _WaitTold(ingest, console)):
        yield


def summary(ingest: Ingest, keys: bool = False) -> str:
    """The outcome of a run that is over, one figure a line; `keys`: whether messages were to have some."""
    seconds = ingest.seconds or float("inf")
    rows = {
        "messages": f"{ingest.messages}",
        "bytes": f"{ingest.bytes}",
        "seconds": f"{ingest.seconds:.3f}",
        "messages/s": f"{ingest.messages / seconds:.0f}",
        "MB/s": f"{ingest.bytes / seconds / 1e6:.2f}",
        "acknowledged": f"{ingest.acknowledged}",
        "failed": f"{ingest.failed}",
    }
    if keys and ingest.without_key:
        rows["without key"] = f"{ingest.without_key}"
    rows["client CPU"] = _cpu(ingest)
    return "\n".join(row(name, value) for name, value in rows.items())


def row(name: str, value: str) -> str:
    """A line of the summary."""
    return f"{name:<14}{value}"


def _cpu(ingest: Ingest) -> str:
    if ingest.messages < _ENOUGH:
        return "–  (too few messages to tell)"
    return f"{ingest.cpu_seconds * 1e6 / ingest.messages:.2f} µs a message"


def _total_size(paths: Sequence[str]) -> int | None:
    """Bytes to read; None if not every input is a regular file."""
    total = 0
    for path in paths:
        try:
            state = os.stat(0 if path == STANDARD_INPUT else path)
        except OSError:  # gone since the arguments were checked; reading will tell
            return None
        if not stat.S_ISREG(state.st_mode):
            return None
        total += state.st_size
    return total


@contextmanager
def _bar(ingest: Ingest, console: Console, total: int | None) -> Iterator[None]:
    columns = BarColumn(bar_width=None), DownloadColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task("", total=total)

        def show() -> None:
            bar.update(task, completed=ingest.bytes_read, description=_figures(ingest))

        with _every(_LOOK_INTERVAL, show):
            yield
        show()


def _lines(ingest: Ingest) -> AbstractContextManager[None]:
    return _every(_LINE_INTERVAL, lambda: click.echo(_line(ingest), err=True))


class _WaitTold:
    """Tells once, when it is called, what a run waits for after a signal."""

    def __init__(self, ingest: Ingest, console: Console) -> None:
        self._ingest = ingest
        self._console = console  # which writes around the bar
        self._told = False

    def __call__(self) -> None:
        if not self._told and (messages := self._ingest.waited_for):
            text = f"waiting for {messages} messages; Ctrl-C again gives up"
            self._console.print(text, highlight=False, soft_wrap=True)
            self._told = True


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
