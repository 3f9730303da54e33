# SPDX-License-Identifier: Apache-2.0
"""From the PIDs that the driver lists to processes, and from processes to tenants.

A PID does not identify a process. The driver lists a client under the PID of the process that
opened it, even after that process has ended if its descriptor was passed on, and the kernel gives
the PID to another process. The daemon therefore holds a pidfd (pidfd_open(2)) from the first sample
that lists a PID. Once that process has ended, the PID identifies no process for as long as it stays
listed. What is listed for it is memory of a descriptor that the process passed on: it is the
tenant's whose process it was.

A process that runs when its PID is first listed, and was not listed a moment before, has opened the
driver itself: its cgroup is enough. It may have passed the descriptor on and closed its own since.
Of a PID that is listed in the first sample, or in the first after a gap, that is not known: it may
be of a client that ended before. Such a process is a client if one of its threads has a device node
of one of NVIDIA's majors open, or if that cannot be told, as of a simulated device.

A process belongs to the tenant of its cgroup, or of its ancestors if the tenant has no cgroup of
its own. If its cgroups belong to two tenants, it belongs to neither.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import stat
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.store.record import TenantRecord
from gpushare.host.driver import device_nodes
from gpushare.host.rooted_tree import RootedTree

_NAMES: Final = ("nvidia", "dxg")  # /proc/devices; the second is WSL's


def device_clients(root: Path) -> Callable[[int], bool]:
    """Return a test of whether a process has the driver open."""
    tree = RootedTree(root)

    def holds(pid: int) -> bool:
        numbers = device_nodes.device_majors(tree).items()
        majors = {major for name, major in numbers if name.startswith(_NAMES)}
        return not majors or has_open(pid, majors)

    return holds


# Of the processor, for one process: a tenant may have millions of descriptors.
_OPEN_SECONDS: Final = 0.02


def has_open(pid: int, majors: Collection[int]) -> bool:
    """Whether process `pid` has a character device of one of `majors` open, or may have.

    Each thread may have a table of its own (unshare(2), CLONE_FILES), and the first thread, whose
    table is the process's in /proc, may have ended. What cannot be looked at, or not in time, may.
    """
    until = time.thread_time() + _OPEN_SECONDS
    try:
        with os.scandir(f"/proc/{pid}/task") as threads:
            return any(_has_device(f"{thread.path}/fd", majors, until) for thread in threads)
    except OSError as error:
        return error.errno not in {errno.ENOENT, errno.ESRCH}  # else it is gone


def _has_device(table: str, majors: Collection[int], until: float) -> bool:
    """Whether the descriptors in the folder `table` include a device, or may, at `until`."""
    try:
        with os.scandir(table) as descriptors:
            for descriptor in descriptors:
                if time.thread_time() >= until or _is_device(descriptor.path, majors):
                    return True
    except OSError as error:
        return error.errno not in {errno.ENOENT, errno.ESRCH}  # else the thread has ended
    return False


_AT_FDCWD: Final = -100
_AT_STATX_DONT_SYNC: Final = 0x4000
_STATX_TYPE: Final = 1
_STATX_BYTES: Final = 256
_statx: Final = ctypes.CDLL(None, use_errno=True).statx


def _is_device(descriptor: str, majors: Collection[int]) -> bool:
    """Whether the file behind a descriptor is a device of one of `majors`, or may be.

    Its file system is not asked: it may be the tenant's own (FUSE), and never answer (statx(2)).
    """
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    path = os.fsencode(descriptor)
    if _statx(_AT_FDCWD, path, _AT_STATX_DONT_SYNC, _STATX_TYPE, buffer):
        return ctypes.get_errno() not in {errno.ENOENT, errno.ESRCH}  # else closed meanwhile
    [mode] = struct.unpack_from("H", buffer, 28)
    [major] = struct.unpack_from("I", buffer, 128)
    return stat.S_ISCHR(mode) and major in majors


class ProcessOwners:
    """The tenants that processes belong to, for one look."""

    def __init__(self, records: Mapping[str, TenantRecord]) -> None:
        bound = [record for record in records.values() if record.state == "bound"]
        self._by_cgroup = {record.cgroup: record.key for record in bound if record.cgroup}
        self._hierarchies = {cgroup.partition(":")[0] for cgroup in self._by_cgroup}
        self._by_pid = {record.pid: record.key for record in bound}

    def all_of(self, pid: int) -> frozenset[str]:
        """Return the tenants whose cgroups process `pid` is in; of several none is believed."""
        paths = processes.cgroups_of(pid)
        hierarchies = self._hierarchies & paths.keys()
        keys = {self._in(hierarchy, paths[hierarchy]) for hierarchy in hierarchies} - {""}
        if not keys and (key := self._by_ancestor(pid)) is not None:
            keys = {key}
        return frozenset(keys)

    def _in(self, hierarchy: str, path: str) -> str:
        """Return the tenant of the nearest cgroup around `path`; empty where there is none."""
        while path not in {"", "/"}:
            key = self._by_cgroup.get(f"{hierarchy}:{path}")
            if key is not None:
                return key
            path = path.rpartition("/")[0]
        return ""

    def _by_ancestor(self, pid: int) -> str | None:
        for _ in range(64):
            if pid in self._by_pid:
                return self._by_pid[pid]
            process = processes.find_process(pid)
            if process is None or process.parent <= 1:
                return None
            pid = process.parent
        return None


_AGAIN_SECONDS: Final = 2.0  # a process may be moved to another cgroup
_GAP_SECONDS: Final = 2.0  # no PID is given again within this time

#: Returns the tenants that a process's cgroups name: none, one, or several.
Keys = Callable[[int], frozenset[str]]


class _NoDescriptor(Exception):
    """No descriptor is left, so processes cannot be identified."""


@dataclass(frozen=True)
class ListedPid:
    """A number in the driver's list; `process` None: a ghost, it names no process that is there."""

    pid: int
    process: Process | None
    keys: frozenset[str] = frozenset()  # of the tenants that it belongs to
    holds: bool = False  # it has opened the driver
    ended: Process | None = None  # the process that it named, and that has ended

    @property
    def key(self) -> str | None:
        """The tenant whose process it is, or was; None: no tenant's, or not known."""
        [*keys] = self.keys
        return keys[0] if len(keys) == 1 else None


