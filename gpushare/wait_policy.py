# SPDX-License-Identifier: Apache-2.0
"""How long a client waits for the daemon's acknowledgement; runtime/client.c does the same in C.

A running daemon has ACK_SECONDS, from when it last served a client: it sets its socket's
modification time then, so a request is not lost because many others are before it. If no daemon is
running but the socket accepts connections, systemd holds the socket and is about to start the
daemon, which then has START_SECONDS. A daemon that reports that it is starting has START_SECONDS
too, and so has the next daemon after one that was killed, which leaves its socket: a request to
start something waits for it. The daemon's lock shows whether it is running: the daemon takes it
first and releases it last.
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
LOOK_SECONDS: Final = 0.1  # interval between checks for a daemon
_LOCKS: Final = Path("/proc/locks")


class WaitPolicy:
    """The policy of one call; `waits` is called once if it has to wait for a starting daemon."""

    def __init__(
        self,
        socket: Path,
        start_seconds: float,
        waits: Callable[[], None],
        *,
        after_kill: bool = False,
    ) -> None:
        self.daemon_is_starting = False  # reported by the daemon itself
        self._socket, self._served = socket, served_ns(socket)
        self._lock = socket.with_name(LOCK)
        self._after_kill = after_kill
        self._waits: Callable[[], None] | None = waits
        self._quiet = time.monotonic()  # when no daemon was known to run, or the call's start
        self._begun = self._quiet
        self._end = self._begun + start_seconds

    def keeps_waiting(self) -> bool:
        """Whether to continue waiting for an acknowledgement."""
        now = time.monotonic()
        starting = now < self._end and (self.daemon_is_starting or is_lock_free(self._lock))
        if starting:
            self._notify(now)
            self._quiet = now
        elif now < self._end and self._has_served():
            self._quiet = now
        return now < self._quiet + protocol.ACK_SECONDS

    @property
    def is_restarting(self) -> bool:
        """Whether to wait for a service manager, if no process listens on the socket."""
        return self._after_kill and self._lock.exists() and is_lock_free(self._lock)

    @property
    def is_starting(self) -> bool:
        """Whether a daemon is starting or about to start."""
        return self.daemon_is_starting or is_lock_free(self._lock)

    def may_become_ready(self, error: OSError) -> bool:
        """Whether a daemon may be about to serve a socket that cannot be connected to.

        If nothing listens and no daemon process exists, there is nothing to wait for.
        """
        if isinstance(error, ConnectionRefusedError) and self.is_restarting:
            return self.keeps_waiting()
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return not self.is_starting and self.keeps_waiting()
        return isinstance(error, TimeoutError | BlockingIOError) and self.keeps_waiting()

    def _has_served(self) -> bool:
        before, self._served = self._served, served_ns(self._socket)
        return self._served != before

    def _notify(self, now: float) -> None:
        if self._waits and now > self._begun + protocol.ACK_SECONDS:
            self._waits()
            self._waits = None


def served_ns(socket: Path) -> int:
    """Return when the daemon last served a client of `socket`, as time.time_ns; 0 if it is gone."""
    try:
        return socket.stat().st_mtime_ns
    except OSError:
        return 0


def take_lock(fd: int) -> None:
    """Take the lock on the open file `fd` for the daemon; BlockingIOError if another one has it.

    flock(2) excludes a second daemon. The other lock, held for the same time, can be queried
    without taking it: trying flock(2) could block a daemon that starts at that moment.
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK))


def is_lock_free(lock: Path) -> bool:
    """Whether no daemon holds the lock on the file `lock`; if it is missing, none ever started."""
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return True
    except PermissionError:  # only root can open the file, but every user can see the lock
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
    """Whether /proc/locks lists the file, by device and inode number (proc_locks(5))."""
    status = lock.stat()
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return name in _LOCKS.read_text(encoding="ascii").split()
