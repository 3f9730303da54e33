# SPDX-License-Identifier: Apache-2.0
"""The overview: problems first, then capacity and usage."""

from __future__ import annotations

from typing import Final

from .dashboard import Row
from .panel import BYTES, COUNT, RATIO, SECONDS, Query, TableColumn, graph, stat, table
from .queries import (
    CARD_LABELS,
    CARD_NAME,
    CONTAINER_NAME,
    NODE,
    SPACE,
    TENANT,
    by_card,
    by_container,
    of_card,
    of_node,
    of_part,
    per_second,
)

_CAPACITY: Final = f"sum({of_card('memory_capacity_bytes')})"
_ALLOCATED: Final = f"sum({of_card('memory_allocated_bytes')})"
_ALERT_LABELS: Final = {
    "alertname": "Alert",
    "severity": "Severity",
    "node": "Node",
    "namespace": "Namespace",
    "pod": "Pod",
    "container": "Container",
    "gpu_index": "Card",
}
_MPS_FAULT: Final = 'event="mps-server-faulted"'
_FIRING: Final = f'ALERTS{{alertname=~"Gpushare.+",alertstate="firing",{NODE}}}'


_RESTORE_WAITS: Final = of_part("restore_wait_seconds", TENANT)
_EVICTIONS: Final = of_node("evictions_total")


def _seconds_of_each(action: str) -> str:
    """Return how long an eviction or a restore took on average; NaN: there was none."""
    label = f'action="{action}"'
    seconds, count = (
        f"sum by (node) (increase({of_node(name, label)}[$__rate_interval]))"
        for name in ("eviction_seconds_total", "evictions_total")
    )
    return f"{seconds} / {count}"


def _by_namespace(record: str) -> Query:
    return Query(f"sum by (namespace) ({record}{{{SPACE}}})", "{{namespace}}")


ROWS: Final = (
    Row(
        "Problems",
        (
            table(
                "Firing alerts",
                _ALERT_LABELS,
                [TableColumn("Alerts", f"sum by ({', '.join(_ALERT_LABELS)}) ({_FIRING})")],
                text="The alerts of gpushare.rules.yaml.",
                width=16,
            ),
            stat(
                "Nodes down",
                f"count(gpushare_up{{{NODE}}}) - sum(gpushare_up{{{NODE}}})",
                text="gpushared does not answer the exporter.",
                bad_above=0,
            ),
            stat("Unhealthy cards", f"sum(1 - {of_card('healthy')})", bad_above=0),
        ),
    ),
    Row(
        "Capacity",
        (
            stat("Cards", f"count({of_card('tenants')})"),
            stat("Cordoned cards", f"sum({of_card('cordoned')})"),
            stat("Containers", f"sum({of_card('tenants')})"),
            stat("Memory allocated", f"{_ALLOCATED} / {_CAPACITY}", RATIO),
            stat("Compute allocated", f"avg({of_card('cores_allocated_ratio')})", RATIO),
            stat("Utilization", f"avg({of_card('utilization_ratio')})", RATIO),
            table(
                "Cards",
                CARD_LABELS,
                [
                    TableColumn(title, by_card(of_card(name)), unit)
                    for title, name, unit in (
                        ("Memory", "memory_capacity_bytes", BYTES),
                        ("Allocated", "memory_allocated_bytes", BYTES),
                        ("Used", "memory_used_bytes", BYTES),
                        ("Evicted", "memory_evicted_bytes", BYTES),
                        ("Cores allocated", "cores_allocated_ratio", RATIO),
                        ("Utilization", "utilization_ratio", RATIO),
                        ("Containers", "tenants", COUNT),
                        ("Healthy", "healthy", COUNT),
                        ("Cordoned", "cordoned", COUNT),
                    )
                ],
                sort="Utilization",
            ),
        ),
    ),
    Row(
        "Evicted and waiting",
        (
            stat(
                "Evicted containers",
                f"sum({of_card('tenants_evicted')})",
                text="Their GPU memory is in host memory.",
            ),
            stat("Evicted memory", f"sum({of_card('memory_evicted_bytes')})", BYTES),
            stat(
                "Restores that wait",
                f"sum({_RESTORE_WAITS} > bool 0)",
                text="Programs use CUDA while their containers are evicted, and no card has room.",
                bad_above=0,
            ),
            stat(
                "Starts that wait", f"sum({of_node('queue_waiting')})", text="See gpushare queue."
            ),
            stat("Longest wait", f"max({of_node('queue_oldest_wait_seconds')})", SECONDS),
            stat(
                "MPS server faults",
                f"sum(increase({of_node('events_total', _MPS_FAULT)}[$__range]))",
                text="A fatal fault of one client ended the work of all clients of its server.",
                bad_above=0,
            ),
            graph(
                "Evicted memory by card",
                BYTES,
                Query(of_card("memory_evicted_bytes"), CARD_NAME),
                stacked=True,
            ),
            graph(
                "Evictions and restores",
                COUNT,
                Query(f"sum by (action) (increase({_EVICTIONS}[$__rate_interval]))", "{{action}}"),
            ),
            graph(
                "Duration of evictions and restores",
                SECONDS,
                *(
                    Query(_seconds_of_each(action), f"{{{{node}}}} {action}")
                    for action in ("evict", "restore")
                ),
                text="Average of each.",
            ),
            graph(
                "Starts that wait by node",
                COUNT,
                Query(of_node("queue_waiting"), "{{node}}"),
                stacked=True,
            ),
        ),
    ),
    Row(
        "Usage",
        (
            graph(
                *("Memory", BYTES, Query(_CAPACITY, "capacity")),
                *(Query(_ALLOCATED, "allocated"),),
                *(Query(f"sum({of_card('memory_used_bytes')})", "used"),),
            ),
            graph(
                "Utilization by card", RATIO, Query(of_card("utilization_ratio"), CARD_NAME), most=1
            ),
            graph(
                *("Memory used by namespace", BYTES),
                _by_namespace("namespace:gpushare_memory_used_bytes:sum"),
                stacked=True,
            ),
            graph(
                *("Cards kept busy by namespace", COUNT),
                _by_namespace("namespace:gpushare_gpu_time:rate5m"),
                stacked=True,
                text="GPU seconds per second: 1 is a whole card.",
            ),
            graph(
                "Waiting containers",
                SECONDS,
                Query(
                    f"topk(10, {by_container(per_second('throttled_seconds_total'))})",
                    CONTAINER_NAME,
                ),
                text="Seconds per second that threads wait at the launch gate; ten containers.",
            ),
            graph(
                *("Containers by node", COUNT),
                Query(f"sum by (node) ({of_card('tenants')})", "{{node}}"),
                stacked=True,
            ),
        ),
    ),
)
