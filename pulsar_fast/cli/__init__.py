"""The ``pulsar-fast`` command; needs the ``cli`` extra (click and rich)."""

import sys

from .stopping import GaveUp, Stop, Stopped

_EXTRA = ("click", "rich")


def main() -> None:
    """Run the command line and exit. Without the ``cli`` extra: say so on standard error and exit 2."""
    stop = Stop()
    try:
        with stop:
            _run(stop)
    except (GaveUp, Stopped):
        stop.tell()
        sys.exit(stop.exit_code)


def _run(stop: Stop) -> None:
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        print("the command line needs: pip install 'pulsar-fast[cli]'", file=sys.stderr)
        sys.exit(2)
    app(prog_name="pulsar-fast", obj=stop)
