# SPDX-License-Identifier: Apache-2.0
"""Processes and cgroups as /proc and /sys/fs/cgroup tell them: who belongs to whom, who is gone.

A pid alone names nobody: it may have been given again. What is kept of a process is (pid, start
time), and of a tenant also the cgroup that its runtime made for it; a descendant of that cgroup
(docker in docker) is the tenant's. Sources: proc(5), cgroups(7).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import stat
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.host.cgroups import mountinfo
from gpushare.oci.bounded import read_at_most

_PROC: Final = Path("/proc")
_MOST_BYTES: Final = 1 << 20
_PF_FORKNOEXEC: Final = 0x40  # linux/sched.h; the flags in /proc/PID/stat
_PIPE_BELOW: Final = 32  # runtimes open few files before it
# Which of v1's hierarchies names a container best: one that every runtime puts containers into and
# that no tenant can leave. "" is the unified one.
_PREFERRED: Final = ("", "devices", "pids", "memory", "name=systemd", "freezer", "cpu")


@dataclass(frozen=True)
class Process:
    """A process as of the moment of looking; `namespaced_pid` is its own view of its number."""

    pid: int
    starttime: int  # clock ticks since boot
    parent: int
    namespaced_pid: int


#: Where there is no process to be named.
NOBODY: Final = Process(0, 0, 0, 0)


def look(pid: int) -> Process | None:
    """Return process `pid`; None when there is none (a zombie has ended)."""
    try:
        fields, status = _fields(pid), _read(pid, "status")
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields is None:
        return None
    namespaced = pid
    for entry in status.splitlines():
        if entry.startswith(b"NSpid:"):
            namespaced = int(entry.split()[-1])
    return Process(pid, int(fields[19]), int(fields[1]), namespaced)


def since(pid: int) -> int | None:
    """Return when process `pid` began, in clock ticks since boot; None as `look`, of half its cost.

    For what a container's start waits for.
    """
    try:
        fields = _fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields is None else int(fields[19])


def _fields(pid: int) -> list[bytes] | None:
    """Return /proc/PID/stat from the state, field 3, on; None of a process that has ended."""
    line = _read(pid, "stat")
    # The name, field 2, is the process's own word and may hold spaces and parentheses.
    fields = line[line.rindex(b")") + 2 :].split()
    # One whose first thread has ended looks like a zombie while its other threads go on.
    has_ended = fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return None if has_ended else fields


def is_alive(process: Process) -> bool:
    """Whether `process`, as it was looked at, has not ended."""
    return since(process.pid) == process.starttime


def is_stranded(pid: int) -> bool:
    """Whether `pid` is a container's first process that can never become its program.

    It waits at the runtime's exec.fifo for `start`. A runtime that is killed before it has written
    its state does not know the container any more: crun then deletes the pipe and leaves the
    process. Only to be asked of the process that a runtime bound: it was forked, and has run none
    of the tenant's code as long as it has executed nothing (PF_FORKNOEXEC).
    """
    try:
        if not is_nobodys_program(pid):
            return False
        return any(_is_lost_pipe(_PROC / f"{pid}/fd/{fd}") for fd in range(3, _PIPE_BELOW))
    except OSError:
        return False


def is_being_killed(pid: int) -> bool:
    """Whether `pid` has ended, or will when it next may run: SIGKILL waits for it."""
    try:
        status = _read(pid, "status")
    except OSError:
        return True
    pending = (
        int(line.split()[1], 16)
        for line in status.splitlines()
        if line.startswith((b"SigPnd:", b"ShdPnd:"))
    )
    return any(one >> (signal.SIGKILL - 1) & 1 for one in pending)


def is_nobodys_program(pid: int) -> bool:
    """Whether `pid` was forked and has executed nothing since; OSError where it is gone.

    A container's first process is the runtime's own until the container is started.
    """
    line = _read(pid, "stat")
    return bool(int(line[line.rindex(b")") + 2 :].split()[6]) & _PF_FORKNOEXEC)


def _is_lost_pipe(descriptor: Path) -> bool:
    try:
        found, name = descriptor.stat(), descriptor.readlink().name
    except FileNotFoundError:
        return False
    return stat.S_ISFIFO(found.st_mode) and not found.st_nlink and name.startswith("exec.fifo")


def name_of(pid: int) -> str:
    """Return the process's command name, "?" when it is gone."""
    try:
        name = _read(pid, "comm").rstrip(b"\n")
    except OSError:
        return "?"
    return name.decode(errors="replace")


def may_map(pid: int, inode: int) -> bool:
    """Whether process `pid` has a file of that inode mapped, or that cannot be told.

    Inodes of different file systems may be the same; who is taken for mapping it keeps what it has.
    """
    try:
        maps = _read(pid, "maps")
    except OSError:
        maps = b""
    if not maps:  # gone, not ours to look into, or its first thread has ended and others go on
        return look(pid) is not None
    # address, permissions, offset, device, inode, path (proc(5)): no other field between spaces is
    # decimal, but for words of a path
    return len(maps) >= _MOST_BYTES or b" %d " % inode in maps


