# SPDX-License-Identifier: Apache-2.0
"""The planner of MIG instances, on the placements of real cards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from gpushare.cli.mig_layout import (
    InstanceKind,
    Layout,
    LayoutCard,
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
NAMES = {kind.name: kind.number for kind in H200}


def request(name: str, *kinds: str, cards: Sequence[str] = ("a",)) -> LayoutRequest:
    fitting = frozenset(NAMES[kind] for kind in kinds)
    return LayoutRequest(name, dict.fromkeys(cards, fitting))


def shown(made: Layout) -> list[tuple[str, str, int, int]]:
    return sorted((one.card, one.kind.name, one.start, one.request) for one in made.created)


def test_a_half_beside_four_small_ones_leaves_the_start_of_the_card_to_them() -> None:
    # Four 1g have a place before a 3g only: the last part of the memory has no slice.
    small = [request(f"small{number}", "1g.18gb") for number in range(4)]
    made = best_layout([LayoutCard("a", H200)], [*small, request("half", "3g.71gb")])
    assert shown(made)[-1] == ("a", "3g.71gb", 4, 4)
    assert {start for _, _, start, _ in shown(made)[:4]} == {0, 1, 2, 3}


def test_an_instance_that_is_there_is_used_before_another_is_created() -> None:
    asked = LayoutRequest("one", {"a": frozenset({NAMES["1g.18gb"]})}, frozenset({"MIG-1"}))
    made = best_layout([LayoutCard("a", H200, is_enabled=True)], [asked, asked])
    assert made.reused == {"MIG-1": 0}
    assert [one.request for one in made.created] == [1]


def test_who_came_first_is_served_when_not_all_can_be() -> None:
    asked = [request(f"r{number}", "3g.71gb", "4g.71gb") for number in range(3)]
    assert best_layout([LayoutCard("a", H200)], asked).served == {0, 1}
