"""The class path of the Apache Pulsar broker, fetched by Maven."""

import hashlib
import os
import subprocess
from pathlib import Path

_POM = Path(__file__).parent / "conf" / "pom.xml"
_FETCH_TIMEOUT = 900  # the first fetch is some 250 MB


def class_path() -> str:
    """The class path; fetches the jars the first time, which may take minutes.

    Raises:
        RuntimeError: Maven failed; the message holds the end of its output.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pulsar_fast_tests"
    version = hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]
    cached = home / f"class-path-{version}.txt"
    if not (cached.exists() and all(map(os.path.exists, cached.read_text().split(os.pathsep)))):
        home.mkdir(parents=True, exist_ok=True)
        fresh = cached.with_suffix(f".{os.getpid()}")  # another test run may be fetching, too
        _resolve(fresh)
        fresh.replace(cached)
    return cached.read_text()


def _resolve(output: Path) -> None:
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={output}"]
    try:
        maven = subprocess.run(
            ["mvn", "-B", "-q", "-f", str(_POM), *goal],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"Maven did not fetch the broker within {_FETCH_TIMEOUT} s") from None
    if maven.returncode != 0:
        tail = "\n".join(maven.stdout.splitlines()[-20:])
        raise RuntimeError(f"Maven could not fetch the broker; its output ends:\n{tail}")
