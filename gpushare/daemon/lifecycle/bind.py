# SPDX-License-Identifier: Apache-2.0
"""The bind operation: a reservation gets its process and lasts as long as it.

The hook sends it while the runtime waits for the hook, so the process cannot have ended and its PID
cannot have been reused. A launcher that has created a container sends a pidfd, and waits itself.
"""

from __future__ import annotations

from gpushare.daemon.core.log import log
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.tenant_names import learn_name
from gpushare.daemon.limits import DRIVER, requested_backend
from gpushare.daemon.node import Node
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.errors import UserError


class ReservationNotFound(UserError):
    """There is no reservation by that key, or it is another's."""


class BackendFailed(UserError):
    """The requested backend does not enforce the quota."""


def bind(  # noqa: PLR0913 - as the request has them
    key: str,
    identity: str,
    pid: int,
    peer_pid: int,
    state: DaemonState,
    *,
    pidfd: int | None = None,
) -> TenantRecord:
    """Bind tenant `key` to process `pid`; a second time for the same process changes nothing.

    `pidfd` is of that process, and was sent by the launcher that created the container.

    ReservationNotFound: it expired, or `identity` or `pid` is not its own. BackendFailed: see
    there.
    """
    record = owned_record(key, identity, state.node, state.ledger)
    process = processes.find_outer(pid) if pid > 0 else None
    if process is None:
        raise ReservationNotFound(f"there is no process {pid} to bind {record.title} to")
    if record.state == "bound":
        if (record.pid, record.starttime) != (pid, process.starttime):
            raise ReservationNotFound(f"{record.title} is already bound to process {record.pid}")
        return record
    if record.cgroup or pidfd is not None:
        _refuse_unmade(record, process, peer_pid, pidfd)
    _refuse_forged(record, process, state.ledger)
    cgroup = _cgroup(record, pid, peer_pid)
    with state.ledger.changed.deferred(state.loop.soon):
        bound = state.ledger.change(
            key, state="bound", pid=pid, starttime=process.starttime, cgroup=cgroup
        )
        release.watch_process(bound, state)
        bound = _hold(bound, state)
        if key in state.tenants.pages:
            state.tenants.pages[key].grant.set_bound()
    state.loop.soon(lambda: _follow(bound, state))
    return bound


def _follow(bound: TenantRecord, state: DaemonState) -> None:
    """Do what the container's start need not wait for, on the main thread after the answer."""
    how = {"cgroup": bound.cgroup, "isolation": bound.isolation}
    log("tenant-bound", **bound.identity, pid=bound.pid, **how)
    if not bound.name:
        state.names.submit(lambda: learn_name(bound.key, state))


def _refuse_unmade(
    record: TenantRecord, process: Process, peer_pid: int, pidfd: int | None
) -> None:
    """Refuse a process that the launcher of the reservation has not made; ReservationNotFound.

    The kernel shows the launcher: it made the reservation, and as long as it waits it is the parent
    of the container's init process, which no other process reaps.
    """
    refused = f"process {process.pid} is not of {record.title}: "
    if pidfd is None or not record.cgroup:
        raise ReservationNotFound(
            f"{refused}its {'launcher' if record.cgroup else 'hook'} binds it"
        )
    if peer_pid != record.maker or processes.start_time(peer_pid) != record.maker_starttime:
        raise ReservationNotFound(f"{refused}process {record.maker} reserved it, not {peer_pid}")
    if process.parent != record.maker:
        raise ReservationNotFound(f"{refused}it is not a child of process {record.maker}")
    if processes.has_ended(pidfd):  # what was read may be of another process of that number
        raise ReservationNotFound(f"{refused}it has ended")


def _refuse_forged(record: TenantRecord, process: Process, ledger: Ledger) -> None:
    """Refuse a process that a state on a hook's stdin cannot truly name; ReservationNotFound.

    The usage of another tenant's process would be charged to both, and a freeze would stop both.
    """
    refused = f"process {process.pid} is not of {record.title}: "
    # The runtime that made the reservation starts the container's process.
    if record.engine != "host" and process.starttime < record.maker_starttime:
        raise ReservationNotFound(f"{refused}it is older than the reservation")
    paths = processes.cgroups_of(process.pid) if record.engine == "host" else {}
    for other in ledger.entries.values():
        is_nested_run = other.engine == record.engine == "host"
        if other.key == record.key or other.state != "bound" or is_nested_run:
            continue
        hierarchy, _, path = other.cgroup.partition(":")
        if (other.pid, other.starttime) == (process.pid, process.starttime) or (
            path and f"{paths.get(hierarchy, '')}/".startswith(f"{path}/")
        ):
            raise ReservationNotFound(f"{refused}it belongs to {other.title}")


def _hold(record: TenantRecord, state: DaemonState) -> TenantRecord:
    """Have the driver hold the quota, where it can; BackendFailed where it must and does not.

    The tenant is bound by then: what was set is cleared with it, whatever happens in between.
    """
    record = state.limits.hold(record)
    if record.isolation != DRIVER == requested_backend(record):
        raise BackendFailed(
            f"{record.title} requests backend driver, and the driver does not enforce its limits "
            "(see driver-limits-failed in the gpushared log); remove backend: the interposer "
            "library then enforces them"
        )
    return record


def owned_record(key: str, identity: str, node: Node, ledger: Ledger) -> TenantRecord:
    """Return the record of `key`, if it is of container `identity`; ReservationNotFound."""
    record = ledger.entries.get(key)
    if record is None or record.state == "none" or record.id != identity:
        seconds = node.config.timing.bind_timeout_seconds
        raise ReservationNotFound(
            f"the reservation of {identity} does not exist or has expired: starting took longer "
            f"than {seconds:g} s (timing.bind_timeout_seconds), or gpushared was reinstalled"
        )
    return record


def _cgroup(record: TenantRecord, pid: int, peer_pid: int) -> str:
    """Return the cgroup that is the tenant's alone, "" where it has none."""
    if record.engine == "host":
        # Made by `gpushare run` itself; any other is shared with the user's other programs.
        own = f"/gpushare/{record.id}"
        paths = processes.cgroups_of(pid)
        return next((f"{name}:{own}" for name in processes.PREFERRED if paths.get(name) == own), "")
    others = processes.cgroups_of(peer_pid) if peer_pid != pid else {}
    return processes.own_cgroup(pid, others)
