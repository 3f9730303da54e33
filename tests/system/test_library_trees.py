# SPDX-License-Identifier: Apache-2.0
"""The libraries of every share, mounted as one tree ahead of need."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.host import mounts as system
from tests import leftovers

pytestmark = pytest.mark.gate
TOP = "/.gpushare"
FLAGS = {"ro", "nosuid", "nodev"}
KEY = "0123456789abcdef"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "tenants"
    leftovers.remove(tmp_path / "tenants", "none")


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    found = {}
    for name in ("driver/libcuda.so.1", "lib/libcuda.so.1", "lib/libnvidia-ml.so.1"):
        source = tmp_path / name.replace("/", "-")
        source.write_text(name)
        found[f"{TOP}/{name}"] = str(source)
    return found


def start(root: Path) -> TenantMounts:
    return TenantMounts(root, Path("/proc/self/ns/mnt"), 0)


def options(root: Path) -> dict[str, set[str]]:
    """Return the options of each mount beneath `root`, by its place."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {line[4]: set(line[5].split(",")) for line in lines if line[4].startswith(f"{root}/")}


def test_each_mount_in_it_is_read_only_by_itself(root: Path, files: dict[str, str]) -> None:
    made = start(root)
    tree = made.library_tree(TOP, files)
    found = options(root)
    assert set(found) == {str(tree), *(str(tree) + name.removeprefix(TOP) for name in files)}
    assert all(found[place] >= FLAGS for place in found)
    assert "noexec" in found[str(tree)]
    for name in files:
        inside = tree / Path(name).relative_to(TOP)
        assert inside.read_text() == name.removeprefix(f"{TOP}/")
        with pytest.raises(OSError, match="Read-only"):
            inside.write_text("x")
        with pytest.raises(OSError, match="Read-only"):
            (inside.parent / "new").touch()
    modes = {path.stat().st_mode & 0o777 for path in (tree, tree / "driver", tree / "tenant")}
    assert modes == {0o755}
    made.close()


def test_it_is_read_only_through_every_mount_of_it(root: Path, files: dict[str, str]) -> None:
    """A mount that is made writable does not make the file system writable."""
    made = start(root)
    tree = made.library_tree(TOP, files)
    other = root.parent / "other"
    other.mkdir()
    system.bind(tree, other)
    try:
        system.mount("none", other, flags=system.MS_BIND | system.MS_REMOUNT)
        with pytest.raises(OSError, match="Read-only"):
            (other / "driver/libcuda.so.1").unlink()
    finally:
        system.unmount(other)
    made.close()


def test_other_files_at_the_same_paths_are_another_one(root: Path, files: dict[str, str]) -> None:
    """A package manager replaces a library by a rename; the path stays."""
    made = start(root)
    before = made.library_tree(TOP, files)
    assert made.stale_trees() == []
    source = Path(files[f"{TOP}/driver/libcuda.so.1"])
    replaced = source.with_name("replaced")
    replaced.write_text("the next driver")
    replaced.rename(source)
    after = made.library_tree(TOP, files)
    assert (after / "driver/libcuda.so.1").read_text() == "the next driver"
    assert made.stale_trees() == [before.name]
    made.drop_trees([before.name, after.name])
    assert not before.exists()
    assert after.is_mount()
    made.close()


def test_one_that_an_operator_has_unmounted_is_mounted_again(
    root: Path, files: dict[str, str]
) -> None:
    made = start(root)
    tree = made.library_tree(TOP, files)
    before = options(root)
    system.unmount_all(tree)
    assert made.library_tree(TOP, files) == tree
    assert options(root) == before
    made.close()


def test_the_next_daemon_uses_that_of_one_that_was_killed(
    root: Path, files: dict[str, str]
) -> None:
    tree = start(root).library_tree(TOP, files)
    before = options(root)
    again = start(root)
    assert again.stale_trees() == [tree.name]
    assert again.library_tree(TOP, files) == tree
    assert again.stale_trees() == []
    assert options(root) == before
    again.close()


def test_a_part_of_one_is_never_used(
    root: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, bind = start(root), system.bind

    def fail(source: Path, target: Path, *, recursive: bool = False, **flags: bool) -> None:
        if recursive or Path(source).name.startswith("lib-libnvidia"):
            raise OSError(errno.ENOMEM, "no memory", str(target))
        bind(source, target, **flags)

    monkeypatch.setattr(system, "bind", fail)
    with pytest.raises(OSError, match="no memory"):
        made.library_tree(TOP, files)
    assert options(root) == {}
    monkeypatch.undo()
    assert made.library_tree(TOP, files).is_mount()
    made.close()


def test_a_draft_of_a_daemon_that_was_killed_is_swept(root: Path) -> None:
    draft = root / ".tree-new"
    draft.mkdir(parents=True)
    system.tmpfs(draft)
    made = start(root)
    assert options(root) == {}
    assert not draft.exists()
    made.close()


def test_it_goes_with_the_daemon_unless_there_are_tenants(
    root: Path, files: dict[str, str]
) -> None:
    made = start(root)
    tree = made.library_tree(TOP, files)
    os.close(made.make(KEY, size_bytes=1 << 20))
    made.close()
    assert tree.is_mount()
    made = start(root)
    made.remove(KEY)
    made.close()
    assert options(root) == {}
    with pytest.raises(OSError, match="shutdown"):  # another thread was about to
        made.library_tree(TOP, files)
    assert options(root) == {}
