"""How SIGINT and SIGTERM end a command: once to stop in an orderly way, twice to give up."""

import os
import select
import signal
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_READ_SIZE = 256 << 10


class Stopped(Exception):
    """A signal asked to stop; raised only where nothing read can be lost."""


class GaveUp(BaseException):
    """A signal that cannot wait: the second one, or one that came before there was anything to finish.

    No `KeyboardInterrupt`, since click would end the process its own way.
    """


class Stop:
    """Context manager that owns both signals, around everything the process does on its main thread.

    Until `begin` is called a signal raises `GaveUp` at once. Afterwards the first one only makes the waiting
    calls below raise `Stopped`. Once it is left, a signal ends the process without a word.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._since = 0.0
        self._begun = False

    def begin(self) -> None:
        """From here on there is something to finish. Raises `GaveUp` if a signal came before."""
        if self.signal_number is not None:  # raised where nothing passes it on, as in a destructor
            raise GaveUp
        self._begun = True

    def check(self) -> None:
        """Raise `Stopped` if a signal came."""
        if self.signal_number is not None:
            raise Stopped

    def left_of(self, seconds: float) -> float | None:
        """What is left of so many seconds since the first signal; None if none came."""
        if self.signal_number is None:
            return None
        return max(0.0, self._since + seconds - time.monotonic())

    def wait(self) -> NoReturn:
        """Wait for a signal, then raise `Stopped`."""
        while True:
            self._wait([], None)

    def sleep_until(self, when: float) -> None:
        """Wait for this time of `time.monotonic()`; raise `Stopped` when a signal comes."""
        self.check()
        while (delay := when - time.monotonic()) > 0:
            self._wait([], delay)

    def wait_for(self, descriptor: int, timeout: float | None = None) -> bool:
        """Whether there is something to read within `timeout` seconds (None: however long it takes).

        Raises `Stopped` when a signal comes.
        """
        self.check()
        return self._wait([descriptor], timeout)

    def read(self, descriptor: int) -> bytes:
        """Wait for input and read some of it, `b""` at its end; raise `Stopped` when a signal comes."""
        while not self.wait_for(descriptor):
            pass
        return os.read(descriptor, _READ_SIZE)

    def _wait(self, descriptors: list[int], timeout: float | None) -> bool:
        # The interpreter writes to the wake-up pipe whichever thread the signal lands on.
        ready, _, _ = select.select([*descriptors, self._wake], [], [], timeout)
        if self._wake in ready:
            os.read(self._wake, 64)
        self.check()
        return bool(ready) and ready != [self._wake]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        first = self.signal_number is None
        if first:
            self.signal_number = number
            self._since = time.monotonic()
        if not first or not self._begun:
            raise GaveUp

    def __enter__(self) -> "Stop":
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for (
            number
        ) in SIGNALS:  # not Python's own handler: its traceback would show when the interpreter exits
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.close(self._wake)
        os.close(self._woken)

    def tell(self) -> None:
        """Say on standard error which signal ended the process."""
        if self.signal_number is not None:
            with suppress(OSError):
                os.write(2, f"stopped by {signal.Signals(self.signal_number).name}\n".encode())

    @property
    def exit_code(self) -> int:
        """128 + the number of the signal that came; 0 if none did."""
        return 0 if self.signal_number is None else 128 + self.signal_number
