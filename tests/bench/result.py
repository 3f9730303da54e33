# SPDX-License-Identifier: Apache-2.0
"""One measured figure, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """A figure with gpushare beside the same figure without.

    Attributes:
        name: of what was measured.
        unit: of `value`, `baseline`, `delta` and `budget`.
        value: the median with gpushare.
        baseline: the median without.
        delta: what gpushare adds: the median of the rounds' differences.
        budget: the most that may be added; None for a figure that is only for comparison.
        absolute: the budget is the most that `value` may be, not `delta`.
    """

    name: str
    unit: str
    value: float
    baseline: float
    delta: float
    budget: float | None = None
    absolute: bool = False

    @property
    def ratio(self) -> float:
        """How many times the baseline it is."""
        return self.value / self.baseline

    @property
    def met(self) -> bool | None:
        """Whether it is within its budget; None without one."""
        if self.budget is None:
            return None
        return (self.value if self.absolute else self.delta) <= self.budget

    def as_json(self) -> dict[str, Any]:
        """Return the object for build/bench.json."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "baseline": round(self.baseline, 4),
            "delta": round(self.delta, 4),
            "ratio": round(self.ratio, 4),
            "budget": self.budget,
            "met": self.met,
        }


HEADINGS = ("WHAT", "WITHOUT", "WITH", "ADDED", "RATIO", "BUDGET", "")


def table(results: Sequence[Result]) -> str:
    """Return the results as lines of text."""
    rows = [HEADINGS, *(_cells(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    return "\n".join(lines)


def _cells(result: Result) -> tuple[str, ...]:
    budget, verdict = "", ""
    if result.budget is not None:
        sign = "" if result.absolute else "+"
        budget = f"<= {sign}{result.budget:g} {result.unit}"
        verdict = "ok" if result.met else "OVER"
    return (
        result.name,
        f"{result.baseline:.2f} {result.unit}",
        f"{result.value:.2f} {result.unit}",
        f"{result.delta:+.2f} {result.unit}",
        f"x {result.ratio:.3f}",
        budget,
        verdict,
    )


def write(results: Sequence[Result], path: Path) -> None:
    """Write the results for a program to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([result.as_json() for result in results], indent=2) + "\n")
