# SPDX-License-Identifier: Apache-2.0
"""The layout of MIG instances that serves the most requests; pure.

Each request gets an instance of its own. Of the layouts that serve the most requests, the best one
takes the fewest parts of the cards' memory, then switches the fewest cards to MIG mode, then takes
the fewest slices of compute, and then serves those that come first.

The search is exhaustive: over the places of a card (`_card_choices`), and over the cards
(`best_layout`). Requests that fit the same instances are one group, of which only the number
counts. With many groups and cards there are too many combinations: then only the best of them are
continued on the next card, and the layout says that it may not be the best (`is_exact`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Combinations that are tried on each card: some seconds of one core at the most.
TRIED_MOST: Final = 1_000_000

_Counts = tuple[int, ...]  # of each group


class LayoutCost(NamedTuple):
    """What a layout takes, in the order in which less is better."""

    parts: int = 0  # of the cards' memory
    switched: int = 0  # cards that are not in MIG mode yet
    slices: int = 0
    engines: int = 0  # instances with media engines (+me), of which a card has one

    def plus(self, other: LayoutCost) -> LayoutCost:
        """Return the sum of both."""
        return LayoutCost(*(one + more for one, more in zip(self, other, strict=True)))


@dataclass(frozen=True)
class InstanceKind:
    """A kind of instance of a card: `places` are (start, size) in parts of the card's memory."""

    number: int
    name: str
    slices: int
    count: int  # at most so many of a card
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class LayoutCard:
    """A card on which instances can be created, and those that it has."""

    uuid: str
    kinds: tuple[InstanceKind, ...]
    is_enabled: bool = False  # MIG mode
    held: tuple[tuple[int, int, int], ...] = ()  # number of the kind, start and size


@dataclass(frozen=True)
class LayoutRequest:
    """A request, and what it fits: numbers of kinds by a card's UUID, and instances by theirs."""

    name: str
    kinds: Mapping[str, frozenset[int]] = field(default_factory=dict)
    instances: frozenset[str] = frozenset()


class NewInstance(NamedTuple):
    """An instance to create, and the index of the request that it is for."""

    card: str
    kind: InstanceKind
    start: int
    size: int
    request: int


@dataclass(frozen=True)
class Layout:
    """What to create, and the index of the request of each instance that is there and unused."""

    created: tuple[NewInstance, ...] = ()
    reused: Mapping[str, int] = field(default_factory=dict)
    is_exact: bool = True

    @property
    def served(self) -> frozenset[int]:
        """The indices of the requests that get an instance."""
        return frozenset([*(one.request for one in self.created), *self.reused.values()])


class _Placed(NamedTuple):
    kind: InstanceKind
    start: int
    size: int
    group: int


class _Choice(NamedTuple):
    """One way to use a card: what it costs, and what is placed where."""

    cost: LayoutCost
    placed: tuple[_Placed, ...]
    reused: tuple[tuple[str, int], ...] = ()  # an instance, and the group that gets it


