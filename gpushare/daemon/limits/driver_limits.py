# SPDX-License-Identifier: Apache-2.0
"""Which backend holds a tenant's quota, and the limits that the driver itself holds.

| backend | what enforces the quota | where |
|---|---|---|
| exclusive | the whole card belongs to one tenant | nothing to do |
| driver | the driver's own limits on the cgroup, behind the interposer library | here |
| interposer | the interposer library, with the audit of the driver's figures | libhook/ |
| audit | the same, for a tenant with capabilities that bypass the library | observe/sampler.py |
| advice | the same, for a process that could bypass them | `gpushare run` |
| mps | the interposer library, and the limits of the card's MPS server | mps/ |

A backend below the interposer is set when a tenant is bound, changed with its quota, and cleared
when it ends. It says whether it holds; if it does not, the interposer does. Clients of an MPS
server stay with it, whether or not its own limits hold; the driver's limits are set for them too.

The driver's limits are on the container's cgroup, for each card: soft is the quota, hard is what
the tenant may use now (NVML: nvmlDeviceSetMemoryLimits_v1, drivers from 615 on). They hold for
every process of the cgroup, also for one that bypasses the interposer library. The library stays in
front: it shows the container its quota, and it counts what the driver does not.

A tenant's isolation is `driver` once its limits are set and were read back unchanged. If the driver
refuses them or reports others, the interposer holds the quota alone, as with every older driver;
that is logged and shown as the tenant's isolation. Removing a cgroup clears its limits. Limits of a
driver that does not answer are corrected when it does. All of this is the decide thread's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.daemon.cards.driver_client import NO_LIMITS, DriverError, DriverLimits
from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.core.log import log
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota.request import QuotaRequest

DRIVER: Final = "driver"
INTERPOSER: Final = "interposer"
AUDITED: Final = "audited"
EXCLUSIVE: Final = "exclusive"
MIG: Final = "mig"

_INSTEAD: Final = "remove it: the interposer library then enforces the quota"
UNSUPPORTED: Final[Mapping[str, tuple[str, str]]] = {
    EXCLUSIVE: (
        "applies to a whole card, and this request is for a share",
        "for a whole card, remove memory and cores; for a share, remove backend",
    ),
}


def check_supported(
    quota: QuotaRequest, driver: LoadedDriver, *, whole: bool, count: int | None = 1
) -> None:
    """Raise QuotaError for a backend that cannot hold `quota` here; `count` None is all cards."""
    requested = quota.backend
    if requested is None or (whole and requested == EXCLUSIVE):
        return
    if requested == DRIVER and not driver.nvml.has_limits:
        rule = f"needs memory limits, which driver {driver.nvml.driver_version} does not have"
        raise quota.refuse("backend", rule, _INSTEAD)
    if requested == MPS:
        _check_mps(quota, whole=whole, count=count)
    if requested == MIG and not any(card.instance for card in driver.cards):
        rule = "needs a MIG instance, and no card of this node has one"
        raise quota.refuse("backend", rule, _INSTEAD)
    if requested in UNSUPPORTED:
        raise quota.refuse("backend", *UNSUPPORTED[requested])


def _check_mps(quota: QuotaRequest, *, whole: bool, count: int | None) -> None:
    """Raise QuotaError for a request that no MPS server can serve."""
    if whole:
        rule = "is for shares, and a whole card is requested"
        raise quota.refuse("backend", rule, "add memory or cores")
    if count != 1:
        rule = "is for one card: a program reaches only one MPS server"
        raise quota.refuse("backend", rule, "request one card, or remove backend")


def best_isolation(driver: LoadedDriver | None) -> str:
    """Return what can enforce the memory quota of a share on this node; "" without a driver."""
    if driver is None:
        return ""
    return DRIVER if driver.nvml.has_limits else INTERPOSER


def initial_isolation(isolation: str, *, whole: bool, backend: str | None = None) -> str:
    """Return what holds a quota until its tenant is bound, whose applicant comes with `isolation`.

    That is interposer, advice for a process that may bypass it, or MPS on a card in that mode.
    """
    if backend == MPS:
        return MPS
    return EXCLUSIVE if whole else isolation


def driver_backend(record: TenantRecord, driver: LoadedDriver | None) -> str:
    """Return the backend below the interposer that may hold a bound tenant, "" where none does."""
    if not record.shared or record.isolation not in {DRIVER, INTERPOSER, AUDITED, MPS}:
        return ""
    if driver is None:
        return DRIVER if record.isolation == DRIVER else ""  # what was imposed holds on
    cards = (driver.card(allocation.uuid) for allocation in record.allocations)
    if any(card is not None and card.instance for card in cards):
        return ""  # the driver has no limits for a part of a card
    return DRIVER if driver.nvml.has_limits and requested_backend(record) != INTERPOSER else ""


def effective_isolation(record: TenantRecord) -> str:
    """Return what holds a shared tenant's quota where nothing below the interposer does.

    What it has that goes past the interposer only the audit sees.
    """
    if not record.shared or record.isolation not in {DRIVER, INTERPOSER, AUDITED}:
        return record.isolation
    return AUDITED if record.uninterposed else INTERPOSER


def requested_backend(record: TenantRecord) -> str:
    """Return the backend that a tenant requested, "" for none."""
    return record.quota["backend"]["value"] if "backend" in record.quota else ""


# A driver may round to what it allocates in: 2 MiB on every card since Pascal (cuMemGetAllocation-
# Granularity), and no limit is meant to the byte.
_ROUNDING_BYTES: Final = 2 << 20


def set_driver_limits(record: TenantRecord, state: DaemonState) -> str:
    """Set the limits of a bound tenant, and return what holds its quota from now on.

    An isolation other than the interposer's or the driver's stays as it is.
    """
    otherwise, driver = effective_isolation(record), state.node.driver
    if driver_backend(record, driver) != DRIVER:
        return otherwise
    if driver is None:
        state.tenants.limits_left.add(record.key)  # by an earlier daemon: they hold on
        return DRIVER
    directory = _directory(record)
    if directory is None:
        return otherwise
    try:
        for number in range(len(record.allocations)):
            _set(record, number, _limit_bytes(record, number, state), directory, driver)
    except DriverError as error:
        _give_up(record, directory, error, state, driver)
        return otherwise
    state.tenants.limits_left.discard(record.key)
    if record.isolation == MPS:  # it stays what it is, and the driver holds it too
        state.tenants.limited_clients.add(record.key)
        return MPS
    return DRIVER


def retry_driver_limits(state: DaemonState) -> None:
    """Set again the limits of the driver that differ, or may differ, from the pages."""
    if state.node.driver is None:
        return
    for key in list(state.tenants.limits_left):
        record = state.ledger.entries.get(key)
        if record is None or record.state != "bound":
            state.tenants.limits_left.discard(key)
            continue
        isolation = set_driver_limits(record, state)
        if isolation != record.isolation:
            state.ledger.change(key, isolation=isolation)


def mark_limits_lost(state: DaemonState) -> None:
    """Set all limits of the driver again: a replaced driver knows none of them."""
    entries = state.ledger.entries.items()
    state.tenants.limits_left.update(key for key, record in entries if is_held(record, state))


def is_held(record: TenantRecord, state: DaemonState) -> bool:
    """Whether the driver's limits hold a tenant's quota, alone or beside an MPS server's."""
    return record.isolation == DRIVER or record.key in state.tenants.limited_clients


