# SPDX-License-Identifier: Apache-2.0
"""Processes and cgroups as /proc and /sys/fs/cgroup show them.

A pid alone does not identify a process: it may have been reused. What is kept of a process is
(pid, start time), and of a tenant also the cgroup that its runtime made for it; a descendant of
that cgroup (docker in docker) is the tenant's. Sources: proc(5), cgroups(7).
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import signal
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.daemon.core.loop import wait_readable
from gpushare.host.cgroups import mounted_hierarchies, mountinfo, pids
from gpushare.oci.bounded_read import read_at_most

_PROC: Final = Path("/proc")
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_MOST_BYTES: Final = 1 << 20
_MOST_PATH: Final = 256
_PF_FORKNOEXEC: Final = 0x40  # linux/sched.h; the flags in /proc/PID/stat
#: The hierarchies that name a container best: first those that can freeze it, the unified one ("")
#: before v1's. There a kill is one write, and an engine's own pause, which is v1's where both are,
#: stays apart from ours. Every runtime puts containers into them, and no tenant can leave them.
PREFERRED: Final = ("", "freezer", "devices", "pids", "memory", "name=systemd", "cpu")


@dataclass(frozen=True)
class Process:
    """A process as of the moment of looking; `namespaced_pid` is its own view of its number."""

    pid: int
    starttime: int  # clock ticks since boot
    parent: int
    namespaced_pid: int


def find_process(pid: int) -> Process | None:
    """Return process `pid`; None when there is none (a zombie has ended)."""
    process = find_outer(pid)
    if process is None:
        return None
    try:
        numbers = _status_values(_read(pid, "status"), b"NSpid")
    except (FileNotFoundError, ProcessLookupError):
        return None
    namespaced = int(numbers[-1]) if numbers else pid
    return Process(pid, process.starttime, process.parent, namespaced)


def find_outer(pid: int) -> Process | None:
    """As find_process, without the number that the process has itself (0): one file is read.

    For what a container's start waits for.
    """
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    # One whose first thread has ended looks like a zombie while its other threads go on.
    has_ended = fields[0] == b"X" or (fields[0] == b"Z" and int(fields[17]) <= 1)
    return None if has_ended else Process(pid, int(fields[19]), int(fields[1]), 0)


def start_time(pid: int) -> int | None:
    """Return when process `pid` began, in clock ticks since boot; None if it is gone."""
    process = find_outer(pid)
    return None if process is None else process.starttime


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state, field 3, on."""
    line = _read(pid, "stat")
    # The name, field 2, is chosen by the process and may hold spaces and parentheses.
    return line[line.rindex(b")") + 2 :].split()


def _status_values(status: bytes, name: bytes) -> list[bytes]:
    """Return the values of one line of /proc/PID/status; none where it is not there."""
    return (b"\n" + status).partition(b"\n" + name + b":")[2].partition(b"\n")[0].split()


def pid_of(pidfd: int) -> int | None:
    """Return the number of the process of a pidfd; None if it is none.

    0 where the process is in no pid namespace that this one contains, -1 once it has ended.
    """
    text = _read("self", f"fdinfo/{pidfd}")
    numbers = [line.split()[1] for line in text.splitlines() if line.startswith(b"Pid:")]
    return int(numbers[0]) if numbers else None


def has_ended(pidfd: int) -> bool:
    """Whether the process of a pidfd has ended."""
    return wait_readable(pidfd)


def is_stranded(pid: int) -> bool:
    """Whether `pid` is a container's first process that can never become its program.

    It waits at the runtime's exec.fifo for `start`. A runtime that is killed before it has written
    its state does not know the container any more: crun then deletes the pipe and leaves the
    process. Only to be asked of the process that a runtime bound: it was forked, and has run none
    of the tenant's code as long as it has executed nothing (PF_FORKNOEXEC).

    One that is being started has lost its pipe, too. With runc it then writes to it, and may run
    hooks before its program. With crun only a later look tells the two apart.
    """
    try:
        if not is_nobodys_program(pid):
            return False
        lost = [fd.name for fd in (_PROC / f"{pid}/fd").iterdir() if _is_lost_pipe(fd)]
        return bool(lost) and not any(_is_for_writing(pid, fd) for fd in lost)
    except OSError:
        return False


def is_being_killed(pid: int) -> bool:
    """Whether `pid` has ended, or will when it next may run: SIGKILL waits for it."""
    try:
        status = _read(pid, "status")
    except OSError:
        return True
    pending = _status_values(status, b"SigPnd") + _status_values(status, b"ShdPnd")
    return any(int(signals, 16) >> (signal.SIGKILL - 1) & 1 for signals in pending)


def is_nobodys_program(pid: int) -> bool:
    """Whether `pid` was forked and has executed nothing since.

    A container's first process is the runtime's own until the container is started.
    """
    try:
        return bool(int(_stat(pid)[6]) & _PF_FORKNOEXEC)
    except OSError:
        return False


def _is_lost_pipe(descriptor: Path) -> bool:
    try:
        # The name first: any other descriptor may be of a file system that never answers.
        if not descriptor.readlink().name.startswith("exec.fifo"):
            return False
        status = descriptor.stat()
    except FileNotFoundError:
        return False
    return stat.S_ISFIFO(status.st_mode) and not status.st_nlink


def _is_for_writing(pid: int, descriptor: str) -> bool:
    flags = int(_read(pid, f"fdinfo/{descriptor}").partition(b"flags:")[2].split()[0], 8)
    return not flags & os.O_PATH and flags & os.O_ACCMODE == os.O_WRONLY


