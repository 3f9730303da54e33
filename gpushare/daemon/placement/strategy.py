# SPDX-License-Identifier: Apache-2.0
"""Which of the cards that fit are taken: the first set in the order of a strategy.

| request | the set that is taken |
|---|---|
| spread | the emptiest cards |
| whole cards else | those nearest to each other |
| binpack, or a share of one card | the fullest cards, so that whole cards stay whole |
| topology, or shares of several cards | those nearest to each other; of those, the fullest |

Of sets that are as good but for spread, those go first that leave close cards together; what is
the same in all of it is decided by the index. All sets are looked at; only where those are
more than `MOST_SETS` (8 of more than 16 cards) each is grown from one card by the next best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb
from typing import Final, TypeAlias

from gpushare.daemon.placement.model import UNKNOWN, CardCapacity, Links
from gpushare.daemon.placement.request import PlacementRequest

MOST_SETS: Final = 20_000

_Places: TypeAlias = "tuple[int, ...]"  # of rooms in a ranking
_Rank: TypeAlias = "tuple[object, ...]"


def first_set(
    request: PlacementRequest,
    fitting: Sequence[CardCapacity],
    count: int,
    links: Links,
    may: Callable[[Sequence[CardCapacity]], bool] | None = None,
) -> tuple[CardCapacity, ...] | None:
    """Return the set of `count` of the `fitting` cards to take; None where none of them `may`.

    `may` None: all of them.
    """
    ranking = _Ranking(request, sorted(fitting, key=lambda capacity: capacity.card.index), links)
    places = range(len(ranking.capacities))
    sets: Iterable[_Places] = combinations(places, count)
    if comb(len(places), count) > MOST_SETS:
        sets = [ranking.grown(place, count) for place in places]
    if may is not None:
        sets = (one for one in sets if may(ranking.at(one)))
    found = min(sets, key=ranking.rank, default=None)
    return None if found is None else ranking.at(found)


class _Ranking:
    """The order of sets of `rooms`, which are sorted by index, as places among them."""

    def __init__(
        self, request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links
    ) -> None:
        self.capacities = capacities
        self._ask = request
        self._free = [capacity.available_bytes for capacity in capacities]
        self._non_tenant_bytes = [capacity.non_tenant_bytes for capacity in capacities]
        uuids = [capacity.card.uuid for capacity in capacities]
        self._distances = [
            [links.link(one, other).distance if one != other else 0 for other in uuids]
            for one in uuids
        ]
        # How close each is to all the others together.
        self._nearness = [(len(uuids) - 1) * UNKNOWN.distance - sum(row) for row in self._distances]

    def at(self, places: _Places) -> tuple[CardCapacity, ...]:
        return tuple(self.capacities[place] for place in places)

    def rank(self, places: _Places) -> _Rank:
        """Return where a set stands among those of its size: the least comes first."""
        if self._ask.strategy == "spread":
            return sorted(-self._free[place] for place in places), places
        # What is farther from all of them leaves closer ones behind.
        nearness = sum(self._nearness[place] for place in places)
        if self._ask.whole:
            non_tenant_bytes = sum(self._non_tenant_bytes[place] for place in places)
            return self._distance(places), non_tenant_bytes, nearness, places
        free = sorted(self._free[place] for place in places)
        if self._ask.strategy == "binpack" or len(places) == 1:
            return free, nearness, places
        return self._distance(places), free, nearness, places

    def grown(self, place: int, count: int) -> _Places:
        """Return the set that is grown from one room by the next best."""
        taken: _Places = (place,)
        while len(taken) < count:
            others = (other for other in range(len(self.capacities)) if other not in taken)
            sets = (tuple(sorted((*taken, other))) for other in others)
            taken = min(sets, key=self.rank)
        return taken

    def _distance(self, places: _Places) -> int:
        rows = self._distances
        return sum([rows[one][other] for one, other in combinations(places, 2)])
