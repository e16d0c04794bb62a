"""Measures what a message costs: pulsar_fast beside the official client and the floor. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
BIN = HERE / "bin"
RESULTS = HERE / "results"
COMPILER = os.environ.get("CC", "cc")

CHECKSUM_FLAGS = ["-msse4.2"] if platform.machine() in ("x86_64", "AMD64") else []
"""For the instruction; elsewhere the programs use tables."""

SIZE, BATCH, PENDING = 100, 1000, 50_000
MEMORY_MESSAGES, MEMORY_PENDING = 20_000_000, 1000
OVER_TLS = ("callback_tls", "send_many_tls")
WORKS = ("floor", "callback", "nocallback", "send_many", "official", *OVER_TLS)
TARGETS = {"callback": 35, "nocallback": 18, "send_many": 5}
"""How many times the floor each work may cost, at most."""

STANDIN_LIMIT = 0.9
"""The share of a core above which the stand-in, not the client, may have set the pace."""

QUIET = 0.1
"""Cores that other programs may keep busy before it is said."""

GRACE_SECONDS = 600.0
"""How long a peer may take beyond its time of sending."""


@dataclass(frozen=True)
class Run:
    """One measurement: what was run, what client and stand-in say, and what is wrong with it."""

    work: str
    round: int
    command: list[str]
    client: dict[str, float]
    standin: dict[str, float]
    others: float
    """Cores that other programs kept busy meanwhile."""
    problems: list[str]

    @property
    def us_per_message(self) -> float:
        """CPU of the client, in µs."""
        return self.client["cpu_seconds"] / self.client["messages"] * 1e6

    @property
    def throughput(self) -> float:
        """Messages a second."""
        return self.client["messages"] / self.client["wall_seconds"]


@dataclass(frozen=True)
class Row:
    """One work in the table: medians over the rounds.

    A ratio is taken within each round, since the machine drifts from round to round; it is absent where its
    other half was not measured.
    """

    work: str
    us_per_message: float
    us_min: float
    us_max: float
    over_floor: float | None
    target: int | None
    official_over_it: float | None
    throughput: float
    standin_share: float
    ssl_share: float | None
    """What encrypting the same pieces alone costs, as a part of the client's CPU; None without TLS."""


