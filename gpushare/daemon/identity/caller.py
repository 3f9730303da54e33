# SPDX-License-Identifier: Apache-2.0
"""Whether who asks on the control socket is a container's process, whatever its uid says.

Root in a container without a user namespace is uid 0 to the kernel as well. Nobody mounts the
control socket into a container but an operator by mistake; what is asked from there is asked by a
tenant all the same, and those have a socket of their own. A process is a tenant's by its cgroup,
which it cannot leave, while it lives: one that connects and ends, so that its number is another's
by the time it is looked up, is not believed either.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Mapping
from typing import Final, Literal

from gpushare.daemon.identity import processes
from gpushare.daemon.store.ledger import Entry

_SO_PEERPIDFD: Final = 77  # asm-generic/socket.h, since Linux 6.5

Place = Literal["host", "tenant", "gone"]


def place_of(connection: socket.socket, pid: int, entries: Mapping[str, Entry]) -> Place:
    """Return where the process lives that connected; `pid` is its number (SO_PEERCRED).

    A process of another pid namespace has no number here, and is taken to be the host's: every
    container's process has one where gpushared runs.
    """
    if not pid:
        return "host"
    pidfd = _pidfd(connection, pid)
    if pidfd is None:
        return "gone"
    try:
        paths = processes.cgroups_of(pid)
        if not paths or _has_ended(pidfd):
            return "gone"
    finally:
        os.close(pidfd)
    return "tenant" if any(_is_of(entry, paths) for entry in entries.values()) else "host"


def _is_of(entry: Entry, paths: Mapping[str, str]) -> bool:
    """Whether a process at `paths` is a tenant's; a command of `gpushare run` is of this host."""
    hierarchy, _, path = entry.cgroup.partition(":")
    if not path or entry.engine == "host":
        return False
    found = paths.get(hierarchy, "/")
    return found == path or found.startswith(f"{path}/")


def _pidfd(connection: socket.socket, pid: int) -> int | None:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass  # before 6.5, or the process is gone: then the next fails too
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
