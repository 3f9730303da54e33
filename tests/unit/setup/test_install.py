# SPDX-License-Identifier: Apache-2.0
"""Programs and libraries in a folder named by what is in it."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import pytest

from gpushare import install
from gpushare.install import InstallError, InstallSource

RUNC = Path("/usr/bin/runc")
SOCKET = Path("/run/gpushare/control.sock")


def make_source(root: Path) -> InstallSource:
    """Return C parts that differ by their content."""
    programs, libraries = root / "built/bin", root / "built/lib"
    for folder, names in (
        (programs, ("gpushare-runtime", "gpushare-hook", "gpushare-scheduler")),
        (libraries, ("libcuda.so.1", "libnvidia-ml.so.1", "gpushare-probe")),
        (libraries / "host", ("libcuda.so.1", "libnvidia-ml.so.1")),
        (libraries / "simulator", ("libcuda.so.1", "libnvidia-ml.so.1")),
    ):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_bytes(b"\x7fELF" + f"{folder.name}/{name}".encode())
    return InstallSource(programs, libraries)


def installed(root: Path, source: InstallSource) -> install.Installation:
    return install.install(root / "to", runtime=RUNC, socket=SOCKET, source=source)


def snapshot(root: Path) -> dict[str, tuple[int, bytes | str]]:
    """Return every path beneath `root` with its mode and content."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            content: bytes | str = str(path.readlink())
        else:
            content = path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(root))] = (path.lstat().st_mode, content)
    return found


def test_a_changed_file_is_not_taken_for_ours(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    made = installed(tmp_path, source)
    made.hook.write_bytes(b"something else")
    with pytest.raises(InstallError, match="gpushare-hook has changed since it was installed"):
        installed(tmp_path, source)


def test_a_missing_part_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    (source.libraries / "gpushare-probe").unlink()
    with pytest.raises(InstallError, match="gpushare-probe is missing"):
        installed(tmp_path, source)
    assert not (tmp_path / "to").exists()


def test_a_relative_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="runc is not an absolute path"):
        install.install(
            tmp_path / "to", runtime=Path("runc"), socket=SOCKET, source=make_source(tmp_path)
        )


def test_a_package_without_its_c_parts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_PROGRAMS", ("no-such-program",))
    with pytest.raises(InstallError, match="no-such-program is not in"):
        InstallSource.of_package()


def test_no_installation_writes_to_mapped_files(tmp_path: Path) -> None:
    """As a node's agent did that copied its library over the old one: all its users crashed."""
    source = make_source(tmp_path)
    old = installed(tmp_path, source)
    library = old.libraries / "libcuda.so.1"
    with library.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    before, files = bytes(mapped), snapshot(old.root)
    for content in (b"\x7fELF shorter", b"\x7fELF " + b"longer" * 4096):
        (source.libraries / "libcuda.so.1").write_bytes(content)
        made = installed(tmp_path, source)
        active = install.activate(made)
        assert made.root != old.root
        assert active == install.current(tmp_path / "to")
        assert active.launcher.resolve() == made.launcher
    other = Path("/run/other.sock")
    moved = install.install(tmp_path / "to", runtime=RUNC, socket=other, source=source)
    assert moved.root not in {made.root, old.root}
    assert snapshot(old.root) == files
    assert bytes(mapped) == before == library.read_bytes()
    mapped.close()


def test_all_old_versions_go_but_the_current_one_and_the_one_before(tmp_path: Path) -> None:
    source, to = make_source(tmp_path), tmp_path / "to"
    then = time.time() - 7200
    made = []
    for text in (b"a", b"b", b"young", b"c"):
        (source.libraries / "libcuda.so.1").write_bytes(b"\x7fELF " + text)
        made.append(installed(tmp_path, source).root)
    oldest, before, young, now = made
    others = [to / name for name in ("notes", ".hidden", "0.1.0-not-a-sum", "0.1.0-0123456789abc")]
    draft = to / f".{oldest.name}.01234567"
    for folder in (*others, draft):
        folder.mkdir()
    for folder in (oldest, before, now, *others, draft):
        os.utime(folder, (then, then))
    link = to / "0.1.0-0123456789ab"
    link.symlink_to(tmp_path)
    os.utime(link, (then, then), follow_symlinks=False)
    files = snapshot(now)
    for root in (before, now):
        install.activate(install.Installation(root))
    assert link.is_symlink()
    left = {path for path in to.iterdir() if not path.is_symlink()}
    assert left == {before, young, now, *others}
    assert snapshot(now) == files
    assert (to / "previous").resolve() == before
