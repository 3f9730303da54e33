# SPDX-License-Identifier: Apache-2.0
"""A card falls off the bus, a program errs, the driver or the order of cards becomes another.

Containers on the other card are not affected; nothing is freed, and no container is killed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare import simulator
from gpushare.verify import ProbeTenant
from tests.system.waiting import wait_until

from . import driver
from .driver import GIB, QUOTA_BYTES, MachineWithFaults, work

LOST = "XID 79: it has fallen off the bus"


@pytest.fixture(scope="module")
def machine() -> Iterator[MachineWithFaults]:
    with driver.machine() as made:
        yield made


@pytest.fixture
def tenants(machine: MachineWithFaults) -> Iterator[list[ProbeTenant]]:
    with driver.tenants(machine) as made:
        yield made


@pytest.mark.gate
def test_a_card_that_fell_off_the_bus_frees_nothing(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    lost, other = tenants
    before = len(machine.events("card-unhealthy"))
    assert lost.ask(f"alloc {4 * GIB}")["code"] == 0
    simulator.fail(machine.device, 0, lost=1)
    simulator.raise_xid(machine.device, 79)
    wait_until(lambda: machine.health(0).startswith(LOST))
    assert lost.ask(f"alloc {GIB}")["result"] == "CUDA_ERROR_UNKNOWN"
    work(other)
    assert "card 0 (H200) is unhealthy: XID 79" in machine.warnings()
    assert "tenants that keep their allocations: 1" in machine.warnings()
    assert machine.allocated() == [QUOTA_BYTES] * 2
    assert LOST in machine.refusal(0)
    assert machine.can_start(1)
    simulator.fail(machine.device, 0)
    wait_until(machine.is_well)
    # What it held when the card was lost is on its account until it frees it.
    assert lost.ask("free")["code"] == 0
    assert machine.can_start(0)
    said = machine.events("card-unhealthy", "card-recovered")[before:]
    assert [line["event"] for line in said] == ["card-unhealthy", "card-recovered"]
    [xid] = [line for line in machine.events("card-xid-reported") if line["xid"] == 79]
    assert xid["level"] == "error"
    assert xid["processes"] or xid["card"]


def test_a_programs_own_error_is_reported_with_the_containers_on_the_card(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    number = 31
    simulator.raise_xid(machine.device, number)
    wait_until(lambda: any(line["xid"] == number for line in machine.events("card-xid-reported")))
    [said] = [line for line in machine.events("card-xid-reported") if line["xid"] == number]
    assert said["level"] == "warning"
    assert len(said["processes"]) == 1
    for tenant in tenants:
        work(tenant)
    assert machine.is_well()
    assert machine.can_start(0)


def test_another_driver_is_loaded_without_a_restart(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    pid, worker = machine.daemon_pid, machine.worker()
    simulator.change_driver(machine.device, "590.10.01")
    wait_until(lambda: machine.client.status()["driver_version"] == "590.10.01")
    wait_until(machine.is_well)
    for tenant in tenants:
        work(tenant)
    assert machine.daemon_pid == pid
    assert machine.worker() not in {0, worker}
    assert machine.can_start(0)
    said = machine.events("driver-cards-changed")[-1]
    assert (said["before"], said["driver"]) == ("580.65.06", "590.10.01")


def test_reservations_follow_their_card_to_another_index(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    first, second = (card["uuid"] for card in machine.client.cards())
    held = {tenant["name"]: tenant["cards"][0]["uuid"] for tenant in machine.client.tenants()}
    simulator.fail(machine.device, 0, listed=2)
    simulator.fail(machine.device, 1, listed=1)
    wait_until(lambda: [card["uuid"] for card in machine.client.cards()] == [second, first])
    wait_until(machine.is_well)
    for tenant in tenants:
        work(tenant)
    assert held == {
        tenant["name"]: tenant["cards"][0]["uuid"] for tenant in machine.client.tenants()
    }
    for card in range(driver.CARDS):
        simulator.fail(machine.device, card)
    wait_until(lambda: [card["uuid"] for card in machine.client.cards()] == [first, second])
