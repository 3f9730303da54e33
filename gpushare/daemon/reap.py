# SPDX-License-Identifier: Apache-2.0
"""The records that processes leave behind which ended without a word."""

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
    alive = {
        (process.namespaced_pid, process.starttime)
        for process in processes.members(entry.cgroup, entry.pid, cgroups)
    }
    reaped = pages.reap(lambda pid, starttime: (pid, starttime) in alive)
    if reaped:
        log("processes-reaped", tenant=entry.key, processes=reaped)
