# SPDX-License-Identifier: Apache-2.0
"""Containers that their launcher binds, and those that it was to bind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon import freezer
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import create, release
from gpushare.daemon.lifecycle.bind import ReservationNotFound, bind
from gpushare.protocol import HostProcessGrant
from gpushare.protocol.operations import MalformedRequest
from tests.system.waiting import wait_until

from .bundles import BundleToCreate
from .fake_process import FakeProcess
from .fakes import FakeDaemon
from .operations import entry_of, opened

CGROUP = ":/engine/4f1c"


def made_by(node: FakeDaemon, maker: int, started: int | None = None) -> HostProcessGrant:
    """Return a reservation that process `maker` is to bind."""
    tenant = opened(node, memory="1GiB")
    start = started if started is not None else processes.start_time(maker) or 0
    record = replace(entry_of(node, tenant), engine="runc", cgroup=CGROUP)
    node.ledger.add(replace(record, maker=maker, maker_starttime=start))
    return tenant


@contextmanager
def pidfd_of(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def bind_made(node: FakeDaemon, tenant: HostProcessGrant, *fds: int) -> None:
    """Bind as the launcher does that created the container."""
    node.ask("bind", fds=fds, key=tenant["key"], id=tenant["id"])


def test_a_descriptor_that_is_no_pidfd_binds_nothing(node: FakeDaemon, tmp_path: Path) -> None:
    tenant = made_by(node, os.getpid())
    with tmp_path.joinpath("file").open("w") as file:
        for fds in ((file.fileno(),), (file.fileno(), file.fileno())):
            with pytest.raises(MalformedRequest, match="pidfd"):
                bind_made(node, tenant, *fds)
    assert entry_of(node, tenant).state == "reserved"


def test_a_process_that_has_ended_is_not_bound(node: FakeDaemon) -> None:
    tenant = made_by(node, os.getpid())
    with FakeProcess() as ended, pidfd_of(ended.pid) as pidfd:
        ended.kill()
        ended.wait()
        with pytest.raises(ReservationNotFound):
            bind_made(node, tenant, pidfd)


def test_only_the_launcher_that_reserved_binds(node: FakeDaemon, program: FakeProcess) -> None:
    tenant = made_by(node, os.getppid())
    with (
        pidfd_of(program.pid) as pidfd,
        pytest.raises(ReservationNotFound, match=f"process {os.getppid()} reserved it"),
    ):
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node, pidfd=pidfd)
    other = made_by(node, os.getpid(), started=1)  # the number was another's before
    with pidfd_of(program.pid) as pidfd, pytest.raises(ReservationNotFound, match="reserved it"):
        bind(other["key"], other["id"], program.pid, os.getpid(), node, pidfd=pidfd)


def test_a_launcher_binds_no_process_but_its_own_child(node: FakeDaemon) -> None:
    tenant = made_by(node, os.getpid())
    with (
        pidfd_of(os.getppid()) as pidfd,
        pytest.raises(ReservationNotFound, match="is not a child of process"),
    ):
        bind(tenant["key"], tenant["id"], os.getppid(), os.getpid(), node, pidfd=pidfd)


def test_neither_binds_for_the_other(node: FakeDaemon, program: FakeProcess) -> None:
    tenant = made_by(node, os.getpid())
    with pytest.raises(ReservationNotFound, match="its launcher binds it"):
        bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    hooked = opened(node, memory="1GiB")
    with pidfd_of(program.pid) as pidfd, pytest.raises(ReservationNotFound, match="its hook binds"):
        bind(hooked["key"], hooked["id"], program.pid, os.getpid(), node, pidfd=pidfd)


def test_a_container_without_its_launcher_keeps_its_reservation(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    populated, killed = [True], []
    monkeypatch.setattr(
        processes.Cgroups, "is_populated", lambda _self, group: group == CGROUP and populated[0]
    )

    class KillableCgroup:
        def kill(self, seconds: float) -> bool:
            killed.append(seconds)
            populated[0] = False
            return True

    monkeypatch.setattr(freezer, "cgroup_freezer", lambda *_: None if killed else KillableCgroup())
    tenant = made_by(node, os.getpid(), started=1)
    node.ask("release", key=tenant["key"], id=tenant["id"])
    assert entry_of(node, tenant).state == "reserved", "a hint released what still runs"
    node.decide.run(lambda: release.handle_process_end(tenant["key"], node))
    wait_until(lambda: not node.ledger.entries)
    assert killed


def test_a_slow_launcher_keeps_its_reservation_beyond_its_time(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.Cgroups, "is_populated", lambda *_: True)
    tenant = made_by(node, os.getpid())
    node.ledger.add(replace(entry_of(node, tenant), expires=0.0))
    release.reconcile_tenants(node, node.freezer)
    assert entry_of(node, tenant).state == "reserved"
    monkeypatch.setattr(processes.Cgroups, "is_populated", lambda *_: False)
    release.reconcile_tenants(node, node.freezer)
    assert not node.ledger.entries


@pytest.mark.parametrize(
    ("binds", "setting", "known", "expected"),
    [
        (True, "launcher", CGROUP, "launcher"),
        (True, "launcher", "", "hook"),
        (True, "hook", CGROUP, "hook"),
        (False, "launcher", CGROUP, "hook"),
    ],
)
def test_the_reply_and_the_spec_say_which_program_binds(
    node: FakeDaemon, tmp_path: Path, *, binds: bool, setting: str, known: str, expected: str
) -> None:
    node.node.config = replace(node.node.config, bind=setting)
    made = BundleToCreate(tmp_path / "b", "GPUSHARE_MEMORY=4GiB")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(create, "expected_cgroup", lambda *_: known)
        answer = made.create(node, maker=os.getpid(), binds=binds)
    assert answer["bind"] == expected
    hooks = made.document()["hooks"]
    stages = {stage for stage in hooks if any("--key" in hook["args"] for hook in hooks[stage])}
    assert stages == ({"createRuntime"} if expected == "hook" else set())
    record = node.ledger.entries[answer["key"]]
    assert record.cgroup == (known if expected == "launcher" else "")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/docker/4f1c", "/docker/4f1c"),
        ("system.slice:docker:4f1c", "/system.slice/docker-4f1c.scope"),
        (
            "kubepods-besteffort.slice:cri-containerd:4f1c",
            "/kubepods.slice/kubepods-besteffort.slice/cri-containerd-4f1c.scope",
        ),
        ("machine.slice::4f1c", "/machine.slice/4f1c.scope"),
        ("/user.slice", ""),
        ("relative/4f1c", ""),
        ("/../4f1c", ""),
        (":docker:4f1c", ""),
        ("-.slice:docker:4f1c", ""),
        (None, ""),
    ],
)
def test_the_cgroup_that_a_spec_describes(path: object, expected: str) -> None:
    assert freezer.own_path(path, "4f1c") == expected


def test_a_cgroup_in_which_something_runs_is_nobodys_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted = processes.Cgroups(f"1 2 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw")
    monkeypatch.setattr(freezer, "_hierarchies", lambda: mounted)
    group = tmp_path / "engine/4f1c"
    found = freezer.expected_cgroup("/engine/4f1c", "4f1c", os.getpid())
    assert found == CGROUP
    group.mkdir(parents=True)
    for populated, expected in (("0", CGROUP), ("1", "")):
        (group / "cgroup.events").write_text(f"populated {populated}\n")
        found = freezer.expected_cgroup("/engine/4f1c", "4f1c", os.getpid())
        assert found == expected
    assert not freezer.expected_cgroup("/engine/4f1c", "4f1c", 0)
