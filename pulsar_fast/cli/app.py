"""The commands of ``pulsar-fast``."""

import logging
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import click
from click.core import ParameterSource
from rich.console import Console
from rich.logging import RichHandler

import pulsar_fast as pulsar
from pulsar_fast.embedded import EmbeddedBroker

from . import reading
from .demo import DemoError, round_trip, standard_library
from .ingest import STANDARD_INPUT, Ingest
from .report import progress, summary
from .stopping import Stop, Stopped

_SPLITTERS: dict[str, reading.Splitter] = {
    "lines": reading.split_lines,
    "ndjson": reading.split_lines,
    "raw-length-prefixed": reading.split_records,
    "whole-file": reading.whole,
}


def _parse_properties(
    ctx: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]
) -> dict[str, str]:
    properties: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
        try:
            pair.encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{pair!r} is not UTF-8") from None
        properties[name] = value
    return properties


_url_option = click.option(
    "--url", envvar="PULSAR_FAST_SERVICE_URL", show_envvar=True, help="Of the broker: pulsar://host:6650"
)
_verbose_option = click.option("-v", "--verbose", is_flag=True, help="Log what the client does.")


class _Commands(click.Group):
    """Shows what a user can mend in one line, without a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (pulsar.PulsarException, NotImplementedError, DemoError) as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pulsar.__version__, message="%(prog)s %(version)s")
def app() -> None:
    """Send data to Apache Pulsar, fast."""


@app.command()
@click.argument("topic")
@click.argument(
    "files", metavar="[FILE]...", nargs=-1, type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--format", "format_name", type=click.Choice(list(_SPLITTERS)), default="lines", show_default=True
)
@click.option("--key-field", metavar="NAME", help="ndjson: this member of each object is the message's key.")
@click.option("--key-separator", metavar="TEXT", help="lines: the key stands before the first TEXT.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_parse_properties,
    help="Of each message.",
)
@click.option("--rate", metavar="N", type=click.IntRange(1), help="At most N messages a second.")
@_url_option
@click.option("--embedded", is_flag=True, help="Start a pulsar-lite broker; the default if there is no URL.")
@_verbose_option
@click.pass_context
def produce(
    ctx: click.Context,
    topic: str,
    files: tuple[str, ...],
    format_name: str,
    key_field: str | None,
    key_separator: str | None,
    properties: dict[str, str],
    rate: int | None,
    url: str | None,
    embedded: bool,
    verbose: bool,
) -> None:
    """Send files or standard input to a topic.

    Each FILE is read in turn; "-", or no FILE at all, is standard input.

    \b
    Formats:
    lines                each line is a message; \\n ends it and is no part of it, \\r is
    ndjson               as lines, and each line must be JSON
    raw-length-prefixed  each message follows its length, 32 bits, big-endian
    whole-file           each file is a message

    The exit status is 0 if every message was acknowledged, 1 if not, 2 if an argument is wrong. On
    Ctrl-C (130) or SIGTERM (143) reading stops and what was sent is waited for; a second one gives up.
    """
    if embedded and ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url and --embedded exclude each other")
    key_of = _key_function(format_name, key_field, key_separator)
    paths = files or (STANDARD_INPUT,)
    if STANDARD_INPUT in paths and sys.stdin is None:
        raise click.UsageError("standard input is closed")
    console = _console(verbose)
    with Stop() as stop, _service(None if embedded else url) as service_url, _client(service_url) as client:
        ingest = Ingest(client, topic, stop, key_of=key_of, properties=properties, rate=rate)
        with progress(ingest, console, _total_size(paths)):
            ingest.run(paths, _SPLITTERS[format_name])
    click.echo(summary(ingest))
    if ingest.problem:
        click.echo(f"Error: {ingest.problem}", err=True)
    ctx.exit(stop.exit_code or int(bool(ingest.problem) or ingest.acknowledged < ingest.messages))


@app.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="On 127.0.0.1; a free one if not given."
)
@click.option(
    "--path", type=click.Path(file_okay=False), help="Folder that keeps the data; else it is temporary."
)
def broker(port: int, path: str | None) -> None:
    """Run a pulsar-lite broker.

    Prints its URL and runs until Ctrl-C or SIGTERM.
    """
    with Stop() as stop, _embedded(path, port) as url:
        stop.begin()
        click.echo(url)
        with suppress(Stopped):
            stop.wait()


@app.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@_url_option
@_verbose_option
@click.pass_context
def demo(ctx: click.Context, file: str | None, url: str | None, verbose: bool) -> None:
    """Send a file, read it back, compare.

    The lines of FILE go to a new topic; another process reads them back with the official client. Without
    FILE: all modules of Python's standard library. Without a URL: to a pulsar-lite broker.
    """
    paths = [file] if file else standard_library()
    _console(verbose)
    with Stop() as stop, _service(url) as service_url, _client(service_url) as client:
        try:
            ingest, read_back = round_trip(client, service_url, paths, stop)
        except Stopped:
            ctx.exit(stop.exit_code)
    click.echo(summary(ingest))
    click.echo(
        f"read back     {read_back.messages} messages in {read_back.seconds:.3f} s, "
        f"the same in the same order, SHA-256 {read_back.sha256}"
    )


def _key_function(
    format_name: str, key_field: str | None, key_separator: str | None
) -> reading.KeyFunction | None:
    if key_field is not None and format_name != "ndjson":
        raise click.UsageError("--key-field needs --format ndjson")
    if key_separator is not None and format_name != "lines":
        raise click.UsageError("--key-separator needs --format lines")
    if format_name == "ndjson":
        return reading.json_checker(key_field)
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    return None if key_separator is None else reading.key_before(os.fsencode(key_separator))


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


def _console(verbose: bool) -> Console:
    """Standard error, where the logs go too."""
    console = Console(stderr=True)
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(message)s" if console.is_terminal else "%(asctime)s %(levelname)s %(message)s",
        # On a terminal the lines must go around the progress bar.
        handlers=[RichHandler(console=console, show_path=False)] if console.is_terminal else None,
    )
    return console


@contextmanager
def _embedded(path: str | None, port: int) -> Iterator[str]:
    broker = EmbeddedBroker(path, port=port)
    try:
        broker.start()
    except (ImportError, OSError, RuntimeError) as error:
        raise click.ClickException(str(error)) from None
    try:
        yield broker.service_url
    finally:
        broker.stop()


@contextmanager
def _service(url: str | None) -> Iterator[str]:
    """The broker to use: that of `url`, else a pulsar-lite that lives as long as this context."""
    if url is not None:
        yield url
        return
    with _embedded(None, 0) as embedded_url:
        click.echo(f"started pulsar-lite at {embedded_url}; its data goes with it", err=True)
        yield embedded_url


def _client(url: str) -> pulsar.Client:
    try:
        return pulsar.Client(url)
    except (ValueError, NotImplementedError) as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
