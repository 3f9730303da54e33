# SPDX-License-Identifier: Apache-2.0
"""The records that processes leave behind which ended without a word, or became another program.

A process shows life by a lock on its record. That may be gone while the process goes on: programs
close descriptors that they did not open. So who has no lock is dead only if the process is gone, or
does not map the status file any more: it has become a program that does not use the driver
(execve(2) ends mappings and what the driver gave, and leaves pid and start time as they were).
"""

from __future__ import annotations

from gpushare.daemon import processes
from gpushare.daemon.ledger import Entry
from gpushare.daemon.log import log
from gpushare.daemon.processes import Cgroups
from gpushare.daemon.tenants import Pages


def reap(entry: Entry, pages: Pages, cgroups: Cgroups) -> None:
    """Free what `entry`'s dead processes still claim to hold.

    Nothing happens to a tenant that is not bound: whose its processes are is not known yet.
    """
    if entry.state != "bound" or not pages.claims():
        return
    living = {
        (process.namespaced_pid, process.starttime): process.pid
        for process in processes.members(entry.cgroup, entry.pid, cgroups)
    }
    inode = pages.look(lambda held: held.status.inode, 0)

    def is_alive(pid: int, starttime: int) -> bool:
        host_pid = living.get((pid, starttime))
        return host_pid is not None and processes.may_map(host_pid, inode)

    reaped = pages.reap(is_alive)
    if reaped:
        log("processes-reaped", tenant=entry.key, processes=reaped)
