# SPDX-License-Identifier: Apache-2.0
"""Figures as gpushared says them: a node with a card, and containers on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpushare.exporter.metric_family import Snapshot
from gpushare.metrics_schema import BOUNDS, Metrics
from tests.unit.rows import GIB, UUID, card_row, tenant_card, tenant_row

if TYPE_CHECKING:
    from gpushare.metrics_schema import NodeMetrics
    from gpushare.protocol.rows import CardRow, CardSensors, TenantCard, TenantRow

__all__ = ["GIB", "UUID", "card", "metrics", "node", "part", "snapshot", "tenant"]

SENSORS: Final[CardSensors] = {
    "temperature_celsius": 41,
    "memory_temperature_celsius": 47,
    "power_milliwatts": 250_500,
    "energy_millijoules": 7_000_250,
    "sm_clock_mhz": 1980,
    "memory_clock_mhz": 3201,
    "memory_copy_percent": 12,
    "encoder_percent": 3,
    "decoder_percent": 4,
    "pcie_replays": 5,
    "correctable_rows": 6,
    "uncorrectable_rows": 7,
    "row_remap_failures": 0,
    "corrected_ecc_errors": 8,
    "uncorrected_ecc_errors": 9,
    "reserved_bytes": 600 << 20,
}


def card(index: int = 0, **more: Any) -> CardRow:
    return card_row(index, **{"sensors": {**SENSORS}, **more})


def part(index: int = 0, **more: Any) -> TenantCard:
    made = {
        "limit_bytes": 6 * GIB,
        "expected_bytes": 3 * GIB - 1024,
        "policy": "burst-share",
        "throttled_ns": 1_500_000_000,
        "throttled": {"1s": 0.12, "10s": 0.25, "60s": 0.11},
        "forced_launches": 2,
    }
    return tenant_card(index, **{**made, **more})


def tenant(name: str = "team/train-0/main", **more: Any) -> TenantRow:
    return tenant_row(name, **{"id": "4f5e" + "0" * 60, "cards": [part()], **more})


def node(**more: Any) -> NodeMetrics:
    made: NodeMetrics = {
        "version": "0.1.0",
        "node_name": "",
        "started": 1763690000.0,
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "driver_up": True,
        "scheduler_up": True,
        "operations": {
            "create": {
                "buckets": [1, 0, 2, *[0] * (len(BOUNDS) - 3), 1],
                "seconds": 12.5,
                "failures": {"refused": 1},
            }
        },
        "events": {"tenant-bound": 2, "ledger-damaged": 0},
        "evictions": {
            "evictions": 3,
            "restores": 2,
            "moves": 1,
            "failures": 0,
            "eviction_seconds": 6.5,
            "restore_seconds": 4.25,
            "driver_seconds": 10.0,
        },
        "history_lost": 0,
        "queue_waiting": 2,
        "queue_oldest_seconds": 90.0,
    }
    made.update(more)  # type: ignore[typeddict-item]
    return made


def metrics(*tenants: TenantRow, cards: list[CardRow] | None = None) -> Metrics:
    return Metrics(cards=cards or [card()], tenants=list(tenants), node=node())


def snapshot(*tenants: TenantRow, cards: list[CardRow] | None = None) -> Snapshot:
    return Snapshot("node-1", metrics(*tenants, cards=cards))


DOWN = Snapshot("node-1", None)
