# SPDX-License-Identifier: Apache-2.0
"""A tenant's end: its allocation becomes available again.

The process *and* the cgroup decide: a tenant is released when its process has ended and its cgroup
is empty or gone. No message says so, for a runtime that was killed sends none.
All of this runs on the decide thread, and doing it twice has the effect of doing it once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime, wait_readable
from gpushare.daemon.freezer import Freezer, kill_unbound, runs_unbound
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import container_edits
from gpushare.daemon.lifecycle.driver_loader import take_over_changed_driver
from gpushare.daemon.node import NoDriver
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.tenants import LayoutMismatch, Pages, Tenants
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import PREFIX as CLAIM
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.host import cgroups
from gpushare.settings import MPS

_SHOWN_SECONDS: Final = 3600.0  # a container without a part of this node, whose cgroup is not known
_KILLED_SECONDS: Final = 1.0  # for the kernel to end a process that only waits
# After which what looked stranded is looked at again: much longer than crun takes between deleting
# a pipe and its last use.
_STRANDED_SECONDS: Final = 2.0
# Seconds between checks of a tenant's cgroup after its process exited; then `reconcile_tenants`
# takes over.
_AGAIN_SECONDS: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0)


def is_gone(record: TenantRecord, tenants: Tenants) -> bool:
    """Whether nothing of a tenant runs any more, or ever will."""
    if record.state != "bound":
        return is_abandoned(record)
    if processes.start_time(record.pid) == record.starttime:
        return False
    if record.cgroup:
        return not processes.Cgroups.mounted().is_populated(record.cgroup)
    # Without a cgroup of its own a tenant lives on in any process that still holds its pages.
    pages = tenants.pages.get(record.key)
    return pages is None or not pages.look(lambda held: held.status.is_held(), False)


def kill_abandoned_init(record: TenantRecord) -> None:
    """Kill a container's init process whose runtime was killed during `create`.

    No runtime knows of such a process, so nothing else would ever end it.
    """
    pidfd = processes.open_pidfd(record.pid, record.starttime)
    if pidfd is None:
        return
    try:
        if processes.is_stranded(record.pid):
            log(
                "tenant-start-abandoned", "warning", tenant=record.key, id=record.id, pid=record.pid
            )
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            wait_readable(pidfd, _KILLED_SECONDS)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def is_over(record: TenantRecord) -> bool:
    """Whether a container without a part of this node is no more, or has long been shown."""
    if not record.cgroup:
        return time.time() - record.created > _SHOWN_SECONDS
    return is_abandoned(record) and not runs_unbound(record)


def release_tenant(key: str, state: DaemonState, why: str) -> None:
    """Release tenant `key`, whatever its state."""
    record = state.ledger.entries.get(key)
    state.tenants.releasing(key)  # while there are still its pages
    state.loop.call(lambda: state.watch.forget(key))
    if record is not None:
        state.limits.clear(record)
    state.tenants.remove(key)
    # The record last: as long as the directory is there its memory counts as taken.
    state.mounts.remove(key)
    state.ledger.release(key)
    state.tenants.released(key)
    state.limits.forget_shortfalls(key)
    if record is None:
        return
    if record.engine == "host":
        cgroups.remove(record.id)
    if record.state != "none":
        log("tenant-released", **record.identity, reason=why)


def release_if_gone(key: str, state: DaemonState, why: str) -> bool:
    """Release a bound tenant of which nothing runs; False while something does."""
    record = state.ledger.entries.get(key)
    if record is None or record.state != "bound":
        return True
    if not is_gone(record, state.tenants):
        return False
    release_tenant(key, state, why)
    return True


def release_ended(state: DaemonState) -> bool:
    """Release what has ended and was not released yet; whether anything was.

    For a request that finds no room: the end of a process arrives on another thread, and the next
    container may be created first.
    """
    before = len(state.ledger.entries)
    for record in state.ledger.entries.values():
        with suppress(OSError):  # it keeps its allocation, and `reconcile_tenants` looks again
            if record.state == "bound":
                release_if_gone(record.key, state, "its process has ended")
            elif is_abandoned(record) and not runs_unbound(record):
                release_tenant(record.key, state, _why_abandoned(record))
    return len(state.ledger.entries) < before


def watch_process(record: TenantRecord, state: DaemonState) -> None:
    """See that the end of a bound tenant's process is noticed, be it in the past.

    A reservation goes with its maker: a runtime, or the caller of `gpushare run`. It is bound
    before that runtime ends, or its launcher: afterwards nothing binds it, and the reservation need
    not wait for `timing.bind_timeout_seconds`. A restarted daemon knows it too.
    """
    bound, maker = (record.pid, record.starttime), (record.maker, record.maker_starttime)
    pidfd = processes.open_pidfd(*(bound if record.state == "bound" else maker))
    if pidfd is None:
        state.decide.submit(lambda: handle_process_end(record.key, state))
    else:
        state.loop.soon(lambda: state.watch.process(record.key, pidfd))


def is_abandoned(record: TenantRecord) -> bool:
    """Whether the process that is to bind a reservation has ended."""
    return record.maker != 0 and processes.start_time(record.maker) != record.maker_starttime


def _why_abandoned(record: TenantRecord) -> str:
    return f"its {'command' if record.engine == 'host' else 'runtime'} has ended"


def _end_if_abandoned(record: TenantRecord, state: DaemonState, attempt: int) -> None:
    """Release an abandoned reservation, or have ended first what was created for it."""
    if not is_abandoned(record):
        return
    if not runs_unbound(record):
        release_tenant(record.key, state, _why_abandoned(record))
    elif attempt < len(_AGAIN_SECONDS):
        again = partial(handle_process_end, record.key, state, attempt + 1)
        kill_unbound(record, state.freezing, lambda: state.decide.submit(again))


def handle_process_end(key: str, state: DaemonState, attempt: int = 0) -> None:
    """Release tenant `key`, whose process has ended, as soon as its cgroup is empty too.

    Of one that is only reserved the process is its runtime.
    """
    record = state.ledger.entries.get(key)
    if record is not None and record.state == "reserved":
        _end_if_abandoned(record, state, attempt)
        return
    try:
        if release_if_gone(key, state, "its process has ended") or attempt >= len(_AGAIN_SECONDS):
            return
    except OSError as error:
        log("tenant-release-failed", "error", tenant=key, error=str(error))
        return  # `reconcile_tenants` tries again
    again = partial(handle_process_end, key, state, attempt + 1)
    state.loop.after(_AGAIN_SECONDS[attempt], lambda: state.decide.submit(again))


def reconcile_tenants(state: DaemonState, freezer: Freezer) -> None:
    """Look at every entry: release what is gone, expire what was never bound, set right the rest.

    One that cannot be released keeps its allocation, and is looked at again; the others do not
    wait.
    """
    for record in state.ledger.entries.values():
        try:
            _look_again(record, state)
        except OSError as error:
            log("tenant-release-failed", "error", **record.named, error=str(error))
    state.freezing.submit(freezer.enforce)
    state.ledger.settle()
    state.ledger.integrity.look()
    state.limits.retry()
    state.names.submit(lambda: container_edits.sweep_compat(state.node, state.ledger))
    with suppress(NoDriver):  # kept in node.driver_fault, which status shows
        take_over_changed_driver(state.node)


def _look_again(record: TenantRecord, state: DaemonState) -> None:
    if record.state == "bound":
        if processes.is_stranded(record.pid):  # unless it turns out that it is just being started
            again = partial(kill_abandoned_init, record)
            state.loop.after(_STRANDED_SECONDS, lambda: state.decide.submit(again))
        release_if_gone(record.key, state, "it is gone")
    elif record.state == "reserved" and is_abandoned(record):
        _end_if_abandoned(record, state, 0)
    # The cgroup is read last: for each of 200 reservations, all starts would wait for seconds.
    elif record.state == "reserved" and boottime() >= record.expires and not runs_unbound(record):
        release_tenant(record.key, state, "it did not start in time")
    elif record.state == "none" and is_over(record):
        state.ledger.release(record.key)


def adopt_tenants(state: DaemonState, freezer: Freezer) -> None:
    """Take over the tenants that an earlier daemon left running, and remove leftover folders."""
    for record in state.ledger.entries.values():
        if record.state == "none" or not _adopt_pages(record, state):
            continue
        if record.state == "bound" or record.maker:
            watch_process(record, state)
        if record.state == "bound":  # the driver, or its limits, may have changed
            state.limits.hold(record)
        log("tenant-adopted", **record.identity, state=record.state)
    orphans = [key for key in state.mounts.made() if key not in state.ledger.entries]
    refuse_unknown([key for key in orphans if _has_pages(key, state.mounts)], state.ledger)
    for key in orphans if state.ledger.integrity.is_kept else ():
        _remove_orphan(key, state.mounts)
    state.freezing.run(freezer.adopt)


def _has_pages(key: str, mounts: TenantMounts) -> bool:
    """Whether a directory has pages; not after a reboot, or a start that was interrupted."""
    try:
        directory = mounts.open(key)
    except OSError:
        return False
    try:
        return bool(os.listdir(directory))  # noqa: PTH208 - a descriptor
    finally:
        os.close(directory)


def _remove_orphan(key: str, mounts: TenantMounts) -> None:
    """Remove a directory that the ledger does not know.

    A container that has the pages keeps them, and with them the quota that the library enforces.
    """
    log("directory-orphan-removed", "warning", tenant=key)
    try:
        mounts.remove(key)
    except OSError as error:
        log("directory-removal-failed", "error", tenant=key, error=str(error))


def _adopt_pages(record: TenantRecord, state: DaemonState) -> bool:
    """Open a tenant's pages again; an entry without its pages is kept, for its memory is in use."""
    if not record.shared:
        return True
    try:
        pages = Pages.adopt(state.mounts.open(record.key))
        state.tenants.add(record.key, pages)
        _write_again(record, pages)
        tenant_socket = TenantSocket.listen(record.key, pages.directory)
    except LayoutMismatch as error:
        # A daemon that knows them may come back. Until then their allocations stay.
        log("tenant-pages-incompatible", "warning", **record.named, error=str(error))
        return True
    except OSError as error:
        log("tenant-pages-lost", "error", **record.named, error=str(error))
        state.tenants.remove(record.key)
        if record.state == "reserved":
            release_tenant(record.key, state, "its pages are lost")
            return False
        return True
    state.loop.call(lambda: state.watch.listen(tenant_socket))
    return True


