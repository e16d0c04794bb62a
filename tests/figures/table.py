"""What is measured, and how it is shown."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One row: what was done, and what came of it, by name."""

    what: str
    values: dict[str, Any] = field(default_factory=dict)


def spread(seconds: Iterable[float]) -> dict[str, str]:
    """Median, p95 and maximum, in ms."""
    ordered = sorted(seconds)
    if not ordered:
        return {"median": "-", "p95": "-", "max": "-"}

    def percentile(part: float) -> str:
        return f"{1000 * ordered[max(math.ceil(part * len(ordered)) - 1, 0)]:.1f} ms"

    return {"median": percentile(0.5), "p95": percentile(0.95), "max": percentile(1)}


def markdown(title: str, figures: list[Figure]) -> str:
    names = list(dict.fromkeys(name for figure in figures for name in figure.values))
    lines = [f"### {title}", "", f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for figure in figures:
        cells = [str(figure.values.get(name, "")) for name in names]
        lines.append(f"| {figure.what} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
