# SPDX-License-Identifier: Apache-2.0
"""What is worked out from how much card time each tenant has had by when. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

#: How far one window of a measurement begins after the last: a quarter of its width.
WINDOWS_A_WIDTH: Final = 4


@dataclass
class Served:
    """The card time of one tenant on one card, as read from time to time."""

    moments: list[float] = field(default_factory=list)  # ascending
    served: list[float] = field(default_factory=list)  # in the unit of `moments`; never less

    def add(self, moment: float, served: float) -> None:
        """Take one reading; one that is no later than the last says nothing new."""
        if not self.moments or moment > self.moments[-1]:
            self.moments.append(moment)
            self.served.append(served)

    def by(self, moment: float) -> float:
        """Return the card time had by `moment`, between two readings on the line between them."""
        after = bisect_right(self.moments, moment)
        if after == 0:
            return 0.0
        if after == len(self.moments):
            return self.served[-1]
        start, end = self.moments[after - 1], self.moments[after]
        part = (moment - start) / (end - start)
        return self.served[after - 1] + part * (self.served[after] - self.served[after - 1])

    def share(self, start: float, end: float) -> float:
        """Return the part of the card's time between `start` and `end` that was this tenant's."""
        return (self.by(end) - self.by(start)) / (end - start)

    def longest_gap(self, start: float, end: float) -> float:
        """Return the longest time between two readings from `start` to `end`."""
        within = [moment for moment in self.moments if start <= moment <= end]
        return max((b - a for a, b in pairwise(within)), default=0.0)


def windows(start: float, end: float, width: float) -> list[tuple[float, float]]:
    """Return the windows of `width` that lie within `start` and `end`, each a quarter later."""
    step = width / WINDOWS_A_WIDTH
    count = max(0, math.floor((end - start - width) / step + 1e-9) + 1)
    return [(start + step * number, start + step * number + width) for number in range(count)]


def errors(served: Served, target: float, within: Sequence[tuple[float, float]]) -> list[float]:
    """Return how far the share was from `target` in each window, in percentage points."""
    return [abs(served.share(start, end) - target) * 100 for start, end in within]
