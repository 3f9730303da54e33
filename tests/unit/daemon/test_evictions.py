# SPDX-License-Identifier: Apache-2.0
"""Evict and restore: all processes of a tenant or none, and what it had is counted once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi
from gpushare.daemon import scheduler_sync
from gpushare.daemon.cards.driver_client import DriverSample
from gpushare.daemon.eviction import preconditions
from gpushare.daemon.eviction import worker_main as api
from gpushare.daemon.eviction.checkpoint_client import CheckpointError
from gpushare.daemon.eviction.evictions import BeforeKill
from gpushare.daemon.eviction.preconditions import CannotRestore, MemoryLimit
from gpushare.daemon.eviction.steps import EvictionFailed
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import release
from gpushare.daemon.operator.reload import set_node_setting
from gpushare.daemon.operator.resize import NotResizable, set_quota
from gpushare.daemon.placement.model import MigInstance
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import FreezeRecord
from gpushare.daemon.views.rows import evicted_by_card
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.quota.node_settings import RELEASED
from gpushare.settings import MPS

from . import evictable
from .evictable import EvictableNode, EvictableTenant
from .fakes import GIB, FakeDaemon
from .inline import InlineWorker
from .operations import opened, tenant_rows
from .registered import hold

LEAST_MEMORY = preconditions.least_memory


OUT_OF_MEMORY = CheckpointError("restore: CUDA_ERROR_OUT_OF_MEMORY", 2)
OUT_OF_MEMORY_BEFORE = CheckpointError("restore: CUDA_ERROR_OPERATING_SYSTEM", 304)


REFUSED = CheckpointError("checkpoint: CUDA_ERROR_NOT_SUPPORTED", 801)


SLOW = CheckpointError("lock: CUDA_ERROR_NOT_READY", 600)


@pytest.fixture
def made(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[EvictableNode]:
    with evictable.running(node, monkeypatch) as found:
        yield found


def test_evicted_memory_is_available_and_the_calls_wait(made: EvictableNode) -> None:
    tenant = made.tenant(gib=40, programs=2)
    before = made.capacity().available_bytes
    made.node.evictions.evict(tenant.key, "lunch")
    assert tenant.is_gated
    assert made.capacity().available_bytes == before + 40 * GIB
    calls = [name for name, _ in made.node.checkpoints.calls]
    assert calls == ["lock", "lock", "checkpoint", "checkpoint"], "all are locked first"
    made.node.observed.waiting = {tenant.key: 7.0}
    [metric] = tenant_rows(made.node)
    row = metric["eviction"]
    assert row is not None
    assert (row["state"], row["cause"], row["reason"]) == ("evicted", "operator", "lunch")
    assert (row["bytes"], row["from_cards"], row["waits_since"]) == (40 * GIB, [0], 7.0)
    assert evicted_by_card(made.node.ledger) == {tenant.card: (1, 40 * GIB)}
    [part] = metric["cards"]
    assert (part["used_bytes"], part["evicted_bytes"]) == (0, 40 * GIB)


def test_a_restore_reserves_its_room_and_lets_it_go_on(made: EvictableNode) -> None:
    tenant = made.evicted(gib=40, programs=2)
    before = made.capacity().available_bytes
    reserved: list[int] = []
    made.node.checkpoints.during = lambda name, _: reserved.append(
        made.capacity().available_bytes if name == "restore" else before - 40 * GIB
    )
    made.node.evictions.restore(tenant.key)
    assert set(reserved) == {before - 40 * GIB}
    assert tenant.goes_on


def test_no_worker_holds_a_driver_that_is_about_to_be_unloaded(made: EvictableNode) -> None:
    made.evicted()
    made.node.evictions.look()
    made.settle()
    assert ("close", 0) not in made.node.checkpoints.calls
    set_node_setting(RELEASED, "yes", "node label x", made.node.node, made.node.ledger)
    made.node.evictions.look()
    made.settle()
    assert made.node.checkpoints.calls[-1] == ("close", 0)


def test_a_tenant_without_room_stays_evicted_and_nothing_is_tried(made: EvictableNode) -> None:
    tenant = made.evicted(gib=100)
    opened(made.node, memory="100GiB", devices="0")
    opened(made.node, memory="100GiB", devices="1")
    with pytest.raises(NoRoom, match="card 0 cannot take train"):
        made.node.evictions.restore(tenant.key)
    assert tenant.state == "evicted"
    assert "restore" not in {name for name, _ in made.node.checkpoints.calls}


def test_a_restore_looks_at_the_drivers_own_figure_of_free_memory(
    made: EvictableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = made.evicted(gib=40, devices="0")
    listed, uuid = made.driver.figures, tenant.card

    def figures() -> DriverSample:
        return replace(listed(), used={uuid: 101 * GIB})  # by no process

    monkeypatch.setattr(made.driver, "figures", figures)
    with pytest.raises(CannotRestore, match=r"the driver has 39 GiB of card 0 free"):
        made.node.evictions.restore(tenant.key)
    assert tenant.state == "evicted"
    assert "restore" not in {name for name, _ in made.node.checkpoints.calls}


def test_one_whose_card_is_full_is_restored_to_another_of_the_same_model(
    made: EvictableNode,
) -> None:
    tenant = made.evicted(gib=40, devices="0")
    own, other = (card.uuid for card in made.node.node.loaded().cards)
    opened(made.node, memory="120GiB", devices="0")
    made.node.evictions.restore(tenant.key)
    assert made.node.checkpoints.pairs == [((own, other),)]
    assert tenant.card == made.node.tenants.pages[tenant.key].grant.uuid(0) == other


def test_a_lock_that_times_out_puts_all_back(made: EvictableNode) -> None:
    tenant = made.tenant(programs=2)
    made.node.checkpoints.faults["lock", tenant.pids[1]] = SLOW
    made.refuses(tenant, r"could not be locked \(lock: .*NOT_READY\)")
    assert tenant.goes_on


def test_a_checkpoint_that_fails_midway_is_undone(made: EvictableNode) -> None:
    tenant = made.tenant(programs=3)
    made.node.checkpoints.faults["checkpoint", tenant.pids[2]] = REFUSED
    made.refuses(tenant, "It goes on as before")
    assert tenant.goes_on


def test_a_process_that_the_driver_has_lost_is_reported_and_counts(made: EvictableNode) -> None:
    tenant = made.tenant(gib=40, programs=2)
    before = made.capacity().available_bytes
    made.node.checkpoints.faults["checkpoint", tenant.pids[0]] = REFUSED
    made.node.checkpoints.leaves["checkpoint", tenant.pids[0]] = api.FAILED
    made.refuses(tenant, "nor could it be put back")
    assert tenant.state == "failed"
    assert made.capacity().available_bytes == before
    made.refuses(tenant, "an earlier eviction has failed")
    made.end(tenant)
    assert made.node.decide.run(lambda: release.release_ended(made.node))
    assert made.capacity().available_bytes == before + 40 * GIB


@pytest.mark.parametrize("error", [OUT_OF_MEMORY, OUT_OF_MEMORY_BEFORE])
def test_a_restore_out_of_memory_is_final(made: EvictableNode, error: CheckpointError) -> None:
    """The driver leaves the state as it was, also where a killed daemon has seen the first one."""
    tenant = made.evicted(programs=2)
    made.node.checkpoints.faults["restore", tenant.pids[1]] = error
    with pytest.raises(EvictionFailed, match="gpushare stop train"):
        made.node.evictions.restore(tenant.key)
    assert tenant.state == "failed"
    assert tenant.eviction is not None
    assert str(error) in tenant.eviction.error


def test_a_restore_that_is_refused_midway_leaves_all_evicted(made: EvictableNode) -> None:
    tenant = made.evicted(programs=2)
    made.node.checkpoints.faults["restore", tenant.pids[1]] = CheckpointError("restore: 3", 3)
    with pytest.raises(EvictionFailed, match="It stays evicted"):
        made.node.evictions.restore(tenant.key)
    assert [made.node.checkpoints.state(pid) for pid in tenant.pids] == [api.CHECKPOINTED] * 2
    made.node.evictions.restore(tenant.key)
    assert tenant.eviction is None


def test_a_restore_goes_on_from_one_that_a_killed_worker_has_begun(made: EvictableNode) -> None:
    tenant = made.evicted(programs=2)
    checkpoints, done = made.node.checkpoints, ("restore", tenant.pids[0])
    checkpoints.faults[done] = CheckpointError("restore", api.ILLEGAL_STATE)
    checkpoints.leaves[done] = api.LOCKED
    made.node.evictions.restore(tenant.key)
    assert tenant.goes_on


def test_those_that_wait_are_restored_when_there_is_room_online_first(made: EvictableNode) -> None:
    made.tenant(gib=140, devices="1")
    first, second = (made.tenant(gib=60, class_=one) for one in ("offline", "online"))
    for tenant in (first, second):
        made.node.evictions.evict(tenant.key)
    taken = opened(made.node, memory="100GiB", devices="0")
    for tenant in (first, second):
        made.node.evictions.want(tenant.key)
    made.settle()
    assert list(made.node.observed.waiting) == [first.key, second.key]

    def replaced() -> None:
        release.release_tenant(taken["key"], made.node, "test")
        opened(made.node, memory="40GiB", devices="0", class_="online", priority="0")

    made.node.decide.run(replaced)
    made.settle()
    assert (first.eviction is None, second.eviction is None) == (False, True)


@pytest.mark.parametrize("is_key", [True, False], ids=["key", "force"])
def test_what_is_claimed_is_refused_before_the_lock_unless_the_driver_is_to_decide(
    made: EvictableNode, is_key: bool
) -> None:
    tenant = made.tenant()
    status = made.node.tenants.pages[tenant.key].status.fd
    tenant.share(0)
    made.refuses(tenant, f"its process {tenant.pids[0]} has shared GPU memory")
    hold(status, 0, GIB, kinds={abi.KIND_MANAGED: GIB})
    made.refuses(tenant, "managed memory")
    assert (tenant.eviction, made.node.checkpoints.calls) == (None, [])
    made.configure(believe_claims=not is_key)
    made.node.checkpoints.faults["checkpoint", tenant.pids[0]] = REFUSED
    with pytest.raises(EvictionFailed, match=r"CUDA_ERROR_NOT_SUPPORTED\. It goes on as before"):
        made.node.evictions.evict(tenant.key, forced=not is_key)
    assert tenant.goes_on
    made.node.evictions.evict(tenant.key, forced=not is_key)
    assert tenant.state == "evicted"


@pytest.mark.parametrize("left", ["another", "time", "neither"])
def test_an_endless_kernel_delays_a_start_for_a_second(
    made: EvictableNode, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Another one is evicted then; where there is none, it has what is left of the time.

    A lock always has a limit: the driver takes 0 for none.
    """
    made.configure(offline=True)
    endless = made.tenant(gib=100, devices="0", class_="offline", priority="9")
    if left == "another":
        other = made.tenant(gib=100, devices="1", class_="offline", priority="1")
    else:
        opened(made.node, memory="100GiB", devices="1")
    if left == "neither":
        monkeypatch.setattr("gpushare.daemon.eviction.evictions.START_SECONDS", 0.5)
        now = time.monotonic()  # and whatever else the machine does
        monkeypatch.setattr(time, "monotonic", lambda: now)
    made.node.checkpoints.faults["lock", endless.pids[0]] = SLOW
    opened(made.node, memory="100GiB", class_="online")
    first, second = made.node.checkpoints.patience
    assert first == 1.0
    if left == "another":
        assert (second, endless.goes_on, other.state) == (1.0, True, "evicted")
    else:
        assert endless.state == "evicted"
        assert 10 < second <= 20 if left == "time" else second == 1.0


