# SPDX-License-Identifier: Apache-2.0
"""Cgroups: that of a host process, and freezing and killing all processes of one.

For a container, the low-level runtime manages the cgroup. A host process gets `/gpushare/<id>` in
every possible hierarchy: the unified one of cgroup v2, and those of v1 except cpuset, in which new
groups have no CPUs (cgroup-v1/cpusets.rst). The cgroup identifies the processes, and can be removed
when the last of them has exited.

All processes of a cgroup are frozen, thawed and killed at once, without their cooperation.
cgroup v2 has `cgroup.freeze` (Linux 5.2) and `cgroup.kill` (5.14), even if its tree is mounted next
to v1's and has no controllers (cgroup-v2.rst). cgroup v1 has the freezer hierarchy
(cgroup-v1/freezer-subsystem.rst), in which SIGKILL has no effect until the group is thawed. Every
operation on a group includes its descendants. A group that no longer exists has no processes, and
the operations do nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_STILL_SECONDS: Final = 0.2  # a process in the kernel freezes when it leaves the kernel
_ROUND_SECONDS: Final = 0.05  # for killed processes to exit
_LOOK_SECONDS: Final = 0.001  # poll interval: v1 does not notify when a group has frozen
PARENT: Final = "gpushare"
_WITHOUT: Final = frozenset({"cpuset"})


def mounted_hierarchies(mountinfo: str) -> dict[str, Path]:
    """Return where each hierarchy in `mountinfo` is mounted, by its names; "": that of v2.

    Only mounts of a hierarchy's root count: in a container, its own group is mounted (proc(5)).
    """
    roots: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(), after.split()
        if len(rest) < 3 or fields[3] != "/":
            continue
        names = {"cgroup2": "", "cgroup": rest[2]}.get(rest[0])
        for name in () if names is None else names.split(","):
            roots.setdefault(name, Path(fields[4]))
    return roots


def hierarchies(mountinfo: str) -> list[Path]:
    """Return the mount points of the cgroup hierarchies in `mountinfo` but for _WITHOUT."""
    roots = mounted_hierarchies(mountinfo)
    left_out = {roots.get(name) for name in _WITHOUT}
    return [root for root in dict.fromkeys(roots.values()) if root not in left_out]


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


class CgroupFreezer(Protocol):
    """One cgroup that contains processes of a single tenant only."""

    @property
    def directory(self) -> Path:
        """The group's directory."""

    @property
    def file(self) -> Path:
        """The file that freezes and thaws the group."""

    def freeze(self) -> bool:
        """Freeze the group. False if a process still runs in the kernel; OSError on failure."""

    def thaw(self) -> None:
        """Thaw the group, unless a parent group is frozen."""

    def is_set(self) -> bool:
        """Whether this group itself, not a parent, is set to be frozen."""

    def is_frozen(self) -> bool:
        """Whether its processes are frozen, by this group or a parent."""

    def kill(self, seconds: float) -> bool:
        """Kill all processes and thaw the group. False if some are left after `seconds`."""

    def is_empty(self, seconds: float) -> bool:
        """Whether the group is empty, after `seconds` at the latest."""


