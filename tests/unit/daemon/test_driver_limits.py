# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own enforces them, and a tenant that it cannot limit gets a note."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.config import HostMemory
from gpushare.daemon.cards.driver_client import DriverError, DriverLimits
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import bind as binding
from gpushare.daemon.lifecycle.bind import BackendFailed, bind
from gpushare.daemon.lifecycle.release import adopt_tenants, reconcile_tenants, release_tenant
from gpushare.daemon.limits import change_limit, set_driver_limits, update_burst_limits
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol import HostProcessGrant
from gpushare.quota.errors import QuotaError

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, FakeDriver
from .operations import entry_of, opened

CARD = fakes.card(0).uuid
CGROUP = ":/tenant"


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver(fakes.card(0), fakes.card(1))
    made.has_limits = True
    return made


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cgroup in which every tenant of a test is."""
    line = f"30 1 0:30 / {tmp_path} rw - cgroup2 cgroup2 rw"
    cgroups = processes.Cgroups(line)
    monkeypatch.setattr(processes.Cgroups, "mounted", lambda: cgroups)
    monkeypatch.setattr(binding, "_cgroup", lambda *_: CGROUP)
    directory = tmp_path / "tenant"
    directory.mkdir()
    return directory


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver, cgroup: Path) -> Iterator[FakeDaemon]:
    del cgroup
    with fakes.node(tmp_path, driver) as made:
        yield made


def bound(
    node: FakeDaemon, program: FakeProcess | subprocess.Popen[bytes], **quota: str
) -> HostProcessGrant:
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant


def test_the_driver_holds_each_card_of_a_bound_tenant(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess, cgroup: Path
) -> None:
    tenant = bound(node, program, memory="4GiB", count="2")
    four = DriverLimits(4 * GIB, 4 * GIB)
    assert driver.held == {(fakes.card(number).uuid, cgroup): four for number in (0, 1)}
    assert tenant_status(entry_of(node, tenant), node)["isolation"] == "driver"


def test_managed_memory_beyond_the_quota_is_within_the_drivers_limit(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess, cgroup: Path
) -> None:
    """The driver counts it while it is in system memory."""
    node.node.config = replace(node.node.config, oversubscribe=HostMemory(32 * GIB))
    tenant = bound(node, program, memory="4GiB", oversubscribe="host:8GiB")
    assert entry_of(node, tenant).isolation == "driver"
    assert driver.held[CARD, cgroup] == DriverLimits(4 * GIB, 12 * GIB)


def test_a_driver_may_round_a_limit_but_not_change_it(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess
) -> None:
    driver.rounds_to = 2 * MIB
    assert entry_of(node, bound(node, program, memory="1000001KiB")).isolation == "driver"
    driver.rounds_to = GIB
    assert entry_of(node, bound(node, program, memory="3500MiB")).isolation == "interposer"


@pytest.mark.parametrize(
    ("quota", "driver_has", "reported"),
    [
        ({}, {"refusal": "NVML: Insufficient Permissions"}, 1),
        ({}, {"has_limits": False}, 0),
        ({"backend": "interposer"}, {}, 0),
    ],
)
def test_without_limits_of_the_driver_the_interposer_holds_and_nothing_is_left(
    node: FakeDaemon,
    driver: FakeDriver,
    program: FakeProcess,
    capfd: pytest.CaptureFixture[str],
    quota: dict[str, str],
    driver_has: dict[str, object],
    reported: int,
) -> None:
    vars(driver).update(driver_has)
    assert entry_of(node, bound(node, program, memory="4GiB", **quota)).isolation == "interposer"
    assert driver.held == {}
    assert capfd.readouterr().err.count('"event":"driver-limit-set-failed"') == reported


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("mig", "needs a MIG instance, and no card of this node has one"),
        ("exclusive", "applies to a whole card, and this request is for a share"),
    ],
)
def test_a_backend_that_cannot_hold_a_share_is_refused(
    node: FakeDaemon, backend: str, why: str
) -> None:
    with pytest.raises(QuotaError, match=f"^--backend={backend}: {why}"):
        opened(node, memory="4GiB", backend=backend)
    assert not node.ledger.entries


def test_a_request_for_the_driver_backend_fails_without_it(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess
) -> None:
    assert (
        entry_of(node, bound(node, program, memory="4GiB", backend="driver")).isolation == "driver"
    )
    driver.refusal = "no"
    with pytest.raises(
        BackendFailed, match="requests backend driver, and the driver does not enforce"
    ):
        bound(node, program, memory="4GiB", backend="driver")
    driver.has_limits = False
    with pytest.raises(
        QuotaError, match=r"backend=driver: needs memory limits, which driver 580.65.06"
    ):
        opened(node, memory="4GiB", backend="driver")


def test_a_host_process_that_could_walk_around_everything_stays_advice(
    node: FakeDaemon, driver: FakeDriver
) -> None:
    entry = TenantRecord("0" * 16, "bound", "x", isolation="advisory", cgroup=CGROUP)
    assert set_driver_limits(entry, node) == "advisory"
    assert driver.held == {}


def test_quota_changes_and_burst_limits_reach_the_driver(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess, cgroup: Path
) -> None:
    tenant = bound(node, program, memory="10GiB", memory_limit="200GiB", devices="0")
    assert driver.held[CARD, cgroup] == DriverLimits(10 * GIB, 140 * GIB)
    other = opened(node, memory="100GiB", devices="0")
    assert driver.held[CARD, cgroup] == DriverLimits(10 * GIB, 40 * GIB)
    set_quota(entry_of(node, tenant), {"memory": "20GiB", "memory-limit": "30GiB"}, node)
    assert driver.held[CARD, cgroup] == DriverLimits(20 * GIB, 30 * GIB)
    set_quota(entry_of(node, tenant), {"memory-limit": "200GiB"}, node)
    release_tenant(other["key"], node, "it has ended")
    update_burst_limits(node)
    assert driver.held[CARD, cgroup] == DriverLimits(20 * GIB, 140 * GIB)


def test_the_limits_end_with_the_tenant(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess, cgroup: Path
) -> None:
    tenant = bound(node, program, memory="4GiB")
    release_tenant(tenant["key"], node, "it has ended")
    assert driver.held == {}
    tenant = bound(node, program, memory="4GiB")
    cgroup.rmdir()
    release_tenant(tenant["key"], node, "it has ended")  # and the driver's limits with the cgroup
    assert len(driver.held) == 1


def test_a_daemon_that_starts_again_sets_them_again(
    tmp_path: Path, driver: FakeDriver, program: FakeProcess, cgroup: Path
) -> None:
    with fakes.node(tmp_path, driver) as before:
        tenant = bound(before, program, memory="4GiB", devices="0")
    driver.held.clear()
    with fakes.node(tmp_path, driver) as after:
        adopt_tenants(after, after.freezer)
        assert driver.held == {(CARD, cgroup): DriverLimits(4 * GIB, 4 * GIB)}
        assert entry_of(after, tenant).isolation == "driver"
    driver.has_limits = False
    with fakes.node(tmp_path, driver) as after:
        adopt_tenants(after, after.freezer)
        assert entry_of(after, tenant).isolation == "interposer"


def silent(*_: object) -> None:
    raise DriverError("the NVIDIA driver is not responding")


def test_limits_of_a_silent_driver_are_corrected_when_it_answers(
    node: FakeDaemon,
    driver: FakeDriver,
    program: FakeProcess,
    cgroup: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its program was configured for more than the driver would allocate."""
    tenant = bound(node, program, memory="10GiB", devices="0")
    with monkeypatch.context() as patched:
        patched.setattr(driver, "set_limits", silent)
        set_quota(entry_of(node, tenant), {"memory": "20GiB"}, node)
        reconcile_tenants(node, node.freezer)
        assert driver.held[CARD, cgroup] == DriverLimits(10 * GIB, 10 * GIB)
        assert entry_of(node, tenant).isolation == "interposer"
    reconcile_tenants(node, node.freezer)
    assert driver.held[CARD, cgroup] == DriverLimits(20 * GIB, 20 * GIB)
    assert entry_of(node, tenant).isolation == "driver"
    driver.held.clear()
    reconcile_tenants(node, node.freezer)
    assert driver.held == {}, "once is enough"


def test_a_driver_that_loads_late_gets_the_changes_made_before(
    tmp_path: Path, driver: FakeDriver, program: FakeProcess, cgroup: Path
) -> None:
    with fakes.node(tmp_path, driver) as before:
        tenant = bound(before, program, memory="4GiB", devices="0")
    with fakes.node(tmp_path, driver) as after:
        loaded, after.node.driver = after.node.driver, None
        adopt_tenants(after, after.freezer)
        reconcile_tenants(after, after.freezer)
        assert entry_of(after, tenant).isolation == "driver", "it holds without the daemon"
        change_limit(entry_of(after, tenant), 0, 5 * GIB, after)
        after.node.driver = loaded
        reconcile_tenants(after, after.freezer)
        assert driver.held == {(CARD, cgroup): DriverLimits(4 * GIB, 5 * GIB)}
