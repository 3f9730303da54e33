# SPDX-License-Identifier: Apache-2.0
"""What packages are made of, by the database of dpkg in a root."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages.debian_root import NAME, DebianRoot
from packages.workspace import PackageError, Workspace

STATUS = """\
Package: libc6
Architecture: amd64
Source: glibc
Version: 2.36-9
Description: library
 of many lines

Package: made
Architecture: amd64
Source: maker (1.0)
Version: 1:1.0-2
"""


@pytest.fixture
def root(tmp_path: Path) -> DebianRoot:
    """A root with two packages; the manual page of one was left out of it."""
    path = tmp_path / "build" / NAME
    info = path / "var/lib/dpkg/info"
    info.mkdir(parents=True)
    (path / "usr/lib").mkdir(parents=True)
    (path / "usr/lib/made.so").touch()
    (path / "usr/lib/link.so").symlink_to("made.so")
    (path / "var/lib/dpkg/status").write_text(STATUS)
    (info / "made:amd64.list").write_text(
        "/.\n/usr\n/usr/lib\n/usr/lib/made.so\n/usr/lib/link.so\n/usr/share/man/made.1\n"
    )
    return DebianRoot.of(Workspace(tmp_path, tmp_path / "build", 0))


def test_the_files_of_a_package_are_those_that_are_there(root: DebianRoot) -> None:
    assert root.files("made") == [Path("/usr/lib/link.so"), Path("/usr/lib/made.so")]
    assert root.at(Path("/usr/lib/made.so")).is_file()


def test_a_part_has_the_version_of_the_package(root: DebianRoot) -> None:
    part = root.part("made", "MIT")
    assert (part.name, part.version, part.kind, part.namespace) == (
        *("made", "1:1.0-2"),
        *("deb", "debian"),
    )
    assert (root.source("made"), root.source("libc6")) == ("maker", "glibc")
    assert root.architecture == "x86_64"
    assert root.stanza("libc6").splitlines()[-2:] == ["Description: library", " of many lines"]


def test_a_package_that_is_missing_is_named(root: DebianRoot) -> None:
    with pytest.raises(PackageError, match=r"has no package other\. Run \./dev setup"):
        root.files("other")


def test_without_the_root_the_set_up_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=f"{NAME} is missing. Run ./dev setup"):
        DebianRoot.of(Workspace(tmp_path, tmp_path, 0))
