# SPDX-License-Identifier: Apache-2.0
"""The bind operation: a reservation gets its process, and from now on lasts as long as it.

The hook sends it while the runtime waits for the hook, so the process cannot have ended and its pid
cannot have been given again.
"""

from __future__ import annotations

from gpushare.daemon import backends
from gpushare.daemon.compute import shares
from gpushare.daemon.identity import naming, processes
from gpushare.daemon.life import release
from gpushare.daemon.log import log
from gpushare.daemon.memory import hard_limit
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.errors import UserError


class NoSuchTenant(UserError):
    """There is no reservation by that key, or it is another's."""


class NotHeld(UserError):
    """What was asked to hold the quota does not."""


def bind(key: str, identity: str, pid: int, peer_pid: int, node: Node) -> Entry:
    """Bind tenant `key` to process `pid`; a second time for the same process changes nothing.

    NoSuchTenant: it expired, or `identity` or `pid` is not its own. NotHeld: see there.
    """
    entry = owned_entry(key, identity, node)
    process = processes.look(pid)
    if process is None:
        raise NoSuchTenant(f"there is no process {pid} to bind {entry.title} to")
    if entry.state == "bound":
        if (entry.pid, entry.starttime) != (pid, process.starttime):
            raise NoSuchTenant(f"{entry.title} is bound to process {entry.pid} already")
        return entry
    cgroup = _cgroup(entry, pid, peer_pid)
    bound = node.ledger.bind(key, pid=pid, starttime=process.starttime, cgroup=cgroup)
    release.watch_process(bound, node)
    bound = _hold(bound, node)
    # With the answer, and its name too: a thread that is woken now takes the interpreter from us.
    node.loop.soon(lambda: shares.tell(node))
    log(
        "tenant-bound",
        tenant=key,
        id=bound.id,
        name=bound.title,
        pid=pid,
        cgroup=cgroup,
        isolation=bound.isolation,
    )
    if not bound.name:
        node.loop.soon(lambda: node.names.submit(lambda: naming.learn(key, node)))
    return bound


def _hold(entry: Entry, node: Node) -> Entry:
    """Have the driver hold the quota, where it can; NotHeld where it must and does not.

    The tenant is bound by then: what was set is cleared with it, whatever happens in between.
    """
    isolation = hard_limit.impose(entry, node)
    if isolation != entry.isolation:
        entry = node.ledger.isolate(entry.key, isolation)
    if isolation != backends.DRIVER == backends.asked(entry):
        raise NotHeld(
            f"{entry.title} asks for backend driver, and the driver does not hold its limits (why: "
            "driver-limits-failed in gpushared's log); leave backend out: the interposer holds them"
        )
    return entry


def owned_entry(key: str, identity: str, node: Node) -> Entry:
    """Return the entry of `key`, which must be of container `identity`; NoSuchTenant otherwise."""
    entry = node.ledger.entries.get(key)
    if entry is None or entry.state == "none" or entry.id != identity:
        raise NoSuchTenant(
            f"nothing is reserved for {identity} (any more): it took longer than "
            f"{node.config.timing.bind:g} s to start (timing.bind), or gpushared was reinstalled"
        )
    return entry


def _cgroup(entry: Entry, pid: int, peer_pid: int) -> str:
    """Return the cgroup that is the tenant's alone, "" where it has none."""
    if entry.engine == "host":
        # Made by `gpushare run` itself; any other is shared with the user's other programs.
        own = f"/gpushare/{entry.id}"
        found = processes.cgroups_of(pid)
        return next((f"{name}:{path}" for name, path in found.items() if path == own), "")
    others = processes.cgroups_of(peer_pid) if peer_pid != pid else {}
    return processes.own_cgroup(pid, others)