def test_a_start_that_is_refused_because_of_a_claim_is_explained(
    made: EvictableNode, capfd: pytest.CaptureFixture[str]
) -> None:
    made.configure(offline=True)
    tenants = [made.tenant(gib=100, devices=one, class_="offline") for one in "01"]
    for tenant in tenants:
        tenant.share(0)
    for _ in range(2):
        with pytest.raises(NoRoom):
            opened(made.node, memory="100GiB", class_="online")
    told = [line for line in capfd.readouterr().err.splitlines() if "eviction-refused" in line]
    assert all("has shared GPU memory" in line for line in told)
    for tenant in tenants:
        assert sum(tenant.key in line for line in told) == 1
        [warning] = tenant_status(tenant.record, made.node)["warnings"]
        assert "is not evicted for others that have no room: its process" in warning


def test_one_that_shares_memory_until_it_is_locked_goes_on(made: EvictableNode) -> None:
    tenant = made.tenant(programs=2)
    made.node.checkpoints.during = lambda name, _: tenant.share(1) if name == "lock" else None
    made.refuses(tenant, "has shared GPU memory.* It goes on as before")
    assert tenant.goes_on
    assert "checkpoint" not in {name for name, _ in made.node.checkpoints.calls}


def test_a_process_without_the_library_may_share_memory_unseen(made: EvictableNode) -> None:
    tenant = made.tenant(programs=2)
    status = made.node.tenants.pages[tenant.key].status.fd
    os.pwrite(status, bytes(abi.PROCESS_BYTES), abi.status_process_offset(1))
    made.refuses(tenant, f"process {tenant.programs[1].pid} uses the driver without")
    assert tenant.goes_on
    assert made.node.checkpoints.calls == []


