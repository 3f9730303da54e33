# SPDX-License-Identifier: Apache-2.0
"""One measured figure, and the table of them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


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
        p90: what nine rounds of ten stay under, with gpushare and without; None where it is not
            measured by rounds.
        floor: what the least program that could stand in gpushare's place adds, one that executes
            runc and does nothing else; None where there is no such thing.
    """

    name: str
    unit: str
    value: float
    baseline: float
    delta: float
    budget: float | None = None
    absolute: bool = False
    p90: tuple[float, float] | None = None
    floor: float | None = None

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
        } | self._of_rounds()

    def _of_rounds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if self.p90 is not None:
            found |= {"p90": round(self.p90[0], 4), "baseline_p90": round(self.p90[1], 4)}
        if self.floor is not None:
            found["exec_only_delta"] = round(self.floor, 4)
        return found


HEADINGS = ("WHAT", "WITHOUT", "P90", "WITH", "P90", "ADDED", "BY EXEC", "RATIO", "BUDGET", "")


def table(results: Sequence[Result]) -> str:
    """Return the results as lines of text."""
    return "\n".join(aligned([HEADINGS, *(_cells(result) for result in results)], left=1))


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return rows as lines, the first `left` columns aligned on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _cells(result: Result) -> tuple[str, ...]:
    budget, verdict = "", ""
    if result.budget is not None:
        sign = "" if result.absolute else "+"
        budget = f"<= {sign}{result.budget:g} {result.unit}"
        verdict = "ok" if result.met else "OVER"
    p90, p90_without = (f"{each:.2f}" for each in result.p90) if result.p90 else ("", "")
    return (
        result.name,
        f"{result.baseline:.2f} {result.unit}",
        p90_without,
        f"{result.value:.2f} {result.unit}",
        p90,
        f"{result.delta:+.2f} {result.unit}",
        "" if result.floor is None else f"{result.floor:+.2f}",
        f"x {result.ratio:.3f}",
        budget,
        verdict,
    )


class Reportable(Protocol):
    """What has figures for a program to read."""

    def as_json(self) -> dict[str, Any]:
        """Return the object for build/bench.json."""


def write(results: Sequence[Reportable], path: Path) -> None:
    """Write the results for a program to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([result.as_json() for result in results], indent=2) + "\n")


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that `percent` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
