# SPDX-License-Identifier: Apache-2.0
"""The audit never touches the innocent; unallocated use, false claims, non-tenants."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.observe.non_tenant import container_of
from gpushare.daemon.observed import Shortfall
from gpushare.daemon.pages import tenants
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.daemon_status import status_row
from gpushare.daemon.views.rows import card_rows

from . import fakes, registered
from .busy_card import CARD, CONTEXT, BusyCard, BusyProcess, BusyTenant
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import bound, opened

OVER = 120 * GIB  # whatever becomes of its quota


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    driver = BusyCard(seed=6)
    with fakes.node(tmp_path, driver) as node:
        driver.settle(node, monkeypatch)
        yield node


def seen(card: BusyCard, looks: int) -> None:
    for _ in range(looks):
        card.look()


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
    for _ in range(1_000):  # of 25 faults in the judgement it finds nine, each within 900
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
    seen(world, 200)
    assert world.done == []


def begin(world: BusyCard, looks: int = 60) -> BusyTenant:
    """Leave all tenants within their quotas for a while, and return the one that will exceed it."""
    seen(world, looks)
    assert world.done == []
    return world.tenants[0]


def apart(world: BusyCard, tenant: BusyTenant) -> BusyProcess:
    """Start a process of `tenant` that the driver knows, and no account."""
    program = world.start(tenant)
    tenant.unregister(program)
    tenant.programs.remove(program)
    return program


def until_frozen(
    world: BusyCard, tenant: BusyTenant, looks: int, during: Callable[[], None] = lambda: None
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


def test_a_process_without_an_account_is_frozen(world: BusyCard) -> None:
    """The real library by its private path, a static program, `env -i`."""
    tenant = begin(world)
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16)


def test_a_container_that_rewrites_its_claims_constantly_is_frozen(world: BusyCard) -> None:
    """So that it explains the most and holds the least."""
    tenant = begin(world)
    program = world.start(tenant)
    tenant.programs.remove(program)
    world._has(program, OVER)
    world.forger = tenant, program
    until_frozen(world, tenant, 120)


def test_a_claim_of_burst_memory_is_no_entitlement_to_it(world: BusyCard) -> None:
    """It is claimed once the limit has fallen, and then taken."""
    tenant = world.all_tenants[1]
    begin(world)
    world.tenants.remove(tenant)
    world.node.limits.change(tenant.entry, 0, 8 * GIB)
    seen(world, 40)
    world.node.limits.change(tenant.entry, 0, 2 * GIB)
    program = tenant.programs[0] if tenant.programs else world.start(tenant)
    program.buffers = 8 * GIB
    tenant.write(program)
    assert world.done == []
    world._has(apart(world, tenant), 8 * GIB)
    until_frozen(world, tenant, 16)


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
    world: BusyCard, node: FakeDaemon
) -> None:
    tenant = begin(world)
    node.node.loaded().contexts.renew("another driver")
    world.tenants[:] = [tenant]
    world._has(apart(world, tenant), OVER)
    seen(world, 60)
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
    seen(world, 120)
    assert 2 < len(tried) < 12  # some seconds apart
    assert set(tried) == {tenant.key}


def test_an_operators_resume_holds_for_a_minute(world: BusyCard, node: FakeDaemon) -> None:
    tenant = begin(world)
    world._has(apart(world, tenant), OVER)
    until_frozen(world, tenant, 16)
    world.done.clear()
    node.audit.resumed(tenant.key)
    began = world.now_ns
    while not world.done:
        world.look()
    assert world.done == [("freeze", tenant.key)]
    assert world.now_ns - began >= 60 * 10**9
    calls = [call for call, _ in world.recorder.calls]
    assert calls == ["hold", "release", "hold"]


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
        node.observed.sample_now.set()
        assert node.audit.wait()
    assert not node.observed.sample_now.is_set()
    assert all(0 < seconds <= 0.05 for seconds in slept[1:])


PID = 77


CONTAINER = f"/docker/4f5e6d7c8b9a{'0' * 52}"


@pytest.fixture
def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BusyCard]:
    driver = BusyCard(seed=6)
    with fakes.node(tmp_path, driver) as node:
        driver.settle(node, monkeypatch)
        driver.noise = False
        driver.tenant("a", 4)
        yield driver


def come(lone: BusyCard, cgroup: str) -> None:
    """Have a process of no tenant take 3 GiB of the card."""
    lone.there[PID] = Process(PID, 1, 1, PID), cgroup
    lone.clients[PID] = 3 * GIB


def events(said: str) -> list[str]:
    found = [json.loads(line) for line in said.splitlines()]
    return [line["event"] for line in found if line["event"].startswith("unallocated-")]


def test_an_unallocated_container_is_reported_once(
    lone: BusyCard, capfd: pytest.CaptureFixture[str]
) -> None:
    seen(lone, 3)
    come(lone, CONTAINER)
    seen(lone, 20)
    assert events(capfd.readouterr().err) == ["unallocated-container-detected"]
    [warning] = [one for one in status_row(lone.node)["warnings"] if "bypasses gpushare" in one]
    assert warning.startswith("process 77 (program) in docker 4f5e6d7c8b9a has 3 GiB of card 0")
    [row] = next(card_rows(lone.node))["non_tenant_processes"]
    assert (row["pid"], row["container"]) == (PID, "docker 4f5e6d7c8b9a")


@pytest.mark.parametrize("cgroup", ["/user.slice/session-2.scope", "/"])
def test_a_program_of_the_host_is_never_reported(
    lone: BusyCard, cgroup: str, capfd: pytest.CaptureFixture[str]
) -> None:
    come(lone, cgroup)
    seen(lone, 20)
    assert status_row(lone.node)["warnings"] == []
    assert events(capfd.readouterr().err) == []


def test_unaccounted_memory_is_shown(lone: BusyCard) -> None:
    lone.more, lone.pages_out, lone.shares = 9 * GIB, False, False
    seen(lone, 100)
    assert 8 * GIB <= next(card_rows(lone.node))["unattributed_bytes"] <= 9 * GIB
    assert lone.done == []
    lone.more = 0
    seen(lone, 4)
    assert next(card_rows(lone.node))["unattributed_bytes"] == 0
    assert CARD in lone.node.observed.unattributed


def test_a_well_timed_lower_claim_does_not_reduce_the_drivers_figure(
    tmp_path: Path, program: FakeProcess
) -> None:
    """Claimed before each look at the driver and withdrawn after it, overhead is never seen."""
    driver = FakeDriver()
    with fakes.node(tmp_path, driver) as node:
        tenant = bound(node, program, memory="4GiB")
        status = node.tenants.pages[tenant["key"]].status.fd
        registered.register(status, 0, program.pid, program.starttime)
        driver.uses = {CARD: (ProcessUse(program.pid, 60 * GIB),)}
        driver.during = lambda: registered.hold(status, 0, GIB)
        with registered.life(status, 0):
            for _ in range(4):
                registered.hold(status, 0, 60 * GIB)
                node.sampler.look()
        with pytest.raises(NoRoom, match=r"80 of 140 GiB available \(train 4 and 56 above it\)"):
            opened(node, memory="81GiB")
        opened(node, memory="80GiB")


ID = "4f5e6d7c8b9a" + "0" * 52


POD = "pod1c0ffee0-0000-4000-8000-000000000000"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"/docker/{ID}", "docker 4f5e6d7c8b9a"),
        (f"/system.slice/docker-{ID}.scope", "docker 4f5e6d7c8b9a"),
        (f"/kubepods/burstable/{POD}/{ID}", "containerd 4f5e6d7c8b9a"),
        (f"/kubepods.slice/x.slice/cri-containerd-{ID}.scope", "containerd 4f5e6d7c8b9a"),
        (f"/kubepods.slice/x.slice/crio-{ID}.scope", "cri-o 4f5e6d7c8b9a"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman 4f5e6d7c8b9a"),
        (f"/docker/{ID}/docker/{'b' * 64}", "docker " + "b" * 12),
        ("/user.slice/user-1000.slice/session-2.scope", ""),
        ("/", ""),
    ],
)
def test_an_engines_container_is_distinguished_from_the_hosts_own(path: str, said: str) -> None:
    assert container_of({"": path}) == said
    assert container_of({"": "/", "devices": path, "pids": path, "freezer": path}) == said