def best_layout(cards: Sequence[LayoutCard], requests: Sequence[LayoutRequest]) -> Layout:
    """Return the layout of `cards` that serves the most of `requests`, by the order above."""
    groups = _groups(requests)
    most = tuple(len(members) for members in groups)
    nothing: _Counts = (0,) * len(groups)
    # By how many of each group are served: what that costs, and the choices that lead there.
    states: dict[_Counts, tuple[LayoutCost, tuple[tuple[str, _Choice], ...]]] = {
        nothing: (LayoutCost(), ())
    }
    is_exact = True
    for uuid, every in _all_choices(cards, requests, groups):
        choices = {more: choice for more, choice in every.items() if _is_within(more, most)}
        if len(states) * len(choices) > TRIED_MOST:
            is_exact = False
            kept = sorted(states, key=lambda counts: (-sum(counts), states[counts][0]))
            few = max(1, TRIED_MOST // len(choices))
            states = {counts: states[counts] for counts in kept[:few]}
        found = dict(states)
        for served, (cost, taken) in states.items():
            for more, choice in choices.items():
                counts = tuple(map(sum, zip(served, more, strict=True)))
                if not _is_within(counts, most):
                    continue
                total = cost.plus(choice.cost)
                if counts not in found or total < found[counts][0]:
                    found[counts] = (total, (*taken, (uuid, choice)))
        states = found
    best = min(
        states, key=lambda counts: (-sum(counts), states[counts][0], _firsts(counts, groups))
    )
    return _with_requests(states[best][1], groups, is_exact=is_exact)


def _is_within(counts: _Counts, most: _Counts) -> bool:
    return all(count <= limit for count, limit in zip(counts, most, strict=True))


def _groups(requests: Sequence[LayoutRequest]) -> list[list[int]]:
    """Return the indices of the requests that fit the same instances, group by group."""
    found: dict[object, list[int]] = {}
    for index, one in enumerate(requests):
        kinds = frozenset((uuid, fitting) for uuid, fitting in one.kinds.items() if fitting)
        if kinds or one.instances:
            found.setdefault((kinds, one.instances), []).append(index)
    return list(found.values())


def _firsts(counts: _Counts, groups: Sequence[Sequence[int]]) -> list[int]:
    """Return the indices of the requests that are served, in order."""
    return sorted(
        index for count, group in zip(counts, groups, strict=True) for index in group[:count]
    )


def _all_choices(
    cards: Sequence[LayoutCard],
    requests: Sequence[LayoutRequest],
    groups: Sequence[Sequence[int]],
) -> Iterator[tuple[str, dict[_Counts, _Choice]]]:
    """Yield what each unused instance, and each card, can serve; "" for an instance."""
    firsts = [requests[group[0]] for group in groups]
    for uuid in sorted({uuid for one in firsts for uuid in one.instances}):
        yield (
            "",
            {
                _unit(group, len(groups)): _Choice(LayoutCost(), (), ((uuid, group),))
                for group, one in enumerate(firsts)
                if uuid in one.instances
            },
        )
    for card in cards:
        fitting = [one.kinds.get(card.uuid, frozenset()) for one in firsts]
        yield card.uuid, _card_choices(card, fitting)


def _unit(group: int, count: int) -> _Counts:
    return tuple(int(one == group) for one in range(count))


def _card_choices(card: LayoutCard, fitting: Sequence[frozenset[int]]) -> dict[_Counts, _Choice]:
    """Return the best way to serve each possible number of each group on one card.

    From one part of the memory to the next: it stays unused, or an instance begins there. Of equal
    choices, the one that leaves the first parts unused is kept: a 4g can only begin at the first.
    `fitting` has the kinds that each group fits.
    """
    taken = {part for _, start, size in card.held for part in range(start, start + size)}
    had = [number for number, _, _ in card.held]
    end = max((start + size for kind in card.kinds for start, size in kind.places), default=0)
    # At each part: by what is served and how many there are of the kinds that are limited, the best
    # so far.
    at: list[dict[tuple[_Counts, _Counts], _Choice]] = [{} for _ in range(end + 1)]
    limits = tuple(kind.count - had.count(kind.number) for kind in card.kinds)
    at[0][(0,) * len(fitting), (0,) * len(card.kinds)] = _Choice(LayoutCost(), ())
    for part in range(end):
        for (served, made), choice in at[part].items():
            _keep(at[part + 1], (served, made), choice)
            for which, kind in enumerate(card.kinds):
                if made[which] >= limits[which]:
                    continue
                for start, size in kind.places:
                    if start != part or not taken.isdisjoint(range(start, start + size)):
                        continue
                    cost = LayoutCost(size, 0, kind.slices, int("+" in kind.name))
                    # The places are what limits the number of most kinds.
                    is_limited = limits[which] < len(kind.places)
                    counted = _one_more(made, which) if is_limited else made
                    for group, kinds in enumerate(fitting):
                        if kind.number not in kinds:
                            continue
                        _keep(
                            at[part + size],
                            (_one_more(served, group), counted),
                            _Choice(
                                choice.cost.plus(cost),
                                (*choice.placed, _Placed(kind, start, size, group)),
                            ),
                        )
    best: dict[_Counts, _Choice] = {}
    switch = LayoutCost(switched=int(not card.is_enabled))
    for (served, _), choice in at[end].items():
        if any(served):
            _keep(best, served, choice._replace(cost=choice.cost.plus(switch)))
    return best


def _keep(table: dict, key: object, choice: _Choice) -> None:  # type: ignore[type-arg]
    if key not in table or choice.cost < table[key].cost:
        table[key] = choice


def _one_more(counts: _Counts, which: int) -> _Counts:
    return (*counts[:which], counts[which] + 1, *counts[which + 1 :])


def _with_requests(
    taken: Sequence[tuple[str, _Choice]], groups: Sequence[Sequence[int]], *, is_exact: bool
) -> Layout:
    """Return a layout in which the first requests of each group have the instances."""
    left = [iter(group) for group in groups]
    reused = {uuid: next(left[group]) for _, choice in taken for uuid, group in choice.reused}
    created = tuple(
        NewInstance(card, placed.kind, placed.start, placed.size, next(left[placed.group]))
        for card, choice in taken
        for placed in choice.placed
    )
    return Layout(created, reused, is_exact)
