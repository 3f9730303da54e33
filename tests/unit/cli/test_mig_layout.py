# SPDX-License-Identifier: Apache-2.0
"""The planner of MIG instances against brute force, on the placements of real cards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.cli import mig_layout
from gpushare.cli.mig_layout import (
    InstanceKind,
    Layout,
    LayoutCard,
    LayoutCost,
    LayoutRequest,
    best_layout,
)

ROOT = Path(__file__).parents[3]


def kinds_of(profile: str) -> tuple[InstanceKind, ...]:
    """Return the kinds of a simulated card, whose figures are those of NVIDIA's guide."""
    loaded = json.loads((ROOT / "simulator/profiles" / f"{profile}.json").read_text())
    return tuple(
        InstanceKind(
            *(kind["id"], name, int(name[0]), kind["count"]),
            tuple((start, kind["memory_eighths"]) for start in kind["starts"]),
        )
        for name, kind in loaded["mig"].items()
    )


H200 = kinds_of("h200")
#: MIG user guide: a card with four slices (A30).
A30 = (
    InstanceKind(14, "1g.6gb", 1, 4, tuple((start, 1) for start in range(4))),
    InstanceKind(5, "2g.12gb", 2, 2, ((0, 2), (2, 2))),
    InstanceKind(0, "4g.24gb", 4, 1, ((0, 4),)),
)
NAMES = {kind.name: kind.number for kind in (*H200, *A30)}


def request(name: str, *kinds: str, cards: Sequence[str] = ("a",)) -> LayoutRequest:
    fitting = frozenset(NAMES[kind] for kind in kinds)
    return LayoutRequest(name, dict.fromkeys(cards, fitting))


def cost_of(made: Layout, cards: Sequence[LayoutCard]) -> LayoutCost:
    switched = {one.card for one in made.created} - {one.uuid for one in cards if one.is_enabled}
    return LayoutCost(
        sum(one.size for one in made.created),
        len(switched),
        sum(one.kind.slices for one in made.created),
        sum("+" in one.kind.name for one in made.created),
    )


def check_valid(
    made: Layout, cards: Sequence[LayoutCard], requests: Sequence[LayoutRequest]
) -> None:
    """Check that the layout can be created, and that each instance fits the request that has it."""
    asked = [one.request for one in made.created] + list(made.reused.values())
    assert len(asked) == len(set(asked))
    for uuid, index in made.reused.items():
        assert uuid in requests[index].instances
    for card in cards:
        parts = [part for _, start, size in card.held for part in range(start, start + size)]
        had = [number for number, _, _ in card.held]
        for one in (one for one in made.created if one.card == card.uuid):
            assert one.kind in card.kinds
            assert (one.start, one.size) in one.kind.places
            assert one.kind.number in requests[one.request].kinds[card.uuid]
            parts += range(one.start, one.start + one.size)
            had.append(one.kind.number)
        assert len(parts) == len(set(parts))
        assert all(had.count(kind.number) <= kind.count for kind in card.kinds)


def brute(cards: Sequence[LayoutCard], requests: Sequence[LayoutRequest]) -> tuple[int, LayoutCost]:
    """Return the best number and cost: every instance of every place, for each request or none."""

    def options(one: LayoutRequest) -> Iterator[tuple[str, InstanceKind | None, int, int]]:
        yield "", None, 0, 0
        for uuid in one.instances:
            yield uuid, None, 0, 1
        for card in cards:
            for kind in card.kinds:
                if kind.number in one.kinds.get(card.uuid, ()):
                    for start, size in kind.places:
                        yield card.uuid, kind, start, size

    best = (0, LayoutCost())
    for taken in product(*(list(options(one)) for one in requests)):
        reused = [uuid for uuid, kind, _, size in taken if kind is None and size]
        made = [(uuid, kind, start, size) for uuid, kind, start, size in taken if kind]
        parts = [
            (uuid, part) for uuid, _, start, size in made for part in range(start, start + size)
        ]
        parts += [
            (card.uuid, part)
            for card in cards
            for _, start, size in card.held
            for part in range(start, start + size)
        ]
        numbers = [(uuid, kind.number) for uuid, kind, _, _ in made]
        numbers += [(card.uuid, number) for card in cards for number, _, _ in card.held]
        counts = {(card.uuid, kind.number): kind.count for card in cards for kind in card.kinds}
        if len(parts) != len(set(parts)) or len(reused) != len(set(reused)):
            continue
        if any(numbers.count(one) > counts[one] for one in numbers):
            continue
        switched = {uuid for uuid, *_ in made} - {one.uuid for one in cards if one.is_enabled}
        cost = LayoutCost(
            sum(size for *_, size in made),
            len(switched),
            sum(kind.slices for _, kind, _, _ in made),
            sum("+" in kind.name for _, kind, _, _ in made),
        )
        best = min(best, (len(made) + len(reused), cost), key=lambda one: (-one[0], one[1]))
    return best


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[LayoutCard], list[LayoutRequest]]:
    cards = []
    for name in "ab"[: draw(st.sampled_from((1, 1, 2)))]:
        every = draw(st.sampled_from((H200, A30)))
        kinds = tuple(draw(st.permutations(every))[: draw(st.integers(1, len(every)))])
        held: list[tuple[int, int, int]] = []
        for kind in draw(st.lists(st.sampled_from(kinds), max_size=2)):
            start, size = draw(st.sampled_from(kind.places))
            taken = {part for _, at, many in held for part in range(at, at + many)}
            had = [number for number, _, _ in held].count(kind.number)
            if had < kind.count and taken.isdisjoint(range(start, start + size)):
                held.append((kind.number, start, size))
        cards.append(LayoutCard(name, kinds, bool(held) or draw(st.booleans()), tuple(held)))
    requests = []
    for number in range(draw(st.integers(0, 3))):
        fitting = {
            card.uuid: frozenset(
                draw(st.sets(st.sampled_from([kind.number for kind in card.kinds]), max_size=3))
            )
            for card in cards
        }
        there = draw(st.sets(st.sampled_from(("MIG-1", "MIG-2")), max_size=1))
        requests.append(LayoutRequest(f"r{number}", fitting, frozenset(there)))
    return cards, requests


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_no_layout_serves_more_or_costs_less(
    case: tuple[list[LayoutCard], list[LayoutRequest]],
) -> None:
    cards, requests = case
    made = best_layout(cards, requests)
    assert made.is_exact
    check_valid(made, cards, requests)
    assert (len(made.served), cost_of(made, cards)) == brute(cards, requests)


