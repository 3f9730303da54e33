# SPDX-License-Identifier: Apache-2.0
"""Placement against brute force: every set of cards is tried, by the rules written once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.daemon.cards.nvml_client import nvlink_link, pcie_link
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.model import UNKNOWN, AllocationUse, Card, CardCapacity, Link, Links
from gpushare.daemon.placement.request import (
    Bounds,
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    TenantCardUsage,
)
from gpushare.quota.request_policy import MaxPerCard, MaxPerNode, MaxPerRequest

from .fakes import GIB

MODELS = ("A100-PCIE-40GB", "H200")
LEVELS = (10, 20, 30, 40, 50)
#: What stands between two cards: what NVML may say of it, or nothing.
WAYS: st.SearchStrategy[Link] = st.one_of(
    st.builds(nvlink_link, st.integers(1, 18)),
    st.sampled_from(LEVELS).map(pcie_link),
    st.just(UNKNOWN),
)
SLOW = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@dataclass(frozen=True)
class PlacementCase:
    """A machine, and the requests for it."""

    ask: PlacementRequest
    rooms: tuple[CardCapacity, ...]
    links: Links

    def placed(self) -> tuple[PlacedCard, ...] | None:
        """Return what is given; None where it is refused."""
        try:
            return place_request(self.ask, self.rooms, self.links)
        except (NoRoom, NoSuchCard):
            return None


@st.composite
def promises(draw: st.DrawFn, memory_bytes: int) -> tuple[AllocationUse, ...]:
    if draw(st.integers(0, 7)) == 7:
        return (AllocationUse("alone", memory_bytes, 100, whole=True),)
    count, found = draw(st.sampled_from((0, 0, 1, 2, 3))), []
    free_bytes, free_cores = memory_bytes, 100
    for number in range(count):
        size, cores = draw(st.integers(1, 16)) * GIB, draw(st.sampled_from((0, 0, 20, 50)))
        if size > free_bytes or cores > free_cores:
            break
        found.append(AllocationUse(f"t{number}", size, cores))
        free_bytes, free_cores = free_bytes - size, free_cores - cores
    return tuple(found)


@st.composite
def machines(draw: st.DrawFn) -> tuple[CardCapacity, ...]:
    found = []
    for index in range(draw(st.sampled_from((5, 6, 6, 4, 3, 2, 1)))):
        gib = draw(st.sampled_from((16, 16, 40)))
        one = Card(index, f"GPU-{index}000", draw(st.sampled_from(MODELS)), gib * GIB, index)
        one = replace(one, capability=draw(st.sampled_from((None, (7, 0), (8, 0), (9, 0)))))
        found.append(
            CardCapacity(
                one,
                draw(promises(gib * GIB)),
                non_tenant_bytes=draw(st.sampled_from((0, 0, 0, 3))) * GIB,
                reserve_bytes=draw(st.sampled_from((0, 0, 1))) * GIB,
                context_bytes=GIB // 2,
                health=draw(st.sampled_from(("ok",) * 12 + ("GPU is lost",))),
                mode=draw(st.sampled_from(("any",) * 10 + ("shared", "exclusive"))),
                max_tenants=draw(st.sampled_from((16, 16, 2))),
                cordoned=draw(st.sampled_from((None,) * 12 + ("", "broken"))),
            )
        )
    return tuple(draw(st.permutations(found)))


@st.composite
def bounds(draw: st.DrawFn, rooms: Sequence[CardCapacity], *, often: bool) -> Bounds:
    def some(low: int, high: int) -> int | None:
        return draw(st.integers(low, high)) if draw(st.integers(0, 4)) == 0 else None

    def size(high: int) -> int | None:
        gib = some(1, high)
        return None if gib is None else gib * GIB

    parts = tuple(
        TenantCardUsage(f"key-{name}", name, room.card, draw(st.integers(1, 8)) * GIB, 20)
        for room in rooms
        for name in draw(st.sets(st.sampled_from("ab"), max_size=2).map(sorted))
    )
    if not often and draw(st.integers(0, 2)) < 2:
        return Bounds(parts=parts)
    model = MaxPerNode(size(60), some(1, 300), some(1, 3), some(1, 4))
    return Bounds(
        MaxPerRequest(memory_bytes=size(20)),
        MaxPerCard(size(30), some(10, 100), some(10, 100), some(1, 3)),
        MaxPerNode(size(90), some(1, 400), some(1, 4), some(1, 4), models={"A100": model}),
        "namespace team",
        parts,
    )


@st.composite
def cases(draw: st.DrawFn, kind: str = "any") -> PlacementCase:
    """Return a case; `kind` says of what there is to be more: whole cards, or bounds."""
    rooms = draw(machines())
    if kind == "exclusive":
        rooms = tuple(
            replace(room, allocations=room.allocations[: len(rooms) % 2]) for room in rooms
        )
    whole = kind == "exclusive" or draw(st.integers(0, 3)) == 3
    percent = draw(st.integers(0, 3)) == 3
    ask = PlacementRequest(
        whole=whole,
        count=draw(st.sampled_from((2, 2, 1, 1, 3, 3, 4, None))),
        memory_bytes=None if whole or percent else draw(st.sampled_from((2, 1, 4, 8, 20))) * GIB,
        memory_percent=draw(st.sampled_from((10, 30, 50, 100))) if percent and not whole else None,
        cores=0 if whole else draw(st.sampled_from((0, 10, 40, 80))),
        strategy=draw(st.sampled_from(("", "binpack", "spread", "topology"))),
        allow=draw(st.sampled_from(((),) * 8 + (("A100",), ("h200", "GPU-0000")))),
        deny=draw(st.sampled_from(((),) * 8 + (("GPU-1000",), ("H200",), ("T4",)))),
        compute_capability=draw(st.sampled_from(((),) * 6 + ((">=8.0",), ("<9.0", ">7.5")))),
        bounds=Bounds() if kind == "exclusive" else draw(bounds(rooms, often=kind == "bounds")),
    )
    uuids = sorted(room.card.uuid for room in rooms)
    between = {frozenset(pair): draw(WAYS) for pair in combinations(uuids, 2)}
    return PlacementCase(ask, rooms, Links(between))


ANY = st.sampled_from(("any", "whole", "bounds")).flatmap(cases)


# --- the rules, once more ---


def named(names: Sequence[str], one: Card) -> bool:
    return any(name == one.uuid or name.lower() in one.model.lower() for name in names)


def capable(comparisons: Sequence[str], one: Card) -> bool:
    wanted = {">=8.0": {(8, 0), (9, 0)}, "<9.0": {(7, 0), (8, 0)}, ">7.5": {(8, 0), (9, 0)}}
    return all(one.capability in wanted[text] for text in comparisons)


def fits(ask: PlacementRequest, room: CardCapacity) -> bool:
    """Whether one card may be taken by itself."""
    one = room.card
    if room.health != "ok" or room.cordoned is not None:
        return False
    if (ask.allow and not named(ask.allow, one)) or named(ask.deny, one):
        return False
    if ask.compute_capability and not capable(ask.compute_capability, one):
        return False
    if room.mode == ("shared" if ask.whole else "exclusive"):
        return False
    size, cores = asked(ask, one)
    together = ask.bounds.max_per_card
    mine = [p for p in ask.bounds.parts if p.card.uuid == one.uuid]
    most = [together.memory_bytes]
    if together.memory_percent is not None:
        most.append(one.memory_bytes * together.memory_percent // 100)
    if any(m is not None and sum(p.memory_bytes for p in mine) + size > m for m in most):
        return False
    if together.cores is not None and sum(p.cores for p in mine) + cores > together.cores:
        return False
    if together.tenants is not None and len(mine) + 1 > together.tenants:
        return False
    ceiling = ask.bounds.max_per_request.memory_bytes
    if ask.whole:
        return not room.allocations
    if ceiling is not None and size > ceiling:
        return False
    taken = sum(promise.quota_bytes for promise in room.allocations)
    free = one.memory_bytes - room.reserve_bytes - room.non_tenant_bytes - taken
    return (
        not any(promise.whole for promise in room.allocations)
        and room.context_bytes < size <= free
        and sum(promise.cores for promise in room.allocations) + cores <= 100
        and len(room.allocations) < room.max_tenants
    )


def asked(ask: PlacementRequest, one: Card) -> tuple[int, int]:
    if ask.whole:
        return one.memory_bytes, 100
    size = ask.memory_bytes
    if size is None:
        assert ask.memory_percent is not None
        size = one.memory_bytes * ask.memory_percent // 100
    return size, ask.cores


def may(ask: PlacementRequest, taken: Sequence[CardCapacity]) -> bool:
    """Whether the set may be had together."""
    total = ask.bounds.max_per_node
    for model, most in (("", total), *total.models.items()):
        new = [room.card for room in taken if model in room.card.model]
        parts = [part for part in ask.bounds.parts if model in part.card.model]
        if not new:
            continue
        memory_bytes = sum(p.memory_bytes for p in parts) + sum(asked(ask, c)[0] for c in new)
        sums = (
            (most.memory_bytes, memory_bytes),
            (most.cores, sum(asked(ask, c)[1] for c in new) + sum(p.cores for p in parts)),
            (most.cards, len({c.uuid for c in new} | {p.card.uuid for p in parts})),
            (most.tenants, len({p.key for p in parts}) + 1),
        )
        if any(bound is not None and value > bound for bound, value in sums):
            return False
    return True


def sets(case: PlacementCase) -> list[tuple[CardCapacity, ...]]:
    """Return every set of cards that may be taken."""
    count = len(case.rooms) if case.ask.count is None else case.ask.count
    fitting = [room for room in case.rooms if fits(case.ask, room)]
    return [taken for taken in combinations(fitting, count) if may(case.ask, taken)]


def distance(case: PlacementCase, taken: Sequence[CardCapacity]) -> int:
    pairs = combinations([room.card.uuid for room in taken], 2)
    return sum(case.links.between[frozenset(pair)].distance for pair in pairs)


def goodness(case: PlacementCase, taken: Sequence[CardCapacity]) -> tuple[object, ...]:
    """Return what the strategy looks at, the least the best; without what only decides ties."""
    ask, free = case.ask, sorted(room.available_bytes for room in taken)
    if ask.strategy == "spread":
        return (sorted(-one for one in free),)
    fitting = [room for room in case.rooms if fits(ask, room)]
    near = sum(
        70 - distance(case, (one, other)) for one in taken for other in fitting if other != one
    )
    if ask.whole:
        return distance(case, taken), sum(room.non_tenant_bytes for room in taken), near
    if ask.strategy == "binpack" or len(taken) == 1:
        return free, near
    return distance(case, taken), free, near


# --- what holds ---


@SLOW
@given(ANY)
def test_the_set_that_is_taken_is_the_best_by_its_strategy(case: PlacementCase) -> None:
    """It is refused only if no set of cards would do."""
    placed = case.placed()
    if placed is None:
        assert not sets(case)
        return
    uuids = {one.card.uuid for one in placed}
    taken = next(one for one in sets(case) if {room.card.uuid for room in one} == uuids)
    best = min(goodness(case, one) for one in sets(case))
    assert goodness(case, taken) == best
    # Of those as good, the first cards.
    indices = sorted(room.card.index for room in taken)
    as_good = [one for one in sets(case) if goodness(case, one) == best]
    assert indices == min(sorted(room.card.index for room in one) for one in as_good)


def test_sixteen_cards_are_placed_by_looking_at_every_set() -> None:
    """The set that is found is no farther apart than pairs of neighbours allow."""
    rooms = tuple(CardCapacity(Card(n, f"GPU-{n:02}", "A100", 40 * GIB, n)) for n in range(16))
    between = {
        frozenset((one.card.uuid, other.card.uuid)): nvlink_link(12)
        if one.card.index // 4 == other.card.index // 4
        else pcie_link(50)
        for one, other in combinations(rooms, 2)
    }
    for count in range(1, 17):
        placed = place_request(PlacementRequest(whole=True, count=count), rooms, Links(between))
        groups = {one.card.index // 4 for one in placed}
        assert len(groups) == -(-count // 4)
