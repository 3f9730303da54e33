# SPDX-License-Identifier: Apache-2.0
"""The metric families of containers, for each of their cards. Pure.

The series exist from the allocation on, before the container has used anything, until the first
scrape after its exit. Counters restart at 0 when gpushared restarts, and never decrease otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpushare.exporter.metric_family import (
    OF_CONTAINER,
    OF_TENANT,
    Family,
    MetricSample,
    Snapshot,
    container_family,
    labeled_container_family,
    tenant_labels,
)
from gpushare.protocol.rows import EVICTION_STATES

if TYPE_CHECKING:
    from gpushare.protocol.rows import TenantCard, TenantRow

FROZEN_BY: Final = ("operator", "idle", "audit")
#: The names of the sources as the label has them, if not those of the row.
_SOURCES: Final = {"driver": "nvml"}
LEVELS: Final = ("driver", "interposer", "audited", "advisory", "exclusive", "mps")


def _utilization(snapshot: Snapshot) -> Iterable[MetricSample]:
    for _, part, labels in snapshot.parts:
        if part["utilization"] is not None:
            source = _SOURCES.get(part["utilization_source"], part["utilization_source"])
            yield (*labels, source), part["utilization"] / 100


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _denied(snapshot: Snapshot) -> Iterable[MetricSample]:
    for tenant in snapshot.tenants:
        yield (*tenant_labels(snapshot, tenant), "over-quota"), tenant["denied_since_start"]


def _frozen(snapshot: Snapshot) -> Iterable[MetricSample]:
    for tenant in snapshot.tenants:
        causes = {intervention["by"] for intervention in tenant["interventions"]}
        for by in FROZEN_BY:
            yield (*tenant_labels(snapshot, tenant), by), float(by in causes)


def _stopping(snapshot: Snapshot) -> Iterable[MetricSample]:
    for tenant in snapshot.tenants:
        is_stopping = any(one["by"] == "stop" for one in tenant["interventions"])
        yield tenant_labels(snapshot, tenant), float(is_stopping)


def _idle(snapshot: Snapshot) -> Iterable[MetricSample]:
    for tenant in snapshot.tenants:
        since = tenant["idle_since"]
        idle = 0.0 if since is None else max(0.0, snapshot.taken - since)
        yield tenant_labels(snapshot, tenant), idle


def _eviction(snapshot: Snapshot) -> Iterable[MetricSample]:
    for tenant in snapshot.tenants:
        eviction = tenant["eviction"]
        for state in EVICTION_STATES:
            is_in = eviction is not None and eviction["state"] == state
            yield (*tenant_labels(snapshot, tenant), state), float(is_in)


def _restore_wait(snapshot: Snapshot) -> Iterable[MetricSample]:
    for tenant in snapshot.tenants:
        eviction = tenant["eviction"]
        since = None if eviction is None else eviction["waits_since"]
        waited = 0.0 if since is None else max(0.0, snapshot.taken - since)
        yield tenant_labels(snapshot, tenant), waited


def _level(tenant: TenantRow, _part: TenantCard) -> Iterable[tuple[str, float]]:
    for level in LEVELS:
        yield level, float(tenant["isolation"] == level)


FAMILIES: Final = (
    container_family(
        "gpushare_container_memory_quota_bytes",
        "Memory quota of the container on the card.",
        lambda _, part: part["quota_bytes"],
    ),
    container_family(
        "gpushare_container_memory_limit_bytes",
        "Memory that the container may use now: its quota and its burst memory.",
        lambda _, part: part["limit_bytes"],
    ),
    container_family(
        "gpushare_container_memory_evicted_bytes",
        "Memory of the card that an evicted container has in host memory; 0: it is not evicted.",
        lambda _, part: part["evicted_bytes"],
    ),
    container_family(
        "gpushare_container_memory_oversubscribed_bytes",
        "Managed memory that does not count against the quota, because host memory is reserved.",
        lambda _, part: part["oversubscribed_bytes"],
    ),
    container_family(
        "gpushare_container_memory_oversubscribed_limit_bytes",
        "Host memory that is reserved for managed memory of the container.",
        lambda _, part: part["oversubscribed_limit_bytes"],
    ),
    labeled_container_family(
        "gpushare_container_memory_used_bytes",
        "Charged memory by kind; the kinds add up to what the container uses.",
        "kind",
        lambda _, part: part["kinds"].items(),
    ),
    container_family(
        "gpushare_container_memory_peak_bytes",
        "Highest memory usage, sampled four times a second, since gpushared started.",
        lambda _, part: part["peak_bytes"],
    ),
    Family(
        "gpushare_container_allocations_denied_total",
        "counter",
        (*OF_TENANT, "reason"),
        "Allocations denied by the quota, on all cards of the container.",
        _denied,
    ),
    container_family(
        "gpushare_container_cores_quota_ratio",
        "Requested share of the card's compute; 0 if none was requested.",
        lambda _, part: part["cores"] / 100,
    ),
    Family(
        "gpushare_container_cores_utilization_ratio",
        "gauge",
        (*OF_CONTAINER, "source"),
        "Share of the card used over ten seconds, by the driver (nvml) or the launch gate (gate).",
        _utilization,
    ),
    container_family(
        "gpushare_container_encoder_utilization_ratio",
        "Share of time the container used the card's encoder in the last second, by the driver.",
        lambda _, part: _ratio(part["encoder_percent"]),
    ),
    container_family(
        "gpushare_container_decoder_utilization_ratio",
        "Share of time the container used the card's decoder in the last second, by the driver.",
        lambda _, part: _ratio(part["decoder_percent"]),
    ),
    container_family(
        "gpushare_container_gpu_time_seconds_total",
        "Card time used: charged by the scheduler, or reported by the driver if the gate is open.",
        lambda _, part: part["gpu_seconds"],
        "counter",
    ),
    container_family(
        "gpushare_container_throttled_seconds_total",
        "Time that threads waited at the launch gate, summed over threads.",
        lambda _, part: part["compute"]["throttled_ns"] / 1e9,
        "counter",
    ),
    container_family(
        "gpushare_container_forced_launches_total",
        "Launches that continued after waiting too long at the gate.",
        lambda _, part: part["compute"]["forced_launches"],
        "counter",
    ),
    container_family(
        "gpushare_container_last_active_timestamp_seconds",
        "Last time the container used the card; before that, its start or the start of gpushared.",
        lambda _, part: part["last_active"],
    ),
    container_family(
        "gpushare_container_memory_over_quota_bytes",
        "Memory above the limit, by the driver's figures.",
        lambda _, part: part["over_quota_bytes"],
    ),
    Family(
        "gpushare_container_frozen",
        "gauge",
        (*OF_TENANT, "by"),
        "1 if the container is frozen, by the operator, by `idle.action` or by the audit.",
        _frozen,
    ),
    Family(
        "gpushare_container_stopping",
        "gauge",
        OF_TENANT,
        "1 if all processes of the container are to exit: stopped or killed by gpushare.",
        _stopping,
    ),
    Family(
        "gpushare_container_idle_seconds",
        "gauge",
        OF_TENANT,
        "Time for which the container has held memory without using its cards; 0: less than "
        "idle.after of gpushare.yaml, or paused.",
        _idle,
    ),
    Family(
        "gpushare_container_eviction_state",
        "gauge",
        (*OF_TENANT, "state"),
        "1 for the state of the container's eviction, 0 for the others; all 0: it is not evicted. "
        "failed: the driver lost the memory.",
        _eviction,
    ),
    Family(
        "gpushare_container_restore_wait_seconds",
        "gauge",
        OF_TENANT,
        "Time for which a program of an evicted container has waited for its memory; 0: none does.",
        _restore_wait,
    ),
    container_family(
        "gpushare_container_gate_bypassed",
        "1 if the driver sees clearly more work than passes the launch gate.",
        lambda _, part: float(part["compute"]["gate_bypassed"]),
    ),
    container_family(
        "gpushare_container_hung",
        "1 if the container has pending work that does not seem to end.",
        lambda _, part: float(part["compute"]["is_hung"]),
    ),
    labeled_container_family(
        "gpushare_container_isolation",
        "1 for the isolation level that enforces the quota, 0 for the others.",
        "level",
        _level,
    ),
)
