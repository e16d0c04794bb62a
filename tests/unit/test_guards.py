"""The rules of ``tests/conftest.py``: each of these small tests breaks one, and so has to fail."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]

_BREAKERS = """
import asyncio, socket, subprocess, threading, warnings

def test_nothing():
    pass

def test_thread_raises():
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()

def test_destructor_raises():
    type("Sour", (), {"__del__": lambda self: 1 / 0})()

def test_socket_unclosed():
    socket.socket()

def test_socket_unclosed_in_a_cycle():
    cycle = [socket.socket()]
    cycle.append(cycle)

def test_warning():
    warnings.warn("mind the gap")

def test_loop_callback_raises():
    async def main():
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
    asyncio.run(main())

def test_task_exception_unseen():
    async def fail():
        1 / 0
    async def main():
        asyncio.create_task(fail())
        await asyncio.sleep(0.01)
    asyncio.run(main())

def test_thread_left():
    threading.Thread(target=threading.Event().wait, name="pulsar_fast loop", daemon=True).start()

processes = []

def test_process_left():
    processes.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in each of the tests above; nothing: passed."""
    folder = tmp_path_factory.mktemp("breakers")
    (folder / "test_breakers.py").write_text(_BREAKERS)
    report = folder / "report.xml"
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(_ROOT / "pyproject.toml")]
    options += [f"--rootdir={folder}", f"--junitxml={report}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
        timeout=50,
    )
    return {
        str(case.get("name")): "".join(problem.text or "" for problem in case)
        for case in ET.parse(report).iter("testcase")
    }


@pytest.mark.parametrize(
    ("test", "problem"),
    [
        ("test_thread_raises", "ZeroDivisionError"),
        ("test_destructor_raises", "ZeroDivisionError"),
        ("test_socket_unclosed", "unclosed <socket.socket"),
        ("test_socket_unclosed_in_a_cycle", "unclosed <socket.socket"),
        ("test_warning", "mind the gap"),
        ("test_loop_callback_raises", "an event loop met unhandled exceptions"),
        ("test_task_exception_unseen", "an event loop met unhandled exceptions"),
        ("test_thread_left", "the test left threads of pulsar_fast"),
        ("test_process_left", "the test left processes"),
    ],
)
def test_breaking_a_rule_fails(outcomes: dict[str, str], test: str, problem: str) -> None:
    assert problem in outcomes[test]


def test_keeping_the_rules_passes(outcomes: dict[str, str]) -> None:
    assert outcomes["test_nothing"] == ""
