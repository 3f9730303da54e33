# SPDX-License-Identifier: Apache-2.0
"""bind, open, release and expiry: how long a reservation lasts, and which cgroup may be frozen."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon import freezer
from gpushare.daemon.freezer import CannotFreeze, freezable_group
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.lifecycle import create, release
from gpushare.daemon.lifecycle.bind import ReservationNotFound, bind
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.service.control_server import Forbidden
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import HostProcessGrant
from gpushare.protocol.operations import MalformedRequest
from gpushare.quota.errors import QuotaError
from tests.system.waiting import wait_until

from .bundles import BundleToCreate
from .fake_process import FakeProcess
from .fakes import FakeDaemon, entry
from .operations import ME, bound, entry_of, grant, opened


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
    reserved = replace(entry_of(node, tenant), engine="runc", maker=os.getpid())
    node.ledger.add(replace(reserved, maker_starttime=program.starttime + 1))
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
    tenant = bound(node, program, memory="1GiB")
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


def test_a_folder_that_cannot_be_removed_keeps_its_reservation_and_delays_no_other(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does one of no tenant keep the daemon from starting."""
    stuck, other, nobodys = opened(node, memory="4GiB"), opened(node, memory="1GiB"), "0" * 16
    os.close(node.mounts.make(nobodys, size_bytes=1 << 20))
    monkeypatch.setattr(release, "boottime", lambda: 1e9)
    remove = node.mounts.remove

    def busy(key: str) -> None:
        if key != other["key"]:
            raise OSError(errno.EBUSY, "busy", key)
        remove(key)

    with monkeypatch.context() as while_busy:
        while_busy.setattr(node.mounts, "remove", busy)
        release.adopt_tenants(node, node.freezer)
        release.reconcile_tenants(node, node.freezer)
        assert set(node.ledger.entries) == {stuck["key"]}
        assert set(node.mounts.made()) == {stuck["key"], nobodys}
    release.reconcile_tenants(node, node.freezer)
    assert not node.ledger.entries


def shown(node: FakeDaemon) -> list[str]:
    """Return the ids that `gpushare ps -a` lists."""
    return [row["id"] for row in node.ask("tenants", os.getuid(), all=True)]


