"""Scripts in a process of their own, for what must not happen to the one that runs the tests."""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.faults.scripted_broker import ScriptedBroker

PREAMBLE = """
import os, resource, sys, threading, time
import pulsar_fast
url = sys.argv[1]
"""


def run_process(broker: ScriptedBroker, script: str, timeout: float = 15) -> list[str]:
    """The lines that a script printed before it ended, by itself and with code 0."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PREAMBLE + textwrap.dedent(script), broker.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=os.getcwd(),
    )
    try:
        out, error = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, error = process.communicate()
        pytest.fail(f"it did not end within {timeout} s: {out}{error}")
    assert process.returncode == 0, error
    return out.splitlines()
