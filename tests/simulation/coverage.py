"""Which events a life has delivered, and in which state the producer was."""

from collections import Counter

from pulsar_fast.topic_producer import State
from tests.simulation.script import CODES

EVENTS = (
    "ack",
    "late ack",
    "skipped ack",
    "refusal in the middle",
    "closed by the broker",
    "closed, owner named",
    "cut between frames",
    "cut inside a frame",
    "expired before framing",
    "expired before writing",
    "expired after writing",
    "queue full",
    "flush",
    "close",
    "smaller limit",
    *(f"error {code}" for code in CODES),
)

COUNTED = (
    "events over TLS",
    "challenges in a handshake",
    "challenges later on",
    "answers to challenges",
    "wrong credentials",
    "credentials that fail",
    "messages sent while a challenge waits",
)
"""What matters whatever state producers are in."""

NO_MESSAGES = "there is no message yet, or none any more"
NO_HANDLE = "the application has no producer yet"
NO_ROOM_ASKED = "nothing is accepted, so that nothing can be full"
NOT_REGISTERING = "only an answer to `Producer` brings a limit"

IMPOSSIBLE = {
    **{
        (state, event): NO_MESSAGES
        for state in (State.CONNECTING, State.CLOSED, State.FAILED)
        for event in (
            "refusal in the middle",
            "expired before framing",
            "expired before writing",
            "expired after writing",
        )
    },
    (State.CONNECTING, "queue full"): NO_HANDLE,
    (State.CONNECTING, "flush"): NO_HANDLE,
    **{(state, "queue full"): NO_ROOM_ASKED for state in (State.CLOSING, State.CLOSED, State.FAILED)},
    **{
        (state, "smaller limit"): NOT_REGISTERING
        for state in (State.CONNECTING, State.READY, State.CLOSED, State.FAILED)
    },
}


class Coverage:
    """Counts (state, event), and some events whatever the state."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[State, str]] = Counter()
        self.counted: Counter[str] = Counter()
        self.steps = 0
        self.lives = 0

    def add(self, other: "Coverage") -> None:
        self.seen += other.seen
        self.counted += other.counted
        self.steps += other.steps
        self.lives += other.lives

    def note(self, state: State, event: str) -> None:
        self.seen[state, event] += 1

    def count(self, what: str, times: int = 1) -> None:
        assert what in COUNTED
        self.counted[what] += times

    def missing(self, least: int) -> list[str]:
        rare = [f"{what}: {self.counted[what]}" for what in COUNTED if self.counted[what] < least]
        return rare + [
            f"{event} while {state.value}: {self.seen[state, event]}"
            for state in State
            for event in EVENTS
            if (state, event) not in IMPOSSIBLE and self.seen[state, event] < least
        ]

    def __str__(self) -> str:
        head = f"{self.steps:,} delivered events in {self.lives:,} lives"
        lines = ["event".ljust(24) + "".join(state.value.rjust(13) for state in State)]
        for event in EVENTS:
            cells = (
                "-" if (state, event) in IMPOSSIBLE else f"{self.seen[state, event]:,}" for state in State
            )
            lines.append(event.ljust(24) + "".join(cell.rjust(13) for cell in cells))
        lines += (f"{what.ljust(40)}{self.counted[what]:,}" for what in COUNTED)
        return "\n".join([head, *lines])
