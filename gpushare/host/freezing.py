# SPDX-License-Identifier: Apache-2.0
"""Stopping, going on and ending all processes of a cgroup, at once and without their consent.

Of cgroup v2 `cgroup.freeze` (Linux 5.2) and `cgroup.kill` (5.14), also where its tree is mounted
beside v1's and has no controllers (cgroup-v2.rst). Of v1 the freezer hierarchy
(cgroup-v1/freezer-subsystem.rst), under which SIGKILL has no effect until the group is thawed. What
is said of a group holds for those beneath it. A group that is gone has nobody left: nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

_STILL_SECONDS: Final = 0.2  # a process in the kernel stops when it leaves it
_ROUND_SECONDS: Final = 0.05  # for those that were killed to end
_LOOK_SECONDS: Final = 0.001  # v1 tells nobody when it has stopped


class Group(Protocol):
    """One cgroup, whose processes are all one tenant's."""

    @property
    def directory(self) -> Path:
        """Where it is."""

    @property
    def file(self) -> Path:
        """What is written to stop it, and to have it go on."""

    def freeze(self) -> bool:
        """Stop it. False where some process still runs, in the kernel; OSError where none can."""

    def thaw(self) -> None:
        """Have it go on; as far as no group above it is frozen."""

    def is_set(self) -> bool:
        """Whether somebody has this very group frozen."""

    def kill(self, seconds: float) -> bool:
        """End all its processes; it is thawed then. False where some are left after `seconds`."""

    def is_empty(self, seconds: float) -> bool:
        """Whether nobody is in it, after `seconds` at the latest."""


@dataclass(frozen=True)
class Unified:
    """A group of cgroup v2."""

    directory: Path

    @property
    def file(self) -> Path:
        """See Group."""
        return self.directory / "cgroup.freeze"

    @property
    def has_kill(self) -> bool:
        """Whether this kernel ends a group by one write."""
        return (self.directory / "cgroup.kill").exists()

    def freeze(self) -> bool:
        """See Group."""
        if not _write(self.file, "1"):
            return True
        return self._waited("frozen", "1", _STILL_SECONDS)

    def thaw(self) -> None:
        """See Group."""
        _write(self.file, "0")

    def is_set(self) -> bool:
        """See Group."""
        return _read(self.file) == "1"

    def kill(self, seconds: float) -> bool:
        """See Group. SIGKILL reaches the frozen (cgroup-v2.rst, cgroup.freeze)."""
        if not self.has_kill:
            return _kill_in_rounds(self, seconds)
        _write(self.directory / "cgroup.kill", "1")
        self.thaw()
        return self.is_empty(seconds)

    def is_empty(self, seconds: float) -> bool:
        """See Group."""
        return self._waited("populated", "0", seconds)

    def _waited(self, name: str, wanted: str, seconds: float) -> bool:
        """Whether `name` of cgroup.events comes to be `wanted` in time."""
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
class Freezer:
    """A group of v1's freezer hierarchy."""

    directory: Path

    @property
    def file(self) -> Path:
        """See Group."""
        return self.directory / "freezer.state"

    def freeze(self) -> bool:
        """See Group."""
        if not _write(self.file, "FROZEN"):
            return True
        until = time.monotonic() + _STILL_SECONDS
        while _read(self.file) == "FREEZING":
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True

    def thaw(self) -> None:
        """See Group."""
        _write(self.file, "THAWED")

    def is_set(self) -> bool:
        """See Group."""
        return _read(self.directory / "freezer.self_freezing") == "1"

    def kill(self, seconds: float) -> bool:
        """See Group."""
        return _kill_in_rounds(self, seconds)

    def is_empty(self, seconds: float) -> bool:
        """See Group."""
        until = time.monotonic() + seconds
        while next(pids(self.directory), None) is not None:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_SECONDS)
        return True


def pids(directory: Path) -> Iterator[int]:
    """Yield the pids in the group and beneath it; of other pid namespaces none."""
    for folder, _, _ in os.walk(directory):
        with contextlib.suppress(OSError):  # removed meanwhile, or threaded: its root has them
            for line in (Path(folder) / "cgroup.procs").read_bytes().split():
                if line != b"0":
                    yield int(line)


def _kill_in_rounds(group: Group, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while True:
        group.freeze()  # so that none forks while they are killed
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
        # A number may have become another's before its descriptor was opened; not afterwards.
        still = set(pids(directory))
        for pid, pidfd in opened.items():
            if pid in still:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _write(file: Path, text: str) -> bool:
    """Write `text`; False where the group is gone."""
    try:
        with file.open("r+b", buffering=0) as stream:
            stream.write(text.encode())
    except OSError:
        if file.parent.exists():
            raise
        return False
    return True


def _read(file: Path) -> str:
    """Return the content of `file`, "" where it is gone."""
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError:
        return ""
