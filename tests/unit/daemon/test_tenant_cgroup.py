# SPDX-License-Identifier: Apache-2.0
"""Which cgroup may be frozen: the tenant's whole, and no other process's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.freezer import CannotFreeze, freezable_groups
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.store.record import TenantRecord

from .fakes import entry

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
            with (folder / "cgroup.procs").open("a") as file:
                file.write(f"{pid}\n")


@pytest.fixture(params=[V1, V2, HYBRID], ids=["v1", "v2", "hybrid"])
def tree(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    made = Tree(tmp_path, request.param)
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: made.paths.get(pid, {}))
    return made


def tenant(tree: Tree, path: str, pid: int = 7) -> TenantRecord:
    first = "" if tree.hierarchies == V2 else "devices"
    return replace(entry(), state="bound", pid=pid, cgroup=f"{first}:{path}")


def found(tree: Tree, one: TenantRecord, *others: TenantRecord) -> list[str]:
    entries = {other.key: other for other in (one, *others)}
    return list(freezable_groups(one, entries, tree.cgroups))


def wanted(tree: Tree, path: str) -> list[str]:
    return [f"{name}:{path}" for name in ("", "freezer") if name in tree.hierarchies]


@pytest.mark.parametrize("path", PATHS)
def test_a_containers_cgroup_is_found_as_each_runtime_names_it(tree: Tree, path: str) -> None:
    tree.put(7, path)
    tree.put(8, f"{path}/nested/deeper")
    tree.put(9, "/docker/other")
    assert found(tree, tenant(tree, path)) == wanted(tree, path)


def test_another_path_in_the_hierarchy_of_the_freezer_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path, HYBRID)
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: tree.paths.get(pid, {}))
    tree.put(7, {"devices": "/docker/a", "freezer": "/elsewhere/a", "": "/user.slice"})
    tree.put(8, {"devices": "/", "freezer": "/", "": "/user.slice"})
    assert found(tree, tenant(tree, "/docker/a")) == ["freezer:/elsewhere/a"]


@pytest.mark.parametrize("hierarchies", [V1, HYBRID])
def test_a_cgroup_with_an_unrelated_process_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hierarchies: tuple[str, ...]
) -> None:
    """In its own hierarchy it is alone; in those that freeze it is beside its shim."""
    tree = Tree(tmp_path, hierarchies)
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: tree.paths.get(pid, {}))
    monkeypatch.setattr(processes, "name_of", lambda pid: f"program-{pid}")
    shared = dict.fromkeys(hierarchies[1:], "/shared")
    tree.put(7, {"devices": "/docker/a", **shared})
    tree.put(8, {"devices": "/", **shared})
    with pytest.raises(
        CannotFreeze, match=r"process 8 \(program-8\), which does not belong to the container"
    ):
        found(tree, tenant(tree, "/docker/a"))


def test_a_cgroup_that_leaves_one_of_its_processes_out_is_refused(tmp_path: Path) -> None:
    tree = Tree(tmp_path, V1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "cgroups_of", lambda pid: tree.paths.get(pid, {}))
        tree.put(7, "/docker/a")
        tree.put(8, {"devices": "/docker/a", "freezer": "/"})
        with pytest.raises(CannotFreeze, match="does not contain its process 8"):
            found(tree, tenant(tree, "/docker/a"))


def test_the_root_cgroup_belongs_to_no_tenant(tree: Tree) -> None:
    tree.put(7, "/")
    with pytest.raises(CannotFreeze):
        found(tree, tenant(tree, "/"))
    with pytest.raises(CannotFreeze, match="shares its cgroup"):
        found(tree, replace(tenant(tree, "/"), cgroup=""))


@pytest.mark.parametrize("inner", ["/pod/a", "/pod/a/inner"])
def test_a_tenant_with_another_tenant_in_its_cgroup_is_refused(tree: Tree, inner: str) -> None:
    tree.put(7, "/pod/a")
    tree.put(8, inner)
    other = replace(tenant(tree, inner, pid=8), key="1" * 16, name="inner")
    with pytest.raises(CannotFreeze, match="inner is in its cgroup"):
        found(tree, tenant(tree, "/pod/a"), other)


def test_a_reused_pid_is_not_followed(tree: Tree) -> None:
    """Its first process has ended, and its PID belongs to an unrelated process."""
    tree.put(8, "/docker/a")
    tree.put(7, "/user.slice/stranger")
    assert found(tree, tenant(tree, "/docker/a")) == wanted(tree, "/docker/a")


def test_a_name_that_begins_alike_is_another(tree: Tree) -> None:
    tree.put(7, "/docker/a")
    tree.put(8, "/docker/ab")
    other = replace(tenant(tree, "/docker/ab", pid=8), key="1" * 16)
    assert found(tree, tenant(tree, "/docker/a"), other) == wanted(tree, "/docker/a")
