# SPDX-License-Identifier: Apache-2.0
"""Containers that their launcher was to bind, and has not: it was killed during `create`.

Such a reservation names the cgroup of its container, and is kept until nothing runs there. What
does run there is killed: without its launcher nothing binds it any more, and a container that is
started unbound has real device nodes and no quota.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.freezer.tenant_cgroup import FREEZER, UNIFIED, cgroup_freezer
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord

_KILL_SECONDS: Final = 0.3


def runs_unbound(record: TenantRecord) -> bool:
    """Whether something runs in the container of a reservation."""
    return (
        record.state == "reserved"
        and bool(record.cgroup)
        and Cgroups.mounted().is_populated(record.cgroup)
    )


def kill_unbound(record: TenantRecord, state: DaemonState, killed: Callable[[], None]) -> None:
    """Kill what runs in the container of a reservation, and call `killed`; freeze thread."""
    log("tenant-start-abandoned", "warning", tenant=record.key, id=record.id, cgroup=record.cgroup)

    def kill() -> None:
        cgroups, path = Cgroups.mounted(), record.cgroup.partition(":")[2]
        for hierarchy in (UNIFIED, FREEZER):
            group = cgroup_freezer(f"{hierarchy}:{path}", cgroups)
            if group is not None:
                group.kill(_KILL_SECONDS)
        killed()

    state.freezing.submit(kill)
