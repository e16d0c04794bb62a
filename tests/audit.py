"""Whether there are advisories against what ``pulsar-fast[all]`` brings along: ``python -m tests.audit``.

Fails for what is known, and says what could not be judged: packages that the index does not know, or all of them when
nothing answers. Tools for tests and development are left out, since they are not installed with the package.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_SECONDS = 60


def installed_with(root: str) -> dict[str, str]:
    """Versions of all packages that a requirement brings along, as they are installed here; empty if they are not."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()  # name and extra
    waiting = [Requirement(root)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        places = {(name, extra) for extra in ("", *wanted.extras)} - seen
        seen |= places
        try:
            package = distribution(name)
        except PackageNotFoundError:
            versions[name] = ""
            continue
        versions[name] = package.version
        for requirement in map(Requirement, package.requires or ()):
            marker = requirement.marker
            if any(marker is None or marker.evaluate({"extra": extra}) for _, extra in places):
                waiting.append(requirement)
    del versions[canonicalize_name(Requirement(root).name)]
    return versions


def asked(versions: dict[str, str]) -> list[dict[str, Any]]:
    """What pip-audit has found out about each of them. Raises `RuntimeError` if it found out nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.writelines(f"{name}=={version}\n" for name, version in versions.items() if version)
        requirements.flush()
        command = [sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "-r", requirements.name]
        command += ["--format=json", "--desc=off", "--progress-spinner=off", "--timeout=10"]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"no answer within {_SECONDS} s") from None
    try:
        found: list[dict[str, Any]] = json.loads(ended.stdout)["dependencies"]
    except ValueError:
        raise RuntimeError((ended.stderr.strip() or "pip-audit said nothing").splitlines()[-1]) from None
    return found


def judged(versions: dict[str, str], found: Sequence[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The advisories, each in a line, and the packages of which nothing is known."""
    advisories = [
        f"{package['name']} {package['version']}: {advisory['id']}, "
        f"mended in {', '.join(advisory['fix_versions']) or 'no version yet'}"
        for package in found
        for advisory in package.get("vulns", ())
    ]
    audited = {package["name"] for package in found if "vulns" in package}
    return advisories, sorted(versions.keys() - audited)


def main() -> int:
    versions = installed_with("pulsar-fast[all]")
    try:
        advisories, unknown = judged(versions, asked(versions))
    except RuntimeError as error:
        print(f"dependencies: NOT audited: {error}")
        return 0
    print(f"dependencies: {len(versions) - len(unknown)} of {len(versions)} audited")
    if unknown:
        print("could not be audited, since the index has no advisories for them:", ", ".join(unknown))
    for advisory in advisories:
        print("advisory:", advisory)
    return 1 if advisories else 0


if __name__ == "__main__":
    sys.exit(main())
