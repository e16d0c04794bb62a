"""What the client tells the application's log."""

import logging
import traceback
from typing import TYPE_CHECKING, Any

__all__ = ["Log", "log_of"]

if TYPE_CHECKING:
    from .options import ClientOptions

    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class Log(_Adapter):
    """A logger whose handlers may raise: the error is printed, as `logging` does itself, and stops nothing."""

    def log(self, level: int, msg: object, *args: object, **named: Any) -> None:
        try:
            super().log(level, msg, *args, **named, stacklevel=2)
        except Exception:
            if logging.raiseExceptions:
                traceback.print_exc()


def log_of(options: "ClientOptions") -> Log:
    """Where a client with these options logs."""
    return Log(options.logger or logging.getLogger("pulsar_fast"))
