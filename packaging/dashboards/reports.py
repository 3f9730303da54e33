# SPDX-License-Identifier: Apache-2.0
"""The reports over the time range of the dashboard.

The recording rules are evaluated once a minute. So the sum over time of a recorded amount, divided
by 60, is the amount times hours.
"""

from __future__ import annotations

from typing import Final

from .dashboard import Row
from .panel import BYTES, COUNT, HOURS, RATIO, SECONDS, Query, TableColumn, graph, table
from .queries import (
    CARD_LABELS,
    CONTAINER_LABELS,
    CONTAINER_NAME,
    PART,
    SPACE,
    TENANT,
    by_card,
    by_container,
    of_card,
    of_part,
    over_range,
)

_PER_HOUR: Final = 60
_GIB_PER_HOUR: Final = f"{_PER_HOUR} / 2^30"
_USED: Final = f"container:gpushare_memory_used:ratio{{{PART}}}"
_WASTED: Final = f"container:gpushare_memory_wasted:bool{{{PART}}}"
_CORES_USED: Final = f"container:gpushare_cores_used:ratio{{{PART}}}"
_DENIED: Final = over_range("increase", of_part("allocations_denied_total", TENANT))


def _hours(title: str, record: str, divisor: str) -> TableColumn:
    total = over_range("sum_over_time", f"{record}{{{SPACE}}}")
    return TableColumn(title, f"sum by (namespace) ({total}) / {divisor}")


def _of_card(title: str, function: str, name: str, unit: str) -> TableColumn:
    return TableColumn(title, by_card(over_range(function, of_card(name))), unit)


def _of_part(
    title: str, function: str, series: str, unit: str, operator: str = "max"
) -> TableColumn:
    return TableColumn(title, by_container(over_range(function, series), operator), unit)


ROWS: Final = (
    Row(
        "Usage and charge-back",
        (
            table(
                "By namespace",
                {"namespace": "Namespace"},
                [
                    _hours("GPU hours", "namespace:gpushare_gpu_time:rate5m", str(_PER_HOUR)),
                    _hours(
                        *("GiB hours of quota", "namespace:gpushare_memory_quota_bytes:sum"),
                        _GIB_PER_HOUR,
                    ),
                    _hours(
                        *("GiB hours used", "namespace:gpushare_memory_used_bytes:sum"),
                        _GIB_PER_HOUR,
                    ),
                ],
                text="Containers outside Kubernetes have no namespace.",
                sort="GPU hours",
                width=12,
            ),
            table(
                "Peak by card",
                CARD_LABELS,
                [
                    _of_card("Memory", "max_over_time", "memory_capacity_bytes", BYTES),
                    _of_card("Allocated", "max_over_time", "memory_allocated_bytes", BYTES),
                    _of_card("Used", "max_over_time", "memory_used_bytes", BYTES),
                    _of_card("Containers", "max_over_time", "tenants", COUNT),
                    _of_card("Utilization (average)", "avg_over_time", "utilization_ratio", RATIO),
                ],
                text="For capacity planning: maximums, and the average utilization.",
                sort="Allocated",
                width=12,
            ),
        ),
    ),
    Row(
        "Waste and compliance",
        (
            table(
                "Unused memory",
                CONTAINER_LABELS,
                [
                    TableColumn("Quota", by_container(of_part("memory_quota_bytes")), BYTES),
                    _of_part("Used (average)", "avg_over_time", _USED, RATIO, "avg"),
                    TableColumn(
                        "Below 30 %",
                        f"{by_container(over_range('sum_over_time', _WASTED), 'max')} "
                        f"/ {_PER_HOUR}",
                        HOURS,
                    ),
                ],
                text="How much of its memory quota each container used, and for how long it used "
                "less than 30 % of it.",
                sort="Below 30 %",
            ),
            table(
                "Compliance with quotas",
                CONTAINER_LABELS,
                [
                    _of_part("Memory peak (of quota)", "max_over_time", _USED, RATIO),
                    _of_part(
                        *("Over quota", "max_over_time"),
                        *(of_part("memory_over_quota_bytes"), BYTES),
                    ),
                    TableColumn("Denied allocations", by_container(_DENIED)),
                    _of_part("Cores (average)", "avg_over_time", _CORES_USED, RATIO, "sum"),
                    _of_part(
                        *("Cores requested", "max_over_time", of_part("cores_quota_ratio")),
                        *(RATIO, "sum"),
                    ),
                ],
                sort="Denied allocations",
            ),
        ),
    ),
    Row(
        "Out of memory and idle",
        (
            graph(
                "Memory of containers with denied allocations",
                RATIO,
                Query(
                    f"{_USED} and on (node, container_id) ({_DENIED} > 0)",
                    f"{CONTAINER_NAME} {{{{gpu_index}}}}",
                ),
                text="Used memory as a fraction of the quota.",
            ),
            table(
                "Idle containers",
                CONTAINER_LABELS,
                [
                    TableColumn(
                        "Idle for",
                        f"time() - {by_container(of_part('last_active_timestamp_seconds'), 'max')}",
                        SECONDS,
                    ),
                    TableColumn("Memory held", by_container(of_part("memory_used_bytes")), BYTES),
                ],
                sort="Idle for",
                width=12,
            ),
        ),
    ),
)
