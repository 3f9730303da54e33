# SPDX-License-Identifier: Apache-2.0
"""A tenant's end: what it was promised is free again.

Truth is the process *and* the cgroup: released when the one has ended and the other is empty or
gone. A poststop hook is a hint to look; a runtime that was killed never sends it. All of this runs
on the decide thread, and doing it twice is as doing it once.
"""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Final

from gpushare.daemon import clock
from gpushare.daemon.cards import upgrade
from gpushare.daemon.compute import shares
from gpushare.daemon.identity import processes
from gpushare.daemon.life import parts, recover
from gpushare.daemon.log import log
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.node import Node
from gpushare.daemon.pages.grant import OtherLayout
from gpushare.daemon.service.tenant_socket import TenantSocket
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.tenants import Pages
from gpushare.host import cgroups

_KILLED_SECONDS: Final = 1.0  # for the kernel to end a process that only waits
# How long after its process a tenant's cgroup is looked at again; then `reconcile` goes on.
_AGAIN_SECONDS: Final = (0.01, 0.05, 0.2, 0.5, 1.0, 2.0, 4.0)


def is_gone(entry: Entry, node: Node) -> bool:
    """Whether nothing of a bound tenant runs any more."""
    pidfd = processes.open_pidfd(entry.pid, entry.starttime)
    if pidfd is not None:
        os.close(pidfd)
        return False
    if entry.cgroup:
        return not processes.Cgroups.mounted().is_populated(entry.cgroup)
    # Without a cgroup of its own a tenant lives on in any process that still holds its pages.
    pages = node.tenants.pages.get(entry.key)
    return pages is None or not pages.look(lambda held: held.status.is_held(), False)


def kill_stranded(entry: Entry) -> None:
    """End a bound tenant's process where it can never become its program.

    Its runtime was killed while it made the container and does not know of it: nobody else would.
    """
    pidfd = processes.open_pidfd(entry.pid, entry.starttime)
    if pidfd is None:
        return
    try:
        if processes.is_stranded(entry.pid):
            log("tenant-stranded", "warning", tenant=entry.key, id=entry.id, pid=entry.pid)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [], _KILLED_SECONDS)
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)


def has_ended_with_none(entry: Entry) -> bool:
    """Whether it is a container that got no GPU and is no more: its bundle goes with it."""
    return entry.state == "none" and not Path(entry.bundle).is_dir()


def end(key: str, node: Node, why: str) -> None:
    """Release tenant `key`, whatever its state."""
    entry = node.ledger.entries.get(key)
    node.loop.call(lambda: node.watch.forget(key))
    if entry is not None:
        hard_limit.lift(entry, node)
    node.tenants.remove(key)
    # The promise last: as long as the directory is there its memory counts as taken.
    node.mounts.remove(key)
    node.ledger.release(key)
    node.lacked.forget(key)
    if entry is None:
        return
    shares.tell(node)
    if entry.engine == "host":
        cgroups.remove(entry.id)
    if entry.state != "none":
        log("tenant-released", tenant=key, id=entry.id, name=entry.title, why=why)


def end_if_gone(key: str, node: Node, why: str) -> bool:
    """Release a bound tenant of which nothing runs; False while something does."""
    entry = node.ledger.entries.get(key)
    if entry is None or entry.state != "bound":
        return True
    if not is_gone(entry, node):
        return False
    end(key, node, why)
    return True


def watch_process(entry: Entry, node: Node) -> None:
    """See that the end of a bound tenant's process is noticed, be it in the past."""
    pidfd = processes.open_pidfd(entry.pid, entry.starttime)
    if pidfd is None:
        node.decide.submit(lambda: process_ended(entry.key, node))
    else:
        node.loop.soon(lambda: node.watch.process(entry.key, pidfd))


def watch_maker(entry: Entry, node: Node) -> None:
    """See that a reservation goes with its maker, the runtime that is to make its container.

    The hook that binds it runs before that runtime ends: afterwards nobody will, and what was
    promised need not wait for `timing.bind`. A daemon that is started anew knows it too.
    """
    pidfd = processes.open_pidfd(entry.maker, entry.maker_starttime)
    if pidfd is None:
        end(entry.key, node, "its runtime has ended")
        return
    node.loop.soon(lambda: node.watch.process(entry.key, pidfd))


def is_abandoned(entry: Entry) -> bool:
    """Whether the runtime that was to make a reservation's container has ended."""
    return entry.maker != 0 and processes.since(entry.maker) != entry.maker_starttime


def _end_if_abandoned(entry: Entry, node: Node) -> None:
    if is_abandoned(entry):
        end(entry.key, node, "its runtime has ended")