def _write_again(record: TenantRecord, pages: Pages) -> None:
    """Have the pages say what the ledger does: a daemon may have ended between the two."""
    if record.state == "bound":
        pages.grant.set_bound()
    pages.grant.set_mps(is_client=record.isolation == MPS)
    pages.grant.set_evicted(evicted=record.eviction is not None)
    for number, allocation in enumerate(record.allocations):
        written = pages.grant.memory_bytes(number), pages.grant.limit_bytes(number)
        limit_bytes = max(allocation.quota_bytes, min(written[1], allocation.burst_limit_bytes))
        if written != (allocation.quota_bytes, limit_bytes):
            pages.write_limit(number, allocation.quota_bytes, limit_bytes)
        pages.grant.set_cores(number, allocation.cores)


# --- what an earlier daemon left: pages without a record ---
#
# Pages are removed before their record, so pages without one were a tenant's. If it still runs, its
# processes count as non-tenants until it is started again.


def refuse_unknown(pages: Sequence[str], ledger: Ledger) -> None:
    """Refuse new reservations if existing ones are not known; `pages` have no record."""
    for key in pages:
        if key not in ledger.unknown:
            ledger.integrity.add(f"the pages {key} have no record")
    for key, why in ledger.unknown.items():
        whose = key.replace("-", " ", 1) if key.startswith(CLAIM) else f"tenant {key}"
        ledger.integrity.add(f"the record of {whose} and its copy are lost ({why})")
    if pages and not ledger.is_complete:
        why = "the ledger and its copies were removed: whole cards may be in use"
        ledger.integrity.add(why)
    if ledger.integrity.is_kept:
        # On a full disk this fails, and the next daemon finds the same state.
        with suppress(OSError):
            ledger.confirm()