def test_what_cannot_be_evicted_or_moved_says_why(
    made: EvictableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant, other = made.tenant(devices="0"), made.node.node.loaded().cards[1]
    record, instance = tenant.record, MigInstance("GPU-parent", 0, 1, 3, 0)
    [own] = record.allocations

    def why(**changes: Any) -> str:
        return preconditions.why_not(replace(record, **changes), made.node)

    def why_to(changes: dict[str, Any], **of_card: Any) -> str:
        changed, card = replace(record, **changes), replace(other, **of_card)
        return preconditions.why_not_to(changed, card, made.node.node)

    assert why() == why_to({}) == ""
    assert why(allocations=()) == "it has no GPU"
    assert why(state="reserved") == "it has not started yet"
    assert why(allocations=(replace(own, whole=True),)).startswith("it has whole cards")
    assert why(isolation=MPS).startswith("it uses an MPS server, whose clients the driver cannot")
    assert why_to({"allocations": (own, own)}).startswith("it has 2 cards")
    assert why_to({"claim": "uid"}).startswith("Kubernetes has allocated its card")
    gone = replace(own, uuid="GPU-gone")
    assert why_to({"allocations": (gone,)}).startswith("its memory is of a card that is gone")
    assert why_to({}, instance=instance).endswith("MIG instances")
    with monkeypatch.context() as patched:
        cards = (replace(made.node.node.loaded().cards[0], instance=instance),)
        patched.setattr(made.node.node, "driver", replace(made.node.node.loaded(), cards=cards))
        assert why() == "it has a MIG instance, which the driver cannot evict"
    made.node.ledger.freezes.put(FreezeRecord(tenant.key, "operator", "", 0.0))
    made.refuses(tenant, "gpushare resume train first")
    made.node.ledger.freezes.forget(tenant.key)
    made.driver.driver_version = "565.57.01"
    assert why().startswith("driver 565.57.01 has no checkpoint API; 570")
    made.driver.driver_version = "580.65.06"
    made.lives.close()  # its programs have ended
    made.node.tenants.pages[tenant.key].reap(lambda *_: False)
    assert why() == "none of its programs uses a card"
    made.node.tenants.pages = {}
    assert why().startswith("its pages are lost")


@pytest.mark.parametrize("change", [{"memory": "1GiB"}, {"cores": "10"}])
def test_an_evicted_tenant_is_restored_before_its_quota_is_changed(
    made: EvictableNode, change: dict[str, str]
) -> None:
    tenant = made.evicted(gib=100, devices="0")
    with pytest.raises(NotResizable, match=r"train is evicted.*gpushare restore"):
        made.node.decide.run(lambda: set_quota(tenant.record, change, made.node))
    made.node.decide.run(lambda: set_quota(tenant.record, {"priority": "7"}, made.node))
    assert tenant.record.priority == 7


def test_host_memory_is_bounded_for_all_the_machine_and_the_container(
    made: EvictableNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made.tenant(gib=4), made.tenant(gib=4)
    made.configure(host_memory_bytes=6 * GIB)
    made.node.evictions.evict(first.key)
    made.refuses(second, r"evict\.host_memory is 6 GiB, of which 4 GiB is in use")
    made.configure(host_memory_bytes=0)
    made.refuses(second, r"evict\.host_memory of gpushare\.yaml is 0")
    made.configure(host_memory_bytes=60 * GIB)
    sizes = {"MemTotal": 1 << 40, "MemAvailable": GIB}
    monkeypatch.setattr(preconditions, "machine_memory", sizes.__getitem__)
    made.refuses(second, "this machine has 1 GiB available")
    monkeypatch.setattr(preconditions, "machine_memory", lambda _: 1 << 40)
    least = MemoryLimit("/sys/fs/cgroup/train", 2 * GIB)
    monkeypatch.setattr(preconditions, "least_memory", lambda *_: least)
    made.refuses(second, "the container's memory limit leaves 2 GiB")
    assert second.eviction is None


def test_one_whose_new_card_is_taken_meanwhile_stays_on_its_own(made: EvictableNode) -> None:
    tenant = made.tenant(gib=40, devices="0")
    own = tenant.card

    def during(name: str, _: int) -> None:
        if name == "checkpoint":
            opened(made.node, memory="120GiB", devices="1")

    made.node.checkpoints.during = during
    with pytest.raises(NoRoom, match="card 1 cannot take train"):
        made.node.evictions.move(tenant.key, "1")
    assert (tenant.goes_on, tenant.card) == (True, own)


def test_a_move_is_refused_before_anything_is_evicted(made: EvictableNode) -> None:
    tenant = made.tenant(gib=40, devices="0")
    made.driver.driver_version = "570.86.10"
    with pytest.raises(CannotRestore, match="580 or newer can move it"):
        made.node.evictions.move(tenant.key, "1")
    made.driver.driver_version = "580.65.06"
    taken = opened(made.node, memory="120GiB", devices="1")
    with pytest.raises(NoRoom, match="card 1 cannot take train"):
        made.node.evictions.move(tenant.key, "1")
    with pytest.raises(CannotRestore, match="is on card 0 already"):
        made.node.evictions.move(tenant.key, "0")
    assert (tenant.eviction, made.node.checkpoints.calls) == (None, [])
    release.release_tenant(taken["key"], made.node, "it has ended")
    made.node.evictions.move(tenant.key, "1")
    assert (tenant.goes_on, tenant.card) == (True, made.node.node.loaded().cards[1].uuid)


@pytest.mark.parametrize("state", ["evicting", "restoring"])
@pytest.mark.parametrize(
    ("states", "ends"),
    [
        ((api.LOCKED, api.RUNNING), ""),
        ((api.CHECKPOINTED, api.LOCKED), ""),
        ((api.CHECKPOINTED, api.CHECKPOINTED), "evicted"),
        ((api.FAILED, api.LOCKED), "failed"),
    ],
)
def test_another_daemon_asks_the_driver_how_far_it_got(
    made: EvictableNode, state: str, states: tuple[int, int], ends: str
) -> None:
    tenant = made.evicted(programs=2)
    assert tenant.eviction is not None
    interrupted = replace(tenant.eviction, state=state)  # type: ignore[arg-type]
    made.node.decide.run(lambda: made.node.ledger.evict(tenant.key, interrupted))
    made.node.checkpoints.states = dict(zip(tenant.pids, states, strict=True))
    made.restart()
    made.node.evictions.settle()
    made.settle()
    assert (tenant.state, tenant.goes_on) == (ends, not ends)


def test_memory_that_another_program_has_restored_counts_again(made: EvictableNode) -> None:
    tenant = made.tenant(gib=40)
    before = made.capacity().available_bytes
    made.node.evictions.evict(tenant.key)
    made.node.checkpoints.states = {}
    made.node.evictions.settle()
    made.settle()
    assert (tenant.eviction, tenant.is_gated) == (None, False)
    assert made.capacity().available_bytes == before


def test_the_container_limit_is_the_least_of_all_its_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "docker" / "a"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "max", 5), (inner.parent, str(8 * GIB), 3 * GIB)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    monkeypatch.setattr(processes, "cgroups_of", lambda _: {"": "/docker/a"})
    cgroups = processes.Cgroups(f"1 2 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    least = LEAST_MEMORY([os.getpid()], cgroups)
    assert least == MemoryLimit(str(inner.parent), 6 * GIB)


def off_card(*tenants: EvictableTenant) -> list[bool]:
    return [one.record.is_off_card for one in tenants]


def test_a_request_without_room_evicts_who_is_idle_the_longest_and_is_needed(
    made: EvictableNode,
) -> None:
    made.tenant(gib=130, devices="1")
    little, much, later, busy = (made.tenant(gib=gib, devices="0") for gib in (4, 60, 60, 10))
    made.idle(little, much, later)
    with pytest.raises(NoRoom):
        opened(made.node, memory="135GiB")  # none in vain
    assert off_card(little, much, later, busy) == [False] * 4
    opened(made.node, memory="50GiB")
    assert off_card(little, much, later, busy) == [False, True, False, False]


def test_two_that_need_the_same_room_do_not_take_turns(made: EvictableNode) -> None:
    made.tenant(gib=130, devices="1")
    first, second = made.tenant(gib=60), made.tenant(gib=60)
    made.node.evictions.evict(second.key)
    opened(made.node, memory="60GiB", devices="0")
    made.idle(first)
    made.node.evictions.want(second.key)
    made.settle()
    assert off_card(first, second) == [True, False]
    made.idle(second)
    made.node.evictions.want(first.key)
    made.settle()
    assert off_card(first, second) == [True, False]  # evict.min_resident
    made.configure(min_resident_seconds=0)
    made.node.evictions.changed()
    made.settle()
    assert off_card(first, second) == [False, True]


@pytest.mark.parametrize("ends", ["evicted", "refused", "late"])
def test_a_restored_tenant_is_evicted_before_it_is_killed(
    made: EvictableNode, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """With a driver that hangs where one is killed. What cannot be evicted in time is killed."""
    made.driver.driver_version = "595.71.05"
    assert isinstance(made.node.decide, InlineWorker)
    made.node.requests = InlineWorker(made.node.decide.turns, "request")  # type: ignore[assignment]
    tenant, again = made.tenant(), list[str]()
    kills = BeforeKill(made.node, made.node.evictions)

    def postpones() -> bool:
        return kills.postpones(tenant.record, lambda: again.append("again"))

    assert not postpones()  # it was never restored
    made.node.evictions.evict(tenant.key)
    made.node.evictions.restore(tenant.key)
    if ends == "refused":
        made.node.checkpoints.faults["lock", tenant.pids[0]] = SLOW
    if ends == "late":
        monkeypatch.setattr("gpushare.daemon.eviction.evictions.PATIENCE_SECONDS", 0.0)
    assert postpones() == (ends != "late")
    made.settle()
    assert again
    assert not postpones()
    assert (tenant.eviction is not None and tenant.eviction.held) == (ends != "refused")


def test_an_evicted_tenant_takes_no_turn_and_learns_no_context(made: EvictableNode) -> None:
    tenant = made.tenant(gib=4, cores="30")
    grant = made.node.tenants.pages[tenant.key].grant
    overhead = grant.overhead_bytes(0)
    made.node.evictions.evict(tenant.key)
    made.look()
    assert scheduler_sync.shares_by_card(made.node.node, made.node.ledger) == {}
    assert grant.overhead_bytes(0) == overhead
    assert made.capacity().cores_available == 100


def test_who_has_burst_memory_that_another_lacks_is_evicted(made: EvictableNode) -> None:
    lacking = made.tenant(gib=60, held_gib=10, devices="0")
    modest = made.tenant(gib=20, devices="0")
    batch = made.tenant(gib=40, held_gib=90, memory_limit="100GiB", devices="0")
    made.node.evictions.relieve(lacking.key, lacking.card)
    made.settle()
    assert off_card(lacking, batch, modest) == [False] * 3
    made.configure(offline=True)
    made.node.evictions.relieve(lacking.key, lacking.card)
    made.settle()
    assert off_card(lacking, batch, modest) == [False, True, False]
    assert batch.eviction is not None
    assert batch.eviction.reason == "train lacks memory within its quota"
    assert batch.eviction.bytes == 90 * GIB


def test_a_driver_that_says_nothing_is_asked_again_and_loses_nobody(made: EvictableNode) -> None:
    tenant = made.tenant(programs=2)
    silent = CheckpointError("unlock: the NVIDIA driver is not responding")
    made.node.checkpoints.faults["checkpoint", tenant.pids[1]] = REFUSED
    made.node.checkpoints.faults["unlock", tenant.pids[0]] = silent
    made.refuses(tenant, "nor could it be put back")
    assert tenant.state == "evicting"
    made.node.evictions.look()
    made.settle()
    assert tenant.goes_on
