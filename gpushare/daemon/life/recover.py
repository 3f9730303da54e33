# SPDX-License-Identifier: Apache-2.0
"""A tenant that neither the ledger nor a copy knows: taken from its pages, and from who has them.

Its grant page says what it was promised, in our own words: no tenant can write there. Who has the
tmpfs of the pages in its mount namespace is the tenant's, whatever it says of itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final

from gpushare.daemon import backends
from gpushare.daemon.identity import mounted, processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.log import log
from gpushare.daemon.node import Node
from gpushare.daemon.pages.grant import Grant
from gpushare.daemon.pages.status import Status
from gpushare.daemon.policy.reservation import FIXED
from gpushare.daemon.service.tenant_socket import TenantSocket
from gpushare.daemon.store.entry import Entry, Holding

#: A container's id as systemd's cgroups have it, ENGINE-ID.scope; cgroupfs has it as it is.
_SCOPE: Final = re.compile(r"(?:cri-containerd|[a-z]+)-(.+)\.scope")
_ID: Final = re.compile(r"[A-Za-z0-9_][\w+.-]{0,127}", re.ASCII)
_BEST_EFFORT: Final = "best-effort"
_WHY: Final = "its entry was lost; taken from its pages"


def is_used(directory: int) -> bool:
    """Whether anybody has the pages open at `directory`, or has them mounted."""
    return _is_held(directory) or bool(mounted.who_has(os.fstat(directory).st_dev))


def recovered(key: str, directory: int, node: Node) -> Entry | None:
    """Return the entry that the pages at `directory` speak of; None where they do not say enough.

    Never less than was promised: cores count as guaranteed, for the policy is not known.
    """
    who = _first(mounted.who_has(os.fstat(directory).st_dev))
    try:
        holdings = _holdings(Grant.adopt(directory))
    except (OSError, ValueError) as error:
        log("pages-lost", "error", tenant=key, name=key, error=str(error))
        return None
    if who is None or not holdings:
        return None
    cgroup = processes.own_cgroup(who.pid, processes.cgroups_of(os.getpid()))
    entry = Entry(
        key=key,
        state="bound",
        id=_id(cgroup) or key,
        name="",
        engine="host" if cgroup.partition(":")[2].startswith("/gpushare/host-") else "runc",
        uid=processes.owner_of(who.pid) or 0,
        policy=FIXED if holdings[0].cores else _BEST_EFFORT,
        isolation=backends.INTERPOSER,
        notes=(_WHY,),
        created=time.time(),
        pid=who.pid,
        starttime=who.starttime,
        cgroup=cgroup,
        holdings=holdings,
    )
    log(
        "tenant-recovered",
        "warning",
        tenant=key,
        id=entry.id,
        pid=entry.pid,
        memory_bytes=holdings[0].memory_bytes,
        cards=len(holdings),
    )
    node.ledger.add(entry)
    return entry


def settle_doubts(strangers: Mapping[str, bool], node: Node) -> None:
    """Promise nothing more where it is not known what is promised.

    `strangers` are the keys of used pages that no entry was of: whether they have one now.
    """
    for key, is_known in strangers.items():
        if not is_known:
            node.doubt.add(f"pages {key} are in use, and do not say what was promised with them")
    for key in node.ledger.unknown:
        if key not in node.ledger.entries:
            node.doubt.add(f"what tenant {key} had is lost: its entry and its copy are damaged")
    if strangers and not node.ledger.is_complete:
        node.doubt.add("the ledger was gone and its copies too: whole cards may be in use")
    if node.doubt.is_kept:
        # A full disk does not take it: then the next daemon finds the same.
        with contextlib.suppress(OSError):
            node.ledger.confirm()


def listen_again(node: Node) -> None:
    """Make a tenant's socket again where somebody has removed it."""
    for key, pages in node.tenants.pages.items():
        if TenantSocket.is_there(pages.directory):
            continue
        log("socket-lost", "warning", tenant=key)
        try:
            tenant_socket = TenantSocket.listen(key, pages.directory)
        except OSError as error:
            log("pages-lost", "error", tenant=key, name=key, error=str(error))
            continue
        node.loop.call(lambda made=tenant_socket: node.watch.hear(made))  # type: ignore[misc]


def _is_held(directory: int) -> bool:
    try:
        status = Status(directory)
    except OSError:
        return False
    try:
        return status.is_held()
    finally:
        status.close()


def _holdings(grant: Grant) -> tuple[Holding, ...]:
    """Return what a grant page promises; ValueError where it is none."""
    return tuple(_holding(grant, number) for number in range(grant.card_count))


def _holding(grant: Grant, number: int) -> Holding:
    memory_bytes, limit_bytes = grant.memory_bytes(number), grant.limit_bytes(number)
    if not 0 < memory_bytes <= limit_bytes < 1 << 53:
        raise ValueError(f"{memory_bytes} of {limit_bytes} bytes is no promise")
    cores = min(100, grant.cores(number))
    more = limit_bytes if limit_bytes > memory_bytes else None
    return Holding(grant.uuid(number), memory_bytes, cores, cores, memory_limit_bytes=more)


def _first(found: Iterable[Process]) -> Process | None:
    """Return the process that the others are of: a container's first, or the oldest."""
    order = sorted(found, key=lambda one: (one.namespaced_pid != 1, one.starttime, one.pid))
    return order[0] if order else None


def _id(cgroup: str) -> str:
    """Return the container's id as its cgroup's name has it, "" where it has none."""
    name = cgroup.rpartition("/")[2]
    scope = _SCOPE.fullmatch(name)
    identity = scope[1] if scope else name
    return identity if _ID.fullmatch(identity) else ""