@dataclass(frozen=True)
class CgroupV2Freezer:
    """A group of cgroup v2."""

    directory: Path

    @property
    def file(self) -> Path:
        """See CgroupFreezer."""
        return self.directory / "cgroup.freeze"

    @property
    def has_kill(self) -> bool:
        """Whether this kernel supports cgroup.kill."""
        return (self.directory / "cgroup.kill").exists()

    def freeze(self) -> bool:
        """See CgroupFreezer."""
        _write(self.file, "1")
        return self._waited("frozen", "1", _STILL_SECONDS)

    def thaw(self) -> None:
        """See CgroupFreezer."""
        _write(self.file, "0")

    def is_set(self) -> bool:
        """See CgroupFreezer."""
        return _read(self.file) == "1"

    def is_frozen(self) -> bool:
        """See CgroupFreezer."""
        return "frozen 1" in _read(self.directory / "cgroup.events")

    def kill(self, seconds: float) -> bool:
        """See CgroupFreezer. SIGKILL reaches frozen processes (cgroup-v2.rst, cgroup.freeze).

        Thawed first: of a process that has ended in a frozen group, runc says that it is paused,
        and the engine that learns of the end in that moment keeps its container for ever.

        cgroup.kill signals first threads alone (kernel/cgroup/cgroup.c, __cgroup_kill): a process
        whose first thread has ended goes on, so it gets a signal of its own.
        """
        if not self.has_kill:
            return _kill_in_rounds(self, seconds)
        self.thaw()
        _write(self.directory / "cgroup.kill", "1")
        first = min(seconds, _ROUND_SECONDS)
        if self.is_empty(first):
            return True
        # It freezes again, which an engine may see of one that is just ending: only if it lasts.
        return seconds > first and _kill_in_rounds(self, seconds - first)

    def is_empty(self, seconds: float) -> bool:
        """See CgroupFreezer."""
        return self._waited("populated", "0", seconds)

    def _waited(self, name: str, wanted: str, seconds: float) -> bool:
        """Whether `name` in cgroup.events becomes `wanted` within `seconds`."""
        until = time.monotonic() + seconds
        try:
            fd = os.open(self.directory / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            poll = select.poll()
            poll.register(fd, select.POLLPRI)
            while f"{name} {wanted}" not in os.pread(fd, 4096, 0).decode().splitlines():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                poll.poll(left * 1000)
        except OSError:  # ENODEV: it was removed
            return not self.directory.exists()
        finally:
            os.close(fd)
        return True


@dataclass(frozen=True)
class CgroupV1Freezer:
    """A group of v1's freezer hierarchy."""

    directory: Path

    @property
    def file(self) -> Path:
        """See CgroupFreezer."""
        return self.directory / "freezer.state"

    def freeze(self) -> bool:
        """See CgroupFreezer."""
        _write(self.file, "FROZEN")
        until = time.monotonic() + _STILL_SECONDS
        while _read(self.file) == "FREEZING":
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def thaw(self) -> None:
        """See CgroupFreezer."""
        _write(self.file, "THAWED")

    def is_set(self) -> bool:
        """See CgroupFreezer."""
        return _read(self.directory / "freezer.self_freezing") == "1"

    def is_frozen(self) -> bool:
        """See CgroupFreezer."""
        return _read(self.file) == "FROZEN"

    def kill(self, seconds: float) -> bool:
        """See CgroupFreezer."""
        return _kill_in_rounds(self, seconds)

    def is_empty(self, seconds: float) -> bool:
        """See CgroupFreezer."""
        until = time.monotonic() + seconds
        while next(pids(self.directory), None) is not None:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def pids(directory: Path) -> Iterator[int]:
    """Yield the pids in the group and its descendants, except those of other pid namespaces."""
    for folder, _, _ in os.walk(directory):
        try:
            text = (Path(folder) / "cgroup.procs").read_bytes()
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP}:
                raise
            continue  # removed meanwhile, or a threaded group: its root has the processes
        yield from (int(line) for line in text.split() if line != b"0")


def _kill_in_rounds(group: CgroupFreezer, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        group.freeze()  # prevents forks during the kill
        _kill_each(group.directory)
        group.thaw()
        if group.is_empty(_ROUND_SECONDS):
            return True
        if time.monotonic() >= until:
            return False


def _kill_each(directory: Path) -> None:
    with contextlib.ExitStack() as closing:
        opened = {}
        for pid in pids(directory):
            with contextlib.suppress(OSError):
                opened[pid] = os.pidfd_open(pid)
                closing.callback(os.close, opened[pid])
        # A pid may be reused before its descriptor is opened, but not afterwards.
        still = set(pids(directory))
        for pid, pidfd in opened.items():
            if pid in still:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _write(file: Path, text: str) -> None:
    """Write `text`, unless the group no longer exists."""
    try:
        with file.open("r+b", buffering=0) as stream:
            stream.write(text.encode())
    except OSError:
        if file.parent.exists():
            raise


def _read(file: Path) -> str:
    """Return the content of `file`, "" if it no longer exists."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
