# SPDX-License-Identifier: Apache-2.0
"""NVML is slow, hangs, exits or reports wrong figures: no tenant notices, and none is accused."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.simulator import FalseReading
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


def test_a_slow_driver_is_waited_for(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    before = logged(machine, "driver-timed-out")
    simulator.fail(machine.device, nvml_delay_ms=10)
    for tenant in tenants:
        work(tenant)
    assert machine.can_start(0)
    assert logged(machine, "driver-timed-out") == before
    simulator.fail(machine.device)


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


def test_a_worker_that_is_stopped_is_ended(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    pid = machine.worker()
    os.kill(pid, signal.SIGSTOP)
    for tenant in tenants:
        work(tenant)
    wait_until(lambda: machine.worker() not in {0, pid} and machine.is_well())


@pytest.mark.parametrize(
    "lie",
    [
        FalseReading.BYTES,
        FalseReading.TWICE,
        FalseReading.USED,
        FalseReading.TOTAL,
        FalseReading.PID,
    ],
)
def test_an_impossible_figure_is_reported_and_accuses_no_container(
    machine: MachineWithFaults, tenants: list[ProbeTenant], lie: FalseReading
) -> None:
    told, answered = logged(machine, "driver-sample-rejected"), logged(machine, "driver-recovered")
    # A lie about processes needs one that holds something.
    assert tenants[0].ask(f"alloc {4 * driver.GIB}")["code"] == 0
    simulator.fail(machine.device, lies=lie)
    wait_until(lambda: logged(machine, "driver-sample-rejected") > told)
    assert "the driver's figures are stale: card 0" in machine.warnings()
    assert tenants[0].ask("free")["code"] == 0
    assert tenants[0].ask("spin 100000 5")["code"] == 0
    work(tenants[1])
    assert machine.can_start(1)
    simulator.fail(machine.device)
    wait_until(lambda: logged(machine, "driver-recovered") > answered)


def test_missing_figures_accuse_no_container(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    simulator.fail(machine.device, lies=FalseReading.UNSAID)
    for tenant in tenants:
        work(tenant)
    assert machine.is_well()
    simulator.fail(machine.device)


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


@contextmanager
def unkillable(machine: MachineWithFaults, pid: int) -> Iterator[None]:
    """Hold a process where SIGKILL does nothing until the end of the block, as an ioctl may.

    cgroup v1's freezer does (Linux, Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst).
    """
    mounted = machine.stack.root / "freezer"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "cgroup", "-o", "freezer", "none", mounted], check=True)
    cgroup = mounted / f"{machine.stack.cgroup}-stuck"
    try:
        cgroup.mkdir()
        (cgroup / "cgroup.procs").write_text(str(pid))
        (cgroup / "freezer.state").write_text("FROZEN")
        wait_until(lambda: (cgroup / "freezer.state").read_text() == "FROZEN\n")
        yield
    finally:
        (cgroup / "freezer.state").write_text("THAWED")
        wait_until(lambda: not (cgroup / "cgroup.procs").read_text())
        cgroup.rmdir()
        # Lazily: gpushared or a runtime of a test beside this one may be looking through it.
        subprocess.run(["umount", "--lazy", mounted], check=True)
        mounted.rmdir()


def test_a_worker_that_the_kernel_does_not_let_die_is_let_go_of(
    machine: MachineWithFaults, tenants: list[ProbeTenant]
) -> None:
    before = logged(machine, "driver-worker-abandoned")
    pid = machine.worker()
    with unkillable(machine, pid):
        wait_until(lambda: logged(machine, "driver-worker-abandoned") > before)
        wait_until(machine.is_well)
        for tenant in tenants:
            work(tenant)
        assert machine.can_start(0)
        assert machine.events("driver-worker-abandoned")[-1]["pid"] == pid
    # Dead at last; it is waited for when the next one is started.
    os.kill(machine.worker(), signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
