# SPDX-License-Identifier: Apache-2.0
"""What the driver says, put beside what tenants say: never a false refusal, never a frame-up."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.observe.non_tenant import NonTenantUse
from gpushare.daemon.observe.sampler import Overhead, UsageSampler
from gpushare.daemon.pages.grant_page import CardGrant
from gpushare.daemon.pages.status_page import TenantClaims
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.service.node_operations import status_row
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.status_rows import tenant_row

from . import fakes, registered
from .fake_process import FakeProcess
from .fakes import GIB, MIB, FakeDaemon, FakeDriver

CARD = fakes.card().uuid


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver) as made:
        yield made


@pytest.fixture
def truth(node: FakeDaemon) -> UsageSampler:
    return node.sampler


@pytest.fixture
def child() -> Iterator[int]:
    """The process of a tenant: a descendant of ours, which is the bound one."""
    program = FakeProcess()
    yield program.pid
    program.kill()
    program.wait()


@pytest.fixture
def tenant(node: FakeDaemon, child: int, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """A bound tenant without a cgroup of its own, that uses 1 GiB in one context."""
    monkeypatch.setattr(processes, "may_map", lambda pid, _inode: pid == child)
    process = processes.find_process(child)
    assert process is not None
    entry: TenantRecord = fakes.entry()
    node.ledger.add(entry)
    node.ledger.bind(entry.key, pid=child, starttime=process.starttime, cgroup="")
    directory = node.mounts.make(entry.key, size_bytes=1 << 20)
    pages = Pages.make(directory, entry.key, [CardGrant(CARD, 4 * GIB, 0, 0)])
    node.tenants.add(entry.key, pages)
    claim(pages, child, process.starttime, GIB)
    return pages


def claim(pages: Pages, pid: int, starttime: int, used: int, denied: int = 0) -> None:
    fd = pages.status.fd
    registered.register(fd, 0, pid, starttime, denied=denied)
    registered.hold(fd, 0, used, contexts=1)


def test_overhead_is_the_drivers_use_above_the_claims(
    driver: FakeDriver, truth: UsageSampler, tenant: Pages, child: int
) -> None:
    """An earlier daemon's figure stands until there are enough samples."""
    tenant.grant.set_measured(0, 500 * MIB, 0)
    driver.uses = {CARD: (ProcessUse(child, GIB + 600 * MIB, 40),)}
    told = []
    for _ in range(4):
        truth.look()
        told.append(tenant.grant.overhead_bytes(0) // MIB)
    assert told == [500, 500, 500, 600]
    assert truth.observed.usage.utilisation == {("0" * 16, CARD): 40}


def test_overhead_rises_after_four_samples_and_falls_at_once() -> None:
    overhead, account = Overhead(), TenantClaims()
    sizes = (GIB, GIB, GIB, GIB, 0)
    assert [overhead.observe(one, account, account) for one in sizes] == [0, 0, 0, GIB, 0]


def test_a_card_for_one_process_is_named_and_gets_no_share(
    driver: FakeDriver, node: FakeDaemon, truth: UsageSampler
) -> None:
    truth.look()
    assert status_row(node)["warnings"] == []
    driver.modes = {CARD: "Exclusive_Process"}
    truth.look()
    (capacity,) = node.capacities()
    assert (capacity.compute_mode, capacity.health) == ("Exclusive_Process", "ok")
    (warning,) = status_row(node)["warnings"]
    assert "card 0 is in compute mode Exclusive_Process" in warning
    assert "nvidia-smi -i 0 -c DEFAULT" in warning


@pytest.mark.usefixtures("tenant")
def test_a_share_that_uses_an_mps_server_is_named(
    driver: FakeDriver,
    node: FakeDaemon,
    truth: UsageSampler,
    child: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Logged once, until it does no more; its container warns as long as it does."""

    def looks(*, is_mps: bool) -> tuple[list[str], int]:
        driver.uses = {CARD: (ProcessUse(child, GIB, 40, is_mps=is_mps),)}
        truth.look()
        row = tenant_row(node.ledger.entries["0" * 16], node)
        return row["warnings"], capfd.readouterr().err.count("tenant-uses-mps")

    assert looks(is_mps=False) == ([], 0)
    (warning,), logged = looks(is_mps=True)
    assert f"uses an MPS server that gpushare did not start (process {child})" in warning
    assert logged == 1
    assert looks(is_mps=True) == ([warning], 0)
    assert looks(is_mps=False) == ([], 0)
    assert looks(is_mps=True) == ([warning], 1)


def test_memory_allocated_during_a_sample_is_not_overhead(
    driver: FakeDriver, truth: UsageSampler, tenant: Pages, child: int
) -> None:
    process = processes.find_process(child)
    assert process is not None
    sizes = iter(range(2, 100))

    def grow() -> None:
        used = next(sizes) * GIB
        driver.uses = {CARD: (ProcessUse(child, used + 500 * MIB),)}
        claim(tenant, child, process.starttime, used)

    driver.during = grow
    for _ in range(8):
        truth.look()
        assert tenant.grant.overhead_bytes(0) <= 500 * MIB


def test_a_silent_card_reserves_no_contexts(
    driver: FakeDriver, truth: UsageSampler, tenant: Pages, child: int
) -> None:
    """Without an answer all stays: overhead, non-tenant use, and the attribution of processes."""
    driver.uses = {CARD: (ProcessUse(child, GIB + 500 * MIB), ProcessUse(os.getpid(), GIB))}
    for _ in range(4):
        truth.look()
    driver.lost = frozenset({CARD})
    truth.look()
    assert tenant.grant.overhead_bytes(0) == 500 * MIB
    assert truth.observed.usage.cards[CARD].non_tenant_bytes == GIB
    assert truth.observed.usage.cards[CARD].health == "GPU is lost"
    driver.lost = frozenset()
    truth.look()
    assert truth.observed.usage.cards[CARD].health == "ok"


@given(managed=st.integers(0, 4 * GIB), rest=st.integers(0, 4 * GIB), beside=st.integers(0, GIB))
def test_memory_that_the_driver_does_not_count_is_not_made_up_for(
    managed: int, rest: int, beside: int
) -> None:
    kinds = tuple(managed if kind == abi.KIND_MANAGED else 0 for kind in range(abi.KINDS))
    account = TenantClaims(held_bytes=managed + rest, kinds=kinds)
    overhead = Overhead()
    told = [overhead.observe(rest + beside, account, account) for _ in range(4)][-1]
    assert account.used_bytes(told) == managed + rest + beside


def test_every_sample_is_a_heartbeat(truth: UsageSampler, tenant: Pages, tmp_path: Path) -> None:
    grant = next(tmp_path.glob("run/tenants/*/pages/grant"))

    def heartbeat() -> int:
        at = abi.GRANT_HEADER_HEARTBEAT_NS
        return int.from_bytes(grant.read_bytes()[at : at + 8], "little")

    before = heartbeat()
    truth.look()
    assert before < heartbeat() <= time.monotonic_ns()
    assert tenant.grant.generation == 1


def test_refusals_of_a_process_are_counted_after_its_end(
    node: FakeDaemon, truth: UsageSampler, tenant: Pages, child: int
) -> None:
    def denied() -> int:
        [card] = tenant_row(node.ledger.entries["0" * 16], node)["cards"]
        return card["denied_allocations"]

    process = processes.find_process(child)
    assert process is not None
    claim(tenant, 1, 1, GIB, denied=3)  # dead, and the first look reaps it
    truth.look()
    assert (tenant.claims(), denied()) == ((), 3)
    claim(tenant, child, process.starttime, GIB, denied=2)
    assert denied() == 5
    claim(tenant, child, process.starttime, GIB)  # another program in the same process: from 0
    assert denied() == 5
    claim(tenant, child, process.starttime, GIB, denied=1)
    assert denied() == 6


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
    monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, node: FakeDaemon, truth: UsageSampler
) -> None:
    fakes.all_are_there(monkeypatch)
    paths = {7: {"": "/x/a/nested"}, 8: {"": "/x/ab"}, 9: {"devices": "/x/a"}}
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: paths.get(pid, {}))
    monkeypatch.setattr(processes, "find_process", lambda pid: None)  # noqa: ARG005
    entry = replace(fakes.entry(), state="bound", pid=4, cgroup=":/x/a")
    node.ledger.add(entry)
    driver.uses = {CARD: tuple(ProcessUse(pid, GIB) for pid in paths)}
    truth.look()
    owned = [use.pid for _, use in truth.observed.usage.processes[entry.key]]
    assert owned == [7]
    assert {one.pid for one in truth.observed.usage.cards[CARD].non_tenants} == {8, 9}


def test_a_failed_sample_is_followed_by_another(
    driver: FakeDriver,
    truth: UsageSampler,
    tenant: Pages,
    child: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Until then the last figures are shown, as stale."""

    def fail() -> None:
        raise RuntimeError("what nobody thought of")

    driver.uses = {CARD: (ProcessUse(child, 2 * GIB),)}
    for _ in range(4):
        truth.look()
    for driver.during, driver.fault, why in (
        (fail, "", "RuntimeError"),
        (lambda: None, "it hangs", "it hangs"),
    ):
        truth.look()
        truth.look()
        assert why in truth.observed.usage.stale
        assert tenant.grant.overhead_bytes(0) == GIB
        assert "0" * 16 in truth.observed.usage.processes
    assert capfd.readouterr().err.count("driver-sample-failed") == 1
    driver.fault = ""
    truth.look()
    assert not truth.observed.usage.stale


def test_a_tenant_that_cannot_be_reaped_is_not_in_the_way(
    truth: UsageSampler, tenant: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    del tenant

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(processes, "pids_of", broken)
    truth.look()
    assert not truth.observed.usage.stale


def test_contexts_explain_at_most_their_charge_and_the_driver_overhead(
    node: FakeDaemon, driver: FakeDriver, tenant: Pages, child: int
) -> None:
    """A tenant that notes its buffers as contexts would make all contexts look larger."""
    learned: list[int] = []
    truth = UsageSampler(
        driver,
        node.ledger,
        node.tenants,
        node.observed,
        non_tenant_half_life=60,
        learned=lambda _card, _key, size: learned.append(size),
    )
    driver.uses = {CARD: (ProcessUse(child, 3 * GIB + 100 * MIB),)}
    kinds = {abi.KIND_CONTEXT: 3 * GIB}
    registered.hold(tenant.status.fd, 0, 3 * GIB, contexts=1, kinds=kinds)
    for price, told in ((0, 100 * MIB), (500 * MIB, 600 * MIB)):
        tenant.grant.set_context(0, price)
        for _ in range(4):
            truth.look()
        assert learned[-1] == told
