# SPDX-License-Identifier: Apache-2.0
"""The audit on a card on which much happens: the innocent are never touched, the others are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.limits import change_limit
from gpushare.daemon.observed import Shortfall
from gpushare.daemon.pages import tenants
from gpushare.daemon.views.tenant_status import tenant_status

from . import fakes
from .busy_card import CARD, CONTEXT, BusyCard, BusyProcess, BusyTenant
from .fakes import FakeDaemon

GIB = 1 << 30
#: Of 25 faults that were put into the judgement it finds nine, each within 900.
LOOKS = 1_000
OVER = 120 * GIB  # whatever becomes of its quota


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    driver = BusyCard(seed=6)
    with fakes.node(tmp_path, driver) as node:
        driver.settle(node, monkeypatch)
        yield node


@pytest.fixture
def world(node: FakeDaemon) -> BusyCard:
    driver = node.node.loaded().nvml
    assert isinstance(driver, BusyCard)
    driver.tenant("a", 4)
    driver.tenant("b", 2, most_gib=8)
    driver.tenant("c", 8, programs=3)
    driver.tenant("d", 90).bursts = True
    driver.tenant("e", 4, programs=2).passes = True
    return driver


def test_no_sample_accuses_a_container_within_its_quota(
    world: BusyCard, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(LOOKS):
        world.look()
        assert world.done == []
    assert world.recorder.calls == []
    assert "driver-sample-failed" not in capfd.readouterr().err  # each look was one


def test_a_container_is_not_judged_by_claims_of_an_earlier_sample(
    world: BusyCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its many claims are costly to read, so that most samples go without them."""
    monkeypatch.setattr(tenants, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(tenants, "_PAUSE_TIMES", 1e9)
    for _ in range(200):
        world.look()
    assert world.done == []


def begin(world: BusyCard, looks: int = 60) -> BusyTenant:
    """Leave all tenants within their quotas for a while, and return the one that will exceed it."""
    for _ in range(looks):
        world.look()
    assert world.done == []
    return world.tenants[0]


def apart(world: BusyCard, tenant: BusyTenant) -> BusyProcess:
    """Start a process of `tenant` that the driver knows, and no account."""
    program = world.start(tenant)
    tenant.unregister(program)
    tenant.programs.remove(program)
    return program


def until_frozen(
    world: BusyCard, tenant: BusyTenant, looks: int, during: Callable[[], None]
) -> int:
    """Return how many samples it took until `tenant` was frozen, and no other was touched."""
    for number in range(looks):
        during()
        world.look()
        if ("freeze", tenant.key) in world.done:
            assert world.done == [("warn", tenant.key), ("freeze", tenant.key)]
            assert world.recorder.calls == [("hold", tenant.key)]
            return number + 1
    raise AssertionError(f"not frozen in {looks} looks: {world.done}")


def nothing() -> None:
    pass


def test_a_process_without_an_account_is_frozen(world: BusyCard) -> None:
    """The real library by its private path, a static program, `env -i`."""
    tenant = begin(world)
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16, nothing)


def test_a_container_that_rewrites_its_claims_constantly_is_frozen(world: BusyCard) -> None:
    """So that it explains the most and holds the least."""
    tenant = begin(world)
    program = world.start(tenant)
    tenant.programs.remove(program)
    world._has(program, OVER)
    world.forger = tenant, program
    until_frozen(world, tenant, 120, nothing)


def test_a_claim_of_burst_memory_is_no_entitlement_to_it(world: BusyCard) -> None:
    """It is claimed once the limit has fallen, and then taken."""
    tenant = world.all_tenants[1]
    begin(world)
    world.tenants.remove(tenant)
    change_limit(tenant.entry, 0, 8 * GIB, world.node)
    for _ in range(40):
        world.look()
    change_limit(tenant.entry, 0, 2 * GIB, world.node)
    program = tenant.programs[0] if tenant.programs else world.start(tenant)
    program.buffers = 8 * GIB
    tenant.write(program)
    assert world.done == []
    world._has(apart(world, tenant), 8 * GIB)
    until_frozen(world, tenant, 16, nothing)