def test_a_container_that_got_nothing_is_shown_while_it_runs(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    running = TenantRecord(
        "0" * 16, "none", "x", cgroup=CGROUP, created=now, maker=1 << 22, maker_starttime=1
    )
    node.ledger.add(running)
    node.ledger.add(replace(running, key="1" * 16, id="no cgroup", cgroup=""))
    monkeypatch.setattr(processes.Cgroups, "is_populated", lambda *_: True)
    release.reconcile_tenants(node, node.freezer)
    assert shown(node) == ["x", "no cgroup"]
    monkeypatch.setattr(processes.Cgroups, "is_populated", lambda *_: False)
    assert shown(node) == ["no cgroup"]
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    release.reconcile_tenants(node, node.freezer)
    assert not node.ledger.entries


def test_the_next_container_gets_the_reservation_of_a_dead_runtime(
    node: FakeDaemon,
) -> None:
    tenant = opened(node, memory="80GiB", devices="0")
    with FakeProcess() as maker:
        maker.kill()
    node.ledger.add(replace(entry_of(node, tenant), maker=maker.pid, maker_starttime=1))
    following = opened(node, memory="80GiB", devices="0")
    assert list(node.ledger.entries) == [following["key"]]


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


def bind_made(node: FakeDaemon, tenant: HostProcessGrant, *fds: int, uncovered: str = "") -> None:
    """Bind as the launcher does that created the container."""
    node.ask("bind", fds=fds, key=tenant["key"], id=tenant["id"], uncovered=uncovered)


def test_a_launcher_binds_its_child_by_a_pidfd(
    node: FakeDaemon, capfd: pytest.CaptureFixture[str]
) -> None:
    tenant = made_by(node, os.getpid())
    assert is_unbound(node, tenant)
    child = FakeProcess(parent=os.getpid(), starttime=1 << 40)
    with pidfd_of(child.pid) as pidfd:
        for _ in range(2):  # the launcher repeats it after a daemon that ended over it
            bind_made(node, tenant, pidfd, uncovered="No such file or directory")
    record = entry_of(node, tenant)
    assert (record.state, record.pid) == ("bound", child.pid)
    assert not is_unbound(node, tenant)
    [line, _] = [line for line in capfd.readouterr().err.splitlines() if "not-covered" in line]
    assert json.loads(line)["error"] == "No such file or directory"


def is_unbound(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    return grant(node, tenant).read_bytes()[abi.GRANT_HEADER_UNBOUND]


@pytest.mark.parametrize("later", [False, True])
def test_an_init_is_killed_only_if_it_is_found_abandoned_twice(
    node: FakeDaemon, program: FakeProcess, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """crun deletes the pipe of a container that it starts before it writes to it."""
    bound(node, program, memory="1GiB")
    monkeypatch.setattr(release, "_STRANDED_SECONDS", 0.0)
    looks = [True, later]
    monkeypatch.setattr(processes, "is_stranded", lambda _: looks.pop(0))
    release.reconcile_tenants(node, node.freezer)
    node.loop.settle()
    assert program.poll() is None
    node.loop._run_due()
    node.decide.run(lambda: None)
    assert not looks
    assert (program.poll() is None) == (not later)


def test_a_descriptor_that_is_no_pidfd_binds_nothing(node: FakeDaemon, tmp_path: Path) -> None:
    tenant = made_by(node, os.getpid())
    with tmp_path.joinpath("file").open("w") as file:
        for fds in ((file.fileno(),), (file.fileno(), file.fileno())):
            with pytest.raises(MalformedRequest, match="pidfd"):
                bind_made(node, tenant, *fds)
    assert entry_of(node, tenant).state == "reserved"


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


FILES = {"": "cgroup.freeze", "freezer": "freezer.state", "devices": "devices.list"}


V1 = ("devices", "freezer")


V2 = ("",)


HYBRID = (*V1, *V2)
# What runtimes make of it, and in which hierarchy an entry would name it.
PATHS = [
    "/docker/c0ffee",
    "/system.slice/docker-c0ffee.scope",
    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-c0.scope",
    "/kubepods/burstable/pod1/c0ffee",
    "/machine.slice/libpod-c0ffee.scope/container",
    "/gpushare/host-c0ffee",
]


class Tree:
    """Cgroup hierarchies as folders, and the processes in them."""

    def __init__(self, root: Path, hierarchies: tuple[str, ...]) -> None:
        self.root = root
        self.hierarchies = hierarchies
        self.paths: dict[int, dict[str, str]] = {}
        self.cgroups = Cgroups("".join(self._mount(name) for name in hierarchies))

    def _mount(self, name: str) -> str:
        kind = f"cgroup cgroup rw,{name}" if name else "cgroup2 cgroup2 rw"
        return f"31 23 0:28 / {self._folder(name)} rw - {kind}\n"

    def _folder(self, name: str) -> Path:
        return self.root / (name or "unified")

    def put(self, pid: int, path: str | Mapping[str, str]) -> None:
        """Put process `pid` at `path` of every hierarchy, or of each at its own."""
        paths = dict.fromkeys(self.hierarchies, path) if isinstance(path, str) else dict(path)
        self.paths[pid] = paths
        for name, where in paths.items():
            folder = self._folder(name)
            for part in where.strip("/").split("/"):
                folder /= part
                folder.mkdir(parents=True, exist_ok=True)
                (folder / FILES[name]).touch()


@pytest.fixture(params=[V1, V2, HYBRID])
def tree(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    made = Tree(tmp_path, request.param)
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: made.paths.get(pid, {}))
    return made


def tenant(pid: int = 7) -> TenantRecord:
    """Return a tenant of that process, whose runtime is elsewhere."""
    others = dict.fromkeys(HYBRID, "/shared")
    return replace(entry(), state="bound", pid=pid, cgroup=processes.own_cgroup(pid, others))


def found(tree: Tree, one: TenantRecord, *others: TenantRecord) -> Path:
    entries = {other.key: other for other in (one, *others)}
    return freezable_group(one, entries, tree.cgroups).directory


@pytest.mark.parametrize("path", PATHS)
def test_a_containers_cgroup_is_found_as_each_runtime_names_it(tree: Tree, path: str) -> None:
    tree.put(7, path)
    name = "unified" if "" in tree.hierarchies else "freezer"
    assert found(tree, tenant()) == tree.root / name / path.removeprefix("/")


@pytest.mark.parametrize("tree", [V1, HYBRID], indirect=True)
def test_only_a_cgroup_that_the_container_alone_has_is_frozen(tree: Tree) -> None:
    tree.put(7, {"devices": "/docker/a", "freezer": "/elsewhere/a", "": "/shared"})
    assert found(tree, tenant()) == tree.root / "freezer/elsewhere/a"
    tree.put(7, {"devices": "/docker/a", "freezer": "/shared", "": "/shared"})
    with pytest.raises(CannotFreeze, match="devices:/docker/a has no freezer"):
        found(tree, tenant())


def test_the_root_cgroup_belongs_to_no_tenant(tree: Tree) -> None:
    tree.put(7, "/")
    with pytest.raises(CannotFreeze, match="shares its cgroup"):
        found(tree, tenant())


@pytest.mark.parametrize("inner", ["/pod/a", "/pod/a/inner"])
def test_a_tenant_with_another_tenant_in_its_cgroup_is_refused(tree: Tree, inner: str) -> None:
    tree.put(7, "/pod/a")
    tree.put(8, inner)
    other = replace(tenant(pid=8), key="1" * 16, name="inner")
    with pytest.raises(CannotFreeze, match="inner is in its cgroup"):
        found(tree, tenant(), other)


def test_a_rootless_tenant_gets_no_whole_card(node: FakeDaemon) -> None:
    with pytest.raises(
        QuotaError, match=r"^run: whole cards require root\. Use sudo, or add --memory 4GiB\."
    ):
        open_tenant(replace(ME, rootless=True), {"count": "1"}, node, node.room)
    assert not node.ledger.entries
