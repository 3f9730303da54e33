# SPDX-License-Identifier: Apache-2.0
"""The cgroups that have all of a tenant's processes, and no others.

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
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.host.cgroup_freezer import CgroupFreezer, CgroupV1Freezer, CgroupV2Freezer

UNIFIED: Final = ""
FREEZER: Final = "freezer"
#: By hierarchy, the better first: in v2 a kill is one write, and where it stands beside v1 an
#: engine's own pause, which is v1's there, stays apart from ours.
_KINDS: Final[Mapping[str, tuple[Callable[[Path], CgroupFreezer], str]]] = {
    UNIFIED: (CgroupV2Freezer, "cgroup.freeze"),
    FREEZER: (CgroupV1Freezer, "freezer.state"),
}


class SharedCgroup(UserError):
    """There is no cgroup that could be frozen without another's processes, or with all its own."""


def freezable_groups(
    record: TenantRecord, records: Mapping[str, TenantRecord], cgroups: Cgroups
) -> dict[str, CgroupFreezer]:
    """Return the groups that hold `record`'s processes and no others', by "hierarchy:path".

    The better first; SharedCgroup, with the reason, where there is none. Of a tenant that has just
    ended it may be any.
    """
    if not record.cgroup:
        raise SharedCgroup(f"{record.title} shares its cgroup with other processes")
    _refuse_shared(record, records)
    found, reasons = {}, []
    for cgroup in _candidates(record):
        group = cgroup_freezer(cgroup, cgroups)
        why = "is not there" if group is None else _why_not(cgroup, record, cgroups)
        if group is None or why:
            reasons.append(f"{cgroup} {why}")
        else:
            found[cgroup] = group
    if not found:
        raise SharedCgroup(f"{record.title} cannot be frozen: {'; '.join(reasons)}")
    return found


def cgroup_freezer(cgroup: str, cgroups: Cgroups) -> CgroupFreezer | None:
    """Return the group "hierarchy:path"; None where it is gone or cannot be frozen."""
    hierarchy, _, path = cgroup.partition(":")
    directory = cgroups.directory(cgroup)
    if hierarchy not in _KINDS or directory is None or not path.strip("/") or ".." in path:
        return None
    kind, file = _KINDS[hierarchy]
    return kind(directory) if (directory / file).exists() else None


def _candidates(record: TenantRecord) -> Iterator[str]:
    """Yield where the tenant may be: its own cgroup, its path elsewhere, where its process is."""
    hierarchy, _, path = record.cgroup.partition(":")
    now = processes.cgroups_of(record.pid)
    for name in _KINDS:
        paths = [path]
        # A runtime may have put it under another path there. In its own hierarchy a process that
        # has moved (systemd in a container, to init.scope) is beneath, and is not all of it.
        if name != hierarchy and name in now and not _is_beneath(now[name], path):
            paths.append(now[name])
        yield from (f"{name}:{one}" for one in paths)


def _refuse_shared(record: TenantRecord, records: Mapping[str, TenantRecord]) -> None:
    hierarchy, _, path = record.cgroup.partition(":")
    for other in records.values():
        name, _, its = other.cgroup.partition(":")
        if other.key != record.key and name == hierarchy and its and _is_beneath(its, path):
            raise SharedCgroup(
                f"{record.title} cannot be frozen: {other.title} is in its cgroup {path}"
            )


def _why_not(cgroup: str, record: TenantRecord, cgroups: Cgroups) -> str:
    """Return why `cgroup` is not the tenant's own; "" where it is.

    Its own cgroup needs no look at the processes, whose number is the tenant's choice. Otherwise
    each is looked at once, in both hierarchies: one that is just being forked is in both.
    """
    if cgroup == record.cgroup:
        return ""
    own, _, own_path = record.cgroup.partition(":")
    other, _, path = cgroup.partition(":")
    for pid in {*cgroups.processes(cgroup), *cgroups.processes(record.cgroup)}:
        paths = processes.cgroups_of(pid)
        if not paths:
            continue  # it has ended
        is_tenants = _is_beneath(paths.get(own, "/"), own_path)
        is_inside = _is_beneath(paths.get(other, "/"), path)
        if is_inside and not is_tenants:
            name = processes.name_of(pid)
            return f"holds process {pid} ({name}), which does not belong to the container"
        if is_tenants and not is_inside:
            return f"does not contain its process {pid} ({processes.name_of(pid)})"
    return ""


def _is_beneath(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent.rstrip('/')}/")
