# SPDX-License-Identifier: Apache-2.0
"""A tenant's cgroup: before its container exists, while it is unbound, and for freezing it.

The runtime is going to make a container's cgroup by `linux.cgroupsPath` (OCI config-linux.md; runc
libcontainer/cgroups/systemd and systemd.slice(5) for the names of units). A reservation names that
cgroup if its launcher binds the container. If the launcher is killed during `create`, the
reservation is kept until nothing runs there, and what does run there is killed: nothing binds it
any more, and a container that is started unbound has real device nodes and no quota.

To freeze a tenant takes a cgroup that has all of its processes, and no others. Its record names the
cgroup that sets it apart, of one hierarchy. Freezing may take another hierarchy, where the same
runtime put the same processes, mostly under the same path: docker's "/docker/ID", systemd's
"/system.slice/docker-ID.scope", a pod's beneath "/kubepods", podman's
"/machine.slice/libpod-ID.scope". No path is trusted to be the tenant's: every process that is in
the one has to be in the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError
from gpushare.host.cgroups import CgroupFreezer, CgroupV1Freezer, CgroupV2Freezer

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


_KILL_SECONDS: Final = 0.3


def runs_unbound(record: TenantRecord) -> bool:
    """Whether something runs in the container of a reservation."""
    return (
        record.state == "reserved"
        and bool(record.cgroup)
        and Cgroups.mounted().is_populated(record.cgroup)
    )


def kill_unbound(record: TenantRecord, state: DaemonState, killed: Callable[[], None]) -> None:
    """Kill what runs in the container of a reservation, and call `killed`; freeze thread."""
    log("tenant-start-abandoned", "warning", tenant=record.key, id=record.id, cgroup=record.cgroup)

    def kill() -> None:
        cgroups, path = Cgroups.mounted(), record.cgroup.partition(":")[2]
        for hierarchy in (UNIFIED, FREEZER):
            group = cgroup_freezer(f"{hierarchy}:{path}", cgroups)
            if group is not None:
                group.kill(_KILL_SECONDS)
        killed()

    state.freezing.submit(kill)


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
        return Path(f"/proc/{pid}/ns/cgroup").stat().st_ino == _our_view()
    except OSError:
        return False


@functools.cache
def _our_view() -> int:
    return Path("/proc/self/ns/cgroup").stat().st_ino
