# SPDX-License-Identifier: Apache-2.0
"""The protocol between systemd and its services: sd_notify(3), sd_listen_fds(3), the watchdog.

Without systemd none of the variables is set, and this module does nothing.

A running main loop says nothing of the threads that do the work: a thread that hangs in a call of
the kernel, or waits for a lock forever, would leave a daemon that answers and holds no quota. The
watchdog is therefore fed only while each thread has made progress within its time.

StartingSocket is the control socket while the daemon starts: it sends each client `starting`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from gpushare import protocol
from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import credentials
from gpushare.daemon.core.users import HostUsers

_FIRST_FD: Final = 3  # SD_LISTEN_FDS_START

_STARTING: Final = protocol.encode({"starting": True})
_MOST_WAITING: Final = 1024  # the others wait in the listener's backlog, without a message
_MOST_OF_ONE_USER: Final = 64  # root excepted: engines start containers as root
_MOST_OF_USERS: Final = 512


def notify(state: str) -> None:
    """Send `state`, for example `READY=1`, to systemd, if it started this process."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifying:
        try:
            notifying.connect(address)
            notifying.send(state.encode())
        except OSError as error:
            log("systemd-notify-failed", "warning", error=str(error))


def watchdog_seconds() -> float | None:
    """Return after how long without a message systemd ends this process, None if it does not."""
    period = os.environ.get("WATCHDOG_USEC", "")
    if not period.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(period) / 1_000_000


def inherited_listener(path: Path) -> socket.socket | None:
    """Return the listening socket at `path` that systemd made, None where there is none."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    for fd in range(_FIRST_FD, _FIRST_FD + int(os.environ.get("LISTEN_FDS") or 0)):
        with socket.socket(fileno=os.dup(fd)) as listener:
            known = (listener.family, listener.type) == (socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if known and listener.getsockname() == str(path):
                os.set_inheritable(fd, False)
                return socket.socket(fileno=fd)
    return None


#: Checks in the time after which systemd acts, and of them may pass without a sign of life.
_CHECKS: Final = 4
_SILENT: Final = 2


class Watchdog:
    """`beat` is called by the `threads`, `feed` every `period` seconds by the main thread."""

    def __init__(
        self, threads: Iterable[str], limit: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.period = limit / _CHECKS
        self._patience = limit * _SILENT / _CHECKS
        self._clock = clock
        self._beats = dict.fromkeys(threads, clock())
        self._stuck: list[str] = []

    def beat(self, thread: str) -> None:
        """Note that `thread` moves."""
        self._beats[thread] = self._clock()

    def feed(self, notify: Callable[[str], None]) -> None:
        """Feed the watchdog if every thread makes progress, and log which does not."""
        now = self._clock()
        stuck = [name for name, beat in self._beats.items() if now - beat > self._patience]
        if stuck and stuck != self._stuck:
            log("thread-hung", "error", threads=stuck)
        elif self._stuck and not stuck:
            log("thread-recovered")
        self._stuck = stuck
        if not stuck:
            notify("WATCHDOG=1")


class StartingSocket:
    """Listens on `path`, open to `read_gid` only if there is one; `open` ends the wait."""

    def __init__(self, path: Path, read_gid: int | None) -> None:
        self.path = path
        self.read_gid = read_gid
        self._host_users = HostUsers()
        inherited = inherited_listener(path)
        self.is_inherited = inherited is not None
        if inherited is not None:  # systemd made it root's, see gpushared.socket
            _set_mode(path, read_gid)
        self.listener = inherited or open_listener(path, read_gid)
        self.listener.setblocking(False)
        self._waiting: list[socket.socket] = []
        self._users: Counter[int] = Counter()  # connections by uid, also those that were closed
        self._opened = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = threading.Thread(
            target=self._send_starting, name="starting", daemon=True
        )
        self._thread.start()

    def open(self) -> list[socket.socket]:
        """Answer no more clients; return the connections of those that wait."""
        if self._thread is not None:
            os.eventfd_write(self._opened, 1)
            self._thread.join()
            self._thread = None
            os.close(self._opened)
        waiting, self._waiting = self._waiting, []
        return waiting

    def close(self) -> None:
        """Close every waiting connection; a socket of systemd stays."""
        for connection in self.open():
            connection.close()
        self.listener.close()
        if not self.is_inherited:
            self.path.unlink(missing_ok=True)

    def listen_again(self) -> None:
        """Create the socket again after it was deleted."""
        self.listener.close()
        self.is_inherited = False
        self.listener = open_listener(self.path, self.read_gid)

    def _send_starting(self) -> None:
        while True:
            awaited = [self._opened]
            if len(self._waiting) < _MOST_WAITING:
                awaited.append(self.listener.fileno())
            if self._opened in select.select(awaited, [], [])[0]:
                return
            with contextlib.suppress(OSError):  # it has gone, or there is no descriptor for it
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                _, uid = credentials(connection)
                has_room = has_room_for(uid, self._users, self._host_users)
                self._users[uid] += 1
                if not has_room:
                    connection.close()
                    continue
                self._waiting.append(connection)
                connection.send(_STARTING)


def has_room_for(uid: int, connections: Counter[int], users: HostUsers) -> bool:
    """Whether `connections`, by uid, leave room for one more of `uid`; root's are not limited."""
    if uid == 0:
        return True
    same = sum(count for other, count in connections.items() if users.are_one(uid, other))
    return same < _MOST_OF_ONE_USER and connections.total() - connections[0] < _MOST_OF_USERS


def open_listener(path: Path, read_gid: int | None) -> socket.socket:
    """Return a socket that listens on `path`, in the place of whatever was there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )
    # No client can connect before it listens, and by then it has its mode.
    listener.bind(str(path))
    _set_mode(path, read_gid)
    listener.listen(1024)
    return listener


def _set_mode(path: Path, read_gid: int | None) -> None:
    """Have the socket be for a group only, for every user where it is None."""
    if read_gid is None:
        path.chmod(0o666)
    else:
        path.chmod(0o600)  # at no moment accessible to others
        os.chown(path, 0, read_gid)
        path.chmod(0o660)
