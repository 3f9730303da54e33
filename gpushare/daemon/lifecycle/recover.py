# SPDX-License-Identifier: Apache-2.0
"""What an earlier daemon left: pages without a record, and sockets that were removed.

The processes of used pages without a record count as non-tenants. They keep the pages, and with
them the quota that the library enforces, until the container is started again.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.abi import TENANT_DIR
from gpushare.daemon.core.log import log
from gpushare.daemon.identity import processes
from gpushare.daemon.observe.non_tenant import container_of
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import PREFIX as CLAIM
from gpushare.daemon.store.ledger import Ledger
from gpushare.oci.bounded_read import read_at_most

_PROC: Final = Path("/proc")
_MOST_BYTES: Final = 1 << 20  # of a mountinfo


def user_of(directory: int) -> str | None:
    """Return the container that has the pages at `directory`; None if no process uses them.

    The processes that have the pages mounted are the tenant's: the kernel says so. Without one,
    the lock of a process that has them open says that they are used, and not by which container.
    """
    pid = _mounted_by(os.fstat(directory).st_dev)
    if pid is not None:
        return container_of(processes.cgroups_of(pid)) or f"the container of process {pid}"
    with contextlib.suppress(OSError), contextlib.closing(StatusPage(directory)) as status:
        if status.is_held():
            return "a container"
    return None


def refuse_unknown(users: Mapping[str, str], ledger: Ledger) -> None:
    """Refuse new reservations if existing ones are not known.

    `users`: the containers that use pages without a record, by the key of these pages.
    """
    for key, container in users.items():
        why = f"{container} uses the pages {key}, which have no record: start it again"
        ledger.integrity.add(why)
    for key, why in ledger.unknown.items():
        if key not in users:
            whose = key.replace("-", " ", 1) if key.startswith(CLAIM) else f"tenant {key}"
            ledger.integrity.add(f"the record of {whose} and its copy are lost ({why})")
    if users and not ledger.is_complete:
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


def _mounted_by(device: int) -> int | None:
    """Return a process that has the file system `device` (st_dev) as a tenant's pages, or None.

    The mounts that the daemon itself made do not count.
    """
    known: dict[int, bool] = {}  # by mount namespace
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            namespace = (entry / "ns/mnt").stat().st_ino
            if namespace not in known:
                known[namespace] = _is_mounted(entry / "mountinfo", device)
        except OSError:
            continue  # it has ended
        if known[namespace]:
            return int(entry.name)
    return None


def _is_mounted(mountinfo: Path, device: int) -> bool:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with mountinfo.open("rb") as file:
        lines = os.fsdecode(read_at_most(file.fileno(), _MOST_BYTES)).splitlines()
    # number, parent, device, root, mount point (proc(5))
    fields = (line.split(" ", 5) for line in lines)
    return any(len(line) > 4 and line[2] == wanted and TENANT_DIR in line[4] for line in fields)