class Standin:
    """A fresh stand-in broker, with TLS or without: a context manager that ends it."""

    def __init__(self, *, tls: bool) -> None:
        self._program = BIN / ("standin-tls" if tls else "standin")

    def __enter__(self) -> Standin:
        self._process = subprocess.Popen(
            [self._program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline().removeprefix("port "))
        return self

    def stop(self) -> dict[str, float]:
        """Ends it and returns its counters, with its share of a core while messages came."""
        output, _ = self._process.communicate(timeout=30)
        counters: dict[str, float] = json.loads(output)
        wall = counters["wall_seconds"]
        counters["share"] = counters["cpu_seconds"] / wall if wall else 0.0
        return counters

    def __exit__(self, *error: object) -> None:
        with self._process:
            self._process.kill()


# ---- running ----


def compile_programs() -> None:
    """Compiles the C programs into bin/."""
    if shutil.which(COMPILER) is None:
        sys.exit(f"the benchmarks need a C compiler, and {COMPILER!r} is not there")
    flags = ["-std=c11", "-O3", "-Wall", "-Wextra", *CHECKSUM_FLAGS]
    BIN.mkdir(exist_ok=True)
    for name in ("standin", "floor"):
        subprocess.run([COMPILER, *flags, "-o", BIN / name, HERE / f"{name}.c"], check=True)


def compile_tls() -> bool:
    """Compiles the stand-in that speaks TLS; whether OpenSSL's headers are there for it."""
    flags = ["-std=gnu11", "-O3", *CHECKSUM_FLAGS, "-DOVER_TLS"]
    command = [COMPILER, *flags, "-o", BIN / "standin-tls", HERE / "standin.c", "-lssl", "-lcrypto"]
    return subprocess.run(command, capture_output=True).returncode == 0


def command_for(work: str, port: int, seconds: float) -> list[str]:
    """The command line of one measurement."""
    if work == "floor":
        return [str(BIN / "floor"), str(port), str(seconds), str(SIZE), str(BATCH)]
    name = "official" if work == "official" else "ours"
    shape = "callback" if work in ("official", "memory") else work.removesuffix("_tls")
    scheme = "pulsar+ssl" if work in OVER_TLS else "pulsar"
    pending = MEMORY_PENDING if work == "memory" else PENDING
    length = ["--messages", str(MEMORY_MESSAGES)] if work == "memory" else ["--seconds", str(seconds)]
    program = [sys.executable, str(HERE / "peers" / f"{name}.py"), "--url", f"{scheme}://127.0.0.1:{port}"]
    sizes = ["--size", str(SIZE), "--batch", str(BATCH), "--pending", str(pending)]
    return [*program, "--shape", shape, *length, *sizes]


def run_command(command: list[str], seconds: float) -> tuple[dict[str, float], list[str]]:
    """Runs a peer: what it printed, and what went wrong."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + GRACE_SECONDS)
    except subprocess.TimeoutExpired as error:
        return {}, [f"not done after {error.timeout:.0f} s"]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["(it said nothing)"])[-1]
        return {}, [f"exit code {done.returncode}: {last}"]
    return json.loads(done.stdout.splitlines()[-1]), []


def doubts(client: dict[str, float], standin: dict[str, float]) -> list[str]:
    """What the stand-in saw that makes a result worthless."""
    found = [
        f"{standin[name]} {name}" for name in ("bad_crc", "gaps", "repeats", "malformed") if standin[name]
    ]
    claimed = client["messages"] + client["warm_up_messages"]
    if standin["messages"] != claimed:
        found.append(f"the client claims {claimed} messages, the stand-in saw {standin['messages']}")
    if standin["payload_bytes"] < claimed * SIZE:
        found.append(f"{standin['payload_bytes']} bytes of payload are too few for {claimed} messages")
    if standin["share"] > STANDIN_LIMIT:
        found.append(f"the stand-in was the limit: {standin['share']:.0%} of a core")
    return found


def measure(work: str, number: int, seconds: float) -> Run:
    """Measures one work against a fresh stand-in and judges the result."""
    start, others = time.monotonic(), foreign_cpu_seconds()
    with Standin(tls=work in OVER_TLS) as standin:
        command = command_for(work, standin.port, seconds)
        client, problems = run_command(command, seconds)
        counters = standin.stop()
    others = (foreign_cpu_seconds() - others) / (time.monotonic() - start)
    run = Run(work, number, command, client, counters, others, problems or doubts(client, counters))
    print(f"round {number}  {work:<14}{verdict(run)}", flush=True)
    return run


def foreign_cpu_seconds() -> float:
    """CPU time used on this machine so far by anything but this program and its finished children."""
    user, nice, system, _idle, _waiting, irq, softirq, *_ = Path("/proc/stat").read_text().split()[1:]
    ticks = sum(map(int, (user, nice, system, irq, softirq)))
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = time.process_time() + children.ru_utime + children.ru_stime
    return ticks / os.sysconf("SC_CLK_TCK") - own


def verdict(run: Run) -> str:
    """One run in a few words."""
    if run.problems:
        return "REFUSED: " + "; ".join(run.problems)
    noise = f"  (other programs used {run.others:.1f} cores)" if run.others > QUIET else ""
    return f"{run.us_per_message:.3f} µs/message{noise}"


# ---- reporting ----


def summarize(runs: Sequence[Run]) -> list[Row]:
    """The rows of the table, from the runs that were not refused."""
    good = [run for run in runs if not run.problems]
    cost = {(run.work, run.round): run.us_per_message for run in good}

    def quotient(above: str, below: str) -> float | None:
        numbers = [number for work, number in cost if work == above and (below, number) in cost]
        return median(cost[above, number] / cost[below, number] for number in numbers) if numbers else None

    rows = []
    for work in dict.fromkeys(run.work for run in good):
        its = [run for run in good if run.work == work]
        single = [run.us_per_message for run in its]
        rows.append(
            Row(
                work=work,
                us_per_message=median(single),
                us_min=min(single),
                us_max=max(single),
                over_floor=quotient(work, "floor"),
                target=TARGETS.get(work),
                official_over_it=quotient("official", work),
                throughput=median(run.throughput for run in its),
                standin_share=median(run.standin["share"] for run in its),
                ssl_share=median(run.client["ssl_seconds"] / run.client["cpu_seconds"] for run in its)
                if work in OVER_TLS
                else None,
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as text, in columns."""
    cells = [
        (
            "work",
            "CPU µs/message (min–max)",
            "÷ floor",
            "target",
            "official ÷ it",
            "messages/s",
            "stand-in core",
            "encryption alone",
        )
    ]
    for row in rows:
        cells.append(
            (
                row.work,
                f"{row.us_per_message:.3f} ({row.us_min:.3f}–{row.us_max:.3f})",
                ratio(row.over_floor),
                target(row),
                ratio(row.official_over_it),
                f"{row.throughput:,.0f}",
                f"{row.standin_share:.0%}",
                "" if row.ssl_share is None else f"{row.ssl_share:.0%}",
            )
        )
    return aligned(cells)


def ratio(value: float | None) -> str:
    """A ratio to three digits, or a dash."""
    if value is None:
        return "–"
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def target(row: Row) -> str:
    """The target of a row and whether it was met."""
    if row.target is None:
        return ""
    if row.over_floor is None:
        return f"≤ {row.target}"
    return f"≤ {row.target} {'met' if row.over_floor <= row.target else 'MISSED'}"


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells as text, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    compiler = subprocess.run([COMPILER, "--version"], capture_output=True, text=True, check=True)
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "compiler": compiler.stdout.splitlines()[0],
        "cpu": model[0].partition(":")[2].strip() if model else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "packages": {name: installed(name) for name in ("pulsar-fast", "pulsar-client")},
        "openssl": ssl.OPENSSL_VERSION,
    }


