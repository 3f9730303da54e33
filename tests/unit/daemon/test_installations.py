# SPDX-License-Identifier: Apache-2.0
"""Old versions are removed: all but the current one, the one before, and new ones."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import pytest

from gpushare import install
from gpushare.daemon.lifecycle.old_installations import remove_old
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

    def sweep(self) -> list[str]:
        return remove_old(self.prefix, self.prefix / install.CURRENT / "lib")

    @property
    def left(self) -> set[str]:
        return {path.name for path in self.prefix.iterdir() if not path.is_symlink()}


def age(folder: Path) -> None:
    then = time.time() - HOURS
    os.utime(folder, (then, then))


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    return Versions(tmp_path)


def names(*made: Installation) -> set[str]:
    return {one.root.name for one in made}


def test_all_go_but_the_current_one_and_the_one_before(versions: Versions) -> None:
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
