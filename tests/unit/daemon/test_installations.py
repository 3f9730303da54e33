# SPDX-License-Identifier: Apache-2.0
"""Old versions of the libraries are removed when they are unused, and not before."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from pathlib import Path

import pytest

from gpushare import install
from gpushare.daemon.lifecycle.old_installations import remove_unused
from gpushare.daemon.store.record import TenantRecord
from gpushare.install import Installation
from tests.unit.setup.test_install import RUNC, SOCKET, make_source, snapshot

HOURS = 7200


class Versions:
    """A prefix in which three versions were installed, one after the other, hours ago."""

    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "prefix"
        self.source = make_source(folder)
        self.oldest, self.before, self.now = (self.install(text) for text in ("a", "b", "c"))
        for made in (self.oldest, self.before, self.now):
            install.activate(made)
            age(made.root)

    def install(self, text: str) -> Installation:
        library = self.source.libraries / "libcuda.so.1"
        # With the prefix: others that run these tests now have the same names else.
        library.write_bytes(b"\x7fELF " + f"{text} {self.prefix}".encode() * 4096)
        return install.install(self.prefix, runtime=RUNC, socket=SOCKET, source=self.source)

    def sweep(self, *entries: TenantRecord) -> list[str]:
        libraries = self.prefix / install.CURRENT / "lib"
        return remove_unused(self.prefix, libraries, entries)

    @property
    def left(self) -> set[str]:
        return {path.name for path in self.prefix.iterdir() if not path.is_symlink()}


def age(folder: Path) -> None:
    then = time.time() - HOURS
    os.utime(folder, (then, then))


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this process is seen: without root what others have mapped is not known."""
    iterdir, own = Path.iterdir, str(os.getpid())
    monkeypatch.setattr(
        Path,
        "iterdir",
        lambda path: (one for one in iterdir(path) if path != Path("/proc") or one.name == own),
    )


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def names(*made: Installation) -> set[str]:
    return {one.root.name for one in made}


def test_all_go_but_the_one_that_is_used_and_the_one_before(versions: Versions) -> None:
    current = snapshot(versions.now.root), snapshot(versions.before.root)
    assert versions.sweep() == [versions.oldest.root.name]
    assert versions.left == names(versions.before, versions.now)
    assert (snapshot(versions.now.root), snapshot(versions.before.root)) == current
    assert versions.sweep() == []


def test_a_new_installation_stays(versions: Versions) -> None:
    made = versions.install("d")
    versions.sweep()
    assert made.root.is_dir()
    age(made.root)
    versions.sweep()
    assert not made.root.exists()


def test_an_installation_that_a_process_has_mapped_stays(versions: Versions) -> None:
    with (versions.oldest.libraries / "libcuda.so.1").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    assert versions.sweep() == []
    mapped.close()
    assert versions.sweep() == [versions.oldest.root.name]


def test_an_installation_that_a_bundle_names_stays(versions: Versions, tmp_path: Path) -> None:
    """It is made and not mounted yet, or has a hook that is called at its end."""
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "config.json").write_text(f'{{"source": "{versions.oldest.root}/bin/gpushare-hook"}}')
    entry = TenantRecord(key="0" * 16, state="reserved", id="train", bundle=str(bundle))
    gone = TenantRecord(key="1" * 16, state="none", id="gone", bundle=str(tmp_path / "gone"))
    assert versions.sweep(entry, gone) == []
    assert versions.sweep(gone) == [versions.oldest.root.name]


def test_nothing_is_removed_where_a_bundle_cannot_be_read(
    versions: Versions, tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    (bundle / "config.json").mkdir(parents=True)
    unread = TenantRecord(key="0" * 16, state="reserved", id="train", bundle=str(bundle))
    host_process = TenantRecord(key="1" * 16, state="bound", id="run")
    assert versions.sweep(unread) == []
    assert versions.sweep(host_process) == [versions.oldest.root.name]


def test_nothing_is_removed_while_an_installation_goes_on(versions: Versions) -> None:
    fd = os.open(versions.prefix, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert versions.sweep() == []
    os.close(fd)
    assert versions.sweep() == [versions.oldest.root.name]


def test_nothing_else_beneath_the_prefix_is_touched(versions: Versions) -> None:
    for name in ("notes", ".hidden", "0.1.0-not-a-sum", "0.1.0-0123456789abc"):
        (versions.prefix / name).mkdir()
        age(versions.prefix / name)
    (versions.prefix / "0.1.0-0123456789ab").symlink_to("/")
    before = versions.left
    assert versions.sweep() == [versions.oldest.root.name]
    assert versions.left == before - names(versions.oldest)
