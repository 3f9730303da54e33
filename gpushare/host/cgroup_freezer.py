# SPDX-License-Identifier: Apache-2.0
"""Freezes, thaws and kills all processes of a cgroup at once, without their cooperation.

cgroup v2 has `cgroup.freeze` (Linux 5.2) and `cgroup.kill` (5.14), even if its tree is mounted next
to v1's and has no controllers (cgroup-v2.rst). cgroup v1 has the freezer hierarchy
(cgroup-v1/freezer-subsystem.rst), in which SIGKILL has no effect until the group is thawed. Every
operation on a group includes its descendants. A group that no longer exists has no processes, and
the operations do nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
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
        if not _write(self.file, "1"):
            return True
        return self._waited("frozen", "1", _STILL_SECONDS)

    def thaw(self) -> None:
        """See CgroupFreezer."""
        _write(self.file, "0")

    def is_set(self) -> bool:
        """See CgroupFreezer."""
        return _read(self.file) == "1"

    def kill(self, seconds: float) -> bool:
        """See CgroupFreezer. SIGKILL reaches frozen processes (cgroup-v2.rst, cgroup.freeze).

        cgroup.kill signals first threads alone (kernel/cgroup/cgroup.c, __cgroup_kill): a process
        whose first thread has ended goes on, so it gets a signal of its own.
        """
        if not self.has_kill:
            return _kill_in_rounds(self, seconds)
        _write(self.directory / "cgroup.kill", "1")
        self.thaw()
        first = min(seconds, _ROUND_SECONDS)
        return self.is_empty(first) or _kill_in_rounds(self, seconds - first)

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
        if not _write(self.file, "FROZEN"):
            return True
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
        with contextlib.suppress(OSError):  # removed meanwhile, or threaded: see its root
            for line in (Path(folder) / "cgroup.procs").read_bytes().split():
                if line != b"0":
                    yield int(line)


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


def _write(file: Path, text: str) -> bool:
    """Write `text`; False if the group no longer exists."""
    try:
        with file.open("r+b", buffering=0) as stream:
            stream.write(text.encode())
    except OSError:
        if file.parent.exists():
            raise
        return False
    return True


def _read(file: Path) -> str:
    """Return the content of `file`, "" if it no longer exists."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""


_IN_MODIFY: Final = 0x2
_READ_BYTES: Final = 4096


class WriteWatch:
    """Watches `file` until closed; OSError if it cannot be watched."""

    def __init__(self, file: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error(file)
        if libc.inotify_add_watch(self._fd, os.fsencode(file), _IN_MODIFY) < 0:
            error = _error(file)
            self.close()
            raise error

    def was_written(self) -> bool:
        """Whether the file was written or removed since the last call."""
        found = False
        try:
            while os.read(self._fd, _READ_BYTES):
                found = True
        except BlockingIOError:
            pass
        return found

    def close(self) -> None:
        """Stop watching."""
        os.close(self._fd)


def _error(file: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(file))
