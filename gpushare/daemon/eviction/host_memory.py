# SPDX-License-Identifier: Apache-2.0
"""Whether host memory has room for a tenant's GPU memory.

Evicted memory is anonymous memory of the tenant's own processes. It counts in their memory cgroup,
whose limit would otherwise have the kernel kill them in the middle of an eviction.
Sources: cgroup-v2.rst (memory.max, memory.current, memory.stat), cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups

_MEMINFO: Final = Path("/proc/meminfo")
_UNIFIED: Final = "", "memory.max", "memory.current", "inactive_file"
_LEGACY: Final = "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
_NO_LIMIT: Final = 1 << 60  # of v1: a number of pages that is as good as none


class MemoryLimit(NamedTuple):
    """What a memory cgroup has left, in bytes."""

    cgroup: str
    left_bytes: int


def least_memory(pids: Iterable[int], cgroups: Cgroups) -> MemoryLimit | None:
    """Return the cgroup with the least memory left of all that `pids` are in; None: no limit.

    Memory of files that are not in use counts as left: the kernel takes it back first.
    """
    found: dict[Path, MemoryLimit] = {}
    for pid in pids:
        paths = processes.cgroups_of(pid)
        for hierarchy, most, used, inactive in (_UNIFIED, _LEGACY):
            root = cgroups.directory(f"{hierarchy}:/")
            path = paths.get(hierarchy)
            if root is None or path is None:
                continue
            group = root / path.lstrip("/")
            while group not in found and group != root.parent:
                left = _left_bytes(group, most, used, inactive)
                if left is not None:
                    found[group] = MemoryLimit(str(group), left)
                group = group.parent
    return min(found.values(), key=lambda one: one.left_bytes, default=None)


def _left_bytes(group: Path, most: str, used: str, inactive: str) -> int | None:
    """Return what a group has left, None if it has no limit."""
    try:
        limit = (group / most).read_text(encoding="ascii").strip()
        if limit == "max" or int(limit) >= _NO_LIMIT:
            return None
        taken = int((group / used).read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None  # the root of v2 has none of these files
    lines = (line.split() for line in stat.splitlines())
    idle = next((int(line[1]) for line in lines if line[0] == inactive), 0)
    return max(0, int(limit) - taken + min(idle, taken))


def available_bytes() -> int:
    """Return what the machine has for new memory without swapping (proc(5), MemAvailable)."""
    return _meminfo("MemAvailable")


def total_bytes() -> int:
    """Return the machine's memory."""
    return _meminfo("MemTotal")


def _meminfo(name: str) -> int:
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        key, _, rest = line.partition(":")
        if key == name:
            return int(rest.split()[0]) * 1024
    return 0
