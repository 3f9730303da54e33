# SPDX-License-Identifier: Apache-2.0
"""The containers that get the tree of libraries, and when an earlier one is unmounted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.lifecycle.old_installations import renew_tree

from . import fakes
from .bundles import BundleToCreate
from .fakes import FakeDaemon

TOP = "/opt/gpushare"
PROCESS = {"args": ["sh"], "env": ["PATH=/bin", "GPUSHARE_MEMORY=4GiB"], "cwd": "/"}


class MountedTrees:
    """What gpushared has mounted, by its own account."""

    def __init__(self) -> None:
        self.path = Path("/run/tree-1")
        self.stale = ["tree-0"]
        self.dropped: list[str] = []
        self.asked = 0

    def library_tree(self, top: str, files: Mapping[str, str]) -> Path:
        self.asked += 1
        assert top == TOP
        assert f"{TOP}/lib/libcuda.so.1" in files
        return self.path

    def stale_trees(self) -> list[str]:
        return self.stale

    def drop_trees(self, names: Collection[str]) -> None:
        self.dropped.extend(names)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path / "node") as made:
        yield made


@pytest.fixture
def trees(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> MountedTrees:
    made = MountedTrees()
    for name in ("library_tree", "stale_trees", "drop_trees"):
        monkeypatch.setattr(node.mounts, name, getattr(made, name))
    return made


def top_mount(folder: Path, node: FakeDaemon, *env: str, **changes: Any) -> dict[str, Any]:
    """Create a container of one and the same image; return its mount at TOP."""
    container = BundleToCreate(
        folder, "GPUSHARE_MEMORY=4GiB", *env, identity=folder.name, **changes
    )
    (container.folder / "rootfs/usr/lib64/libc.so.6").write_text("libc")
    container.create(node)
    found: dict[str, dict[str, Any]] = {
        mount["destination"]: mount for mount in container.document()["mounts"]
    }
    return found[TOP]


@pytest.mark.parametrize(
    "changes",
    [
        {"linux": {"mountLabel": "system_u:object_r:container_file_t:s0"}},
        {"linux": {"namespaces": [{"type": "mount"}, {"type": "user"}]}},
        {"process": {**PROCESS, "capabilities": {"bounding": ["CAP_KILL", "CAP_SYS_ADMIN"]}}},
        {"process": {**PROCESS, "capabilities": {"ambient": ["cap_sys_admin"]}}},
    ],
    ids=["SELinux label", "user namespace", "may mount", "ambient"],
)
@pytest.mark.usefixtures("trees")
def test_a_container_that_cannot_have_it_gets_single_mounts(
    node: FakeDaemon, tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert top_mount(tmp_path / "first", node)["type"] == "bind"
    assert top_mount(tmp_path / "second", node, **changes)["type"] == "tmpfs"


def test_without_a_tree_a_container_gets_single_mounts(
    node: FakeDaemon,
    trees: MountedTrees,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    top_mount(tmp_path / "first", node)
    monkeypatch.setattr(node.mounts, "library_tree", fakes.no_space)
    assert top_mount(tmp_path / "second", node)["type"] == "tmpfs"
    assert "library-tree-failed" in capfd.readouterr().err
    monkeypatch.setattr(node.mounts, "library_tree", trees.library_tree)
    assert top_mount(tmp_path / "third", node)["source"] == str(trees.path)


def test_it_is_mounted_before_a_container_comes(node: FakeDaemon, trees: MountedTrees) -> None:
    """As soon as there is a driver."""
    driver, node.node.driver = node.node.driver, None
    renew_tree(node)
    assert trees.asked == 0
    node.node.driver = driver
    renew_tree(node)
    assert trees.asked == 1


def test_an_earlier_tree_goes_once_no_container_is_starting(
    node: FakeDaemon, trees: MountedTrees
) -> None:
    """One that is may not have mounted it yet."""
    node.ledger.add(fakes.entry())
    renew_tree(node)
    assert trees.dropped == []
    node.ledger.release(fakes.entry().key)
    renew_tree(node)
    assert trees.dropped == trees.stale
