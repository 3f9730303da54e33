# SPDX-License-Identifier: Apache-2.0
"""The control socket before the daemon is ready: who comes is told so at once, and waits.

A node that boots starts its containers and its daemon at the same time, and a driver may take
seconds to be loaded. Whoever has been told waits for as long as a start may take; whoever was told
nothing gives up after a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path
from typing import Final

from gpushare import protocol
from gpushare.daemon.service import systemd

_STARTING: Final = protocol.encode({"starting": True})
_MOST_WAITING: Final = 1024  # the others wait in the listener's backlog, untold


class Door:
    """Listens on `path`, readable for `read_gid` only where one is given; `open` ends the wait."""

    def __init__(self, path: Path, read_gid: int | None) -> None:
        self.path = path
        self.read_gid = read_gid
        inherited = systemd.inherited_listener(path)
        self.is_inherited = inherited is not None
        if inherited is not None:  # systemd made it root's, see gpushared.socket
            _let(path, read_gid)
        self.listener = inherited or listen(path, read_gid)
        self.listener.setblocking(False)
        self._waiting: list[socket.socket] = []
        self._opened = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread: threading.Thread | None = threading.Thread(
            target=self._tell, name="door", daemon=True
        )
        self._thread.start()

    def open(self) -> list[socket.socket]:
        """Tell nobody any more; return the connections of those who wait."""
        if self._thread is not None:
            os.eventfd_write(self._opened, 1)
            self._thread.join()
            self._thread = None
            os.close(self._opened)
        waiting, self._waiting = self._waiting, []
        return waiting

    def close(self) -> None:
        """Turn everybody away; a socket that is systemd's stays."""
        for connection in self.open():
            connection.close()
        self.listener.close()
        if not self.is_inherited:
            self.path.unlink(missing_ok=True)

    def regroup(self, read_gid: int | None) -> None:
        """Have the socket be for `read_gid` only, for everybody where it is None."""
        self.read_gid = read_gid
        _let(self.path, read_gid)

    def listen_again(self) -> None:
        """Make the socket anew, which somebody has deleted."""
        self.listener.close()
        self.is_inherited = False
        self.listener = listen(self.path, self.read_gid)

    def _tell(self) -> None:
        while True:
            awaited = [self._opened]
            if len(self._waiting) < _MOST_WAITING:
                awaited.append(self.listener.fileno())
            if self._opened in select.select(awaited, [], [])[0]:
                return
            with contextlib.suppress(OSError):  # it has gone, or there is no descriptor for it
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                self._waiting.append(connection)
                connection.send(_STARTING)


def listen(path: Path, read_gid: int | None) -> socket.socket:
    """Return a socket that listens on `path`, in the place of whatever was there."""
    path.unlink(missing_ok=True)
    listener = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )
    # Nobody can connect before it listens, and by then it has its mode.
    listener.bind(str(path))
    _let(path, read_gid)
    listener.listen(1024)
    return listener


def _let(path: Path, read_gid: int | None) -> None:
    """Have the socket be for a group only, for everybody where it is None."""
    if read_gid is None:
        path.chmod(0o666)
    else:
        path.chmod(0o600)  # nobody else's for an instant
        os.chown(path, 0, read_gid)
        path.chmod(0o660)