def change_limit(record: TenantRecord, number: int, limit_bytes: int, state: DaemonState) -> None:
    """Let a tenant use `limit_bytes` of its card `number`, in its page and in the driver.

    Neither ever allows what the other still refuses for long: the driver is told first of more, and
    the page of less. OSError where the ledger cannot note that the driver does not hold it any
    more.
    """
    pages = state.tenants.pages.get(record.key)
    if pages is None:
        return
    memory_bytes = record.allocations[number].quota_bytes
    if limit_bytes > pages.grant.limit_bytes(number):
        _follow(record, number, limit_bytes, state)
        pages.write_limit(number, memory_bytes, limit_bytes)
    else:
        # Noted before the limit falls, for the audit reads them in the opposite order.
        kept = pages.kept[number] = max(pages.grant.limit_bytes(number), pages.kept.get(number, 0))
        pages.write_limit(number, memory_bytes, limit_bytes)
        # Read after it has fallen: a process publishes what it takes before it reads the limit.
        used_bytes, _ = state.accounts.use_of(record, number)
        pages.kept[number] = min(kept, used_bytes)
        _follow(record, number, limit_bytes, state)


def clear_driver_limits(record: TenantRecord, state: DaemonState) -> None:
    """Clear the limits of a tenant that is released, where its cgroup is still there."""
    if is_held(record, state) and state.node.driver is not None:
        directory = _directory(record)
        if directory is not None and directory.is_dir():
            _clear(record, directory, state, state.node.driver)
    state.tenants.limited_clients.discard(record.key)