#: The inode of the first PID namespace (PROC_PID_INIT_INO of include/linux/proc_ns.h).
_HOST_PIDS: Final = 0xEFFFFFFC


def sees_host(namespace: Path = Path("/proc/self/ns/pid")) -> bool:
    """Whether this process is in the host's PID namespace; also where that cannot be read."""
    try:
        return namespace.stat().st_ino == _HOST_PIDS
    except OSError:
        return True


def name_of(pid: int) -> str:
    """Return the process's command name, "?" when it is gone."""
    try:
        name = _read(pid, "comm").rstrip(b"\n")
    except OSError:
        return "?"
    return name.decode(errors="replace")


def may_map(pid: int, inode: int) -> bool:
    """Whether process `pid` has a file of that inode mapped, or that is not known.

    Inodes of different file systems may be the same; such a process keeps what it has.
    """
    try:
        maps = _read(pid, "maps")
    except OSError:
        maps = b""
    if not maps:  # gone, not ours to look into, or its first thread has ended and others go on
        return find_process(pid) is not None
    # address, permissions, offset, device, inode, path (proc(5)): no other field between spaces is
    # decimal, but for words of a path
    return len(maps) >= _MOST_BYTES or b" %d " % inode in maps


_DRIVER: Final = re.compile(
    rb" ([0-9]+) +(/[^\n]*/libcuda\.so[.0-9]*)(?: \(deleted\))?\n", re.ASCII
)


def mapped_driver(pid: int, filter_inodes: Collection[int]) -> str:
    """Return the path of the libcuda that the process has mapped, as it sees it; "" for none.

    "" also if it has mapped an interposer library. What a process maps is its choice: a claim.
    """
    try:
        mapped = {int(inode): path for inode, path in _DRIVER.findall(_read(pid, "maps"))}
    except OSError:
        return ""
    path = next(iter(mapped.values()), b"") if mapped.keys().isdisjoint(filter_inodes) else b""
    return os.fsdecode(path[:_MOST_PATH]).encode(errors="replace").decode()


def owner_of(pid: int) -> int | None:
    """Return the real uid of process `pid`, None when it is gone."""
    try:
        status = _read(pid, "status")
    except OSError:
        return None
    return int(_status_values(status, b"Uid")[0])


_MOST_THREADS: Final = 64


def cgroups_of(pid: int) -> dict[str, str]:
    """Return the path of process `pid` in each hierarchy; empty when it is gone.

    A first thread that has ended is in no cgroup of v1 any more, and its process goes on.
    """
    try:
        paths = _cgroups(_read(pid, "cgroup"))
        if any(path != "/" for name, path in paths.items() if name) or _stat(pid)[0] != b"Z":
            return paths
        with os.scandir(f"{_PROC}/{pid}/task") as threads:
            for thread in itertools.islice(threads, _MOST_THREADS):
                with contextlib.suppress(OSError):  # it has ended as well
                    of_thread = _cgroups(_read(pid, f"task/{thread.name}/cgroup"))
                    if any(path != "/" for name, path in of_thread.items() if name):
                        return of_thread
    except OSError:
        return {}
    return paths


def _cgroups(text: bytes) -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in os.fsdecode(text).splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            paths[name] = path
    return paths


def own_cgroup(pid: int, others: Mapping[str, str]) -> str:
    """Return the cgroup that sets process `pid` apart, "hierarchy:path"; "" when none does.

    `others` are the paths of a process that is not the tenant's (the hook's, the daemon's).
    """
    paths = cgroups_of(pid)
    names = [*PREFERRED, *sorted(set(paths) - set(PREFERRED))]
    for name in names:
        path = paths.get(name, "/")
        if path != "/" and not path.startswith("/..") and path != others.get(name):
            return f"{name}:{path}"
    return ""


def _read(pid: int | str, name: str) -> bytes:
    """Return /proc/PID/NAME: every process of every tenant is read several times a second."""
    fd = os.open(f"{_PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return read_at_most(fd, _MOST_BYTES)
    finally:
        os.close(fd)


class Cgroups:
    """The mounted cgroup hierarchies, found in `mountinfo` (proc(5))."""

    def __init__(self, mountinfo: str) -> None:
        self._roots = mounted_hierarchies(mountinfo)

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
        return [] if directory is None else list(pids(directory))

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
        return next(pids(directory), None) is not None


def descendants(pid: int) -> list[int]:
    """Return `pid` and the processes that descend from it."""
    family = [pid]
    for parent in family:
        family += _children(parent)
    return family


def _children(pid: int) -> list[int]:
    """Return the children of `pid`, which each of its threads has some of."""
    children: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # or this one has
                children += map(int, _read(pid, f"task/{thread.name}/children").split())
    return children


def pids_of(cgroup: str, pid: int, cgroups: Cgroups) -> Iterator[int]:
    """Yield a tenant's pids: those of its `cgroup`, where it has one, else `pid`'s family."""
    if not cgroup:
        yield from descendants(pid)
        return
    directory = cgroups.directory(cgroup)
    if directory is not None:
        yield from pids(directory)


def members(cgroup: str, pid: int, cgroups: Cgroups) -> list[Process]:
    """Return a tenant's processes."""
    candidates = map(find_process, pids_of(cgroup, pid, cgroups))
    return [process for process in candidates if process is not None]


def open_pidfd(pid: int, starttime: int) -> int | None:
    """Return a pidfd of the process that is `pid` since `starttime`; None when it has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    # Looked at after the descriptor was opened: what it names cannot change any more.
    if start_time(pid) != starttime:
        os.close(fd)
        return None
    return fd
