# SPDX-License-Identifier: Apache-2.0
"""The cgroup of a host process started by `gpushare run`: made, joined, removed.

A container's cgroup is its low-level runtime's business. A host process gets `/gpushare/<id>` in
every hierarchy that lets it: the unified one of cgroup v2, and each of v1's but cpuset, whose new
groups have no CPU until somebody writes one (cgroup-v1/cpusets.rst). What it is for is naming: its
processes are told from others by it, and it is gone when the last of them is.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

PARENT: Final = "gpushare"
_WITHOUT: Final = frozenset({"cpuset"})


def hierarchies(mountinfo: str) -> list[Path]:
    """Return where each cgroup hierarchy of `mountinfo` (proc(5)) is mounted from its root."""
    found: list[Path] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        # Field 4 is the part of the hierarchy that is mounted: a container sees its own group only.
        if len(rest) < 3 or not rest[0].startswith("cgroup") or fields[3] != "/":
            continue
        if rest[0] == "cgroup" and _WITHOUT & set(rest[2].split(",")):
            continue
        found.append(Path(fields[4]))
    return found


def layout(mountinfo: str) -> str:
    """Return "v2", "v1" or "hybrid" (v1 controllers with a unified tree beside them), or "none"."""
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in mountinfo.splitlines()}
    if "cgroup" in kinds:
        return "hybrid" if "cgroup2" in kinds else "v1"
    return "v2" if "cgroup2" in kinds else "none"


def join(identity: str, pid: int = 0) -> list[Path]:
    """Make `/gpushare/<identity>` and move `pid` (0: the caller) there; return the groups joined.

    OSError when no hierarchy could be joined at all.
    """
    joined: list[Path] = []
    refused: OSError | None = None
    for root in hierarchies(mountinfo()):
        group = root / PARENT / identity
        error = _enter(group, pid)
        if error is None:
            joined.append(group)
        refused = refused or error
    if not joined:
        raise refused or OSError(errno.ENOENT, "no cgroup hierarchy is mounted", "/sys/fs/cgroup")
    return joined


def leave(identity: str) -> None:
    """Move the caller out of `/gpushare/<identity>`, to the root, and remove the groups."""
    for root in hierarchies(mountinfo()):
        if (root / PARENT / identity).is_dir():
            _enter(root, 0)
    remove(identity)


def remove(identity: str) -> bool:
    """Remove the groups of `identity`; False when a process is still in one of them."""
    gone = True
    for root in hierarchies(mountinfo()):
        parent = root / PARENT
        gone = _remove(parent / identity) and gone
        _remove(parent)  # stays as long as another's group is in it
    return gone


def _enter(group: Path, pid: int) -> OSError | None:
    try:
        group.mkdir(parents=True, exist_ok=True)
        (group / "cgroup.procs").write_text(f"{pid}\n", encoding="ascii")
    except OSError as error:
        return error
    return None


def _remove(group: Path) -> bool:
    """Remove one group; False when it is in use, or a hardened unit may not write here."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in {errno.EBUSY, errno.ENOTEMPTY, errno.EROFS, errno.EACCES}:
            raise
        return False
    return True


def mountinfo() -> str:
    """Return /proc/self/mountinfo."""
    return os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
