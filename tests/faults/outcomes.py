"""What callbacks were told."""

import threading
from collections.abc import Callable
from typing import Any

from pulsar_fast import MessageId, Result


class Outcomes:
    """Collects the answers to messages that a test numbers or names."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.answers: list[tuple[Any, Result, MessageId]] = []

    def of(self, name: Any) -> Callable[[Result, MessageId], None]:
        """The callback of one message."""

        def answered(result: Result, message_id: MessageId) -> None:
            with self._changed:
                self.answers.append((name, result, message_id))
                self._changed.notify_all()

        return answered

    def wait_for(self, count: int, timeout: float = 5) -> None:
        """Until so many callbacks have run; more of them, or one twice, is an error."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: len(self.answers) >= count, timeout)
            assert arrived, f"{len(self.answers)} of {count} callbacks ran within {timeout} s"
            names = [name for name, _, _ in self.answers]
            assert len(names) == len(set(names)), f"some ran twice: {names}"
            assert len(names) == count, f"more than {count} ran: {names}"

    @property
    def results(self) -> dict[Any, Result]:
        return {name: result for name, result, _ in self.answers}

    @property
    def names(self) -> list[Any]:
        """In the order in which the callbacks ran."""
        return [name for name, _, _ in self.answers]
