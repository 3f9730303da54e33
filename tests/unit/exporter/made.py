# SPDX-License-Identifier: Apache-2.0
"""Figures as gpushared says them: a node with a card, and containers on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushare.exporter.metric_family import Snapshot
from gpushare.metrics_schema import BOUNDS, KINDS, Metrics

if TYPE_CHECKING:
    from gpushare.metrics_schema import CardMetrics, NodeMetrics, TenantCardMetrics, TenantMetrics

GIB = 1 << 30
UUID = "GPU-5b1f2f4e-0000-4000-8000-000000000000"


def card(index: int = 0, **more: Any) -> CardMetrics:
    made: CardMetrics = {
        "index": index,
        "uuid": f"{UUID[:-1]}{index}",
        "model": "H200",
        "name": "NVIDIA H200",
        "bus_id": "00000000:0F:00.0",
        "memory_bytes": 140 * GIB,
        "used_bytes": 5 * GIB,
        "allocated_bytes": 12 * GIB,
        "available_bytes": 128 * GIB,
        "burst_bytes": 2 * GIB,
        "evicted_bytes": 0,
        "evicted_tenants": 0,
        "non_tenant_bytes": 3 * GIB,
        "cores_allocated": 90,
        "utilization": 71,
        "tenants": 2,
        "max_tenants": 16,
        "mode": "shared",
        "cordoned": False,
        "healthy": True,
        "health": "ok",
        "xids": {"79": 1},
        "non_tenant_processes": {"ignore": 1, "warn": 2, "kill": 0},
        "sensors": {
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
        },
    }
    made.update(more)  # type: ignore[typeddict-item]
    return made


def part(index: int = 0, **more: Any) -> TenantCardMetrics:
    made: TenantCardMetrics = {
        "index": index,
        "uuid": f"{UUID[:-1]}{index}",
        "memory_bytes": 4 * GIB,
        "limit_bytes": 6 * GIB,
        "used_bytes": 3 * GIB,
        "kinds": {**dict.fromkeys(KINDS, 0), "buffer": 2 * GIB, "context": GIB},
        "evicted_bytes": 0,
        "oversubscribed_bytes": 0,
        "oversubscribed_limit_bytes": 0,
        "drift_bytes": -1024,
        "peak_bytes": 3 * GIB,
        "cores": 30,
        "policy": "burst-share",
        "utilization": 29.5,
        "source": "nvml",
        "gpu_seconds": 12.5,
        "throttled_seconds": 1.5,
        "throttled": 0.25,
        "forced": 2,
        "active": 1763700100.0,
        "over_bytes": 0,
        "bypassed": False,
        "hung": False,
    }
    made.update(more)  # type: ignore[typeddict-item]
    return made


def tenant(name: str = "team/train-0/main", **more: Any) -> TenantMetrics:
    made: TenantMetrics = {
        "key": "0123456789abcdef",
        "id": "4f5e" + "0" * 60,
        "name": name,
        "engine": "containerd",
        "pod": None,
        "uid": None,
        "labels": {},
        "mode": "shared",
        "policy": "fixed-share",
        "class_": "offline",
        "idle_since": None,
        "eviction": "",
        "restore_waits_since": None,
        "priority": 5,
        "isolation": "interposer",
        "held": [],
        "created": 1763700000.0,
        "denied": 3,
        "cards": [part()],
    }
    made.update(more)  # type: ignore[typeddict-item]
    return made


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
        "queue_granted": 3,
        "queue_waited_seconds": 120.0,
    }
    made.update(more)  # type: ignore[typeddict-item]
    return made


def metrics(*tenants: TenantMetrics, cards: list[CardMetrics] | None = None) -> Metrics:
    return Metrics(cards=cards or [card()], tenants=list(tenants), node=node())


def snapshot(*tenants: TenantMetrics, cards: list[CardMetrics] | None = None) -> Snapshot:
    return Snapshot("node-1", metrics(*tenants, cards=cards))


DOWN = Snapshot("node-1", None)
