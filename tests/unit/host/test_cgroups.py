# SPDX-License-Identifier: Apache-2.0
"""Which cgroup hierarchies a host process can be named in, and writes to their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.host import cgroups

V2 = "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1 = (
    "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 1 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "33 1 0:29 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,name=systemd\n"
)
NESTED = "34 1 0:30 /docker/4f5e /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"


def test_cpuset_and_a_container_s_own_part_are_left_out() -> None:
    assert cgroups.hierarchies(V2 + V1 + NESTED) == [
        Path("/sys/fs/cgroup"),
        Path("/sys/fs/cgroup/memory"),
        Path("/sys/fs/cgroup/systemd"),
    ]


@pytest.mark.parametrize(
    ("mountinfo", "layout"), [(V2, "v2"), (V1, "v1"), (V1 + V2, "hybrid"), ("", "none")]
)
def test_the_layout_has_a_name(mountinfo: str, layout: str) -> None:
    assert cgroups.layout(mountinfo) == layout


def test_joined_in_every_hierarchy_that_lets_it_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "two/gpushare").write_text("not a folder")
    monkeypatch.setattr(
        cgroups,
        "mountinfo",
        lambda: "".join(f"1 1 0:1 / {tmp_path}/{n} rw - cgroup2 c rw\n" for n in ("one", "two")),
    )
    (group,) = cgroups.join("host-1", 42)
    assert (group / "cgroup.procs").read_text() == "42\n"
    # The kernel's files are no obstacle to rmdir(2); these are.
    assert not cgroups._remove(group)
    (group / "cgroup.procs").unlink()
    (tmp_path / "two/gpushare").unlink()
    assert cgroups.remove("host-1")
    assert list((tmp_path / "one").iterdir()) == []


def test_no_hierarchy_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "mountinfo", lambda: "")
    with pytest.raises(OSError, match="no cgroup hierarchy"):
        cgroups.join("host-1")
