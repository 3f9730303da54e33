# SPDX-License-Identifier: Apache-2.0
"""What the driver says, put beside what tenants say: never a false refusal, never a frame-up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.observe.non_tenant import NonTenantUse
from gpushare.daemon.observe.sampler import Overhead, UsageSampler
from gpushare.daemon.observed import UsageView
from gpushare.daemon.pages.grant_page import CardGrant
from gpushare.daemon.pages.status_page import TenantClaims
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.views.daemon_status import status_row
from gpushare.daemon.views.rows import card_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol.rows import TenantStatus

from . import fakes, registered
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, FakeDriver

CARD = fakes.card().uuid
KEY = "0" * 16


@dataclass
class SampledTenant:
    """A bound tenant without a cgroup of its own, that uses 1 GiB in one context."""

    node: FakeDaemon
    driver: FakeDriver
    pages: Pages
    child: int  # the process of the tenant: a descendant of ours, which is the bound one
    starttime: int

    def claim(self, used: int, *, denied: int = 0, pid: int = 0, starttime: int = 0) -> None:
        fd = self.pages.status.fd
        process = pid or self.child, starttime or self.starttime
        registered.register(fd, 0, *process, denied=denied)
        registered.hold(fd, 0, used, contexts=1)

    def looks(self, count: int = 1) -> list[int]:
        """Look so often; return the overhead after each, in MiB."""
        told = []
        for _ in range(count):
            self.node.sampler.look()
            told.append(self.pages.grant.overhead_bytes(0) // MIB)
        return told

    def uses(self, size: int | None, *others: ProcessUse, is_mps: bool = False) -> None:
        """Have the driver say so of its process."""
        self.driver.uses = {CARD: (ProcessUse(self.child, size, 40, is_mps=is_mps), *others)}

    @property
    def usage(self) -> UsageView:
        return self.node.observed.usage

    @property
    def row(self) -> TenantStatus:
        return tenant_status(self.node.ledger.entries[KEY], self.node)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, FakeDriver()) as made:
        yield made


@pytest.fixture
def driver(node: FakeDaemon) -> FakeDriver:
    found = node.node.loaded().nvml
    assert isinstance(found, FakeDriver)
    return found


@pytest.fixture
def tenant(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> SampledTenant:
    monkeypatch.setattr(processes, "may_map", lambda pid, _inode: pid == program.pid)
    process = processes.find_process(program.pid)
    assert process is not None
    entry = fakes.entry()
    node.ledger.add(entry)
    node.ledger.change(
        entry.key, state="bound", pid=program.pid, starttime=process.starttime, cgroup=""
    )
    directory = node.mounts.make(entry.key, size_bytes=1 << 20)
    pages = Pages.make(directory, entry.key, [CardGrant(CARD, 4 * GIB, 0, 0)])
    node.tenants.add(entry.key, pages)
    made = SampledTenant(node, driver, pages, program.pid, process.starttime)
    made.claim(GIB)
    return made


def test_overhead_is_the_drivers_use_above_the_claims(tenant: SampledTenant) -> None:
    """An earlier daemon's figure stands until there are enough samples."""
    tenant.pages.grant.set_measured(0, 500 * MIB, 0)
    tenant.uses(GIB + 600 * MIB)
    assert tenant.looks(4) == [500, 500, 500, 600]
    assert tenant.usage.utilization == {(KEY, CARD): 40}


def test_overhead_rises_after_four_samples_and_falls_at_once() -> None:
    overhead, account = Overhead(), TenantClaims()
    sizes = (GIB, GIB, GIB, GIB, 0)
    assert [overhead.observe(one, account, account) for one in sizes] == [0, 0, 0, GIB, 0]


def test_a_card_for_one_process_is_named_and_gets_no_share(
    driver: FakeDriver, node: FakeDaemon
) -> None:
    node.sampler.look()
    assert status_row(node)["warnings"] == []
    driver.modes = {CARD: "Exclusive_Process"}
    node.sampler.look()
    (capacity,) = node.accounts.capacities()
    assert (capacity.compute_mode, capacity.health) == ("Exclusive_Process", "ok")
    (warning,) = status_row(node)["warnings"]
    assert "card 0 is in compute mode Exclusive_Process" in warning
    assert "nvidia-smi -i 0 -c DEFAULT" in warning


