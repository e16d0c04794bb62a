"""The documents name tests and files that are there, and the bugs sown on purpose the code that is."""

import re
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, Mutation

PROJECT = Path(__file__).parent.parent.parent
TESTS = {path.name: path.read_text() for path in (PROJECT / "tests").rglob("test_*.py")}


def named_tests(text: str) -> list[tuple[str, str]]:
    """Pairs of file and name; `::name` alone is of the file named before it."""
    found, file = [], ""
    for match in re.finditer(r"`(test_\w+\.py)?((?:::\w+)*)`", text):
        file = match[1] or file
        found += [(file, name) for name in match[2].split("::")[1:] or [""]] if match[1] or match[2] else []
    return found


@pytest.mark.parametrize(("document", "least"), [("docs/reliability.md", 200), ("SECURITY.md", 40)])
def test_every_named_test_exists(document: str, least: int) -> None:
    named = named_tests((PROJECT / document).read_text())
    assert len(named) > least
    missing = [
        (file, name)
        for file, name in named
        if file not in TESTS
        or (name and not re.search(rf"\b(def|class) {name}\b|^{name} =", TESTS[file], re.M))
    ]
    assert missing == []


@pytest.mark.parametrize(
    "document", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/reliability.md"]
)
def test_every_make_target_exists(document: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"`make ([a-z-]+)", (PROJECT / document).read_text())) <= {*targets}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_bug_can_still_be_sown(mutation: Mutation) -> None:
    for change in mutation.changes:
        assert (PROJECT / change.file).read_text().count(change.before) == 1, change.before
