# SPDX-License-Identifier: Apache-2.0
"""The order of grants, for any arrivals: no request waits for ever, and none is overtaken more."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.config import QueueLimits
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import NO_LINKS, AllocationUse, CardCapacity
from gpushare.daemon.placement.request import NoRoom, PlacementRequest
from gpushare.daemon.placement.waiting import (
    WaitingRequest,
    can_ever_fit,
    find_next,
    in_order,
    overtaken_by,
    usable_cards,
    with_withheld,
)

from . import fakes

GIB = 1 << 30
LIMITS = QueueLimits(max_overtakes=3)
CARDS = tuple(fakes.card(index) for index in range(2))
SIZE_BYTES = CARDS[0].memory_bytes


@dataclass
class TwoCards:
    """Two cards and a queue, in which each start runs until the test ends it."""

    waiting: list[WaitingRequest] = field(default_factory=list)
    running: dict[int, list[AllocationUse]] = field(default_factory=dict)
    number: int = 0

    def capacities(self) -> Sequence[CardCapacity]:
        used = [use for uses in self.running.values() for use in uses]
        return [
            CardCapacity(card, tuple(use for use in used if use.key == card.uuid)) for card in CARDS
        ]

    def arrive(self, request: PlacementRequest, priority: int) -> None:
        self.number += 1
        ticket = f"{self.number:08x}"
        self.waiting.append(WaitingRequest(ticket, self.number, request, priority))

    def start(self, request: PlacementRequest) -> None:
        """Start what does not wait, if it is not refused."""
        found = find_next(in_order(self.waiting, LIMITS, 0), self.capacities(), NO_LINKS, LIMITS, 0)
        try:
            placed = place_request(request, with_withheld(self.capacities(), found.withheld, 0))
        except NoRoom:
            return
        assert found.withheld.keys().isdisjoint(one.card.uuid for one in placed)
        self.number += 1
        self._run(self.number, [(one.card.uuid, one.memory_bytes) for one in placed])

    def look(self) -> None:
        while True:
            ordered = in_order(self.waiting, LIMITS, 0)
            found = find_next(ordered, self.capacities(), NO_LINKS, LIMITS, 0)
            if found.granted is None:
                return
            earlier = {uuid for uuid, one in found.withheld.items() if one is not found.granted}
            assert earlier.isdisjoint(one.card.uuid for one in found.placed)
            self.waiting.remove(found.granted)
            parts = [(one.card.uuid, one.memory_bytes) for one in found.placed]
            self._run(found.granted.number, parts)

    def _run(self, number: int, parts: list[tuple[str, int]]) -> None:
        cards = [uuid for uuid, _ in parts]
        for one in overtaken_by(self.waiting, number, cards, self.capacities()):
            passed = replace(one, overtaken=one.overtaken + 1, first_overtaken=1)
            self.waiting[self.waiting.index(one)] = passed
        self.running[number] = [AllocationUse(f"{number}", size, key=uuid) for uuid, size in parts]

    def end(self, choose: random.Random) -> None:
        if self.running:
            del self.running[choose.choice(sorted(self.running))]


def request(parts: int, count: int = 1) -> PlacementRequest:
    return PlacementRequest(memory_bytes=SIZE_BYTES * parts // 8, count=count)


@given(st.randoms(use_true_random=False), st.integers(1, 2), st.integers(5, 8))
def test_each_request_is_granted_while_others_keep_coming(
    choose: random.Random, count: int, parts: int
) -> None:
    node = TwoCards()
    for _ in range(choose.randrange(1, 4)):
        node.start(request(choose.randrange(1, 9)))
    node.arrive(request(parts, count), priority=9)
    node.look()
    rounds = 0
    while any(one.priority == 9 for one in node.waiting):
        rounds += 1
        assert rounds < 200, "a request waits although every start before it has ended"
        node.arrive(request(choose.randrange(1, 5)), priority=choose.randrange(9))
        node.start(request(choose.randrange(1, 5)))
        if choose.random() < 0.7:
            node.end(choose)
        node.look()


def test_a_card_that_a_request_may_not_use_is_not_withheld_for_it() -> None:
    capacities = [
        CardCapacity(CARDS[0], cordoned="ECC errors"),
        CardCapacity(CARDS[1], allocations=(AllocationUse("train", SIZE_BYTES - GIB),)),
    ]
    assert usable_cards(request(1), capacities) == {CARDS[1].uuid}
    assert usable_cards(replace(request(1), devices=("0",)), capacities) == frozenset()
    late = WaitingRequest("00000001", 1, request(2, count=2), overtaken=3)
    found = find_next([late], capacities, NO_LINKS, LIMITS, 0)
    assert found.withheld == {}  # it waits for the cordoned card: the other is not kept idle
    one = WaitingRequest("00000002", 2, request(2), overtaken=3)
    assert find_next([one], capacities, NO_LINKS, LIMITS, 0).withheld == {CARDS[1].uuid: one}
    both = [replace(capacities[0], cordoned=None), capacities[1]]
    both[0] = replace(both[0], allocations=(AllocationUse("large", SIZE_BYTES),))
    nearest = find_next([one], both, NO_LINKS, LIMITS, 0).withheld
    assert nearest == {CARDS[1].uuid: one}  # where less has to end; the other card is not kept idle
    can_ever_fit(request(2, count=2), capacities)
    with pytest.raises(NoRoom):
        can_ever_fit(request(9), capacities)
