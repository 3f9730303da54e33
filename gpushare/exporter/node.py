# SPDX-License-Identifier: Apache-2.0
"""The metric families of the node, its daemon and its cards. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from gpushare.exporter.metric_family import (
    OF_CARD,
    OF_NODE,
    Family,
    MetricSample,
    MetricType,
    Snapshot,
    card_family,
    card_labels,
)
from gpushare.metrics_schema import BOUNDS
from gpushare.xid import FATAL

if TYPE_CHECKING:
    from gpushare.metrics_schema import NodeMetrics


def _non_tenant(snapshot: Snapshot) -> Iterable[MetricSample]:
    for card in snapshot.cards:
        for action, count in card["non_tenant_actions"].items():
            yield (*card_labels(snapshot, card), action), count


def _card_info(snapshot: Snapshot) -> Iterable[MetricSample]:
    for card in snapshot.cards:
        yield (*card_labels(snapshot, card), card["mode"], card["health"]), 1.0


def _drift(snapshot: Snapshot) -> Iterable[MetricSample]:
    for card in snapshot.cards:
        found = [
            part["expected_bytes"] - (part["driver_bytes"] or 0)
            for _, part, _ in snapshot.parts
            if part["uuid"] == card["uuid"] and part["expected_bytes"] is not None
        ]
        yield card_labels(snapshot, card), sum(found)


def _xids(snapshot: Snapshot) -> Iterable[MetricSample]:
    for card in snapshot.cards:
        # A series that starts with 1 is not an increase to Prometheus.
        for xid in sorted({*map(str, FATAL), *card["xids"]}, key=int):
            yield (*card_labels(snapshot, card), xid), card["xids"].get(xid, 0)


CARD_FAMILIES: Final = (
    card_family(
        "gpushare_card_memory_capacity_bytes",
        "Memory of the card, without what the driver reserves.",
        lambda card: card["memory_bytes"],
    ),
    card_family(
        "gpushare_card_memory_used_bytes",
        "Memory used by all processes, as the driver reports it.",
        lambda card: card["used_bytes"],
    ),
    card_family(
        "gpushare_card_memory_allocated_bytes",
        "Memory allocated to containers: the sum of their quotas.",
        lambda card: card["allocated_bytes"],
    ),
    card_family(
        "gpushare_card_memory_available_bytes",
        "Memory available to new containers; 0 while the card takes none (cordoned, unhealthy).",
        lambda card: card["available_bytes"],
    ),
    card_family(
        "gpushare_card_memory_non_tenant_bytes",
        "Memory of processes that belong to no container: the most that was seen.",
        lambda card: card["non_tenant_bytes"],
    ),
    card_family(
        "gpushare_card_memory_evicted_bytes",
        "Memory of the card's evicted containers, in host memory.",
        lambda card: card["evicted_bytes"],
    ),
    card_family(
        "gpushare_card_tenants_evicted",
        "Containers whose memory was evicted from the card.",
        lambda card: card["evicted_tenants"],
    ),
    card_family(
        "gpushare_card_cores_allocated_ratio",
        "Share of the card's compute allocated to containers.",
        lambda card: (100 - card["cores_available"]) / 100,
    ),
    card_family(
        "gpushare_card_utilization_ratio",
        "Share of time the card was busy, as the driver reports it.",
        lambda card: None if card["utilization"] is None else card["utilization"] / 100,
    ),
    card_family("gpushare_card_tenants", "Containers on the card.", lambda card: card["tenants"]),
    card_family(
        "gpushare_card_max_tenants",
        "Maximum number of containers on the card.",
        lambda card: card["max_tenants"],
    ),
    card_family(
        "gpushare_card_cordoned",
        "1 if the card is cordoned.",
        lambda card: float(card["cordoned"]),
    ),
    card_family(
        "gpushare_card_healthy",
        "1 if the card is healthy.",
        lambda card: float(card["health"] == "ok"),
    ),
    Family(
        "gpushare_card_info",
        "gauge",
        (*OF_CARD, "mode", "health"),
        "1, with how the card is used (unused, shared, exclusive or mps) and its health: ok, or "
        "the problem.",
        _card_info,
    ),
    Family(
        "gpushare_card_xid_errors_total",
        "counter",
        (*OF_CARD, "xid"),
        "XID errors that the driver reported for the card, by number.",
        _xids,
    ),
    Family(
        "gpushare_card_non_tenant_processes",
        "gauge",
        (*OF_CARD, "action"),
        "Processes that use memory of the card and belong to no tenant, by action: processes of "
        "the host are ignored, those of containers are reported.",
        _non_tenant,
    ),
    Family(
        "gpushare_card_accounting_drift_bytes",
        "gauge",
        OF_CARD,
        "Memory expected by the accounting of the containers, less what the driver reports.",
        _drift,
    ),
)


#: The codes of refusals (gpushare/errors.py), and `late`: the client had given up.
CODES: Final = ("refused", "usage", "not-found", "forbidden", "failed", "internal", "late")
_BOUNDS: Final = (*(repr(float(bound)) for bound in BOUNDS), "+Inf")


def _of_node(
    name: str, text: str, value: Callable[[NodeMetrics], float], kind: MetricType = "gauge"
) -> Family:
    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        if snapshot.metrics is not None:
            yield (snapshot.node,), value(snapshot.metrics.node)

    return Family(name, kind, OF_NODE, text, samples)


def _up(snapshot: Snapshot) -> Iterable[MetricSample]:
    yield (snapshot.node,), float(snapshot.metrics is not None)


def _durations(snapshot: Snapshot) -> Iterable[MetricSample]:
    if snapshot.metrics is None:
        return
    for operation, row in snapshot.metrics.node["operations"].items():
        counts = map(float, accumulate(row["buckets"]))
        buckets = list(zip(_BOUNDS, counts, strict=True))
        yield (snapshot.node, operation), (buckets, row["seconds"])


def _failures(snapshot: Snapshot) -> Iterable[MetricSample]:
    if snapshot.metrics is None:
        return
    for operation, row in snapshot.metrics.node["operations"].items():
        for code in CODES:
            yield (snapshot.node, operation, code), row["failures"].get(code, 0)


def _events(snapshot: Snapshot) -> Iterable[MetricSample]:
    if snapshot.metrics is not None:
        for event, count in snapshot.metrics.node["events"].items():
            yield (snapshot.node, event), count


def _evictions(
    fields: Mapping[str, str],
) -> Callable[[Snapshot], Iterable[MetricSample]]:
    """Return samples of the counts of evictions, by the action that they are about."""

    def samples(snapshot: Snapshot) -> Iterable[MetricSample]:
        if snapshot.metrics is not None:
            found = snapshot.metrics.node["evictions"]
            for action, field in fields.items():
                yield (snapshot.node, action), found[field]

    return samples


def _build(snapshot: Snapshot) -> Iterable[MetricSample]:
    if snapshot.metrics is not None:
        node = snapshot.metrics.node
        versions = (node["version"], node["driver_version"], node["cuda_version"])
        yield (snapshot.node, *versions), 1.0


NODE_FAMILIES: Final = (
    Family("gpushare_up", "gauge", OF_NODE, "1 if gpushared answers.", _up),
    Family(
        "gpushare_build_info",
        "gauge",
        (*OF_NODE, "version", "driver", "cuda"),
        "1, with the versions of gpushared and the driver.",
        _build,
    ),
    _of_node(
        "gpushare_daemon_start_time_seconds",
        "Start time of gpushared, from which its counters count.",
        lambda node: node["started"],
    ),
    _of_node(
        "gpushare_driver_up",
        "1 if the driver is loaded and its figures are current.",
        lambda node: float(node["driver_up"]),
    ),
    _of_node(
        "gpushare_scheduler_up",
        "1 if the scheduler enforces compute shares.",
        lambda node: float(node["scheduler_up"]),
    ),
    Family(
        "gpushare_operation_duration_seconds",
        "histogram",
        (*OF_NODE, "operation"),
        "Duration of the operations that a container start or exit waits for.",
        _durations,
    ),
    Family(
        "gpushare_operation_failures_total",
        "counter",
        (*OF_NODE, "operation", "code"),
        "Failed operations by refusal code; late: the client had given up.",
        _failures,
    ),
    Family(
        "gpushare_events_total",
        "counter",
        (*OF_NODE, "event"),
        "Events by name: those that the node's history keeps, and refused callers.",
        _events,
    ),
    Family(
        "gpushare_evictions_total",
        "counter",
        (*OF_NODE, "action"),
        "Evictions (evict), restores (restore), restores to another card (move), and those that "
        "failed (failure).",
        _evictions(
            {"evict": "evictions", "restore": "restores", "move": "moves", "failure": "failures"}
        ),
    ),
    Family(
        "gpushare_eviction_seconds_total",
        "counter",
        (*OF_NODE, "action"),
        "Duration of all evictions (evict) and restores (restore), and the driver's part of both "
        "(driver).",
        _evictions(
            {
                "evict": "eviction_seconds",
                "restore": "restore_seconds",
                "driver": "driver_seconds",
            }
        ),
    ),
    _of_node(
        "gpushare_history_events_dropped_total",
        "Events that could not be written to the node's history.",
        lambda node: node["history_lost"],
        "counter",
    ),
    _of_node(
        "gpushare_queue_waiting",
        "Starts that wait for room (gpushare queue).",
        lambda node: node["queue_waiting"],
    ),
    _of_node(
        "gpushare_queue_oldest_wait_seconds",
        "How long the start that has waited longest waits; 0 if none does.",
        lambda node: node["queue_oldest_seconds"],
    ),
)