def installed(package: str) -> str | None:
    """The version of a package, or None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def write_results(name: str, surroundings: dict[str, Any], runs: Sequence[Run], rows: Sequence[Row]) -> None:
    """Writes everything known to results/`name`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / name
    everything = {
        "environment": surroundings,
        "summary": [asdict(row) for row in rows],
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(json.dumps(everything, indent=1, ensure_ascii=False) + "\n")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def compare(works: Sequence[str], rounds: int, seconds: float) -> list[Run]:
    """Measures the works in turn, round after round, and prints the table."""
    surroundings = environment()
    runs = [measure(work, number, seconds) for number in range(1, rounds + 1) for work in works]
    rows = summarize(runs)
    print(f"\n{table(rows)}\n")
    if any(run.others > QUIET for run in runs):
        print("The machine was not quiet: take these figures for noise.\n")
    write_results("latest.json", surroundings, runs, rows)
    return runs


def watch_memory() -> list[Run]:
    """Sends millions of messages at the default limits and prints how memory grew."""
    surroundings = environment()
    run = measure("memory", 1, 0.0)
    if not run.problems:
        start, end = run.client["rss_start_mb"], run.client["rss_end_mb"]
        print(f"{run.client['messages']:,} messages: RSS {start:.1f} → {end:.1f} MB, {end - start:+.1f} MB")
    write_results("memory.json", surroundings, [run], [])
    return [run]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="+", choices=WORKS, default=WORKS, metavar="WORK", help=", ".join(WORKS)
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds, each of which runs every work once (5)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds of sending in each run (5)")
    parser.add_argument("--quick", action="store_true", help="one round of one second: a smoke test")
    parser.add_argument(
        "--memory", action="store_true", help="instead: how memory grows over 20 million messages"
    )
    options = parser.parse_args()
    if sys.platform != "linux":
        sys.exit("the stand-in broker uses epoll: the benchmarks run on Linux only")
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    compile_programs()
    works = options.only
    if not options.memory and set(works) & set(OVER_TLS) and not compile_tls():
        print("nothing over TLS: the stand-in needs OpenSSL's headers for it (on Debian: libssl-dev)")
        works = [work for work in works if work not in OVER_TLS]
    runs = watch_memory() if options.memory else compare(works, options.rounds, options.seconds)
    refused = sum(bool(run.problems) for run in runs)
    if refused:
        sys.exit(f"{refused} of {len(runs)} results were refused")


if __name__ == "__main__":
    main()
