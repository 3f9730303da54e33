# SPDX-License-Identifier: Apache-2.0
"""What part of the card tenants got, from what each got done beside what it gets done alone.

A log is a list of (moment, units done by then), moments in ns on one clock for all. The rest is
tools/bench/shares/card_time.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.bench.shares.card_time import Served, errors, windows

Entries = Sequence[tuple[int, int]]

SECOND_NS = 1_000_000_000


def unit_ns(alone: Entries) -> float:
    """Return the card time of one unit, by a log of exclusive use; ValueError."""
    if len(alone) < 2:
        raise ValueError(f"{len(alone)} batches were done: too few to tell how fast it is")
    (first, before), (last, after) = alone[0], alone[-1]
    return (last - first) / (after - before)


@dataclass(frozen=True)
class Got:
    """What some tenants, by name, had been served by when; of `begin` to `end` is the answer."""

    served: Mapping[str, Served]
    begin: int
    end: int

    @property
    def parts(self) -> dict[str, float]:
        """Each one's part of that time, in percent."""
        return {name: 100 * each.share(self.begin, self.end) for name, each in self.served.items()}

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def errors(self, asked: Mapping[str, float]) -> list[float]:
        """Return how far from `asked`, in percent, each second of each of its tenants was."""
        within = windows(self.begin, self.end, SECOND_NS)
        return [
            error
            for name, part in asked.items()
            for error in errors(self.served[name], part / 100, within)
        ]


def got(logs: Mapping[str, Entries], units: Mapping[str, float], begin: int, end: int) -> Got:
    """Fit `logs` together; `units` is each one's unit_ns."""
    served = {
        name: Served([at for at, _ in log], [done * units[name] for _, done in log])
        for name, log in logs.items()
    }
    return Got(served, begin, end)
