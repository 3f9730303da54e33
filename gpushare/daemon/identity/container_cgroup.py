# SPDX-License-Identifier: Apache-2.0
"""The cgroup that a runtime is going to make for a container, before it exists.

Sources: OCI config-linux.md (cgroupsPath), runc libcontainer/cgroups/systemd (unit names),
systemd.slice(5).
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from gpushare.daemon.identity.processes import Cgroups

_PROC: Final = "/proc"
#: In cgroup v1, where every runtime puts a container; else in the one of v2.
_HIERARCHIES: Final = ("devices", "")


def own_path(cgroups_path: object, identity: str) -> str:
    """Return the path of the cgroup that `linux.cgroupsPath` describes.

    "" where it does not say, or the cgroup would not have the container's name: it might not be the
    container's alone.
    """
    if not isinstance(cgroups_path, str) or ".." in cgroups_path:
        return ""
    slice_, is_systemds, unit = cgroups_path.partition(":")
    if is_systemds:
        prefix, colon, name = unit.partition(":")
        if not colon or not slice_.endswith(".slice") or slice_ == "-.slice":
            return ""
        parts = slice_.removesuffix(".slice").split("-")
        slices = [f"{'-'.join(parts[: length + 1])}.slice" for length in range(len(parts))]
        scope = f"{prefix}-{name}.scope" if prefix else f"{name}.scope"
        path = "/" + "/".join([*slices, scope])
    else:
        path = cgroups_path.rstrip("/")
    leaf = path.rpartition("/")[2]
    return path if path.startswith("/") and identity and identity in leaf else ""


def expected_cgroup(cgroups_path: object, identity: str, maker: int) -> str:
    """Return the cgroup that runtime `maker` will make for container `identity`; "" if unknown.

    "hierarchy:path", as this process sees it. A cgroup in which something runs is nobody's to be.
    """
    path = own_path(cgroups_path, identity)
    if not path or not maker or not _has_our_view(maker):
        return ""
    cgroups = _hierarchies()
    for hierarchy in _HIERARCHIES:
        found = f"{hierarchy}:{path}"
        directory = cgroups.directory(found)
        if directory is not None:
            return "" if directory.exists() and cgroups.is_populated(found) else found
    return ""


@functools.cache
def _hierarchies() -> Cgroups:
    """Return the hierarchies of this machine, which are mounted once: every create waits for it."""
    return Cgroups.mounted()


def _has_our_view(pid: int) -> bool:
    """Whether a path of a cgroup means the same to process `pid` (cgroup_namespaces(7))."""
    try:
        return Path(f"{_PROC}/{pid}/ns/cgroup").stat().st_ino == _our_view()
    except OSError:
        return False


@functools.cache
def _our_view() -> int:
    return Path(f"{_PROC}/self/ns/cgroup").stat().st_ino
