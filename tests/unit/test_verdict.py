"""The judge of the outage tests can find against a client, and a scenario that fails keeps no other from running."""

from collections import Counter
from collections.abc import Callable

import pytest

from pulsar_fast import Result
from tests.outages.__main__ import run
from tests.outages.scenarios import Report
from tests.outages.verdict import SIZES, Fates, content, judge

COUNT = 3 * len(SIZES)
SENT = [content("producer", number) for number in range(COUNT)]


def heard(results: dict[int, Result] | None = None) -> Fates:
    fates = Fates()
    for number in range(COUNT):
        fates.note(number, (results or {}).get(number, Result.Ok))
    return fates


def complaints(
    delivered: list[bytes], fates: Fates | None = None, *, may_time_out: bool = False
) -> list[str]:
    return judge("producer", COUNT, fates or heard(), delivered, may_time_out=may_time_out).complaints()


def test_faultless() -> None:
    verdict = judge("producer", COUNT, heard(), SENT, may_time_out=False)
    assert verdict.complaints() == []
    assert (verdict.sent, verdict.delivered_once) == (COUNT, COUNT)


@pytest.mark.parametrize(
    ("delivered", "expected"),
    [
        (SENT[:8] + SENT[7:], ["duplicates: 1"]),
        (SENT[:8] + SENT[5:], ["duplicates: 3", "out_of_order: 2"]),
        (SENT + SENT, [f"duplicates: {COUNT}", f"out_of_order: {COUNT - 1}"]),
        (SENT[:7] + SENT[8:], ["lost: 1"]),
        (SENT[:-2], ["lost: 2"]),
        ([], [f"lost: {COUNT}"]),
        (SENT[1::-1] + SENT[2:], ["out_of_order: 1"]),
        (SENT[1:] + SENT[:1], ["out_of_order: 1"]),
    ],
)
def test_duplicates_losses_and_disorder(delivered: list[bytes], expected: list[str]) -> None:
    assert complaints(delivered) == expected


@pytest.mark.parametrize(
    "damaged",
    [
        SENT[7][:-1] + b"\xff",
        SENT[7][:-1],
        SENT[7] + b"\0",
        SENT[7][:5],
        b"",
        bytes(1000),
        b"\xff" * 1000,
        content("another", 7),
        content("producer", 7 + COUNT),  # not sent by now
    ],
)
def test_damage(damaged: bytes) -> None:
    assert complaints([*SENT[:7], damaged, *SENT[8:]]) == ["lost: 1", "damaged: 1"]
    assert complaints([*SENT, damaged]) == ["damaged: 1"]


def test_every_byte_counts() -> None:
    damaged = []
    for message in SENT[: len(SIZES)]:
        for position in range(len(message)):
            damaged.append(bytearray(message))
            damaged[-1][position] ^= 1
    assert complaints(SENT + list(map(bytes, damaged))) == [f"damaged: {sum(SIZES)}"]


def test_what_timed_out_may_be_stored_or_not() -> None:
    fates = heard({3: Result.Timeout, 4: Result.Timeout})
    for delivered in (SENT, SENT[:4] + SENT[5:]):
        assert complaints(delivered, fates, may_time_out=True) == []
    assert complaints(SENT[:5] + SENT[3:], fates, may_time_out=True) == ["duplicates: 2", "out_of_order: 1"]


def test_errors_that_nothing_explains() -> None:
    for result, may_time_out in ((Result.Timeout, False), (Result.AlreadyClosed, True)):
        expected = f"other_errors: {Counter({result: 1})}"
        assert complaints(SENT, heard({3: result}), may_time_out=may_time_out) == [expected]


def test_answers_that_are_missing_or_too_many() -> None:
    fates = heard()
    del fates.results[COUNT - 1]
    assert complaints(SENT, fates) == ["not_answered_once: 1"]
    fates = heard()
    fates.note(7, Result.Ok)
    assert complaints(SENT, fates) == ["not_answered_once: 1"]
    fates = heard()
    fates.note(COUNT, Result.Ok)
    assert complaints(SENT, fates) == ["lost: 1", "not_answered_once: 1"]


def report(delivered: list[bytes]) -> Report:
    verdict = judge("producer", COUNT, heard(), delivered, may_time_out=False)
    return Report("scenario", "producer", [0.5], [1.5], 1, verdict)


def test_a_scenario_that_fails_keeps_no_other_from_running(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> list[Report]:
        raise AssertionError("no receipt")

    scenarios: list[tuple[str, Callable[[], list[Report]]]] = [
        ("first", fails),
        ("second", lambda: [report(SENT[1:])]),
        ("third", lambda: [report(SENT)]),
    ]
    assert run(scenarios) == ["first: AssertionError: no receipt", "scenario, producer: lost: 1"]
    _columns, _line, first, second, third = capsys.readouterr().out.splitlines()
    assert first == "| first | not finished |"
    assert second.startswith(f"| scenario | producer | 1 | 1 | {COUNT} | {COUNT - 1} | 0 | 1 |")
    assert third.startswith(f"| scenario | producer | 1 | 1 | {COUNT} | {COUNT} | 0 | 0 |")
