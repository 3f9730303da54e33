# SPDX-License-Identifier: Apache-2.0
"""The families of a container, for each of its cards. Pure.

There from the grant on, before a container has used anything, and gone with the first scrape after
its end. Counters begin with 0 again when gpushared was started anew, and never go back otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpushare.exporter.family import (
    OF_CONTAINER,
    OF_TENANT,
    Family,
    Sample,
    Snapshot,
    of_parts,
    of_parts_by,
    part_labels,
    tenant_labels,
)

if TYPE_CHECKING:
    from gpushare.figures import TenantCardFigures, TenantFigures

HOLDERS: Final = ("operator", "audit", "kill")
LEVELS: Final = ("driver", "interposer", "audit", "advice", "exclusive")


def _utilization(snapshot: Snapshot) -> Iterable[Sample]:
    for tenant, part in snapshot.parts:
        if part["utilisation"] is not None:
            labels = part_labels(snapshot, tenant, part)
            yield (*labels, part["source"]), part["utilisation"] / 100


def _denied(snapshot: Snapshot) -> Iterable[Sample]:
    for tenant in snapshot.tenants:
        yield (*tenant_labels(snapshot, tenant), "over-limit"), tenant["denied"]


def _held(snapshot: Snapshot) -> Iterable[Sample]:
    for tenant in snapshot.tenants:
        for by in HOLDERS:
            yield (*tenant_labels(snapshot, tenant), by), float(by in tenant["held"])


def _level(tenant: TenantFigures, _part: TenantCardFigures) -> Iterable[tuple[str, float]]:
    for level in LEVELS:
        yield level, float(tenant["isolation"] == level)


FAMILIES: Final = (
    of_parts(
        "gpushare_container_memory_request_bytes",
        "Memory that the container was promised.",
        lambda _, part: part["memory_bytes"],
    ),
    of_parts(
        "gpushare_container_memory_limit_bytes",
        "Memory that it may use now: its promise and what it is lent.",
        lambda _, part: part["limit_bytes"],
    ),
    of_parts_by(
        "gpushare_container_memory_used_bytes",
        "Memory that counts against its quota, by what it is for; the sum is what it uses.",
        "kind",
        lambda _, part: part["kinds"].items(),
    ),
    of_parts(
        "gpushare_container_memory_peak_bytes",
        "The most that it was seen to use, four times a second, since gpushared was started.",
        lambda _, part: part["peak_bytes"],
    ),
    Family(
        "gpushare_container_alloc_denied_total",
        "counter",
        (*OF_TENANT, "reason"),
        "Allocations that its quota refused, on all of its cards together.",
        _denied,
    ),
    of_parts(
        "gpushare_container_cores_granted_ratio",
        "Part of the card's compute that it asked for; 0 where it asked for none.",
        lambda _, part: part["cores"] / 100,
    ),
    Family(
        "gpushare_container_cores_utilization_ratio",
        "gauge",
        (*OF_CONTAINER, "source"),
        "Part of the card that it had over ten seconds: as the driver says (nvml), else its gate.",
        _utilization,
    ),
    of_parts(
        "gpushare_container_gpu_time_seconds_total",
        "The card's time that it had: charged by the scheduler, through an open gate the driver's.",
        lambda _, part: part["gpu_seconds"],
        "counter",
    ),
    of_parts(
        "gpushare_container_throttled_seconds_total",
        "Time that its threads waited at the gate, each thread's counted.",
        lambda _, part: part["throttled_seconds"],
        "counter",
    ),
    of_parts(
        "gpushare_container_forced_launches_total",
        "Launches that went ahead after waiting too long at the gate.",
        lambda _, part: part["forced"],
        "counter",
    ),
    of_parts(
        "gpushare_container_last_active_timestamp_seconds",
        "When it was last seen to use the card; its start, or gpushared's, where it was not yet.",
        lambda _, part: part["active"],
    ),
    of_parts(
        "gpushare_container_memory_over_bytes",
        "What it has above what it may, as the audit sees it in the driver's figures.",
        lambda _, part: part["over_bytes"],
    ),
    Family(
        "gpushare_container_held",
        "gauge",
        (*OF_TENANT, "by"),
        "1 for who stopped it: the operator or the audit; kill: it is being ended.",
        _held,
    ),
    of_parts(
        "gpushare_container_bypassed",
        "1 where the driver sees clearly more work of it than passes its gate.",
        lambda _, part: float(part["bypassed"]),
    ),
    of_parts(
        "gpushare_container_hung",
        "1 where work of it is pending that seems never to end.",
        lambda _, part: float(part["hung"]),
    ),
    of_parts(
        "gpushare_container_priority",
        "Of those that are offline, 0 comes first.",
        lambda tenant, _: tenant["priority"],
    ),
    of_parts_by(
        "gpushare_container_class_info",
        "1, with its class: online never waits.",
        "class",
        lambda tenant, _: [(tenant["class_"], 1.0)],
    ),
    of_parts_by(
        "gpushare_container_isolation_level",
        "1 for what holds its quota, 0 for the others.",
        "level",
        _level,
    ),
)