def test_a_container_that_changes_processes_between_samples_is_frozen(world: BusyCard) -> None:
    tenant = begin(world)
    last: list[BusyProcess] = []

    def move_on() -> None:
        program = apart(world, tenant)
        world._has(program, OVER)
        for gone in last:
            del world.clients[gone.process.pid], world.there[gone.process.pid]
        last[:] = [program]

    until_frozen(world, tenant, 120, move_on)


def test_with_an_unknown_context_size_the_audit_only_warns(
    world: BusyCard, monkeypatch: pytest.MonkeyPatch, node: FakeDaemon
) -> None:
    tenant = begin(world)
    monkeypatch.setattr(node.node.loaded().contexts, "sizes", {})
    world.tenants[:] = [tenant]
    world._has(apart(world, tenant), OVER)
    for _ in range(60):
        world.look()
    assert ("warn", tenant.key) in world.done
    assert "freeze" not in {action for action, _ in world.done}


def test_a_freeze_that_failed_is_retried(world: BusyCard, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = begin(world)
    tried: list[str] = []

    def refuse(key: str, _by: str, why: str) -> None:
        assert " on card 0, over its limit of " in why
        tried.append(key)
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(world.recorder, "freeze", refuse)
    world._has(apart(world, tenant), OVER)
    for _ in range(120):
        world.look()
    assert 2 < len(tried) < 12  # some seconds apart
    assert set(tried) == {tenant.key}


def test_an_operators_resume_holds_for_a_minute(world: BusyCard, node: FakeDaemon) -> None:
    tenant = begin(world)
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16, nothing)
    world.done.clear()
    node.audit.resumed(tenant.key)
    began = world.now_ns
    while not world.done:
        world.look()
    assert world.done == [("freeze", tenant.key)]
    assert world.now_ns - began >= 60 * 10**9
    calls = [call for call, _ in world.recorder.calls]
    assert calls == ["hold", "release", "hold"]


def test_the_finding_has_a_reason_and_advice(world: BusyCard, node: FakeDaemon) -> None:
    tenant = begin(world)
    world.tenants[:] = [tenant]
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16, nothing)
    row = tenant_status(tenant.entry, node)
    assert (row["over_quota_action"], row["cards"][0]["over_quota_state"]) == ("freeze", "frozen")
    [warning] = [one for one in row["warnings"] if "bypasses the interposer" in one]
    assert "gpushare set tenant-a --memory SIZE, gpushare resume tenant-a" in warning
    tenant.pages.write_limit(0, 2 * OVER, 2 * OVER)
    enough = tenant_status(tenant.entry, node)["warnings"]  # though there was no sample since
    assert not [one for one in enough if "bypasses the interposer" in one]
    tenant.pages.write_limit(0, tenant.limit, tenant.limit)
    node.node.overrides.set(tenant.entry.id, {"over-quota-action": "observe"})
    for _ in range(3):
        world.look()
    assert world.recorder.calls[-1] == ("release", tenant.key)


def test_a_neighbours_shortfall_is_reason_enough(world: BusyCard, node: FakeDaemon) -> None:
    """A slight excess with action kill: another tenant's claim alone kills nothing."""
    guilty, victim = begin(world), world.tenants[1]
    world.tenants[:] = [guilty, victim]
    node.node.overrides.set(guilty.entry.id, {"over-quota-action": "kill"})
    program = apart(world, guilty)
    for _ in range(30):
        node.observed.shortfalls = {(victim.key, CARD): Shortfall(GIB, 0.0, world.now_ns)}
        sample = world.look()[guilty.key, CARD].sample
        assert sample is None or sample.has_shortfall
    assert world.done == []
    may = sample.may_bytes if sample else 0
    world._has(program, may + may // 12 + 2 * CONTEXT - program.bytes)
    world.tenants[:] = [victim]
    for _ in range(12):
        node.observed.shortfalls = {(victim.key, CARD): Shortfall(GIB, 0.0, world.now_ns)}
        world.look()
    assert world.done[:3] == [(step, guilty.key) for step in ("warn", "freeze", "kill")]
    assert ("kill", guilty.key) in world.recorder.calls


def test_tenants_cannot_request_samples_without_limit(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(3):
        node.sample_now.set()
        assert node.audit.wait()
    assert not node.sample_now.is_set()
    assert all(0 < seconds <= 0.05 for seconds in slept[1:])
