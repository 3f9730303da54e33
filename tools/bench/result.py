# SPDX-License-Identifier: Apache-2.0
"""One measured figure, and the table of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """A figure with gpushare beside the same figure without.

    Attributes:
        name: of what was measured.
        unit: of `value`, `baseline`, `delta` and `budget`.
        value: the median with gpushare.
        baseline: the median without; None where there is no such thing.
        delta: what gpushare adds: the median of the rounds' differences.
        interval: what the true median is between with a probability of 95 %; None where it is not
            measured by rounds, or by too few.
        budget: the most that may be added; None for a figure that is only for comparison.
        absolute: the budget is the most that `value` may be, not `delta`.
        at_least: the budget is the least that `value` may be.
        p90: what nine rounds of ten stay under, with gpushare and without; None where it is not
            measured by rounds.
        floor: what the least program that could stand in gpushare's place adds, one that executes
            runc and does nothing else; None where there is no such thing.
    """

    name: str
    unit: str
    value: float
    baseline: float | None
    delta: float | None
    budget: float | None = None
    absolute: bool = False
    at_least: bool = False
    p90: tuple[float, float] | None = None
    floor: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def met(self) -> bool | None:
        """Whether it is within its budget; None without one."""
        if self.budget is None:
            return None
        if self.at_least:
            return self.value >= self.budget
        added = self.value if self.absolute or self.delta is None else self.delta
        return added <= self.budget


_COMPARED = ("WHAT", "WITHOUT", "P90", "WITH", "P90", "ADDED", "BETWEEN", "EXEC", "RATIO")
HEADINGS = (*_COMPARED, "BUDGET", "")


def table(results: Sequence[Result]) -> str:
    """Return the results as lines of text, the names aligned on the left."""
    rows = [HEADINGS, *(_cells(result) for result in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _cells(result: Result) -> tuple[str, ...]:
    budget, verdict = "", ""
    if result.budget is not None:
        sign = ">= " if result.at_least else "<= " if result.absolute else "<= +"
        budget = f"{sign}{result.budget:g} {result.unit}"
        verdict = "ok" if result.met else "OVER"
    within = "" if result.interval is None else "{:+.2f} to {:+.2f}".format(*result.interval)
    p90, p90_without = (f"{each:.2f}" for each in result.p90) if result.p90 else ("", "")
    return (
        result.name,
        "" if result.baseline is None else f"{result.baseline:.2f} {result.unit}",
        p90_without,
        f"{result.value:.2f} {result.unit}",
        p90,
        "" if result.delta is None else f"{result.delta:+.2f} {result.unit}",
        within,
        "" if result.floor is None else f"{result.floor:+.2f}",
        f"x {result.value / result.baseline:.3f}" if result.baseline else "",
        budget,
        verdict,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the least value that `percent` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return what the median lies between with a probability of 95 %; None for under six values.

    By order statistics, whatever the distribution: how many of n values are below the median is
    binomial with probability a half.
    """
    ordered, count = sorted(values), len(values)
    left, tail = 0, 0.5**count
    while tail <= 0.025:
        left += 1
        tail += math.comb(count, left) / 2**count
    return (ordered[left - 1], ordered[count - left]) if left else None
