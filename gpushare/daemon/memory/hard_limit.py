# SPDX-License-Identifier: Apache-2.0
"""The limits that the driver itself holds, where it has any: on the container's cgroup, each card.

Soft is what is promised, hard what may be used now (NVML: nvmlDeviceSetMemoryLimits_v1, drivers
from 615 on). They hold for whatever is in the cgroup, also for a program that goes around the
interposer, which stays in front of them: it has the view, and it counts what the driver does not.

A tenant is held by the `driver` once its limits are set and were read back as they were set. When
the driver refuses, or says another thing than it was told, the interposer holds the quota alone, as
with every older driver; that is logged, and shown as the tenant's isolation. Removing a cgroup
clears its limits. What a driver that does not answer still holds is set right when it answers. All
of this is the decide thread's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpushare.daemon.backends import DRIVER, alone, below
from gpushare.daemon.cards.card import NO_LIMITS, DriverError, Limits
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.log import log
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.store.ledger import Entry

# A driver may round to what it allocates in: 2 MiB on every card since Pascal (cuMemGetAllocation-
# Granularity), and no limit is meant to the byte.
_ROUNDING_BYTES: Final = 2 << 20


def impose(entry: Entry, node: Node) -> str:
    """Set the limits of a bound tenant, and return what holds its quota from now on.

    An isolation other than the interposer's or the driver's stays as it is.
    """
    otherwise, driver = alone(entry), node.driver
    if below(entry, driver) != DRIVER:
        return otherwise
    if driver is None:
        node.tenants.limits_left.add(entry.key)  # by an earlier daemon: they hold on
        return DRIVER
    directory = _directory(entry)
    if directory is None:
        return otherwise
    try:
        for number in range(len(entry.holdings)):
            _set(entry, number, _limit_bytes(entry, number, node), directory, driver)
    except DriverError as error:
        log("driver-limits-failed", "warning", tenant=entry.key, name=entry.title, why=str(error))
        _clear(entry, directory, node, driver)
        return otherwise
    node.tenants.limits_left.discard(entry.key)
    return DRIVER


def set_right(node: Node) -> None:
    """Set the limits anew that the driver holds, or may, and that are not what the pages say."""
    if node.driver is None:
        return
    for key in list(node.tenants.limits_left):
        entry = node.ledger.entries.get(key)
        if entry is None or entry.state != "bound":
            node.tenants.limits_left.discard(key)
            continue
        isolation = impose(entry, node)
        if isolation != entry.isolation:
            node.ledger.isolate(key, isolation)


def expect_none(node: Node) -> None:
    """Have the limits of all whom the driver holds set anew: another driver knows of none."""
    held = (key for key, entry in node.ledger.entries.items() if entry.isolation == DRIVER)
    node.tenants.limits_left.update(held)


def change(entry: Entry, number: int, limit_bytes: int, node: Node) -> None:
    """Let a tenant use `limit_bytes` of its card `number`, in its page and in the driver.

    Neither ever allows what the other still refuses for long: the driver is told first of more, and
    the page of less. OSError where the ledger cannot note that the driver does not hold it any
    more.
    """
    pages = node.tenants.pages.get(entry.key)
    if pages is None:
        return
    memory_bytes = entry.holdings[number].memory_bytes
    if limit_bytes > pages.grant.limit_bytes(number):
        _follow(entry, number, limit_bytes, node)
        pages.write_limit(number, memory_bytes, limit_bytes)
    else:
        pages.write_limit(number, memory_bytes, limit_bytes)
        _follow(entry, number, limit_bytes, node)


def lift(entry: Entry, node: Node) -> None:
    """Clear the limits of a tenant that is released, where its cgroup is still there."""
    if entry.isolation == DRIVER and node.driver is not None:
        directory = _directory(entry)
        if directory is not None and directory.is_dir():
            _clear(entry, directory, node, node.driver)


def _follow(entry: Entry, number: int, limit_bytes: int, node: Node) -> None:
    """Have the driver hold the new limit too, where it holds this tenant's."""
    if entry.isolation != DRIVER or node.driver is None:
        return
    directory = _directory(entry)
    if directory is None:
        return
    try:
        _set(entry, number, limit_bytes, directory, node.driver)
    except DriverError as error:
        log("driver-limits-failed", "warning", tenant=entry.key, name=entry.title, why=str(error))
        _clear(entry, directory, node, node.driver)
        node.ledger.isolate(entry.key, alone(entry))


def _set(entry: Entry, number: int, limit_bytes: int, directory: Path, driver: Loaded) -> None:
    """Set the limits of one card and compare what the driver then says; DriverError."""
    holding = entry.holdings[number]
    wanted = Limits(holding.memory_bytes, limit_bytes)
    driver.nvml.set_limits(holding.uuid, directory, wanted)
    found = driver.nvml.limits(holding.uuid, directory)
    if not _is_close(found, wanted):
        raise DriverError(f"it was told {wanted} for {directory}, and says {found}")


def _is_close(found: Limits, wanted: Limits) -> bool:
    pairs = ((found.soft_bytes, wanted.soft_bytes), (found.hard_bytes, wanted.hard_bytes))
    return all(abs(one - other) < _ROUNDING_BYTES for one, other in pairs)


def _clear(entry: Entry, directory: Path, node: Node, driver: Loaded) -> None:
    """Clear the limits, now or, where the driver does not do it, as soon as it does."""
    node.tenants.limits_left.discard(entry.key)
    for holding in entry.holdings:
        try:
            driver.nvml.set_limits(holding.uuid, directory, NO_LIMITS)
        except DriverError as error:
            node.tenants.limits_left.add(entry.key)
            log(
                "driver-limits-left", "warning", tenant=entry.key, card=holding.uuid, why=str(error)
            )


def _limit_bytes(entry: Entry, number: int, node: Node) -> int:
    pages = node.tenants.pages.get(entry.key)
    return entry.holdings[number].memory_bytes if pages is None else pages.grant.limit_bytes(number)


def _directory(entry: Entry) -> Path | None:
    """Return the directory of the tenant's cgroup; None where it has none of its own."""
    return Cgroups.mounted().directory(entry.cgroup) if entry.cgroup else None
