"""Bugs sown on purpose: `python -m tests.mutations` builds each of them and shows that the suite finds it.

Each is a copy of the project under `build/mutations` with a few texts replaced. Simulated lives look for it, for a
minute at most; a bug that they do not find is a hole in the checks.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_PROJECT = Path(__file__).parent.parent
_BUILT = _PROJECT / "build" / "mutations"
_SECONDS = 60


@dataclass(frozen=True)
class Change:
    """In `file` the text `before` becomes `after`."""

    file: str
    before: str
    after: str

    def apply(self, project: Path) -> None:
        path = project / self.file
        text = path.read_text()
        if text.count(self.before) != 1:
            raise ValueError(f"{self.file} does not hold once {self.before!r}")
        path.write_text(text.replace(self.before, self.after))


class Mutation:
    """One bug, as what it changes."""

    def __init__(self, name: str, *changes: Change, builds: tuple[str, ...] = ("plain",)) -> None:
        self.name = name
        self.changes = changes
        self.builds = builds

    @property
    def is_compiled(self) -> bool:
        return any(change.file.startswith("src/") for change in self.changes)


MUTATIONS = (
    Mutation(
        "a buffer goes back to the pool while a write still holds it",
        Change(
            "src/pulsar_fast/batch.pyx",
            "        if batch.pending_hold or batch.write_holds:\n",
            "        if batch.write_holds and not batch.pending_hold and batch.bytes is not NULL:\n"
            "            self.give_back(batch.bytes, batch.capacity)\n"
            "            batch.bytes = NULL\n"
            "        if batch.pending_hold or batch.write_holds:\n",
        ),
        builds=("plain", "poisoned buffers", "sanitizers"),
    ),
    Mutation(
        "frames go on to be taken from a queue after its registration has ended",
        Change(
            "src/pulsar_fast/registration.pyx",
            "        self.stopped = True\n        self.slot_count = self.forgotten = 0",
            "        self.slot_count = self.forgotten = 0",
        ),
    ),
    Mutation(
        "an expired prefix is sent all the same",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "        if batch.begun:\n            batch.answered += messages",
            "        if True:\n            batch.answered += messages",
        ),
    ),
    Mutation(
        "permits are given back twice",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "        self.release(self.pool.let_go_of_pending(batch), messages)",
            "        self.release(self.pool.let_go_of_pending(batch), 2 * messages)",
        ),
    ),
    Mutation(
        "an answer is taken for that of the first frame in flight",
        Change(
            "src/pulsar_fast/registration.pyx",
            "            if self.slot_at(index).lowest_id == sequence_id:",
            "            if True:",
        ),
    ),
    Mutation(
        "a receipt out of its turn is taken for a good one",
        Change(
            "src/pulsar_fast/registration.pyx",
            "        if index and self.persistent and not nowhere:",
            "        if False:",
        ),
    ),
    Mutation(
        "deadlines start anew at a reconnect",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "            if not batch.begun:\n                self.pool.drop_frame(batch)",
            "            for run in range(batch.first_run, batch.run_count):\n"
            "                batch.runs[run].accepted = self.accumulator.clock.now()\n"
            "            if not batch.begun:\n"
            "                self.pool.drop_frame(batch)",
        ),
    ),
    Mutation(
        "the new limits are not looked at in a handoff",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "            elif message_size(batch) > registration.max_message_size:",
            "            elif False:",
        ),
    ),
    Mutation(
        "a resend tells another time than the first send",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "            else:\n                self.resent += 1",
            "            else:\n"
            "                self.resent += 1\n"
            "                self.pool.drop_frame(batch)\n"
            "                batch.publish_time_ms = self.accumulator.clock.wall()",
        ),
    ),
    Mutation(
        "bytes are given back with the callback, not with the buffer",
        Change(
            "src/pulsar_fast/batch.pyx",
            "        if batch.pending_hold or batch.write_holds:\n            return 0",
            "        if batch.pending_hold or batch.write_holds:\n"
            "            batch.charge = 0\n"
            "            return charge",
        ),
    ),
    Mutation(
        "nothing expires while there is no registration",
        Change(
            "pulsar_fast/topic_producer.py",
            "        if due is not None and due <= now:",
            "        if due is not None and due <= now and self.is_connected:",
        ),
    ),
    Mutation(
        "the handoff comes one turn of the loop late",
        Change(
            "pulsar_fast/topic_producer.py",
            "            self._hand_over(attempt.connection, reply.producer_success)",
            "            self._loop.call_soon(self._hand_over, attempt.connection, reply.producer_success)",
        ),
    ),
    Mutation(
        "a registration that ends right behind its handoff is not noticed",
        Change(
            "pulsar_fast/topic_producer.py",
            "            self._attempt.fail(error)\n"
            "        if self._registration is not None and self._registration.channel is connection:\n"
            "            self._registration_ended(error)\n\n"
            "    def on_topic_migrated",
            "            self._attempt.fail(error)\n"
            "        elif self._registration is not None and self._registration.channel is connection:\n"
            "            self._registration_ended(error)\n\n"
            "    def on_topic_migrated",
        ),
    ),
    Mutation(
        "ids start anew at the broker's last one with each registration",
        Change(
            "src/pulsar_fast/accumulator.pyx",
            "self.last_sequence_id = max(self.last_sequence_id, sequence_id)\n\n    # --- accepting",
            "self.last_sequence_id = sequence_id\n\n    # --- accepting",
        ),
        Change(
            "pulsar_fast/topic_producer.py",
            "            if self._options.initial_sequence_id is None:\n                self.accumulator",
            "        if self._options.initial_sequence_id is None:\n            self.accumulator",
        ),
    ),
    Mutation(
        "a refused producer registers anew without waiting for the answers in flight",
        Change(
            "pulsar_fast/topic_producer.py",
            "            await self._ask_to_close(connection)\n        connection.producers",
            "            pass\n        connection.producers",
        ),
    ),
    Mutation(
        "messages fail before their deadline",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "cdef int64_t before = self.accumulator.clock.now() - self.timeout_ns\n",
            "cdef int64_t before = self.accumulator.clock.now() - self.timeout_ns + 2_000_000\n",
        ),
    ),
    Mutation(
        "an attempt that is given up leaves its producer at the broker",
        Change(
            "pulsar_fast/topic_producer.py",
            "            if not attempt.answered and connection.lost is None:\n",
            "            if False:\n",
        ),
    ),
    Mutation(
        "a producer that has ended is left at the broker",
        Change(
            "pulsar_fast/topic_producer.py",
            "        if was_live:\n            self._send_close(connection)\n",
            "",
        ),
    ),
    Mutation(
        "pings are not answered",
        Change(
            "pulsar_fast/connection.py",
            "        self.send(BaseCommand(type=BaseCommand.PONG, pong={}))\n",
            "        pass\n",
        ),
    ),
    Mutation(
        "flush returns one message early",
        Change(
            "src/pulsar_fast/pending_queue.pyx",
            "for mark in self.marks if mark[0] <= low]",
            "for mark in self.marks if mark[0] <= low + 1]",
        ),
    ),
    Mutation(
        "closing leaves the reconnect running",
        Change(
            "pulsar_fast/topic_producer.py",
            "            self._connecting.cancel()\n",
            "            pass\n",
        ),
    ),
    Mutation(
        "a lost connection is not told to the producers on it",
        Change(
            "pulsar_fast/connection.py",
            "            producer.on_connection_lost(self, error)",
            "            pass",
        ),
    ),
)


BUILDS = {
    "plain": {},
    "poisoned buffers": {"PULSAR_FAST_DEBUG": "1"},
    "sanitizers": {"PULSAR_FAST_SANITIZE": "1"},
}
"""What a bug is looked for with; most need no help."""


def _copy(mutation: Mutation, build: str) -> Path:
    """The project with the bug in it, built."""
    copy = _BUILT / re.sub(r"\W+", "-", f"{build} {mutation.name}")
    shutil.rmtree(copy, ignore_errors=True)
    leave = shutil.ignore_patterns("__pycache__", "*.html", "_core.c")
    for folder in ("pulsar_fast", "src", "tests"):
        shutil.copytree(_PROJECT / folder, copy / folder, ignore=leave)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(_PROJECT / name, copy / name)
    for change in mutation.changes:
        change.apply(copy)
    if mutation.is_compiled:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        environment = {**os.environ, "CFLAGS": "-O1 -w", **BUILDS[build]}
        subprocess.run(command, cwd=copy, env=environment, check=True, stdout=subprocess.DEVNULL)
    return copy


def _environment(copy: Path, build: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    if build == "sanitizers":
        libraries = ("libasan.so", "libubsan.so")
        paths = [
            subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
            for name in libraries
        ]
        environment |= {
            "LD_PRELOAD": " ".join(paths),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        }
    return environment


def _look_for(copy: Path, build: str) -> tuple[str | None, float]:
    """What was seen (None: nothing was found), and the seconds that it took."""
    started = time.monotonic()
    found = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--first-seed=0", f"--minutes={_SECONDS / 60}"],
        cwd=copy,
        env=_environment(copy, build),
        capture_output=True,
        text=True,
    )
    took = time.monotonic() - started
    if found.returncode == 0:
        return None, took
    lines = [
        line
        for line in found.stderr.splitlines()
        if "Sanitizer: " in line or line.startswith("pulsar_fast: ")
    ]
    lines += found.stdout.splitlines() or found.stderr.splitlines()[-1:]
    return re.sub(r"^after [\d.]+ s: |^==\d+==| \(\S+:\d+\)$| on address .*$", "", lines[0])[:110], took


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name holds this")
    arguments = parser.parse_args()
    missed = 0
    print("| bug | build | found within | by |\n| --- | --- | --- | --- |")
    for mutation in MUTATIONS:
        if arguments.only not in mutation.name:
            continue
        for build in mutation.builds:
            seen, seconds = _look_for(_copy(mutation, build), build)
            missed += seen is None
            print(f"| {mutation.name} | {build} | {seconds:.0f} s | {seen or 'NOT FOUND'} |", flush=True)
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
