# SPDX-License-Identifier: Apache-2.0
"""The cgroups in which a tenant's processes are, all of them and nobody else's.

A tenant's entry names the cgroup that sets it apart, of one hierarchy. Freezing may take another
hierarchy, where the same runtime put the same processes, mostly under the same path: docker's
"/docker/ID", systemd's "/system.slice/docker-ID.scope", a pod's beneath "/kubepods", podman's
"/machine.slice/libpod-ID.scope". No path is trusted to be the tenant's: every process that is in
the one has to be in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.store.ledger import Entry
from gpushare.errors import UserError
from gpushare.host.freezing import Freezer, Group, Unified

UNIFIED: Final = ""
FREEZER: Final = "freezer"
#: By hierarchy, the better first: in v2 a kill is one write, and where it stands beside v1 an
#: engine's own pause, which is v1's there, stays apart from ours.
_KINDS: Final[Mapping[str, tuple[Callable[[Path], Group], str]]] = {
    UNIFIED: (Unified, "cgroup.freeze"),
    FREEZER: (Freezer, "freezer.state"),
}


class NotOwn(UserError):
    """There is no cgroup that could be frozen without another's processes, or with all its own."""


def own_groups(entry: Entry, entries: Mapping[str, Entry], cgroups: Cgroups) -> dict[str, Group]:
    """Return the groups that hold `entry`'s processes and no others', by "hierarchy:path".

    The better first; NotOwn, with the reason, where there is none. Of a tenant that has just ended
    it may be any.
    """
    if not entry.cgroup:
        raise NotOwn(f"{entry.title} shares its cgroup with processes that are not its own")
    _refuse_shared(entry, entries)
    found, reasons = {}, []
    for cgroup in _candidates(entry):
        group = group_of(cgroup, cgroups)
        why = "is not there" if group is None else _why_not(cgroup, entry, cgroups)
        if group is None or why:
            reasons.append(f"{cgroup} {why}")
        else:
            found[cgroup] = group
    if not found:
        raise NotOwn(f"{entry.title} cannot be frozen: {'; '.join(reasons)}")
    return found


def group_of(cgroup: str, cgroups: Cgroups) -> Group | None:
    """Return the group "hierarchy:path"; None where it is gone or cannot be frozen."""
    hierarchy, _, path = cgroup.partition(":")
    directory = cgroups.directory(cgroup)
    if hierarchy not in _KINDS or directory is None or not path.strip("/") or ".." in path:
        return None
    kind, file = _KINDS[hierarchy]
    return kind(directory) if (directory / file).exists() else None


def _candidates(entry: Entry) -> Iterator[str]:
    """Yield where the tenant may be: its own cgroup, its path elsewhere, where its process is."""
    hierarchy, _, path = entry.cgroup.partition(":")
    now = processes.cgroups_of(entry.pid)
    for name in _KINDS:
        paths = [path]
        # A runtime may have put it under another path there. In its own hierarchy a process that
        # has moved (systemd in a container, to init.scope) is beneath, and is not all of it.
        if name != hierarchy and name in now and not _is_beneath(now[name], path):
            paths.append(now[name])
        yield from (f"{name}:{one}" for one in paths)


def _refuse_shared(entry: Entry, entries: Mapping[str, Entry]) -> None:
    hierarchy, _, path = entry.cgroup.partition(":")
    for other in entries.values():
        name, _, its = other.cgroup.partition(":")
        if other.key != entry.key and name == hierarchy and its and _is_beneath(its, path):
            raise NotOwn(f"{entry.title} cannot be frozen: {other.title} is in its cgroup {path}")


def _why_not(cgroup: str, entry: Entry, cgroups: Cgroups) -> str:
    """Return why `cgroup` is not the tenant's own; "" where it is.

    Each process is looked at once, in both hierarchies: one that is just being forked is in both.
    """
    own, _, own_path = entry.cgroup.partition(":")
    other, _, path = cgroup.partition(":")
    for pid in {*cgroups.processes(cgroup), *cgroups.processes(entry.cgroup)}:
        paths = processes.cgroups_of(pid)
        if not paths:
            continue  # it has ended
        is_tenants = _is_beneath(paths.get(own, "/"), own_path)
        is_inside = _is_beneath(paths.get(other, "/"), path)
        if is_inside and not is_tenants:
            name = processes.name_of(pid)
            return f"holds process {pid} ({name}), which is not the container's"
        if is_tenants and not is_inside:
            return f"does not hold its process {pid} ({processes.name_of(pid)})"
    return ""


def _is_beneath(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent.rstrip('/')}/")
