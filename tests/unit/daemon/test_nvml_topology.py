# SPDX-License-Identifier: Apache-2.0
"""What NVML's facts come to: links, distances, nodes."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.daemon.cards.validation import links_from_facts, nvlink_link, pcie_link
from gpushare.daemon.placement.model import NO_NODE, UNKNOWN, Links

SWITCH = "0000:c0:00.0"


def card(address: str | None, *ends: str, node: int | None = None) -> dict[str, Any]:
    return {"address": address, "node": node, "ends": list(ends)}


def facts(one: dict[str, Any], other: dict[str, Any], **pair: Any) -> dict[str, Any]:
    return {
        "cards": {"A": one, "B": other},
        "pairs": [{"one": "A", "other": "B", "level": None, "nvlink": False, **pair}],
    }


def link(found: dict[str, Any]) -> str:
    return links_from_facts(found, lambda _: NO_NODE).link("A", "B").kind


def test_links_that_end_at_the_other_card_are_counted() -> None:
    one = card("0000:01:00.0", *["0000:02:00.0"] * 4, "0000:03:00.0")
    other = card("0000:02:00.0", *["0000:01:00.0"] * 4)
    assert link(facts(one, other, level=50, nvlink=True)) == "NV4"


def test_through_switches_the_card_with_fewer_links_says_how_many() -> None:
    one, other = card("0000:01:00.0", *[SWITCH] * 18), card("0000:02:00.0", *[SWITCH] * 12)
    assert link(facts(one, other, level=40, nvlink=True)) == "NV12"
    assert link(facts(one, other, level=40, nvlink=False)) == "NODE"


def test_a_driver_that_omits_link_targets_still_has_nvlink() -> None:
    assert link(facts(card("a"), card("b"), level=50, nvlink=True)) == "NV1"


@pytest.mark.parametrize(
    ("level", "kind"),
    [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (7, "?")],
)
def test_levels_are_called_as_nvidia_smi_calls_them(level: int, kind: str) -> None:
    assert link(facts(card("a"), card("b"), level=level)) == kind


def test_missing_topology_stays_unknown() -> None:
    found = links_from_facts(facts(card(None), card(None)), lambda _: 0)
    assert found.link("A", "B") == UNKNOWN
    assert found.node("A") == NO_NODE


def test_every_nvlink_is_nearer_than_any_pcie_and_more_of_them_are_nearer() -> None:
    nvlinks = [nvlink_link(count).distance for count in range(1, 19)]
    levels = [pcie_link(level).distance for level in (0, 10, 20, 30, 40, 50)]
    assert nvlinks == sorted(nvlinks, reverse=True)
    assert levels == sorted(levels)
    assert min(nvlinks) > 0
    assert max(nvlinks) < min(levels)
    assert max(levels) < UNKNOWN.distance


def test_the_kernel_says_the_node_where_nvml_does_not() -> None:
    asked: list[str] = []

    def node_of(address: str) -> int:
        asked.append(address)
        return 1

    found = links_from_facts(facts(card("0000:01:00.0"), card("0000:02:00.0", node=0)), node_of)
    assert (found.node("A"), found.node("B"), asked) == (1, 0, ["0000:01:00.0"])


def test_the_distance_of_a_set_is_that_of_its_pairs() -> None:
    pairs = {"AB": 12, "AC": 1, "BC": 1}
    links = Links({frozenset(pair): nvlink_link(count) for pair, count in pairs.items()})
    assert links.distance("ABC") == nvlink_link(12).distance + 2 * nvlink_link(1).distance
    assert links.distance("A") == 0
