"""Threads that send at full speed messages that describe themselves, and who counts what became of them."""

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pulsar_fast import PulsarException, Result
from pulsar_fast.wire.messages import BaseCommand
from tests import payloads
from tests.faults.scripted_broker import ScriptedBroker


def _is_whole(payload: bytes) -> bool:
    try:
        payloads.read(payload)
    except AssertionError:
        return False
    return True


class Check:
    """Looks at what the broker got, and lets it go."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self.registered = self._payloads = self._wrong = 0

    def look(self) -> None:
        for frame in self._broker.take_frames():
            self.registered += frame.kind == BaseCommand.PRODUCER
            self._payloads += len(frame.messages)
            self._wrong += sum(not _is_whole(message.payload) for message in frame.messages)

    def counts(self) -> dict[str, int]:
        return {
            "payloads checked": self._payloads,
            "wrong bytes": self._wrong,
            "broken frames": len(self._broker.violations),
        }


class Traffic:
    """Sends from so many threads while it is entered, and has counted every answer at the end."""

    def __init__(self, producer: Any, threads: int, sizes: tuple[int, int]) -> None:
        self._producer = producer
        self._sizes = sizes
        self._stopped = False
        self.results: Counter[Result] = Counter()
        self._answers = [bytearray() for _ in range(threads)]  # how often, by number
        self._threads = [
            threading.Thread(target=self._send, args=(number,), daemon=True) for number in range(threads)
        ]

    def _send(self, thread: int) -> None:
        chance = random.Random(thread)
        answers = self._answers[thread]
        while not self._stopped:
            number = len(answers)
            answers.append(0)
            payload = payloads.make(thread, number, chance.randint(*self._sizes))
            try:
                self._producer.send_async(payload, self._callback(answers, number))
            except PulsarException:
                answers.pop()  # raised, and so not called
                return

    def _callback(self, answers: bytearray, number: int) -> Callable[..., None]:
        def answered(result: Result, _message_id: Any) -> None:
            answers[number] += 1
            self.results[result] += 1

        return answered

    def __enter__(self) -> "Traffic":
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(0.0002)  # or the broker, which is a thread too, has its turn once in 80 ms
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join(30)
        deadline = time.monotonic() + 10
        while self.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        sys.setswitchinterval(self._interval)

    @property
    def sent(self) -> int:
        return sum(map(len, self._answers))

    @property
    def lost(self) -> int:
        return sum(answers.count(0) for answers in self._answers)

    @property
    def twice(self) -> int:
        return sum(len(answers) - answers.count(0) - answers.count(1) for answers in self._answers)

    def counts(self) -> dict[str, int]:
        return {
            "messages": self.sent,
            "stored": self.results[Result.Ok],
            "timed out": self.results[Result.Timeout],
            "lost callbacks": self.lost,
            "callbacks twice": self.twice,
        }
