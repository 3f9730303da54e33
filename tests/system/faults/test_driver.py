# SPDX-License-Identifier: Apache-2.0
"""A driver that goes wrong beneath tenants: two simulated cards, a tenant at work on each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.client import Client
from gpushare.quota.node_settings import RELEASED, NodeSetting
from gpushare.verify import image
from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.system.waiting import wait_until

GIB = 1 << 30
QUOTA_BYTES = 10 * GIB
CARDS = 2
LOST = "XID 79: it has fallen off the bus"


@dataclass
class MachineWithFaults:
    """The stack, its simulated device, and a client of its daemon."""

    stack: Stack

    @property
    def device(self) -> Path:
        return Path(self.stack.env["GPUSHARE_SIM_DEVICE"])

    @property
    def client(self) -> Client:
        return self.stack.client

    @property
    def daemon_pid(self) -> int:
        assert self.stack.daemon is not None
        return self.stack.daemon.process.pid

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return what gpushared logged under these names."""
        return [entry for entry in self.stack.events() if entry["event"] in names]

    def warnings(self) -> str:
        return "; ".join(self.client.status()["warnings"])

    def health(self, index: int) -> str:
        return self.client.cards()[index]["health"]

    def is_well(self) -> bool:
        """Whether the daemon sees nothing wrong."""
        return not self.warnings() and all(card["health"] == "ok" for card in self.client.cards())

    def worker(self) -> int:
        """Return the pid of the process that asks NVML; 0 where there is none."""
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                ours = b"gpushare.daemon.cards" in (entry / "cmdline").read_bytes()
                if ours and int(parent) == self.daemon_pid:
                    return int(entry.name)
        return 0

    def allocated(self) -> list[int]:
        return [card["allocated_bytes"] for card in self.client.cards()]

    def bundle(self, card: int) -> Bundle:
        """Return a container on a card, of which its program sees no other."""
        quota = {"memory": "10GiB", "devices": str(card)}
        return Bundle(self.stack, quota=quota, args=(image.PROGRAM,))

    def assert_starts(self, card: int) -> None:
        with self.bundle(card).started():
            pass
        wait_until(lambda: len(self.client.tenants()) == CARDS)


def work(tenant: ProbeTenant) -> None:
    """Have a tenant fill its quota, launch, meet its limit, and free: as if nothing was wrong."""
    assert tenant.ask(f"alloc {QUOTA_BYTES - 2 * GIB}")["code"] == 0
    assert tenant.ask("spin 100000 5")["code"] == 0
    assert tenant.ask(f"alloc {2 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert tenant.ask("free")["code"] == 0


@pytest.fixture(scope="module")
def machine() -> Iterator[MachineWithFaults]:
    """Run a daemon on two cards."""
    with Stack(cards=CARDS) as stack:
        # A test of a driver that hangs waits for the end of a question to it.
        stack.configure(timing={"driver_timeout_seconds": 1, "reconcile_interval_seconds": 1})
        stack.start_daemon()
        yield MachineWithFaults(stack)


@pytest.fixture
def tenants(machine: MachineWithFaults) -> Iterator[list[ProbeTenant]]:
    """Run a tenant on each card; in the end nothing is lost and no tenant was killed."""
    for card in range(CARDS):
        simulator.fail(machine.device, card)
    wait_until(machine.is_well)
    bundles = [machine.bundle(card) for card in range(CARDS)]
    with bundles[0].started() as first, bundles[1].started() as second:
        for tenant in (first, second):
            work(tenant)
        assert machine.allocated() == [QUOTA_BYTES] * CARDS
        yield [first, second]
        wait_until(machine.is_well)
        assert sorted(machine.allocated()) == [QUOTA_BYTES] * CARDS
        for tenant in (first, second):
            work(tenant)
        acted = ("tenant-frozen", "tenant-killed", "tenant-released", "tenant-warned")
        ours = {bundle.id for bundle in bundles}
        assert [line for line in machine.events(*acted) if line.get("id") in ours] == []
        assert machine.stack.daemon is not None
        assert machine.stack.daemon.process.poll() is None
    wait_until(lambda: machine.client.tenants() == [])
    assert machine.allocated() == [0] * CARDS


def logged(machine: MachineWithFaults, *names: str) -> int:
    return len(machine.events(*names))


@pytest.mark.gate
def test_a_driver_that_is_about_to_be_unloaded_is_held_by_no_process(
    machine: MachineWithFaults,
) -> None:
    # Until then, gpushared itself uses the driver.
    wait_until(lambda: bool(machine.events("context-size-measured")))
    assert machine.worker()
    setting = NodeSetting(value="yes", source="node label x")
    machine.client.set_node_setting(RELEASED, setting)
    wait_until(lambda: not machine.worker())
    assert "about to be unloaded (node label x)" in machine.bundle(0).refusal()
    machine.client.set_node_setting(RELEASED, None)
    wait_until(lambda: machine.worker() != 0 and machine.is_well())


@pytest.mark.gate
def test_a_hung_driver_delays_nothing(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    before = logged(machine, "driver-recovered")
    simulator.fail(machine.device, nvml_hangs=1)
    wait_until(lambda: "is not responding" in machine.warnings())
    for tenant in tenants:
        work(tenant)
    machine.assert_starts(0)
    machine.assert_starts(1)
    assert sum(machine.allocated()) == 2 * QUOTA_BYTES
    # One that hangs for long is ended, and another one is tried, which hangs as well.
    first = machine.worker()
    wait_until(lambda: machine.worker() not in {0, first})
    for tenant in tenants:
        work(tenant)
    simulator.fail(machine.device)
    wait_until(lambda: logged(machine, "driver-recovered") > before)
    assert (
        machine.events("driver-worker-lost")[-1]["reason"] == "the NVIDIA driver is not responding"
    )


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
    assert LOST in machine.bundle(0).refusal()
    machine.assert_starts(1)
    simulator.fail(machine.device, 0)
    wait_until(machine.is_well)
    # What it held when the card was lost is on its account until it frees it.
    assert lost.ask("free")["code"] == 0
    machine.assert_starts(0)
    said = machine.events("card-unhealthy", "card-recovered")[before:]
    assert [line["event"] for line in said] == ["card-unhealthy", "card-recovered"]
    [xid] = [line for line in machine.events("card-xid-reported") if line["xid"] == 79]
    assert xid["level"] == "error"
    assert xid["processes"] or xid["card"]


def test_the_worker_ends_with_the_daemon_and_a_driver_that_hangs_comes_late(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    """A daemon that is killed and started again while the driver hangs: tenants go on."""
    simulator.fail(machine.device, nvml_hangs=1)
    wait_until(lambda: "is not responding" in machine.warnings())
    worker = machine.worker()
    machine.stack.end_daemon()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    machine.stack.start_daemon()
    for tenant in tenants:
        work(tenant)
    assert "no driver" in machine.warnings()
    simulator.fail(machine.device)
    wait_until(lambda: machine.client.status()["cards"] == CARDS)
    machine.assert_starts(0)
