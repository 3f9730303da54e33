# SPDX-License-Identifier: Apache-2.0
"""The records that processes leave behind which ended without a word, or became another program.

A process shows life by a lock on its record. That may be gone while the process lives: programs
close descriptors that they did not open. A record without a lock is dead only if its process is
gone, or does not map the status file any more: it has become a program that does not use the driver
(execve(2) ends mappings and what the driver gave, and leaves pid and start time as they were).

A tenant may have twenty thousand processes, and write records of dead ones without an end. So its
processes are looked at for `TENANT_SECONDS` in a pass over all tenants, and all of them for
`PASS_SECONDS`. The next pass goes on where this one stopped: a record is freed once all processes
that were there when the search began were looked at. That may take a tenant with many processes
longer, and no other tenant.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.store.record import TenantRecord

#: Of the processor: a thread that waits for its turn has not looked at anything.
TENANT_SECONDS: Final = 0.01
PASS_SECONDS: Final = 0.05
# A tenant may have a thousand processes with maps that take the kernel long to write. What cannot
# be looked into in this time is taken for alive, until a later look begins elsewhere.
_LOOK_SECONDS: Final = 0.02


def free_dead_records(record: TenantRecord, pages: Pages) -> None:
    """Free what `record`'s dead processes still claim to hold, as far as one look can tell.

    Nothing happens to a tenant that is not bound: its processes are not known yet.
    """
    _free(_Search(record, pages), record, pages, time.thread_time() + _LOOK_SECONDS)


class DeadRecords:
    """The searches of all tenants, from pass to pass; the truth thread's."""

    def __init__(self) -> None:
        self._searches: dict[str, _Search] = {}
        self._next = ""  # the key with which a pass begins

    def look(self, records: Mapping[str, TenantRecord], pages: Mapping[str, Pages]) -> None:
        """Free the records of dead processes, in the time that one pass has."""
        keys = sorted(pages.keys() & records.keys())
        self._searches = {key: self._searches[key] for key in keys if key in self._searches}
        first = next((place for place, key in enumerate(keys) if key >= self._next), 0)
        until = time.thread_time() + PASS_SECONDS
        for key in keys[first:] + keys[:first]:
            now = time.thread_time()
            if now >= until:
                self._next = key
                return
            search = self._searches.get(key) or _Search(records[key], pages[key])
            try:
                done = _free(search, records[key], pages[key], now + TENANT_SECONDS)
            except OSError as error:  # the others do not wait for it
                log("process-records-free-failed", "error", tenant=key, error=str(error))
                done = True
            if done:
                self._searches.pop(key, None)
            else:
                self._searches[key] = search


def _free(search: _Search, record: TenantRecord, pages: Pages, until: float) -> bool:
    """Go on with a search until it is over, and free what it found dead; False: it is not over."""
    if record.state != "bound" or not pages.has_unlocked(until):
        return True
    if not search.go_on(until):
        return False
    reaped = pages.reap(search.is_alive)
    if reaped:
        log("process-records-freed", tenant=record.key, processes=reaped)
    return True


class _Search:
    """Looks for a tenant's processes, which is rarely needed: they hold their locks."""

    def __init__(self, record: TenantRecord, pages: Pages) -> None:
        self._record = record
        self._pages = pages
        self._left: Iterator[int] | None = None
        self._began = 0  # in ticks since boot
        self._pids: dict[tuple[int, int], int] = {}  # by pid as it numbers itself, and start time
        self._maps: dict[int, bool] = {}  # pid -> whether it may map the status file
        self._seconds = 0.0  # spent on finding that out

    def go_on(self, until: float) -> bool:
        """Look at more of the processes, at one at least; True when all were looked at."""
        if self._left is None:
            self._began = int(boottime() * processes.TICKS_PER_SECOND)
            record, cgroups = self._record, Cgroups.mounted()
            self._left = processes.pids_of(record.cgroup, record.pid, cgroups)
        for pid in self._left:
            process = processes.find_process(pid)
            if process is not None:
                self._pids[process.namespaced_pid, process.starttime] = pid
            if time.thread_time() >= until:
                return False
        return True

    def is_alive(self, pid: int, starttime: int) -> bool:
        """Whether the process is there and may map the status file; as it numbers itself."""
        host_pid = self._pids.get((pid, starttime))
        if host_pid is None:
            return starttime >= self._began  # then it may have come since
        if host_pid not in self._maps:
            self._maps[host_pid] = self._seconds >= _LOOK_SECONDS or self._may_map(host_pid)
        return self._maps[host_pid]

    def _may_map(self, pid: int) -> bool:
        began = time.thread_time()
        # Called by Pages.reap, which holds the lock.
        found = processes.may_map(pid, self._pages.status.inode)
        self._seconds += time.thread_time() - began
        return found
