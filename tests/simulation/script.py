"""What happens in a life: acts drawn from a seed, printed like sentences, and cut down to what a failure needs."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pulsar_fast.wire.messages import ServerError

CODES = (*range(26), 77)
"""Every `ServerError`, and one that no client knows."""


@dataclass(frozen=True)
class Act:
    """One thing that the application, a broker or the network does, and the pause behind it."""

    what: str
    arguments: dict[str, Any] = field(default_factory=dict, hash=False)
    pause_ms: float = 1

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.what}({arguments}), then {self.pause_ms:g} ms"


@dataclass(frozen=True)
class Script:
    """A life from its beginning to its end; the same script is the same life."""

    seed: int
    settings: dict[str, Any]
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        lines = [f"seed {self.seed}", *(f"  {name} = {value!r}" for name, value in self.settings.items())]
        return "\n".join([*lines, *(f"  {number:3}. {act}" for number, act in enumerate(self.acts, 1))])


def write(seed: int, length: int = 60) -> Script:
    """The script of a seed."""
    draw = random.Random(seed)
    settings = {
        "latency_ms": draw.choice([0.0, 0.2, 1.0, 5.0]),
        "limits": draw.choice([[5 << 20, 5 << 20], [20_000, 20_000], [20_000, 2_000], [5 << 20, 4_000]]),
        "memory_limit": draw.choice([0, 0, 64 << 20, 30_000]),
        "operation_timeout_s": draw.choice([0.5, 2.0]),
        "keep_alive_s": draw.choice([0.2, 1.0, 30.0]),
        "backoff_ms": draw.choice([(1, 20), (5, 100), (100, 10_000)]),
        "connections_per_broker": draw.choice([1, 1, 2]),
        "max_idle_s": draw.choice([0.1, 60]),
        "tls": draw.choice([False, False, True]),
        "authenticates": draw.choice([True, True, False]),
        "ending": draw.choice(["healed", "healed", "healed", "closed in the midst of it", "shut down"]),
    }
    acts = [_create(draw) for _ in range(draw.randint(1, 3))]
    makers = [make for make, weight in _MAKERS for _ in range(weight)]
    while len(acts) < length:
        made = draw.choice(makers)(draw)
        acts += made if isinstance(made, list) else [made]
    return Script(seed, settings, tuple(acts))


def cut_down(script: Script, fails: Callable[[Script], bool], attempts: int = 200) -> Script:
    """A part of the script that still fails, from which nothing can be left out (within so many attempts)."""
    size = max(len(script.acts) // 2, 1)
    while size and attempts:
        start = 0
        while start < len(script.acts) and attempts:
            shorter = Script(script.seed, script.settings, script.acts[:start] + script.acts[start + size :])
            attempts -= 1
            if fails(shorter):
                script = shorter
            else:
                start += size
        size //= 2
    return script


_Maker = Callable[[random.Random], Act | list[Act]]
_MAKERS: list[tuple[_Maker, int]] = []


def _act(weight: int) -> Callable[[_Maker], _Maker]:
    def note(make: _Maker) -> _Maker:
        _MAKERS.append((make, weight))
        return make

    return note


def _pause(draw: random.Random) -> float:
    return draw.choice([0, 0, 0.1, 1, 1, 3, 10, 30, 100])


def _who(draw: random.Random) -> int:
    return draw.randrange(6)


def _size(draw: random.Random) -> int:
    return draw.choice([0, 1, 20, 100, 100, 1000, 3000])


# --- the application


@_act(4)
def _create(draw: random.Random) -> Act:
    return Act(
        "create",
        {
            "topic": draw.randrange(4),
            "timeout_ms": draw.choice([0, 20, 50, 50, 200, 1000]),
            "max_pending": draw.choice([0, 1, 5, 20, 20, 200]),
            "batching": draw.choice([None, True, True, False]),
            "max_messages": draw.choice([2, 3, 10, 1000]),
            "delay_ms": draw.choice([0, 1, 10, 60, 400]),
            "blocks": draw.random() < 0.3,
        },
        _pause(draw),
    )


@_act(16)
def _send(draw: random.Random) -> Act:
    count = draw.choice([1, 2, 5, 10, 30])
    key = draw.choice([None, None, "a", "b"])
    alone = draw.random() < 0.1
    arguments = {"who": _who(draw), "count": count, "size": _size(draw), "key": key, "alone": alone}
    return Act("send", arguments, _pause(draw))


@_act(5)
def _send_and_await(draw: random.Random) -> Act:
    return Act(
        "send_and_await", {"who": _who(draw), "count": draw.randint(1, 5), "size": _size(draw)}, _pause(draw)
    )


@_act(4)
def _send_many(draw: random.Random) -> Act:
    return Act(
        "send_many", {"who": _who(draw), "count": draw.choice([1, 10, 60]), "size": _size(draw)}, _pause(draw)
    )


@_act(3)
def _fill(draw: random.Random) -> Act:
    return Act("fill", {"who": _who(draw)}, _pause(draw))


@_act(4)
def _flush(draw: random.Random) -> Act:
    return Act("flush", {"who": _who(draw)}, _pause(draw))


@_act(3)
def _close(draw: random.Random) -> Act:
    return Act("close", {"who": _who(draw)}, _pause(draw))


@_act(2)
def _cancel_sends(draw: random.Random) -> Act:
    return Act("cancel_sends", {"who": _who(draw)}, _pause(draw))


@_act(1)
def _cancel_tasks(draw: random.Random) -> Act:
    return Act("cancel_tasks", {}, _pause(draw))


# --- brokers


@_act(10)
def _answer(draw: random.Random) -> Act:
    kind = draw.choice(["error", "error", "error", "silence", "late", "late", "closed behind", "cut behind"])
    to = draw.choice(["PRODUCER"] * 6 + ["LOOKUP", "CONNECT", "CLOSE_PRODUCER", "PARTITIONED_METADATA"])
    arguments: dict[str, Any] = {"to": to, "kind": kind}
    if kind == "error":
        arguments["code"] = draw.choice(CODES)
    if kind == "late":
        arguments["ms"] = draw.choice([5, 40, 300])
    return Act("answer", arguments, _pause(draw))


@_act(5)
def _refuse(draw: random.Random) -> Act:
    codes = [code for code in CODES if code != ServerError.TopicTerminatedError]  # that is for `terminate`
    code = draw.choice([ServerError.NotAllowedError, ServerError.NotAllowedError, *codes])
    return Act("refuse", {"after": draw.choice([0, 0, 1, 3]), "code": code}, _pause(draw))


@_act(6)
def _receipts(draw: random.Random) -> Act:
    faults = ["skip", "repeat", "foreign", "above", "below"]
    return Act("receipts", {"faults": draw.choices(faults, k=draw.randint(1, 3))}, _pause(draw))


@_act(5)
def _store_in(draw: random.Random) -> Act:
    return Act("store_in", {"topic": draw.randrange(4), "ms": draw.choice([0, 1, 10, 60, 300])}, _pause(draw))


@_act(7)
def _unload(draw: random.Random) -> Act:
    return Act(
        "unload",
        {
            "topic": draw.randrange(4),
            "moves": draw.random() < 0.6,
            "named": draw.choice(["no", "no", "owner", "other", "nobody", "garbage"]),
            "kept": draw.choice([0, 1, 3, 1000]),
            "away_ms": draw.choice([0, 0, 5, 80]),
        },
        _pause(draw),
    )


@_act(5)
def _challenge(draw: random.Random) -> list[Act]:
    """Of a living connection or in the next handshakes, and what the client has to say."""
    kinds = ["slow 5", "slow 60", "slow 60", "slow 700", "fails", "wrong"]
    faults = draw.choices(kinds, k=draw.choice([0, 1, 1, 2]))
    asked = {"link": draw.randrange(3), "times": draw.choice([1, 1, 3])}
    if draw.random() < 0.3:
        asked = {"link": None, "times": draw.choice([1, 2])}
    acts = [Act("credentials", {"faults": faults}, 0), Act("challenge", asked, _pause(draw))]
    if draw.random() < 0.5:
        acts += [_send(draw), Act("challenge", asked, _pause(draw))]
    return acts


@_act(3)
def _speak_to_the_failed(draw: random.Random) -> list[Act]:
    refused = Act("refuse", {"after": 0, "code": ServerError.TopicTerminatedError}, 0)
    words = _words(draw) + _words(draw)
    said = Act("say", {"who": _who(draw), "state": "failed", "what": words}, _pause(draw))
    return [refused, _send(draw), Act("pause", {}, 15), said, Act("flush", {"who": _who(draw)}, 0)]


@_act(1)
def _terminate(draw: random.Random) -> Act:
    return Act("terminate", {"topic": draw.randrange(4)}, _pause(draw))


@_act(3)
def _crash(draw: random.Random) -> Act:
    return Act(
        "crash",
        {
            "host": draw.randrange(2),
            "kept": draw.choice([0, 1, 1000]),
            "down_ms": draw.choice([0, 5, 50, 400]),
            "reset": draw.random() < 0.5,
        },
        _pause(draw),
    )


def _words(draw: random.Random) -> list[str]:
    words = ["late ack", "ack", "skipped ack", "closed by the broker", "closed, owner named"]
    return draw.choices(words, k=2) + [f"error {code}" for code in draw.choices(CODES, k=6)]


@_act(8)
def _say(draw: random.Random) -> Act:
    state = draw.choice(["ready", "reconnecting", "closing", "closed", "closed", "closed", "failed"])
    return Act("say", {"who": _who(draw), "state": state, "what": _words(draw)}, _pause(draw))


@_act(3)
def _speak_while_registering(draw: random.Random) -> list[Act]:
    late = Act("answer", {"to": "PRODUCER", "kind": "late", "ms": 40}, 0)
    said = Act("say", {"who": 0, "state": "connecting", "what": _words(draw)}, 1)
    return [late, _create(draw), Act("pause", {}, 25), said, _send(draw), _send(draw)]


@_act(2)
def _cut_while_registering(draw: random.Random) -> list[Act]:
    late = Act("answer", {"to": "PRODUCER", "kind": "late", "ms": 40}, 0)
    inside = Act("cut_inside", {"link": draw.randrange(3), "room": 30}, 0)
    return [late, _create(draw), Act("pause", {}, 25), inside, _send(draw)]


@_act(3)
def _speak_while_closing(draw: random.Random) -> list[Act]:
    topic, who = draw.randrange(4), _who(draw)
    acts = [Act("store_in", {"topic": topic, "ms": 60}, 0) for topic in range(4)]
    acts += [_send(draw), _send(draw), Act("close", {"who": who}, 1)]
    acts += [Act("say", {"who": who, "state": "closing", "what": _words(draw)}, draw.choice([0, 10]))]
    moves = {"topic": topic, "moves": True, "named": draw.choice(["no", "owner"]), "kept": 1, "away_ms": 0}
    return [*acts, Act("unload", moves, _pause(draw))]


@_act(4)
def _noise(draw: random.Random) -> Act:
    kinds = ["ping", "unknown", "migrated", "empty", "garbage", "long", "success", "pong"]
    return Act("noise", {"link": draw.randrange(3), "kind": draw.choice(kinds)}, _pause(draw))


# --- the network


@_act(4)
def _cut(draw: random.Random) -> Act:
    arguments = {"link": draw.randrange(3), "reset": draw.random() < 0.5, "behind": draw.random() < 0.3}
    return Act("cut", arguments, _pause(draw))


@_act(4)
def _cut_inside(draw: random.Random) -> Act:
    return Act("cut_inside", {"link": draw.randrange(3), "room": draw.choice([1, 9, 30, 150])}, _pause(draw))


@_act(5)
def _stall(draw: random.Random) -> Act:
    arguments = {"link": draw.randrange(3), "room": draw.choice([0, 1, 50, 700, 9000])}
    return Act("stall", {**arguments, "ms": draw.choice([1, 30, 100, 700])}, _pause(draw))


@_act(2)
def _dribble(draw: random.Random) -> Act:
    return Act("dribble", {"link": draw.randrange(3), "size": draw.choice([1, 3, 20])}, _pause(draw))


@_act(1)
def _dark(draw: random.Random) -> Act:
    return Act("dark", {"host": draw.randrange(2), "ms": draw.choice([10, 300])}, _pause(draw))


@_act(1)
def _set_wall_clock(draw: random.Random) -> Act:
    return Act("set_wall_clock", {"by_ms": draw.choice([-3_600_000, 3_600_000])}, _pause(draw))
