# SPDX-License-Identifier: Apache-2.0
"""Where cards are, from a profile through NVML's calls to what placement knows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpushare.daemon.cards.validation import links_from_facts
from gpushare.daemon.placement.model import NO_NODE, Links

from .conftest import ROOT, SimulatorMachine

Simulate = Callable[..., SimulatorMachine]


def nowhere(_address: str) -> int:
    raise AssertionError("NVML says the node")


def links(machine: SimulatorMachine) -> tuple[list[str], Links]:
    facts = machine.ask("near.py", str(ROOT))["facts"]
    return list(facts["cards"]), links_from_facts(facts, nowhere)


def test_a_machine_of_pairs_has_the_topology_of_its_profile(simulate: Simulate) -> None:
    machine = simulate("a100-pcie-pairs", cards=8)
    uuids, found = links(machine)
    kinds = [found.link(uuids[0], other).kind for other in uuids[1:]]
    assert kinds == ["NV12", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    assert found.link(uuids[6], uuids[7]) == found.link(uuids[7], uuids[6])
    assert found.link(uuids[6], uuids[7]).kind == "NV12"
    assert [found.node(uuid) for uuid in uuids] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert machine.ask("near.py", str(ROOT))["nearest"] == [1]


def test_cards_of_a_profile_without_a_machine_are_below_bridges_of_one_node(
    simulate: Simulate,
) -> None:
    uuids, found = links(simulate("h200", cards=3))
    pairs = ((0, 1), (0, 2), (1, 2))
    assert {found.link(uuids[one], uuids[other]).kind for one, other in pairs} == {"NODE"}
    assert {found.node(uuid) for uuid in uuids} == {0}


def test_a_card_alone_has_a_node_and_no_links(simulate: Simulate) -> None:
    uuids, found = links(simulate("t4"))
    assert (found.node(uuids[0]), dict(found.between)) == (0, {})
    assert found.node("GPU-of-another-machine") == NO_NODE


@pytest.mark.parametrize("cards", [1, 2, 5])
def test_a_machine_may_have_fewer_cards_than_its_profile(simulate: Simulate, cards: int) -> None:
    uuids, found = links(simulate("a100-pcie-pairs", cards=cards))
    assert len(uuids) == cards
    assert len(found.between) == cards * (cards - 1) // 2
