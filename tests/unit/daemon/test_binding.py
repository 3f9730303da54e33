# SPDX-License-Identifier: Apache-2.0
"""bind, release, expiry and restarts: how long a reservation lasts."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon import clock
from gpushare.daemon.control.resize import NotResizable, set_quota
from gpushare.daemon.identity import processes
from gpushare.daemon.life import release
from gpushare.daemon.life.bind import NoSuchTenant, bind
from gpushare.daemon.node import Node
from gpushare.daemon.service.request import Forbidden, Peer, Request
from gpushare.daemon.service.requests import operation
from gpushare.daemon.store.ledger import Entry

from . import fakes
from .fakes import GIB, wait_until
from .operations import entry_of, opened


def test_bind_notes_the_process_and_doing_it_twice_changes_nothing(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="1GiB")
    bound = bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    process = processes.look(program.pid)
    assert process is not None
    assert (bound.state, bound.pid, bound.starttime) == (
        "bound",
        program.pid,
        process.starttime,
    )
    assert bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node) == bound


@pytest.mark.parametrize("wrong", ["key", "id", "pid"])
def test_bind_of_what_is_not_reserved_is_refused(node: Node, wrong: str) -> None:
    tenant = opened(node, memory="1GiB")
    key = "f" * 16 if wrong == "key" else tenant["key"]
    identity = "other" if wrong == "id" else tenant["id"]
    pid = 4194304 if wrong == "pid" else os.getpid()
    with pytest.raises(NoSuchTenant):
        bind(key, identity, pid, os.getpid(), node)
    assert entry_of(node, tenant).state == "reserved"


def test_bind_to_a_second_process_is_refused(node: Node, program: subprocess.Popen[bytes]) -> None:
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    with pytest.raises(NoSuchTenant, match=f"is bound to process {program.pid}"):
        bind(tenant["key"], tenant["id"], os.getpid(), os.getpid(), node)


def request(op: str, uid: int, **fields: object) -> Request:
    return Request({"op": op, **fields}, Peer(os.getpid(), uid))


def test_a_user_binds_and_releases_its_own_host_process_only(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="1GiB")
    node.ledger.add(replace(entry_of(node, tenant), uid=4321))
    key, identity = tenant["key"], tenant["id"]
    for op in ("bind", "release"):
        asked = request(op, 9999, key=key, id=identity, pid=program.pid)
        with pytest.raises(Forbidden, match="is for root"):
            operation(asked).run(asked, node)
    others = request("bind", 4321, key=key, id=identity, pid=program.pid)
    with pytest.raises(Forbidden, match="another user's"):
        operation(others).run(others, node)
    own = request("release", 4321, key=key, id=identity)
    operation(own).run(own, node)
    assert not node.ledger.entries


def test_release_of_a_reservation_gives_everything_back(node: Node) -> None:
    tenant = opened(node, memory="1GiB")
    asked = request("release", 0, key=tenant["key"], id=tenant["id"])
    for _ in range(2):
        operation(asked).run(asked, node)
        assert not node.ledger.entries
        assert node.mounts.made() == []
        assert not node.tenants.pages


def test_poststop_is_a_hint_while_the_process_lives(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    asked = request("release", 0, key=tenant["key"], id=tenant["id"])
    operation(asked).run(asked, node)
    assert entry_of(node, tenant).state == "bound"
    program.kill()
    program.wait()
    operation(asked).run(asked, node)
    assert not node.ledger.entries


def test_the_end_of_the_process_is_the_end_of_the_tenant(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    """Nobody says anything: no poststop, no release."""
    node.watch.ended = lambda key: node.decide.submit(lambda: release.process_ended(key, node))
    tenant = opened(node, memory="1GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    loop = threading.Thread(target=node.loop.run)
    loop.start()
    try:
        program.kill()
        program.wait()
        wait_until(lambda: not node.ledger.entries)
    finally:
        node.loop.stop()
        loop.join()


def test_a_cgroup_that_still_has_processes_keeps_the_promise(
    node: Node, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
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
    program.wait()
    release.reconcile(node)
    assert tenant["key"] in node.ledger.entries
    populated[0] = False
    release.reconcile(node)
    assert not node.ledger.entries


def test_a_reservation_that_is_never_bound_expires(node: Node) -> None:
    tenant = opened(node, memory="1GiB")
    release.reconcile(node)
    assert tenant["key"] in node.ledger.entries
    node.ledger.add(replace(entry_of(node, tenant), expires=clock.boottime() - 1))
    release.reconcile(node)
    assert not node.ledger.entries
    assert node.mounts.made() == []


def test_one_that_cannot_be_released_keeps_its_promise_and_holds_up_nobody(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = opened(node, memory="4GiB"), opened(node, memory="1GiB")
    monkeypatch.setattr(clock, "boottime", lambda: 1e9)
    remove = node.mounts.remove

    def busy(key: str) -> None:
        if key == stuck["key"]:
            raise OSError(errno.EBUSY, "busy", key)
        remove(key)

    with monkeypatch.context() as while_busy:
        while_busy.setattr(node.mounts, "remove", busy)
        release.reconcile(node)
        assert set(node.ledger.entries) == {stuck["key"]}
        assert other["key"] not in node.mounts.made()
    release.reconcile(node)
    assert not node.ledger.entries


def test_a_directory_that_stays_does_not_keep_the_daemon_from_starting(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(key: str) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", key)

    os.close(node.mounts.make("0" * 16, size_bytes=1 << 20))
    monkeypatch.setattr(node.mounts, "remove", full)
    release.adopt(node)
    assert node.mounts.made() == ["0" * 16]


def shown(node: Node) -> list[str]:
    """Return the ids that `gpushare ps -a` lists."""
    asked = request("tenants", os.getuid(), all=True)
    return [row["id"] for row in operation(asked).run(asked, node)[0]]


def test_a_container_that_got_nothing_says_so_when_it_is_named(node: Node, tmp_path: Path) -> None:
    entry = Entry(
        key="0" * 16, state="none", id="web", bundle=str(tmp_path), why="no GPU was asked"
    )
    node.ledger.add(entry)
    asked = request("tenant", 0, name="we")
    assert operation(asked).run(asked, node)[1]["tenant"]["why"] == "no GPU was asked"
    with pytest.raises(NotResizable, match="web has no GPU: no GPU was asked"):
        set_quota(entry, {"memory": "4GiB"}, node)


def test_a_container_that_got_nothing_is_forgotten_with_its_bundle(
    node: Node, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    node.ledger.add(Entry(key="0" * 16, state="none", id="x", bundle=str(bundle), why="no GPU"))
    release.reconcile(node)
    assert shown(node) == ["x"]
    bundle.rmdir()
    assert shown(node) == []  # at once, not when it is swept
    release.reconcile(node)
    assert not node.ledger.entries


def test_a_restarted_daemon_takes_over_what_runs_and_sweeps_the_rest(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB", cores="30")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
        waiting = opened(first, memory="1GiB")
        lost = opened(first, memory="2GiB")
        first.ledger.release(lost["key"])
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        assert set(second.ledger.entries) == {tenant["key"], waiting["key"]}
        assert set(second.tenants.pages) == {tenant["key"], waiting["key"]}
        assert second.mounts.made() == sorted([tenant["key"], waiting["key"]])
        assert second.tenants.pages[tenant["key"]].grant.generation == 1
        [room] = second.rooms()
        assert (room.promised_bytes, room.cores_free) == (5 * GIB, 70)


def test_a_tenant_that_ended_while_nobody_looked_is_released(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
    program.kill()
    program.wait()
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        wait_until(lambda: not second.ledger.entries)


def test_pages_that_are_lost_do_not_free_the_memory_of_who_runs(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB")
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), first)
        first.mounts.remove(tenant["key"])
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        assert second.rooms()[0].promised_bytes == 4 * GIB
        assert not second.tenants.pages