def has_open(pid: int, majors: Collection[int]) -> bool:
    """Whether process `pid` has a character device of one of `majors` open, or nobody can tell."""
    folder = _PROC / f"{pid}/fd"
    try:
        descriptors = list(folder.iterdir())
    except PermissionError:  # not ours to look into
        return True
    except OSError:  # gone
        return False
    return any(_is_device(descriptor, majors) for descriptor in descriptors)


def _is_device(descriptor: Path, majors: Collection[int]) -> bool:
    try:
        found = descriptor.stat()
    except OSError:  # closed meanwhile
        return False
    return stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in majors


def owner_of(pid: int) -> int | None:
    """Return the real uid of process `pid`, None when it is gone."""
    try:
        status = _read(pid, "status")
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith(b"Uid:"))
    return int(line.split()[1])


def cgroups_of(pid: int) -> dict[str, str]:
    """Return the path of process `pid` in each hierarchy; empty when it is gone."""
    try:
        text = _read(pid, "cgroup")
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in os.fsdecode(text).splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def own_cgroup(pid: int, others: Mapping[str, str]) -> str:
    """Return the cgroup that sets process `pid` apart, "hierarchy:path"; "" when none does.

    `others` are the paths of a process that is not the tenant's (the hook's, the daemon's).
    """
    found = cgroups_of(pid)
    names = [*_PREFERRED, *sorted(set(found) - set(_PREFERRED))]
    for name in names:
        path = found.get(name, "/")
        if path != "/" and not path.startswith("/..") and path != others.get(name):
            return f"{name}:{path}"
    return ""


def _read(pid: int, name: str) -> bytes:
    """Return /proc/PID/NAME: every process of every tenant is read several times a second."""
    fd = os.open(f"{_PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at_most(fd, _MOST_BYTES)
    finally:
        os.close(fd)


class Cgroups:
    """The mounted cgroup hierarchies, found in `mountinfo` (proc(5))."""

    def __init__(self, mountinfo: str) -> None:
        self._roots: dict[str, Path] = {}
        for line in mountinfo.splitlines():
            before, _, after = line.partition(" - ")
            fields, rest = before.split(), after.split()
            if len(rest) < 3 or fields[3] != "/":
                continue
            if rest[0] == "cgroup2":
                self._roots.setdefault("", Path(fields[4]))
            elif rest[0] == "cgroup":
                for option in rest[2].split(","):
                    self._roots.setdefault(option, Path(fields[4]))

    @classmethod
    def mounted(cls) -> Cgroups:
        """Return the hierarchies that this process sees."""
        return cls(mountinfo())

    def directory(self, cgroup: str) -> Path | None:
        """Return where "hierarchy:path" is, None when that hierarchy is not mounted here."""
        hierarchy, _, path = cgroup.partition(":")
        root = self._roots.get(hierarchy)
        return None if root is None else root / path.lstrip("/")

    def processes(self, cgroup: str) -> list[int]:
        """Return the pids in `cgroup` and beneath it; empty when it is gone."""
        directory = self.directory(cgroup)
        return [] if directory is None else list(_pids_beneath(directory))

    def is_populated(self, cgroup: str) -> bool:
        """Whether a process is in `cgroup` or beneath it."""
        directory = self.directory(cgroup)
        if directory is None:
            return False
        if cgroup.startswith(":"):
            try:
                events = (directory / "cgroup.events").read_bytes()
            except OSError as error:
                if error.errno in {errno.ENOENT, errno.ENODEV}:
                    return False
                raise
            return b"populated 1" in events
        return next(_pids_beneath(directory), None) is not None


def _pids_beneath(directory: Path) -> Iterator[int]:
    for folder, _, _ in os.walk(directory):
        try:
            text = (Path(folder) / "cgroup.procs").read_bytes()
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
                raise
            continue  # removed while we walked, or a threaded group (its root has the processes)
        for line in text.split():
            if line != b"0":  # a process of another pid namespace
                yield int(line)


def descendants(pid: int) -> list[int]:
    """Return `pid` and the processes that descend from it."""
    found = [pid]
    for parent in found:
        children = _children(parent)
        if children is None:  # a kernel without CONFIG_PROC_CHILDREN
            return _descendants_of_all(pid)
        found += children
    return found


def _children(pid: int) -> list[int] | None:
    """Return the children of `pid`, which each of its threads has some of; None: not to be had."""
    if not _has_children_files():
        return None
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # or this one has
                found += map(int, _read(pid, f"task/{thread.name}/children").split())
    return found


@functools.cache
def _has_children_files() -> bool:
    return Path(f"{_PROC}/self/task/{threading.get_native_id()}/children").exists()


def _descendants_of_all(pid: int) -> list[int]:
    """As descendants, by the parent that each process of this machine names."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (process := look(int(entry.name))) is not None:
            children.setdefault(process.parent, []).append(process.pid)
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def members(cgroup: str, pid: int, cgroups: Cgroups) -> list[Process]:
    """Return a tenant's processes: those of its `cgroup`, where it has one, else `pid`'s family."""
    pids = cgroups.processes(cgroup) if cgroup else descendants(pid)
    return [process for member in pids if (process := look(member)) is not None]


def open_pidfd(pid: int, starttime: int) -> int | None:
    """Return a pidfd of the process that is `pid` since `starttime`; None when it has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Looked at after the descriptor was opened: what it names cannot change any more.
    if since(pid) != starttime:
        os.close(fd)
        return None
    return fd