def test_a_share_that_uses_an_mps_server_is_named(
    tenant: SampledTenant, capfd: pytest.CaptureFixture[str]
) -> None:
    """Logged once, until it does no more; its container warns as long as it does."""

    def looks(*, is_mps: bool) -> tuple[list[str], int]:
        tenant.uses(GIB, is_mps=is_mps)
        tenant.looks()
        return tenant.row["warnings"], capfd.readouterr().err.count("tenant-uses-mps")

    assert looks(is_mps=False) == ([], 0)
    (warning,), logged = looks(is_mps=True)
    assert f"an MPS server that gpushare did not start (process {tenant.child})" in warning
    assert logged == 1
    assert looks(is_mps=True) == ([warning], 0)
    assert looks(is_mps=False) == ([], 0)
    assert looks(is_mps=True) == ([warning], 1)


def test_memory_allocated_during_a_sample_is_not_overhead(tenant: SampledTenant) -> None:
    sizes = iter(range(2, 100))

    def grow() -> None:
        used = next(sizes) * GIB
        tenant.uses(used + 500 * MIB)
        tenant.claim(used)

    tenant.driver.during = grow
    assert max(tenant.looks(8)) <= 500


def test_a_silent_card_reserves_no_contexts(tenant: SampledTenant) -> None:
    """Without an answer all stays: overhead, non-tenant use, and the attribution of processes."""
    tenant.uses(GIB + 500 * MIB, ProcessUse(os.getpid(), GIB))
    tenant.driver.busy = {CARD: 45}
    tenant.looks(4)
    assert next(card_rows(tenant.node))["utilization"] == 45
    (process,) = tenant.row["processes"]
    assert process["cards"] == [{"index": 0, "bytes": GIB + 500 * MIB, "utilization": 40}]
    tenant.driver.lost = frozenset({CARD})
    assert tenant.looks() == [500]
    assert tenant.usage.cards[CARD].non_tenant_bytes == GIB
    assert tenant.usage.cards[CARD].health == "GPU is lost"
    assert next(card_rows(tenant.node))["utilization"] is None
    tenant.driver.lost = frozenset()
    tenant.uses(None)  # no figure changes none
    assert tenant.looks() == [500]
    assert tenant.usage.cards[CARD].health == "ok"


@given(managed=st.integers(0, 4 * GIB), rest=st.integers(0, 4 * GIB), beside=st.integers(0, GIB))
def test_memory_that_the_driver_does_not_count_is_not_made_up_for(
    managed: int, rest: int, beside: int
) -> None:
    kinds = tuple(managed if kind == abi.KIND_MANAGED else 0 for kind in range(abi.KINDS))
    account = TenantClaims(held_bytes=managed + rest, kinds=kinds)
    overhead = Overhead()
    told = [overhead.observe(rest + beside, account, account) for _ in range(4)][-1]
    assert account.used_bytes(told) == managed + rest + beside


def test_every_sample_is_a_heartbeat(tenant: SampledTenant, tmp_path: Path) -> None:
    grant = next(tmp_path.glob("run/tenants/*/pages/grant"))
    before = time.monotonic_ns()
    tenant.looks()
    at = abi.GRANT_HEADER_HEARTBEAT_NS
    assert before <= int.from_bytes(grant.read_bytes()[at : at + 8], "little")
    assert tenant.pages.grant.generation == 1


def test_refusals_of_a_process_are_counted_after_its_end(tenant: SampledTenant) -> None:
    def denied() -> int:
        return tenant.row["denied_allocations"]

    tenant.claim(GIB, pid=1, starttime=1, denied=3)  # dead, and the first look reaps it
    tenant.looks()
    assert (tenant.pages.claims(), denied()) == ((), 3)
    # The last but one is another program in the same process: from 0.
    for claimed, counted in ((2, 5), (0, 5), (1, 6)):
        tenant.claim(GIB, denied=claimed)
        assert denied() == counted


