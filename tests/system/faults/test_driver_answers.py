# SPDX-License-Identifier: Apache-2.0
"""NVML hangs, or the process that calls it exits: no tenant notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.verify import ProbeTenant
from tests.system.waiting import wait_until

from . import driver
from .driver import DEADLINE_SECONDS, MachineWithFaults, work


@pytest.fixture(scope="module")
def machine() -> Iterator[MachineWithFaults]:
    with driver.machine() as made:
        yield made


@pytest.fixture
def tenants(machine: MachineWithFaults) -> Iterator[list[ProbeTenant]]:
    with driver.tenants(machine) as made:
        yield made


def logged(machine: MachineWithFaults, *names: str) -> int:
    return len(machine.events(*names))


@pytest.mark.gate
def test_a_hung_driver_delays_nothing(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    before = logged(machine, "driver-recovered")
    simulator.fail(machine.device, nvml_hangs=1)
    wait_until(lambda: "is not responding" in machine.warnings())
    for tenant in tenants:
        work(tenant)
    assert machine.can_start(0)
    assert machine.can_start(1)
    assert sum(machine.allocated()) == 2 * driver.QUOTA_BYTES
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


def test_a_worker_that_is_killed_is_replaced(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    before = logged(machine, "driver-worker-lost")
    pid = machine.worker()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: machine.worker() not in {0, pid} and machine.is_well())
    for tenant in tenants:
        work(tenant)
    lost = machine.events("driver-worker-lost")[before:]
    assert [line["pid"] for line in lost] == [pid]
    assert "SIGKILL" in lost[0]["reason"]
    assert machine.can_start(0)


def test_the_worker_ends_with_the_daemon_and_a_driver_that_hangs_comes_late(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    """A daemon that is killed and started again while the driver hangs: tenants go on."""
    assert machine.stack.daemon is not None
    simulator.fail(machine.device, nvml_hangs=1)
    wait_until(lambda: "is not responding" in machine.warnings())
    worker = machine.worker()
    machine.stack.daemon.process.kill()
    machine.stack.daemon.process.wait()
    wait_until(lambda: not Path(f"/proc/{worker}").exists())
    machine.stack.start_daemon()
    for tenant in tenants:
        work(tenant)
    assert "no driver" in machine.warnings()
    assert f"in {DEADLINE_SECONDS} s" in machine.warnings() or "answer" in machine.warnings()
    simulator.fail(machine.device)
    wait_until(lambda: machine.client.status()["cards"] == driver.CARDS)
    assert machine.can_start(0)
