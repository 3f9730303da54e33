# SPDX-License-Identifier: Apache-2.0
"""Which devices a process has: CUDA_VISIBLE_DEVICES, and the instances of partitioned cards."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gpushare import simulator

from .conftest import CLIENTS, SimulatorMachine

NO_DEVICE = 100


def _devices(machine: SimulatorMachine, visible: str | None) -> Any:
    """Return cuInit's result and the devices, under a value of the variable."""
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    printed = machine.run(sys.executable, CLIENTS / "devices.py", **env)
    return json.loads(printed.splitlines()[-1])


def _order(machine: SimulatorMachine, visible: str | None) -> list[int]:
    """Return the cards' numbers in the order in which the process has them."""
    result, devices = _devices(machine, visible)
    assert result == (0 if devices else NO_DEVICE)
    known = [card.removeprefix("GPU-") for card in machine.simulator.uuids]
    return [known.index(device["uuid"]) for device in devices]


@pytest.mark.parametrize(
    ("visible", "order"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        (" 1, 0", [1, 0]),
        ("1", [1]),
        ("0,7,1", [0]),  # up to the first that is not there
        ("1,-1,0", [1]),
        ("0,0", []),  # twice: nothing
        ("", []),
        ("-1", []),
        ("none", []),
    ],
)
def test_cards_are_chosen_and_ordered_by_number(
    simulate: Callable[..., SimulatorMachine], visible: str | None, order: list[int]
) -> None:
    assert _order(simulate("t4", cards=3), visible) == order


def test_cards_are_chosen_by_uuid_whole_or_cut_short(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("t4", cards=2)
    first, second = machine.simulator.uuids
    assert _order(machine, f"{second},{first}") == [1, 0]
    assert _order(machine, second[:12]) == [1]
    assert _order(machine, "GPU-") == []  # both begin so
    assert _order(machine, f"{second},0") == [1, 0]


def test_memory_goes_to_the_card_that_was_chosen(simulate: Callable[..., SimulatorMachine]) -> None:
    machine = simulate("t4", cards=2)
    machine.run(
        *(sys.executable, "-c"),
        "from tenant import *; init(); context(); r, p = alloc(str(1 << 30)); assert r == 0;"
        "import pynvml as n; n.nvmlInit();"
        "h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)];"
        "used = [n.nvmlDeviceGetMemoryInfo(x, version=n.nvmlMemory_v2).used >> 30 for x in h];"
        "assert used == [0, 1], used",
        CUDA_VISIBLE_DEVICES="1",
    )


def test_a_partitioned_card_is_one_instance_to_a_process(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("h200", mig=("3g.71gb", "1g.18gb"))
    card, instances = machine.simulator.uuids[0], machine.simulator.instances
    for visible, index in ((None, 0), ("0", 0), (instances[1], 1), (f"MIG-{card}/2/0", 1)):
        result, (device,) = _devices(machine, visible)
        assert result == 0
        assert f"MIG-{device['uuid']}" == instances[index]
        assert f"GPU-{device['card']}" == card
        assert device["multiprocessors"] == (60, 16)[index]
        assert device["name"] == f"NVIDIA H200 MIG {('3g.71gb', '1g.18gb')[index]}"
        whole = simulator.load_profile("h200")["memory_bytes"]
        assert 0 < whole * (4, 1)[index] // 8 - device["total"] < 1 << 30
    assert _devices(machine, card)[0] == NO_DEVICE
    assert len(_devices(machine, ",".join(instances))[1]) == 1


def test_nvml_lists_instances_and_their_processes(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("h200", cards=2, mig=("1g.18gb", "2g.35gb"))
    first, second = machine.simulator.uuids
    printed = machine.run(
        *(sys.executable, CLIENTS / "devices.py", "nvml"),
        CUDA_VISIBLE_DEVICES=machine.simulator.instances[3],
    )
    found = json.loads(printed.splitlines()[-1])
    assert [instance["uuid"] for instance in found] == list(machine.simulator.instances)
    assert [instance["card"] for instance in found] == [first, first, second, second]
    assert [instance["ids"] for instance in found] == [[1, 0], [2, 0], [1, 0], [2, 0]]
    assert all(instance["is_mig"] for instance in found)
    assert [len(instance["processes"]) for instance in found] == [0, 0, 0, 1]
    assert found[3]["processes"][0][1] == 2
    cards = machine.ask("nvml.py")["cards"]
    assert [card["mig"] for card in cards] == [[1, 1], [1, 1]]


def test_a_card_shows_the_use_of_its_instances(simulate: Callable[..., SimulatorMachine]) -> None:
    machine = simulate("h200", mig=("1g.18gb",))
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        assert tenant.ask("alloc 1073741824")[0] == 0
        (card,) = machine.ask("nvml.py")["cards"]
        used = simulator.load_profile("h200")["context_bytes"] + (1 << 30)
        assert card["processes"] == {str(tenant.ask("pid")): used}
        assert card["used_by_programs"] == used
        assert tenant.ask(f"alloc {18 << 30}")[0] == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"profile": "t4", "mig": ["1g.18gb"]}, "mig=1g.18gb: unknown"),
        ({"mig": ["1g.5gb"]}, r"mig=1g.5gb: unknown. Use one of 1g.18gb, 1g.18gb\+me, 1g.35gb"),
        ({"mig": ["1g.18gb", "4g.71gb"]}, "there is no place for 4g.71gb"),
        ({"mig": ["1g.18gb+me", "1g.18gb+me"]}, r"there is no place for 1g.18gb\+me"),
        ({"mig": ["7g.141gb", "1g.18gb"]}, "uses 9 of 8 parts of the memory and 8 of 7 slices"),
        ({"cards": 8, "mig": ["1g.18gb", "1g.18gb"]}, "more than 16 cards and instances"),
    ],
)
def test_an_impossible_partition_is_refused(
    simulate: Callable[..., SimulatorMachine], options: dict[str, Any], told: str
) -> None:
    with pytest.raises(simulator.ProfileError, match=told):
        simulate(**options)
