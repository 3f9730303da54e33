# SPDX-License-Identifier: Apache-2.0
"""Faults that a test asks for: calls that take memory fail, NVML is late or wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpushare import simulator

from .conftest import SimulatorMachine

MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY, DEVICE_UNAVAILABLE, UNKNOWN = 2, 46, 999
NVML_UNKNOWN = 999


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, UNKNOWN])
def test_so_many_calls_fail_and_take_nothing(machine: SimulatorMachine, error: int) -> None:
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        free = tenant.ask("info")
        simulator.fail(machine.simulator.device, allocations=2, after=1, error=error)
        assert tenant.ask("alloc 4096")[0] == 0
        assert tenant.ask("alloc 4096")[0] == error
        assert tenant.ask(f"alloc {GIB}")[0] == error
        assert tenant.ask("info")[0] == free[0] - 2 * MIB
        assert tenant.ask(f"alloc {GIB}")[0] == 0


@pytest.mark.parametrize(
    "call", ["context", f"create {GIB}", f"external {GIB}"], ids=lambda call: call.split()[0]
)
def test_other_calls_fail_too(machine: SimulatorMachine, call: str) -> None:
    with machine.started("sharing.py") as tenant:
        assert tenant.ask("init") == 0
        if call != "context":
            assert tenant.ask("context") == 0
        simulator.fail(machine.simulator.device, allocations=1, error=UNKNOWN)
        before = machine.ask("nvml.py")["cards"][0]["used"]
        answer = tenant.ask(call)
        assert (answer if call == "context" else answer[0]) == UNKNOWN
        assert machine.ask("nvml.py")["cards"][0]["used"] == before
        answer = tenant.ask(call)
        assert (answer if call == "context" else answer[0]) == 0


def test_a_fault_of_one_process_or_card_is_no_others(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("t4", cards=2)
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        for client, card in ((one, 0), (other, 1)):
            assert client.ask("init") == 0
            assert client.ask(f"context {card}") == 0
        simulator.fail(machine.simulator.device, 1, allocations=9, error=2, process=one.ask("pid"))
        assert one.ask(f"alloc {MIB}")[0] == 0
        assert other.ask(f"alloc {MIB}")[0] == 0
        simulator.fail(machine.simulator.device, 1, allocations=9, error=2)
        assert one.ask(f"alloc {MIB}")[0] == 0
        assert other.ask(f"alloc {MIB}")[0] == 2
        simulator.fail(machine.simulator.device, 1)
        assert other.ask(f"alloc {MIB}")[0] == 0


def test_a_card_for_one_process_takes_one(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        assert [one.ask("init"), other.ask("init")] == [0, 0]
        simulator.fail(machine.simulator.device, compute_mode=3)
        assert one.ask("context") == 0
        assert other.ask("context") == DEVICE_UNAVAILABLE
        one.kill()
        assert other.ask("context") == 0
        assert other.ask(f"alloc {MIB}")[0] == 0


def test_a_prohibited_card_takes_none(machine: SimulatorMachine) -> None:
    simulator.fail(machine.simulator.device, compute_mode=2)
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == DEVICE_UNAVAILABLE
        simulator.fail(machine.simulator.device)
        assert tenant.ask("context") == 0


def test_nvml_answers_as_configured(machine: SimulatorMachine) -> None:
    with machine.started("limits.py", "names") as nvml:
        assert nvml.ask("name") == 0
        simulator.fail(machine.simulator.device, nvml_error=NVML_UNKNOWN)
        assert nvml.ask("name") == NVML_UNKNOWN
        simulator.fail(machine.simulator.device, nvml_delay_ms=50)
        assert nvml.ask("name") == 0


def test_a_lost_card_answers_no_call_and_others_do(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("t4", cards=2)
    with machine.started("tenant.py") as one, machine.started("tenant.py") as other:
        for client, card in ((one, 0), (other, 1)):
            assert client.ask("init") == 0
            assert client.ask(f"context {card}") == 0
        simulator.fail(machine.simulator.device, 0, lost=1)
        assert one.ask(f"alloc {MIB}")[0] == UNKNOWN
        assert other.ask(f"alloc {MIB}")[0] == 0
        with machine.started("tenant.py") as third:
            assert third.ask("init") == 0
            assert third.ask("context 0") == DEVICE_UNAVAILABLE
            assert third.ask("context 1") == 0
        simulator.fail(machine.simulator.device, 0)
        assert one.ask(f"alloc {MIB}")[0] == 0


@pytest.mark.parametrize("version", ["new", "5" * 80, "590,1"])
def test_an_invalid_version_is_refused(machine: SimulatorMachine, version: str) -> None:
    with pytest.raises(simulator.ProfileError, match=r"Use, for example, 590"):
        simulator.change_driver(machine.simulator.device, version)


def test_an_impossible_partition_is_refused(machine: SimulatorMachine) -> None:
    with pytest.raises(simulator.ProfileError, match=r"unknown\. Use one of"):
        simulator.partition(machine.simulator.device, ["9g.1gb"])
