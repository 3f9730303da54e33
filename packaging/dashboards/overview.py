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
    by_card,
    by_container,
    of_card,
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
_FIRING: Final = f'ALERTS{{alertname=~"Gpushare.+",alertstate="firing",{NODE}}}'


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
