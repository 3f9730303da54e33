# SPDX-License-Identifier: Apache-2.0
"""Which backend holds a tenant's quota: said here, for all of them, and nowhere else.

| backend | what holds | where |
|---|---|---|
| exclusive | the whole card is one tenant's | nothing to do |
| driver | limits of the driver itself on the cgroup, behind the filters | hard_limit.py |
| interposer | the filter libraries, with the audit of what the driver sees | libhook/ |
| audit | the same, for a tenant that has what goes past the filters | truth.py |
| advice | the same, for a process that could walk around them | `gpushare run` |
| mps | not written | mps.py, with what hard_limit.py has: impose, change, lift |

A backend below the interposer is imposed when a tenant is bound, changed when its quota is, and
lifted when it ends; it says whether it holds, and where it does not the interposer does. What would
come with MPS is below, in `refuse`: one line to take out, and one to put into `below`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpushare.daemon.node import Loaded
from gpushare.daemon.store.ledger import Entry
from gpushare.quota import Quota

DRIVER: Final = "driver"
INTERPOSER: Final = "interposer"
AUDIT: Final = "audit"
EXCLUSIVE: Final = "exclusive"
MPS: Final = "mps"
MIG: Final = "mig"

_INSTEAD: Final = "leave it out: the interposer holds the quota"
_NOT_YET: Final[Mapping[str, tuple[str, str]]] = {
    MPS: ("is not in this version: no MPS server is started for tenants", _INSTEAD),
    MIG: ("is not in this version: cards are not partitioned", _INSTEAD),
    EXCLUSIVE: (
        "is what a whole card has, and this asks for a share",
        "leave out memory and cores for a whole card, or backend for a share",
    ),
}


def refuse(quota: Quota, driver: Loaded, *, whole: bool) -> None:
    """Raise QuotaError for a backend that cannot hold `quota` here."""
    asked = quota.backend
    if asked is None or (whole and asked == EXCLUSIVE):
        return
    if asked == DRIVER and not driver.nvml.has_limits:
        rule = f"needs memory limits, which driver {driver.nvml.driver_version} does not have"
        raise quota.refuse("backend", rule, _INSTEAD)
    if asked in _NOT_YET:
        raise quota.refuse("backend", *_NOT_YET[asked])


def first(isolation: str, *, whole: bool) -> str:
    """Return what holds a quota until its tenant is bound, whose applicant comes with `isolation`.

    That is interposer, or advice for who may walk around it.
    """
    return EXCLUSIVE if whole else isolation


def below(entry: Entry, driver: Loaded | None) -> str:
    """Return the backend below the interposer that may hold a bound tenant, "" where none does."""
    if not entry.shared or entry.isolation not in {DRIVER, INTERPOSER, AUDIT}:
        return ""
    if driver is None:
        return DRIVER if entry.isolation == DRIVER else ""  # what was imposed holds on
    return DRIVER if driver.nvml.has_limits and asked(entry) != INTERPOSER else ""


def alone(entry: Entry) -> str:
    """Return what holds a shared tenant's quota where nothing below the interposer does.

    What it has that goes past the interposer only the audit sees.
    """
    if not entry.shared or entry.isolation not in {DRIVER, INTERPOSER, AUDIT}:
        return entry.isolation
    return AUDIT if entry.uninterposed else INTERPOSER


def asked(entry: Entry) -> str:
    """Return the backend that a tenant asked for, "" for none."""
    return entry.quota.get("backend", "").partition(" ")[0]