def process_ended(key: str, node: Node, attempt: int = 0) -> None:
    """Release tenant `key`, whose process has ended, as soon as its cgroup is empty too.

    Of one that is only reserved the process is its runtime.
    """
    entry = node.ledger.entries.get(key)
    if entry is not None and entry.state == "reserved":
        _end_if_abandoned(entry, node)
        return
    try:
        if end_if_gone(key, node, "its process has ended") or attempt >= len(_AGAIN_SECONDS):
            return
    except OSError as error:
        log("release-failed", "error", tenant=key, error=str(error))
        return  # `reconcile` tries again

    def again() -> None:
        node.decide.submit(lambda: process_ended(key, node, attempt + 1))

    node.loop.call(lambda: node.loop.later(_AGAIN_SECONDS[attempt], again))


def reconcile(node: Node) -> None:
    """Look at every entry: release what is gone, expire what was never bound, set right the rest.

    One that cannot be released keeps its promise, and is looked at again; the others do not wait.
    """
    for entry in node.ledger.entries.values():
        try:
            _look_again(entry, node)
        except OSError as error:
            log("release-failed", "error", tenant=entry.key, name=entry.title, error=str(error))
    node.freezer.set_right()
    node.ledger.settle()
    node.doubt.look()
    recover.listen_again(node)
    hard_limit.set_right(node)
    parts.sweep_compat(node)
    upgrade.watch(node)


def _look_again(entry: Entry, node: Node) -> None:
    if entry.state == "bound":
        kill_stranded(entry)
        end_if_gone(entry.key, node, "it is gone")
    elif entry.state == "reserved" and clock.boottime() >= entry.expires:
        end(entry.key, node, "it did not start in time")
    elif entry.state == "reserved":
        _end_if_abandoned(entry, node)
    elif has_ended_with_none(entry):
        node.ledger.release(entry.key)


def adopt(node: Node) -> None:
    """Take over the tenants that an earlier daemon left running, and sweep what is nobody's."""
    for entry in node.ledger.entries.values():
        if entry.state == "none" or not _adopt_pages(entry, node):
            continue
        if entry.state == "bound":
            watch_process(entry, node)
            _hold_again(entry, node)
        elif entry.maker:
            watch_maker(entry, node)
        log("tenant-adopted", tenant=entry.key, id=entry.id, name=entry.title, state=entry.state)
    strangers = {
        key: _recover(key, node)
        for key in node.mounts.made()
        if key not in node.ledger.entries and not _sweep(key, node)
    }
    recover.settle_doubts(strangers, node)
    node.freezer.adopt()
    shares.settle(node)


def _hold_again(entry: Entry, node: Node) -> None:
    """Set the limits in the driver anew: it, or what it holds, may be another by now."""
    isolation = hard_limit.impose(entry, node)
    if isolation != entry.isolation:
        node.ledger.isolate(entry.key, isolation)


def _sweep(key: str, node: Node) -> bool:
    """Remove a directory that the ledger does not know; False where somebody still uses it."""
    try:
        directory = node.mounts.open(key)
    except OSError:
        used = False  # a start that was interrupted before anything was mounted
    else:
        used = recover.is_used(directory)
        os.close(directory)
    log("directory-unknown", "error" if used else "warning", tenant=key, used=used)
    if used:
        return False
    try:
        node.mounts.remove(key)
    except OSError as error:
        log("directory-left", "error", tenant=key, error=str(error))
    return True


def _recover(key: str, node: Node) -> bool:
    """Take over a tenant of whom there are only its pages; False where they do not say enough."""
    directory = node.mounts.open(key)
    try:
        entry = recover.recovered(key, directory, node)
    finally:
        os.close(directory)
    if entry is None or not _adopt_pages(entry, node):
        return False
    watch_process(entry, node)
    return True


def _adopt_pages(entry: Entry, node: Node) -> bool:
    """Open a tenant's pages again; an entry without its pages is kept, for its memory is in use."""
    if not entry.shared:
        return True
    try:
        pages = Pages.adopt(node.mounts.open(entry.key))
        node.tenants.add(entry.key, pages)
        _write_again(entry, pages)
        tenant_socket = TenantSocket.listen(entry.key, pages.directory)
    except OtherLayout as error:
        # A daemon that knows them may come back. Until then they hold what they promised.
        log("pages-other", "warning", tenant=entry.key, name=entry.title, error=str(error))
        return True
    except OSError as error:
        log("pages-lost", "error", tenant=entry.key, name=entry.title, error=str(error))
        node.tenants.remove(entry.key)
        if entry.state == "reserved":
            end(entry.key, node, "its pages are lost")
            return False
        return True
    node.loop.call(lambda: node.watch.hear(tenant_socket))
    return True


def _write_again(entry: Entry, pages: Pages) -> None:
    """Have the pages say what the ledger does: a daemon may have ended between the two."""
    for number, holding in enumerate(entry.holdings):
        found = pages.grant.memory_bytes(number), pages.grant.limit_bytes(number)
        limit_bytes = max(holding.memory_bytes, min(found[1], holding.most_bytes))
        if found != (holding.memory_bytes, limit_bytes):
            pages.write_limit(number, holding.memory_bytes, limit_bytes)
        pages.grant.set_cores(number, holding.cores)
