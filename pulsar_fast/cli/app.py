"""The commands of ``pulsar-fast``."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click
from click.core import ParameterSource
from rich.console import Console
from rich.logging import RichHandler

import pulsar_fast as pulsar
from pulsar_fast.embedded import EmbeddedBroker

from . import reading
from .demo import DemoError, round_trip, standard_library
from .ingest import STANDARD_INPUT, Ingest, said
from .report import progress, row, summary
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
            raise click.ClickException(said(error)) from None


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
@click.pass_obj
@click.pass_context
def produce(
    ctx: click.Context,
    stop: Stop,
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

    With ndjson, blank lines are skipped. Input that is not as the format says ends the run; a message that
    the broker does not take, such as a too large one, only counts as failed.

    A key given by --key-field is a string's text or another scalar's JSON, numbers as they are written; null or
    no such member is no key. With --key-separator a line without the separator has no key.

    The exit status is 0 if every message was acknowledged, 1 if not, 2 if an argument is wrong. On
    Ctrl-C (130) or SIGTERM (143) reading stops and what was sent is waited for; a second one gives up.
    """
    if embedded and ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--url and --embedded exclude each other")
    key_of = _key_function(format_name, key_field, key_separator)
    paths = files or (STANDARD_INPUT,)
    if STANDARD_INPUT in paths:
        _check_standard_input(None if files else topic)
    console = _console(verbose)
    with _service(None if embedded else url) as service_url, _client(service_url) as client:
        ingest = Ingest(client, topic, stop, key_of=key_of, properties=properties, rate=rate)
        with progress(ingest, console, paths):
            ingest.run(paths, _SPLITTERS[format_name])
    _print(summary(ingest, keys=key_field is not None or key_separator is not None))
    if url is None and not embedded:
        _print(row("data", "gone with the pulsar-lite broker; --url names one that stays"))
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
@click.pass_obj
def broker(stop: Stop, port: int, path: str | None) -> None:
    """Run a pulsar-lite broker.

    Prints its URL and runs until Ctrl-C or SIGTERM.
    """
    with _embedded(path, port) as url:
        stop.begin()
        _print(url)
        with suppress(Stopped):
            stop.wait()


@app.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@_url_option
@_verbose_option
@click.pass_obj
def demo(stop: Stop, file: str | None, url: str | None, verbose: bool) -> None:
    """Send a file, read it back, compare.

    The lines of FILE go to a new topic; another process reads them back with the official client. Without
    FILE: all modules of Python's standard library. Without a URL: to a pulsar-lite broker.
    """
    paths = [file] if file else standard_library()
    console = _console(verbose)
    with _service(url) as service_url, _client(service_url) as client:
        click.echo(f"ingesting {file or _library_name(len(paths))}", err=True)
        ingest, read_back = round_trip(client, service_url, paths, stop, console)
    stop.check()
    _print(summary(ingest))
    outcome = f"{read_back.messages} messages in {read_back.seconds:.3f} s, the same in the same order"
    _print(row("read back", f"{outcome}, SHA-256 {read_back.sha256}"))


def _library_name(files: int) -> str:
    return f"the standard library of Python {sys.version_info[0]}.{sys.version_info[1]}: {files:,} files"


def _check_standard_input(only_argument: str | None) -> None:
    """Nobody should wonder what a terminal waits for; `only_argument`: the topic, if no files follow it."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed")
    if not sys.stdin.isatty():
        return
    taken = only_argument is not None and os.path.isfile(only_argument)
    hint = f"{only_argument} is taken as the topic; " if taken else ""
    click.echo(f"{hint}reading standard input", err=True)


def _print(text: str) -> None:
    """To standard output, where failing is an error like any other."""
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # click ends the process quietly
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter fails again, when it exits
        raise click.ClickException(f"standard output: {error.strerror}") from None


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


def _console(verbose: bool) -> Console:
    """Standard error, where the logs go too."""
    console = Console(stderr=True)
    logging.basicConfig(
        format="%(message)s" if console.is_terminal else "%(asctime)s %(levelname)s %(message)s",
        # On a terminal the lines must go around the progress bar.
        handlers=[RichHandler(console=console, show_path=False)] if console.is_terminal else None,
    )
    logging.getLogger(pulsar.__name__).setLevel(logging.DEBUG if verbose else logging.WARNING)
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


@contextmanager
def _client(url: str) -> Iterator[pulsar.Client]:
    try:
        client = pulsar.Client(url)
    except (ValueError, NotImplementedError) as error:
        raise click.BadParameter(str(error), param_hint="--url") from None
    with client:
        try:
            yield client
        except pulsar.PulsarException as error:
            if not error.retriable:  # not about reaching the broker
                raise
            raise click.ClickException(f"{url}: {said(error)}") from None
