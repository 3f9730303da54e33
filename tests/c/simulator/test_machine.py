# SPDX-License-Identifier: Apache-2.0
"""What programs see of a machine that a test made: its cards, and the faults that it asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare.daemon.cards.nvml_client import links_from_facts

from .conftest import CLIENTS, SimulatorMachine

MIB = 1 << 20
OUT_OF_MEMORY, DEVICE_UNAVAILABLE, NO_DEVICE, UNKNOWN = 2, 46, 100, 999
Simulate = Callable[..., SimulatorMachine]


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        (None, [0, 1, 2]),
        (" 2,0", [2, 0]),
        ("0,7,1", [0]),  # up to the first that is not there
        ("1,-1,0", [1]),
        ("0,0", []),  # twice: nothing
        ("", []),
        ("none", []),
        ("{2},{0}", [2, 0]),
        ("{1:.12}", [1]),
        ("GPU-", []),  # all begin so
    ],
)
def test_cards_are_chosen_and_ordered_by_number_and_uuid(
    simulate: Simulate,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    order: list[int],
) -> None:
    machine = simulate("t4", cards=3)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible.format(*machine.simulator.uuids))
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == (0 if order else NO_DEVICE)
        if order:
            assert tenant.ask("uuids") == [machine.simulator.uuids[card] for card in order]


def test_a_machine_of_pairs_has_the_topology_of_its_profile(simulate: Simulate) -> None:
    machine = simulate("a100-pcie-pairs", cards=8)
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, str(CLIENTS / "near.py"), root],
        env=machine.env,
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    uuids = list(facts["cards"])
    found = links_from_facts(facts, lambda _address: 99)
    kinds = [found.link(uuids[0], other).kind for other in uuids[1:]]
    assert kinds == ["NV12", "PHB", "PHB", "SYS", "SYS", "SYS", "SYS"]
    assert [found.node(uuid) for uuid in uuids] == [0, 0, 0, 0, 1, 1, 1, 1]
