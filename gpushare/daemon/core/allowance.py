# SPDX-License-Identifier: Apache-2.0
"""Allowances: how much of something a source may cause. Pure.

An allowance is a token bucket: `burst` at once, and `rate` a second in the long run. A source is
whatever the cost is charged to: a uid, a tenant, a card.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

_MOST_SOURCES: Final = 4096  # the one that was seen least recently is forgotten


@dataclass
class Allowance:
    """What is left of one source's allowance; `at` is in seconds of a monotonic clock."""

    burst: float
    rate: float
    at: float = 0.0
    dropped: int = 0  # how often there was not enough left
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` at `now`; False, and nothing is taken, if less than that is left."""
        self.left = min(self.burst, self.left + max(0.0, now - self.at) * self.rate)
        self.at = now
        if self.left < cost:
            self.dropped += 1
            return False
        self.left -= cost
        return True


class Allowances:
    """An allowance for each source. Not thread-safe."""

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._of: OrderedDict[str, Allowance] = OrderedDict()

    def take(self, source: str, now: float, cost: float = 1.0) -> bool:
        """Take `cost` of `source`'s allowance at `now`; False if less than that is left."""
        if source not in self._of:
            self._of[source] = Allowance(self._burst, self._rate, at=now)
            if len(self._of) > _MOST_SOURCES:
                self._of.popitem(last=False)
        self._of.move_to_end(source)
        return self._of[source].take(now, cost)
