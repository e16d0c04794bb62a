"""What the client tells the application's log."""

import logging
import traceback
from typing import TYPE_CHECKING, Any

__all__ = ["Log"]

if TYPE_CHECKING:
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
