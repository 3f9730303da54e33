# SPDX-License-Identifier: Apache-2.0
"""The cgroup of a host process started by `gpushare run`: created, joined, removed.

For a container, the low-level runtime manages the cgroup. A host process gets `/gpushare/<id>` in
every possible hierarchy: the unified one of cgroup v2, and those of v1 except cpuset, in which new
groups have no CPUs (cgroup-v1/cpusets.rst). The cgroup identifies the processes, and can be removed
when the last of them has exited.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

PARENT: Final = "gpushare"
_WITHOUT: Final = frozenset({"cpuset"})


def hierarchies(mountinfo: str) -> list[Path]:
    """Return the mount points of the cgroup hierarchies in `mountinfo` (proc(5)).

    Only mounts of a hierarchy's root count.
    """
    found: list[Path] = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        # Field 4 is the mounted part of the hierarchy: in a container, only its own group.
        if len(rest) < 3 or not rest[0].startswith("cgroup") or fields[3] != "/":
            continue
        if rest[0] == "cgroup" and _WITHOUT & set(rest[2].split(",")):
            continue
        found.append(Path(fields[4]))
    return found


def layout(mountinfo: str) -> str:
    """Return "v2", "v1", "hybrid" (v1 controllers and a unified tree) or "none"."""
    kinds = {line.partition(" - ")[2].split(" ")[0] for line in mountinfo.splitlines()}
    if "cgroup" in kinds:
        return "hybrid" if "cgroup2" in kinds else "v1"
    return "v2" if "cgroup2" in kinds else "none"


def join(identity: str, pid: int = 0) -> list[Path]:
    """Create `/gpushare/<identity>` and move `pid` (0: the caller) there; return the groups joined.

    OSError if no hierarchy could be joined.
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
    """Move the caller from `/gpushare/<identity>` to the root group, and remove the groups."""
    for root in hierarchies(mountinfo()):
        if (root / PARENT / identity).is_dir():
            _enter(root, 0)
    remove(identity)


def remove(identity: str) -> bool:
    """Remove the groups of `identity`; False if a process is still in one of them."""
    gone = True
    for root in hierarchies(mountinfo()):
        parent = root / PARENT
        gone = _remove(parent / identity) and gone
        _remove(parent)  # fails as long as it contains another group
    return gone


def _enter(group: Path, pid: int) -> OSError | None:
    try:
        for folder in (group.parent, group):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                folder.chmod(0o755)  # whatever the umask is
        (group / "cgroup.procs").write_text(f"{pid}\n", encoding="ascii")
    except OSError as error:
        return error
    return None


def _remove(group: Path) -> bool:
    """Remove one group; False if it is in use, or if the unit's sandbox forbids writing."""
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
