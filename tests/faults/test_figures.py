"""Short versions of what `python -m tests.figures` measures; only what is exact is asserted."""

import sys

import pytest

from tests.figures.cycles import asyncio_clients_that_come_and_go, clients_that_come_and_go
from tests.figures.first_resend import after_a_new_connection, after_an_outage
from tests.figures.lateness import BROKERS, lateness
from tests.figures.racing import deadlines_racing_with_writing, reconnects_racing_with_sending
from tests.figures.stalled import memory_while_stalled
from tests.figures.table import Figure, markdown, spread

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
NEVER = {"lost callbacks": 0, "callbacks twice": 0, "wrong bytes": 0, "broken frames": 0}


def part(figure: Figure, names: dict[str, int]) -> dict[str, int]:
    return {name: figure.values[name] for name in names}


def test_reconnects_racing_with_sending() -> None:
    """No outage leads to more than one reconnect."""
    expected = {
        **NEVER,
        "connections beyond the script's": 0,
        "registrations beyond the script's": 0,
        "reconnects": 40,
    }
    figure = reconnects_racing_with_sending(40)
    assert part(figure, expected) == expected
    assert figure.values["stored"] > 0
    assert figure.values["timed out"] + figure.values["stored"] == figure.values["messages"]


def test_deadlines_racing_with_writing() -> None:
    expected = {**NEVER, "connections beyond the script's": 0, "reconnects": 0}
    figure = deadlines_racing_with_writing(10)
    assert part(figure, expected) == expected
    assert figure.values["timed out"] > 0
    assert figure.values["payloads checked"] > 0


@pytest.mark.parametrize("busy_threads", [0, 2])
@pytest.mark.parametrize("broker_is", BROKERS)
def test_no_timeout_callback_is_lost(broker_is: str, busy_threads: int) -> None:
    figure = lateness(broker_is, busy_threads, seconds=0.2)
    assert figure.values["lost callbacks"] == 0
    assert figure.values["messages"] > 0


@on_linux
def test_memory_while_stalled() -> None:
    figure = memory_while_stalled(0.5)
    assert 0 < figure.values["most pending bytes"] <= figure.values["limit"]
    assert part(figure, {"lost callbacks": 0, "stored": 0}) == {"lost callbacks": 0, "stored": 0}


@pytest.mark.parametrize("measure", [after_a_new_connection, lambda trials: after_an_outage(trials, 0, 0.05)])
def test_each_outage_is_one_reconnect_and_one_resend(measure: object) -> None:
    assert callable(measure)
    figure = measure(4)
    expected = {"trials": 4, "resent": 4, "reconnects": 4, "connections": 4}
    assert part(figure, expected) == expected


@on_linux
@pytest.mark.parametrize("measure", [clients_that_come_and_go, asyncio_clients_that_come_and_go])
def test_clients_that_come_and_go(measure: object) -> None:
    assert callable(measure)
    expected = {"stored": 20, "descriptors left": 0, "threads left": 0}
    assert part(measure(20), expected) == expected


def test_how_figures_are_shown() -> None:
    assert spread([0.001 * number for number in range(1, 101)]) == {
        "median": "50.0 ms",
        "p95": "95.0 ms",
        "max": "100.0 ms",
    }
    assert markdown("Title", [Figure("a", {"x": 1}), Figure("b", {"y": 2})]).splitlines() == [
        "### Title",
        "",
        "| | x | y |",
        "| --- | ---: | ---: |",
        "| a | 1 |  |",
        "| b |  | 2 |",
    ]
