# SPDX-License-Identifier: Apache-2.0
"""bind, release, expiry and restarts: how long a reservation lasts."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import ReservationNotFound, bind
from gpushare.daemon.operator.resize import NotResizable, set_quota
from gpushare.daemon.service.control_request import Forbidden
from gpushare.daemon.store.record import TenantRecord
from tests.system.waiting import wait_until

from . import fakes
from .fake_process import FakeProcess
from .fakes import FakeDaemon
from .operations import entry_of, opened


def test_bind_notes_the_process_and_doing_it_twice_changes_nothing(
    node: FakeDaemon, program: FakeProcess
) -> None:
    tenant = opened(node, memory="1GiB")
    bound = bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    process = processes.find_process(program.pid)
    assert process is not None
    assert (bound.state, bound.pid, bound.starttime) == (
        "bound",
        program.pid,
        process.starttime,
    )
    assert bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node) == bound


@pytest.mark.parametrize("wrong", ["key", "id", "pid"])
def test_bind_without_a_reservation_is_refused(node: FakeDaemon, wrong: str) -> None:
    tenant = opened(node, memory="1GiB")
    key = "f" * 16 if wrong == "key" else tenant["key"]
    identity = "other" if wrong == "id" else tenant["id"]
    pid = 4194304 if wrong == "pid" else os.getpid()
    with pytest.raises(ReservationNotFound):
        bind(key, identity, pid, os.getpid(), node)
    assert entry_of(node, tenant).state == "reserved"


@pytest.mark.parametrize("engine", ["runc", "host"])
def test_a_forged_state_takes_no_process_of_another_container(
    node: FakeDaemon, program: FakeProcess, engine: str
) -> None:
    """Charged to two tenants, it would be frozen for what the other one uses."""
    victim, tenant = opened(node, memory="1GiB"), opened(node, memory="1GiB")
    node.ledger.add(replace(entry_of(node, victim), engine="docker", name="victim"))
    bind(victim["key"], victim["id"], program.pid, os.getpid(), node)
    node.ledger.add(replace(entry_of(node, tenant), engine=engine))
    with pytest.raises(ReservationNotFound, match="it belongs to victim"):
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    assert entry_of(node, tenant).state == "reserved"


def test_a_user_binds_no_process_of_a_container_that_has_its_uid(
    node: FakeDaemon, program: FakeProcess
) -> None:
    victim, tenant = opened(node, memory="1GiB"), opened(node, memory="1GiB")
    hierarchy, path = next(iter(processes.cgroups_of(program.pid).items()))
    found = processes.find_process(os.getpid())
    assert found is not None
    container = replace(entry_of(node, victim), engine="docker", name="victim")
    bound = replace(container, state="bound", pid=found.pid, starttime=found.starttime)
    node.ledger.add(replace(bound, cgroup=f"{hierarchy}:{path}"))
    with pytest.raises(ReservationNotFound, match="it belongs to victim"):
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)


def test_a_forged_state_names_no_process_from_before_the_reservation(
    node: FakeDaemon, program: FakeProcess
) -> None:
    tenant = opened(node, memory="1GiB")
    process = processes.find_process(program.pid)
    assert process is not None
    reserved = replace(entry_of(node, tenant), engine="runc", maker=os.getpid())
    node.ledger.add(replace(reserved, maker_starttime=process.starttime + 1))
    with pytest.raises(ReservationNotFound, match="it is older than the reservation"):
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)


def test_a_user_binds_and_releases_its_own_host_process_only(
    node: FakeDaemon, program: FakeProcess
) -> None:
    tenant = opened(node, memory="1GiB")
    node.ledger.add(replace(entry_of(node, tenant), uid=4321))
    key, identity = tenant["key"], tenant["id"]
    for op in ("bind", "release"):
        with pytest.raises(Forbidden, match="requires root"):
            node.ask(op, 9999, key=key, id=identity, pid=program.pid)
    with pytest.raises(Forbidden, match="another user's"):
        node.ask("bind", 4321, key=key, id=identity, pid=program.pid)
    node.ask("release", 4321, key=key, id=identity)
    assert not node.ledger.entries


def test_a_message_ends_no_tenant_whose_process_lives(
    node: FakeDaemon, program: FakeProcess
) -> None:
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    node.ask("release", key=tenant["key"], id=tenant["id"])
    assert entry_of(node, tenant).state == "bound"
    program.kill()
    node.ask("release", key=tenant["key"], id=tenant["id"])
    assert not node.ledger.entries


def test_a_cgroup_with_processes_keeps_its_reservation(
    node: FakeDaemon, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    populated = [True]
    monkeypatch.setattr(
        processes.Cgroups, "is_populated", lambda _self, cgroup: populated[0] and cgroup == ":/x"
    )
    monkeypatch.setattr(processes, "own_cgroup", lambda *_: ":/x")
    tenant = opened(node, memory="1GiB")
    node.ledger.add(replace(entry_of(node, tenant), engine="runc"))
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    program.kill()
    release.reconcile_tenants(node, node.freezer)
    assert tenant["key"] in node.ledger.entries
    populated[0] = False
    release.reconcile_tenants(node, node.freezer)
    assert not node.ledger.entries


def test_a_tenant_that_cannot_be_released_keeps_its_reservation_and_delays_no_other(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = opened(node, memory="4GiB"), opened(node, memory="1GiB")
    monkeypatch.setattr(release, "boottime", lambda: 1e9)
    remove = node.mounts.remove

    def busy(key: str) -> None:
        if key == stuck["key"]:
            raise OSError(errno.EBUSY, "busy", key)
        remove(key)

    with monkeypatch.context() as while_busy:
        while_busy.setattr(node.mounts, "remove", busy)
        release.reconcile_tenants(node, node.freezer)
        assert set(node.ledger.entries) == {stuck["key"]}
        assert other["key"] not in node.mounts.made()
    release.reconcile_tenants(node, node.freezer)
    assert not node.ledger.entries


def test_a_directory_that_stays_does_not_keep_the_daemon_from_starting(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(key: str) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", key)

    os.close(node.mounts.make("0" * 16, size_bytes=1 << 20))
    monkeypatch.setattr(node.mounts, "remove", full)
    release.adopt_tenants(node, node.freezer)
    assert node.mounts.made() == ["0" * 16]


def shown(node: FakeDaemon) -> list[str]:
    """Return the ids that `gpushare ps -a` lists."""
    return [row["id"] for row in node.ask("tenants", os.getuid(), all=True)]


def test_a_container_that_got_nothing_is_forgotten_with_its_bundle(
    node: FakeDaemon, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    node.ledger.add(
        TenantRecord(key="0" * 16, state="none", id="x", bundle=str(bundle), why="no GPU")
    )
    release.reconcile_tenants(node, node.freezer)
    assert shown(node) == ["x"]
    bundle.rmdir()
    wait_until(lambda: shown(node) == [])
    assert not node.ledger.entries


def test_a_tenant_that_exited_unnoticed_is_released(tmp_path: Path, program: FakeProcess) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
    program.kill()
    program.wait()
    with fakes.again(tmp_path) as second:
        release.adopt_tenants(second, second.freezer)
        wait_until(lambda: not second.ledger.entries)


def test_the_next_container_gets_the_reservation_of_a_dead_runtime(
    node: FakeDaemon,
) -> None:
    tenant = opened(node, memory="80GiB", devices="0")
    with FakeProcess() as maker:
        maker.kill()
    node.ledger.add(replace(entry_of(node, tenant), maker=maker.pid, maker_starttime=1))
    following = opened(node, memory="80GiB", devices="0")
    assert list(node.ledger.entries) == [following["key"]]


def test_a_container_that_got_nothing_says_so_when_it_is_named(
    node: FakeDaemon, tmp_path: Path
) -> None:
    entry = TenantRecord(
        key="0" * 16, state="none", id="web", bundle=str(tmp_path), why="no GPU was asked"
    )
    node.ledger.add(entry)
    assert node.ask("tenant", name="we")["tenant"]["reason"] == "no GPU was asked"
    with pytest.raises(NotResizable, match="web has no GPU: no GPU was asked"):
        set_quota(entry, {"memory": "4GiB"}, node)
