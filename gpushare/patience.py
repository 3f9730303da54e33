# SPDX-License-Identifier: Apache-2.0
"""How long a client waits for the daemon's acknowledgement; runtime/client.c does the same in C.

A daemon that lives has ACK_SECONDS. Where none lives, and somebody holds the socket all the same,
that is systemd, which is about to start one: it has START_SECONDS, as has one that says itself that
it is starting. Whether one lives its lock says, which it takes first and gives back last.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare import protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LOCK: Final = "lock"
LOOK_SECONDS: Final = 0.1  # how often it is looked whether a daemon is there by now
_LOCKS: Final = Path("/proc/locks")


class Patience:
    """One call's; `waits` is called once, when the call has to wait for a daemon that starts."""

    def __init__(self, socket: Path, start_seconds: float, waits: Callable[[], None]) -> None:
        self.said_starting = False  # by the daemon itself
        self._lock = socket.with_name(LOCK)
        self._waits: Callable[[], None] | None = waits
        self._quiet = time.monotonic()  # when no daemon was known to live, or the call's begin
        self._begun = self._quiet
        self._end = self._begun + start_seconds

    def lasts(self) -> bool:
        """Whether to go on waiting for an acknowledgement."""
        now = time.monotonic()
        starting = now < self._end and (self.said_starting or is_free(self._lock))
        if starting:
            self._tell(now)
            self._quiet = now
        return now < self._quiet + protocol.ACK_SECONDS

    @property
    def is_starting(self) -> bool:
        """Whether there is a daemon to come."""
        return self.said_starting or is_free(self._lock)

    def _tell(self, now: float) -> None:
        if self._waits and now > self._begun + protocol.ACK_SECONDS:
            self._waits()
            self._waits = None


def take(fd: int) -> None:
    """Take the lock on the open file `fd`, as the daemon does; BlockingIOError: another has it.

    flock(2) keeps daemons apart. The other one, of the same life, can be seen by who may not take
    it: trying the first could keep a daemon from it that starts just then.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK))


def is_free(lock: Path) -> bool:
    """Whether no daemon holds the file `lock`; where there is none, none was ever started."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except PermissionError:  # the file is root's; that it is locked everybody may know
        return not _is_listed(lock)
    try:
        found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _range(fcntl.F_WRLCK))
    finally:
        os.close(fd)
    (kind,) = struct.unpack_from("h", found)
    return bool(kind == fcntl.F_UNLCK)


def _range(kind: int) -> bytes:
    """Return a struct flock of `kind` over the whole file (fcntl(2)), of a 64-bit system."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


def _is_listed(lock: Path) -> bool:
    """Whether /proc/locks has the file: by its device's numbers and its own (proc_locks(5))."""
    status = lock.stat()
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return name in _LOCKS.read_text(encoding="ascii").split()
