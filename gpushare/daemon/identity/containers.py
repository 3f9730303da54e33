# SPDX-License-Identifier: Apache-2.0
"""Which container a process seems to be in, by the names that engines give to cgroups.

For people, and for telling a container from the host's own programs: no tenant is known by it.
Sources: cgroup names of dockerd, containerd's CRI, CRI-O, podman and runc, of either driver:
`/docker/ID`, `/system.slice/docker-ID.scope`, `/kubepods/.../podUID/ID`,
`/kubepods.slice/.../cri-containerd-ID.scope`, `/machine.slice/libpod-ID.scope`, `/NAMESPACE/NAME`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SCOPE: Final = re.compile(r"([a-z][a-z-]*)-([0-9a-f]{64})(\.scope)?", re.ASCII)
_ENGINES: Final = {"libpod": "podman", "crio": "cri-o", "cri-containerd": "containerd"}
_HOSTS: Final = frozenset({"user.slice", "system.slice", "init.scope", "gpushare"})


def container_of(cgroups: Mapping[str, str]) -> str:
    """Return "docker 4f5e6d7c8b9a", empty where `cgroups`, by hierarchy, are no container's."""
    for path in dict.fromkeys(cgroups.values()):
        found = _named(path)
        if found:
            return found
    return _unnamed(cgroups)


def _named(path: str) -> str:
    parts = path.strip("/").split("/")
    for place, part in reversed(list(enumerate(parts))):
        scope = _SCOPE.fullmatch(part)
        if scope is not None:
            return f"{_ENGINES.get(scope[1], scope[1])} {scope[2][:12]}"
        if _ID.fullmatch(part):
            above = parts[place - 1] if place else ""
            engine = "docker" if above == "docker" else "containerd"
            return f"{engine} {part[:12]}"
    return ""


def _unnamed(cgroups: Mapping[str, str]) -> str:
    """Return what a runtime was told to call it: the same group in every hierarchy of v1.

    Two words, as runc's own and those of containerd's `ctr` are, and none of systemd's.
    """
    own = {name: path for name, path in cgroups.items() if name in {"devices", "freezer", "pids"}}
    paths = set(own.values())
    if len(own) < 3 or len(paths) != 1:
        return ""
    [path] = paths
    parts = path.strip("/").split("/")
    if len(parts) < 2 or parts[0] in _HOSTS:
        return ""
    return f"container {'/'.join(parts[-2:])}"
