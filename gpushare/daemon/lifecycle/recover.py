# SPDX-License-Identifier: Apache-2.0
"""A tenant that is not in the ledger: restored from its pages and the processes that use them.

The grant page contains the tenant's quota, and no tenant can write to it. The processes with the
tmpfs of the pages in their mount namespace are the tenant's: the kernel says so, not the tenant.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gpushare.abi import TENANT_DIR
from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.core.log import log
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.limits import INTERPOSER
from gpushare.daemon.pages.grant_page import GrantPage
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.policy import FIXED
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import PREFIX as CLAIM
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import (
    CardAllocation,
    EvictedProcess,
    EvictionRecord,
    TenantRecord,
)
from gpushare.oci.bounded_read import read_at_most

#: A container's id as systemd's cgroups have it, ENGINE-ID.scope; cgroupfs has it as it is.
_SCOPE: Final = re.compile(r"(?:cri-containerd|[a-z]+)-(.+)\.scope")
_ID: Final = re.compile(r"[A-Za-z0-9_][\w+.-]{0,127}", re.ASCII)
_BEST_EFFORT: Final = "best-effort"
_WHY: Final = "its ledger record was lost; restored from its pages"
_PROC: Final = Path("/proc")
_MOST_BYTES: Final = 1 << 20  # of a mountinfo


def is_used(directory: int) -> bool:
    """Whether any process has the pages at `directory` open or mounted."""
    with contextlib.suppress(OSError), contextlib.closing(StatusPage(directory)) as status:
        if status.is_held():
            return True
    return bool(users_of(os.fstat(directory).st_dev))


def recovered(key: str, directory: int, ledger: Ledger) -> TenantRecord | None:
    """Add the record that the pages at `directory` show to the ledger; None if they do not suffice.

    Never less than was reserved: cores count as guaranteed, because the policy is not known.
    """
    # The first process of a container, or the oldest.
    process = min(
        users_of(os.fstat(directory).st_dev),
        key=lambda user: (user.namespaced_pid != 1, user.starttime, user.pid),
        default=None,
    )
    try:
        grant = GrantPage.adopt(directory)
        allocations = tuple(_allocation(grant, number) for number in range(grant.card_count))
    except (OSError, ValueError) as error:
        log("tenant-pages-lost", "error", tenant=key, name=key, error=str(error))
        return None
    if process is None or not allocations:
        return None
    cgroup = processes.own_cgroup(process.pid, processes.cgroups_of(os.getpid()))
    entry = TenantRecord(
        key=key,
        state="bound",
        id=_id(cgroup) or key,
        name="",
        engine="host" if cgroup.partition(":")[2].startswith("/gpushare/host-") else "runc",
        uid=processes.owner_of(process.pid) or 0,
        policy=FIXED if allocations[0].cores else _BEST_EFFORT,
        isolation=MPS if grant.is_mps else INTERPOSER,
        notes=(_WHY,),
        created=time.time(),
        pid=process.pid,
        starttime=process.starttime,
        cgroup=cgroup,
        allocations=allocations,
    )
    if grant.evicted:
        entry = replace(entry, eviction=_eviction(entry, directory))
    log(
        "tenant-recovered",
        "warning",
        tenant=key,
        id=entry.id,
        pid=entry.pid,
        memory_bytes=allocations[0].quota_bytes,
        cards=len(allocations),
    )
    ledger.add(entry)
    return entry


def _eviction(entry: TenantRecord, directory: int) -> EvictionRecord:
    """Return the eviction of a tenant whose calls wait: how far it got, the driver will say."""
    with contextlib.closing(StatusPage(directory)) as status:
        claims = status.claims(len(entry.allocations))
    claimed = {(claim.pid, claim.starttime) for claim in claims}
    members = processes.members(entry.cgroup, entry.pid, processes.Cgroups.mounted())
    return EvictionRecord(
        "evicting",
        time.time(),
        reason=_WHY,
        processes=tuple(
            EvictedProcess(process.pid, process.starttime)
            for process in members
            if (process.namespaced_pid, process.starttime) in claimed
        ),
        card_bytes=tuple(
            min(
                allocation.burst_limit_bytes, sum(claim.held[number].held_bytes for claim in claims)
            )
            for number, allocation in enumerate(entry.allocations)
        ),
        cards=tuple(allocation.uuid for allocation in entry.allocations),
    )


def refuse_unknown(recovered_keys: Mapping[str, bool], ledger: Ledger) -> None:
    """Refuse new reservations if existing ones are not known.

    `recovered_keys`: the keys of used pages that had no record, and whether they have one now.
    """
    for key, is_known in recovered_keys.items():
        if not is_known:
            why = "are in use, and do not show what was reserved"
            ledger.integrity.add(f"the pages {key} {why}")
    for key, why in ledger.unknown.items():
        if key not in ledger.entries:
            whose = key.replace("-", " ", 1) if key.startswith(CLAIM) else f"tenant {key}"
            ledger.integrity.add(f"the record of {whose} and its copy are lost ({why})")
    if recovered_keys and not ledger.is_complete:
        why = "the ledger and its copies were removed: whole cards may be in use"
        ledger.integrity.add(why)
    if ledger.integrity.is_kept:
        # On a full disk this fails, and the next daemon finds the same state.
        with contextlib.suppress(OSError):
            ledger.confirm()


def listen_again(state: DaemonState) -> None:
    """Create the socket of a tenant again if it was removed."""
    for key, pages in state.tenants.pages.items():
        if TenantSocket.is_there(pages.directory):
            continue
        log("socket-recreated", "warning", tenant=key)
        try:
            tenant_socket = TenantSocket.listen(key, pages.directory)
        except OSError as error:
            log("tenant-pages-lost", "error", tenant=key, name=key, error=str(error))
            continue
        state.loop.call(lambda sock=tenant_socket: state.watch.listen(sock))  # type: ignore[misc]


def users_of(device: int) -> list[Process]:
    """Return the processes that have the file system `device` (st_dev) as a tenant's pages.

    The mounts that the daemon itself made do not count.
    """
    known: dict[int, bool] = {}  # by mount namespace
    users = []
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns/mnt").stat().st_ino
            if namespace not in known:
                known[namespace] = _is_mounted(entry / "mountinfo", device)
        except OSError:
            continue  # it has ended
        if known[namespace] and (process := processes.find_process(int(entry.name))) is not None:
            users.append(process)
    return users


def _is_mounted(mountinfo: Path, device: int) -> bool:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with mountinfo.open("rb") as file:
        lines = os.fsdecode(read_at_most(file.fileno(), _MOST_BYTES)).splitlines()
    # number, parent, device, root, mount point (proc(5))
    fields = (line.split(" ", 5) for line in lines)
    return any(len(line) > 4 and line[2] == wanted and TENANT_DIR in line[4] for line in fields)


def _allocation(grant: GrantPage, number: int) -> CardAllocation:
    memory_bytes, limit_bytes = grant.memory_bytes(number), grant.limit_bytes(number)
    managed_bytes = grant.managed_limit_bytes(number)
    if not 0 < memory_bytes <= limit_bytes < 1 << 53 or managed_bytes >= 1 << 53:
        sizes = f"{memory_bytes} of {limit_bytes} bytes and {managed_bytes} of managed memory"
        raise ValueError(f"{sizes} is not a valid allocation")
    return CardAllocation(
        grant.uuid(number),
        memory_bytes,
        min(100, grant.cores(number)),
        memory_limit_bytes=limit_bytes if limit_bytes > memory_bytes else None,
        managed_bytes=managed_bytes,
    )


def _id(cgroup: str) -> str:
    """Return the container's id from the name of its cgroup, "" if it has none."""
    name = cgroup.rpartition("/")[2]
    scope = _SCOPE.fullmatch(name)
    identity = scope[1] if scope else name
    return identity if _ID.fullmatch(identity) else ""
