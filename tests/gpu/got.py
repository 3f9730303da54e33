# SPDX-License-Identifier: Apache-2.0
"""What part of the card tenants got, from what each got done beside what it gets done alone.

A log is a list of (moment, units done by then), moments in ns on one clock for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Entries = Sequence[tuple[int, int]]

SECOND_NS = 1_000_000_000
STEP_NS = 100_000_000  # from one second that is looked at to the next


def unit_ns(alone: Entries) -> float:
    """Return the card time of one unit, by the log of who had the card alone; ValueError."""
    if len(alone) < 2:
        raise ValueError(f"{len(alone)} batches were done: too few to tell how fast it is")
    (first, before), (last, after) = alone[0], alone[-1]
    return (last - first) / (after - before)


@dataclass(frozen=True)
class Got:
    """Of some tenants from `begin` to `end`, by name: `parts` of that time, in percent; `seconds`
    the same for every second of it, tenth by tenth."""

    parts: Mapping[str, float]
    seconds: Mapping[str, Sequence[float]]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def errors(self, asked: Mapping[str, float]) -> list[float]:
        """Return how far from `asked` each second of each of its tenants was, in points."""
        return [abs(seen - part) for name, part in asked.items() for seen in self.seconds[name]]


def got(logs: Mapping[str, Entries], units: Mapping[str, float], begin: int, end: int) -> Got:
    """Fit `logs` together; `units` is each one's unit_ns."""
    parts = {name: _part(log, units[name], begin, end) for name, log in logs.items()}
    seconds = {
        name: [_part(log, units[name], at, at + SECOND_NS) for at in _starts(begin, end)]
        for name, log in logs.items()
    }
    return Got(parts, seconds)


def _starts(begin: int, end: int) -> Iterator[int]:
    yield from range(begin, end - SECOND_NS + 1, STEP_NS)


def _part(log: Entries, unit: float, begin: int, end: int) -> float:
    return 100 * unit * (_done(log, end) - _done(log, begin)) / (end - begin)


def _done(log: Entries, moment: int) -> float:
    """Return the units done at `moment`; what was under way between two entries is split."""
    at = bisect_right(log, moment, key=lambda entry: entry[0])
    if at == 0:
        return 0.0
    if at == len(log):
        return float(log[-1][1])
    (before, less), (after, more) = log[at - 1], log[at]
    return less + (more - less) * (moment - before) / (after - before)