def test_a_non_tenant_must_be_seen_twice() -> None:
    non_tenants = NonTenantUse(60)
    non_tenants.observe(0, CARD, (), first=True)
    stranger = (ProcessUse(os.getpid(), GIB),)
    assert non_tenants.observe(1, CARD, stranger, first=False).non_tenant_bytes == 0
    assert non_tenants.observe(2, CARD, stranger, first=False).non_tenant_bytes == GIB


def test_a_process_that_was_a_tenants_takes_its_time_to_leave() -> None:
    """Released, and still in the driver's list: no room may be lost over it."""
    non_tenants = NonTenantUse(60)
    leaving = (ProcessUse(99999, 4 * GIB),)
    non_tenants.excuse(99999, 0)
    for look in range(1, 30):
        assert non_tenants.observe(look / 4, CARD, leaving, first=False).non_tenant_bytes == 0
    non_tenants.observe(11, CARD, leaving, first=False)
    assert non_tenants.observe(12, CARD, leaving, first=False).non_tenant_bytes == 4 * GIB


def test_the_cgroup_identifies_the_tenant_of_a_process(
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, node: FakeDaemon
) -> None:
    fakes.all_are_there(monkeypatch)
    paths = {7: {"": "/x/a/nested"}, 8: {"": "/x/ab"}, 9: {"devices": "/x/a"}}
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: paths.get(pid, {}))
    monkeypatch.setattr(processes, "find_process", lambda pid: None)  # noqa: ARG005
    entry = replace(fakes.entry(), state="bound", pid=4, cgroup=":/x/a")
    node.ledger.add(entry)
    driver.uses = {CARD: tuple(ProcessUse(pid, GIB) for pid in paths)}
    node.sampler.look()
    owned = [use.pid for _, use in node.observed.usage.processes[entry.key]]
    assert owned == [7]
    assert {one.pid for one in node.observed.usage.cards[CARD].non_tenants} == {8, 9}


def test_a_failed_sample_is_followed_by_another(
    tenant: SampledTenant, capfd: pytest.CaptureFixture[str]
) -> None:
    """Until then the last figures are shown, as stale."""

    def fail() -> None:
        raise RuntimeError("what nobody thought of")

    tenant.uses(2 * GIB)
    tenant.looks(4)
    for during, fault, why in ((fail, "", "RuntimeError"), (lambda: None, "hangs", "hangs")):
        tenant.driver.during, tenant.driver.fault = during, fault
        assert tenant.looks(2) == [1024, 1024]
        assert why in tenant.usage.stale
        assert KEY in tenant.usage.processes
    assert capfd.readouterr().err.count("driver-sample-failed") == 1
    tenant.driver.fault = ""
    tenant.looks()
    assert not tenant.usage.stale


def test_a_tenant_that_cannot_be_reaped_is_not_in_the_way(
    tenant: SampledTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(processes, "pids_of", broken)
    tenant.looks()
    assert not tenant.usage.stale


def test_contexts_explain_at_most_their_charge_and_the_driver_overhead(
    tenant: SampledTenant,
) -> None:
    """A tenant that notes its buffers as contexts would make all contexts look larger."""
    learned: list[int] = []
    node = tenant.node
    sampler = UsageSampler(
        *(tenant.driver, node.ledger, node.tenants, node.observed),
        non_tenant_half_life=60,
        learned=lambda _card, _key, size: learned.append(size),
    )
    tenant.uses(3 * GIB + 100 * MIB)
    kinds = {abi.KIND_CONTEXT: 3 * GIB}
    registered.hold(tenant.pages.status.fd, 0, 3 * GIB, contexts=1, kinds=kinds)
    for price, told in ((0, 100 * MIB), (500 * MIB, 600 * MIB)):
        tenant.pages.grant.set_context(0, price)
        for _ in range(4):
            sampler.look()
        assert learned[-1] == told