def _follow(record: TenantRecord, number: int, limit_bytes: int, state: DaemonState) -> None:
    """Have the driver hold the new limit too, where it holds this tenant's."""
    if not is_held(record, state) or state.node.driver is None:
        return
    directory = _directory(record)
    if directory is None:
        return
    try:
        _set(record, number, limit_bytes, directory, state.node.driver)
    except DriverError as error:
        _give_up(record, directory, error, state, state.node.driver)
        state.ledger.change(record.key, isolation=effective_isolation(record))


def _set(
    record: TenantRecord, number: int, limit_bytes: int, directory: Path, driver: LoadedDriver
) -> None:
    """Set the limits of one card and compare what the driver then says; DriverError."""
    allocation = record.allocations[number]
    # The driver counts managed memory while it is in system memory (MPS manual 615, "Memory
    # Partitioning"), and what is beyond the quota may be there.
    wanted = DriverLimits(allocation.quota_bytes, limit_bytes + allocation.managed_bytes)
    driver.nvml.set_limits(allocation.uuid, directory, wanted)
    found = driver.nvml.limits(allocation.uuid, directory)
    if not _is_close(found, wanted):
        raise DriverError(f"its limit for {directory} was set to {wanted}, but reads {found}")


def _is_close(found: DriverLimits, wanted: DriverLimits) -> bool:
    pairs = ((found.soft_bytes, wanted.soft_bytes), (found.hard_bytes, wanted.hard_bytes))
    return all(abs(one - other) < _ROUNDING_BYTES for one, other in pairs)


def _give_up(
    record: TenantRecord,
    directory: Path,
    error: DriverError,
    state: DaemonState,
    driver: LoadedDriver,
) -> None:
    """Log that the driver did not take a limit, and clear the others of the tenant."""
    log(
        "driver-limit-set-failed",
        "warning",
        tenant=record.key,
        name=record.title,
        reason=str(error),
    )
    state.tenants.limited_clients.discard(record.key)
    _clear(record, directory, state, driver)


def _clear(record: TenantRecord, directory: Path, state: DaemonState, driver: LoadedDriver) -> None:
    """Clear the limits, now or, where the driver does not do it, as soon as it does."""
    state.tenants.limits_left.discard(record.key)
    for allocation in record.allocations:
        try:
            driver.nvml.set_limits(allocation.uuid, directory, NO_LIMITS)
        except DriverError as error:
            state.tenants.limits_left.add(record.key)
            log(
                "driver-limit-removal-failed",
                "warning",
                tenant=record.key,
                card=allocation.uuid,
                reason=str(error),
            )


def _limit_bytes(record: TenantRecord, number: int, state: DaemonState) -> int:
    pages = state.tenants.pages.get(record.key)
    return (
        record.allocations[number].quota_bytes if pages is None else pages.grant.limit_bytes(number)
    )


def _directory(record: TenantRecord) -> Path | None:
    """Return the directory of the tenant's cgroup; None where it has none of its own."""
    return Cgroups.mounted().directory(record.cgroup) if record.cgroup else None