def shown(made: Layout) -> list[tuple[str, str, int, int]]:
    return sorted((one.card, one.kind.name, one.start, one.request) for one in made.created)


def test_a_half_beside_four_small_ones_leaves_the_start_of_the_card_to_them() -> None:
    # Four 1g have a place before a 3g only: the last part of the memory has no slice.
    small = [request(f"small{number}", "1g.18gb") for number in range(4)]
    made = best_layout([LayoutCard("a", H200)], [*small, request("half", "3g.71gb")])
    assert shown(made)[-1] == ("a", "3g.71gb", 4, 4)
    assert {start for _, _, start, _ in shown(made)[:4]} == {0, 1, 2, 3}


def test_of_two_kinds_with_the_same_memory_the_one_with_fewer_slices_is_taken() -> None:
    made = best_layout([LayoutCard("a", H200)], [request("one", "2g.35gb", "1g.35gb")])
    assert shown(made) == [("a", "1g.35gb", 6, 0)]


def test_media_engines_go_to_nobody_who_can_do_without_and_to_one_who_cannot() -> None:
    plain = best_layout([LayoutCard("a", H200)], [request("one", "1g.18gb+me", "1g.18gb")])
    assert shown(plain)[0][1] == "1g.18gb"
    two = [request("one", "1g.18gb+me"), request("two", "1g.18gb+me")]
    assert best_layout([LayoutCard("a", H200)], two).served == {0}


def test_a_card_that_is_in_mig_mode_goes_before_one_that_has_to_be_switched() -> None:
    cards = [LayoutCard("a", H200), LayoutCard("b", H200, is_enabled=True)]
    made = best_layout(cards, [request("one", "1g.18gb", cards=("a", "b"))])
    assert [one.card for one in made.created] == ["b"]


def test_an_instance_that_is_there_is_used_before_another_is_created() -> None:
    asked = LayoutRequest("one", {"a": frozenset({NAMES["1g.18gb"]})}, frozenset({"MIG-1"}))
    made = best_layout([LayoutCard("a", H200, is_enabled=True)], [asked, asked])
    assert made.reused == {"MIG-1": 0}
    assert [one.request for one in made.created] == [1]


def test_who_came_first_is_served_when_not_all_can_be() -> None:
    asked = [request(f"r{number}", "3g.71gb", "4g.71gb") for number in range(3)]
    assert best_layout([LayoutCard("a", H200)], asked).served == {0, 1}


def test_eight_cards_are_planned_exactly() -> None:
    cards = [LayoutCard(f"c{number}", H200) for number in range(8)]
    names = [card.uuid for card in cards]
    asked = [
        request(f"r{number}", *kinds, cards=names)
        for number in range(16)
        for kinds in (("3g.71gb", "4g.71gb", "7g.141gb"), ("1g.18gb", "2g.35gb", "1g.35gb"))
    ]
    made = best_layout(cards, asked)
    check_valid(made, cards, asked)
    assert made.is_exact
    # Beside one half there is room for four small ones: four cards serve all of those, the other
    # four have two halves each.
    assert len(made.served) == 4 * (1 + 4) + 4 * 2
    assert cost_of(made, cards).parts == 12 * 4 + 16


def test_a_search_that_left_something_out_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_layout, "TRIED_MOST", 4)
    cards = [LayoutCard(name, H200) for name in "abc"]
    asked = [request(f"r{number}", "3g.71gb", cards="abc") for number in range(4)]
    asked += [request("s", "1g.18gb", cards="abc"), request("t", "2g.35gb", cards="abc")]
    made = best_layout(cards, asked)
    assert not made.is_exact
    check_valid(made, cards, asked)
