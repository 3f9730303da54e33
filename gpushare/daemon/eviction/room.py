# SPDX-License-Identifier: Apache-2.0
"""Which tenants are evicted for a request that has no room; pure.

As few tenants as possible: first the idle ones, beginning with the one that has been idle the
longest, then the offline ones, beginning with the least important.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpushare.daemon.placement.model import CardCapacity

Cause = Literal["idle", "offline"]


@dataclass(frozen=True)
class EvictionCandidate:
    """A tenant that may be evicted; `idle_since` is of the epoch, 0.0: it is not idle."""

    key: str
    cause: Cause
    idle_since: float = 0.0
    priority: int = 0  # 0 is the most important
    bytes: int = 0


def chosen_evictions(
    candidates: Sequence[EvictionCandidate],
    capacities: Sequence[CardCapacity],
    fits: Callable[[Sequence[CardCapacity]], bool],
) -> tuple[EvictionCandidate, ...]:
    """Return the tenants to evict so that `fits` holds of the cards without them; none: it cannot.

    One is added after another until it fits. Those that turn out not to be needed stay.
    """
    ordered = sorted(candidates, key=_order)
    taken: list[EvictionCandidate] = []
    for candidate in ordered:
        taken.append(candidate)
        if fits(_without(capacities, taken)):
            break
    else:
        return ()
    for candidate in list(taken):
        fewer = [one for one in taken if one is not candidate]
        if fewer and fits(_without(capacities, fewer)):
            taken = fewer
    return tuple(taken)


def _order(candidate: EvictionCandidate) -> tuple[object, ...]:
    is_busy = candidate.cause == "offline"
    return is_busy, candidate.idle_since, -candidate.priority, candidate.bytes, candidate.key


def _without(
    capacities: Sequence[CardCapacity], evicted: Sequence[EvictionCandidate]
) -> tuple[CardCapacity, ...]:
    keys = {one.key for one in evicted}
    return tuple(
        replace(
            capacity, allocations=tuple(use for use in capacity.allocations if use.key not in keys)
        )
        for capacity in capacities
    )
