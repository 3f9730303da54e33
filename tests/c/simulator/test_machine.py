# SPDX-License-Identifier: Apache-2.0
"""What programs see of a machine that a test made: its cards, and the faults that it asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.daemon.cards.validation import links_from_facts

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


def test_calls_that_take_memory_fail_as_often_as_asked(simulate: Simulate) -> None:
    machine = simulate("t4", cards=2)
    device = machine.simulator.device
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        for client, card in ((one, 0), (other, 1)):
            assert client.ask("init") == 0
            assert client.ask(f"context {card}") == 0
        free = one.ask("info")[0]
        simulator.fail(device, 0, allocations=2, after=1, error=UNKNOWN)
        results = [one.ask(f"alloc {MIB}")[0] for _ in range(4)]
        assert results == [0, UNKNOWN, UNKNOWN, 0]
        assert free - one.ask("info")[0] == 2 * MIB
        assert other.ask(f"alloc {MIB}")[0] == 0
        simulator.fail(device, 1, allocations=9, error=OUT_OF_MEMORY, process=one.ask("pid"))
        assert other.ask(f"alloc {MIB}")[0] == 0


def test_a_card_takes_one_process_or_none_or_is_lost(simulate: Simulate) -> None:
    machine = simulate("t4")
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        assert [one.ask("init"), other.ask("init")] == [0, 0]
        simulator.fail(machine.simulator.device, compute_mode=2)
        assert one.ask("context") == DEVICE_UNAVAILABLE
        simulator.fail(machine.simulator.device, compute_mode=3)
        assert one.ask("context") == 0
        assert other.ask("context") == DEVICE_UNAVAILABLE
        simulator.fail(machine.simulator.device, lost=1)
        assert one.ask(f"alloc {MIB}")[0] == UNKNOWN
        assert other.ask("context") == DEVICE_UNAVAILABLE
        simulator.fail(machine.simulator.device)
        assert other.ask("context") == 0
        assert one.ask(f"alloc {MIB}")[0] == 0


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