class PidResolver:
    """The processes that the driver lists, from look to look; the truth thread's.

    `holds` is whether a process has the driver open.
    """

    def __init__(self, holds: Callable[[int], bool] = lambda _: True) -> None:
        self._holds = holds
        self._seen: dict[int, ListedPid] = {}
        self._descriptors: dict[int, int] = {}  # by pid
        self._asked: dict[int, float] = {}  # when its cgroups were, by pid
        self._poll = select.poll()
        self._version: object = None
        self._looked = -math.inf

    def look(self, pids: Iterable[int], keys: Keys, version: object) -> dict[int, ListedPid]:
        """Identify each of `pids`, which the driver lists now.

        `keys` is asked again of all as soon as `version`, what its answers rest on, is another.
        """
        listed = set(pids)
        for pid in self._seen.keys() - listed:
            self._forget(pid)
        self._note_ended()
        if version is not self._version:
            self._asked.clear()
            self._version = version
        now = time.monotonic()
        is_new = now - self._looked < _GAP_SECONDS
        self._looked = now
        for pid in listed:
            if pid not in self._seen:
                try:
                    self._seen[pid] = ListedPid(pid, self._open(pid), holds=is_new)
                except _NoDescriptor:
                    continue  # not known until later
            sighting = self._seen[pid]
            if sighting.process is not None and now - self._asked.get(pid, 0.0) >= _AGAIN_SECONDS:
                self._asked[pid] = now
                holds = sighting.holds or self._holds(pid)
                owners = keys(pid) if holds else frozenset()
                if (owners, holds) != (sighting.keys, sighting.holds):
                    self._seen[pid] = replace(sighting, keys=owners, holds=holds)
        return dict(self._seen)

    def close(self) -> None:
        """Forget all processes."""
        for pid in list(self._seen):
            self._forget(pid)

    def _open(self, pid: int) -> Process | None:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in {errno.ESRCH, errno.EINVAL}:  # ended, or no process's number
                return None
            raise _NoDescriptor from error
        # Looked at after it was opened: if the descriptor's has not ended then, it is this one.
        process = processes.find_process(pid)
        if process is None or processes.has_ended(descriptor):
            os.close(descriptor)
            return None
        self._descriptors[pid] = descriptor
        self._poll.register(descriptor, select.POLLIN)
        return process

    def _note_ended(self) -> None:
        """Make ghosts of those that have ended, and are listed nevertheless."""
        ended = {descriptor for descriptor, _ in self._poll.poll(0)} if self._descriptors else set()
        for pid in [pid for pid, held in self._descriptors.items() if held in ended]:
            self._close(pid)
            self._end(pid)

    def _end(self, pid: int) -> None:
        known = self._seen[pid]
        keys = known.keys if known.holds else frozenset()
        self._seen[pid] = ListedPid(pid, None, keys, ended=known.process)

    def _forget(self, pid: int) -> None:
        self._close(pid)
        self._asked.pop(pid, None)
        del self._seen[pid]

    def _close(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            os.close(descriptor)
