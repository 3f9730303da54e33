# SPDX-License-Identifier: Apache-2.0
"""The records that processes leave behind which ended without a word, or became another program.

A process shows life by a lock on its record. That may be gone while the process goes on: programs
close descriptors that they did not open. So who has no lock is dead only if the process is gone, or
does not map the status file any more: it has become a program that does not use the driver
(execve(2) ends mappings and what the driver gave, and leaves pid and start time as they were).
"""

from __future__ import annotations

import time
from functools import cached_property
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.log import log
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.tenants import Pages

# A tenant may have a thousand processes with maps that take the kernel long to write. What cannot
# be looked into in this time is taken for alive, until a later look begins elsewhere.
_LOOK_SECONDS: Final = 0.02


def reap(entry: Entry, pages: Pages, cgroups: Cgroups) -> None:
    """Free what `entry`'s dead processes still claim to hold.

    Nothing happens to a tenant that is not bound: whose its processes are is not known yet.
    """
    if entry.state != "bound":
        return
    reaped = pages.reap(_Living(entry, pages, cgroups).is_alive)
    if reaped:
        log("processes-reaped", tenant=entry.key, processes=reaped)


class _Living:
    """A tenant's processes, looked for only where a record shows no life: mostly none does."""

    def __init__(self, entry: Entry, pages: Pages, cgroups: Cgroups) -> None:
        self._entry = entry
        self._pages = pages
        self._cgroups = cgroups
        self._maps: dict[int, bool] = {}  # pid -> whether it may map the status file
        self._seconds = 0.0  # spent on finding that out

    def is_alive(self, pid: int, starttime: int) -> bool:
        """Whether the process is there and may map the status file; as it numbers itself."""
        host_pid = self._pids.get((pid, starttime))
        if host_pid is None:
            return False
        if host_pid not in self._maps:
            self._maps[host_pid] = self._seconds >= _LOOK_SECONDS or self._may_map(host_pid)
        return self._maps[host_pid]

    def _may_map(self, pid: int) -> bool:
        began = time.monotonic()
        found = processes.may_map(pid, self._inode)
        self._seconds += time.monotonic() - began
        return found

    @cached_property
    def _pids(self) -> dict[tuple[int, int], int]:
        members = processes.members(self._entry.cgroup, self._entry.pid, self._cgroups)
        return {(member.namespaced_pid, member.starttime): member.pid for member in members}

    @cached_property
    def _inode(self) -> int:
        # Asked for by Pages.reap, which holds the lock.
        return self._pages.status.inode
