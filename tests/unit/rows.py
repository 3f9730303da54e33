# SPDX-License-Identifier: Apache-2.0
"""Rows of a card and of a tenant on it, as gpushared sends them. `more` replaces their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpushare.protocol.rows import KINDS

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow, TenantCard, TenantRow

GIB = 1 << 30
UUID = "GPU-5b1f2f4e-0000-4000-8000-000000000000"


def card_row(index: int = 0, **more: Any) -> CardRow:
    made: CardRow = {
        "index": index,
        "uuid": f"{UUID[:-1]}{index}",
        "model": "H200",
        "name": "NVIDIA H200",
        "brand": "nvidia",
        "bus_id": "00000000:0F:00.0",
        "compute_capability": "9.0",
        "is_datacenter": True,
        "memory_bytes": 140 * GIB,
        "system_reserved_bytes": 0,
        "used_bytes": 5 * GIB,
        "allocated_bytes": 12 * GIB,
        "burst_granted_bytes": 2 * GIB,
        "non_tenant_bytes": 3 * GIB,
        "non_tenant_processes": [],
        "non_tenant_actions": {"ignore": 1, "warn": 2},
        "unattributed_bytes": 0,
        "available_bytes": 128 * GIB,
        "evicted_bytes": 0,
        "evicted_tenants": 0,
        "cores_available": 10,
        "tenants": 2,
        "max_tenants": 16,
        "mode": "shared",
        "mps_trusted": False,
        "utilization": 71,
        "sensors": {"temperature_celsius": 54, "power_milliwatts": 310_200},
        "health": "ok",
        "xids": {"79": 1},
        "policy": "",
        "allowed_mode": "any",
        "schedulable_bytes": 140 * GIB,
        "schedulable_cores": 100,
        "is_schedulable": True,
        "schedulable_reason": "",
        "cordoned": False,
        "cordon_reason": "",
        "numa_node": 0,
        "links": [],
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def tenant_card(index: int = 0, **more: Any) -> TenantCard:
    """Return a part of 4 GiB; `more` also replaces keys of its compute."""
    made: TenantCard = {
        "index": index,
        "uuid": f"{UUID[:-1]}{index}",
        "quota_bytes": 4 * GIB,
        "burst_limit_bytes": 4 * GIB,
        "limit_bytes": 4 * GIB,
        "used_bytes": 3 * GIB,
        "kinds": {**dict.fromkeys(KINDS, 0), "buffers": 2 * GIB, "contexts": GIB},
        "over_limit_bytes": 0,
        "overhead_bytes": GIB,
        "contexts": 1,
        "evicted_bytes": 0,
        "oversubscribed_bytes": 0,
        "oversubscribed_limit_bytes": 0,
        "peak_bytes": 3 * GIB,
        "expected_bytes": 3 * GIB,
        "driver_bytes": 3 * GIB,
        "over_quota_bytes": 0,
        "over_quota_state": "",
        "cores": 30,
        "policy": "fixed-share",
        "share_percent": 30.0,
        "is_capped": True,
        "utilization": 29.5,
        "utilization_source": "driver",
        "encoder_percent": 0,
        "decoder_percent": 0,
        "gpu_seconds": 12.5,
        "last_active": 1763700100.0,
        "compute": {
            "cores_source": "gate",
            "gate": "window",
            "cores_used": {"1s": 29.8, "10s": 30.1, "60s": 30.0},
            "throttled": {"1s": 0.12, "10s": 0.1, "60s": 0.11},
            "charged_ns": 18 * 10**9,
            "windows": 600,
            "overruns": 2,
            "forced_launches": 1,
            "throttled_ns": 2_500_000_000,
            "is_hung": False,
            "driver_utilization": 31.0,
            "gate_bypassed": False,
        },
    }
    compute: Any = made["compute"]
    compute |= {key: more.pop(key) for key in [*more] if key in compute}
    return {**made, **more}  # type: ignore[typeddict-item]


def tenant_row(name: str = "team/train-0/main", **more: Any) -> TenantRow:
    made: TenantRow = {
        "key": "0123456789abcdef",
        "id": "4f5e6d7c8b9a" + "0" * 52,
        "name": name,
        "engine": "containerd",
        "pod": None,
        "uid": None,
        "labels": {},
        "state": "bound",
        "policy": "fixed-share",
        "class": "offline",
        "priority": 5,
        "isolation": "interposer",
        "interventions": [],
        "created": 1763700000.0,
        "idle_since": None,
        "eviction": None,
        "denied_allocations": 3,
        "denied_since_start": 3,
        "cards": [tenant_card()],
    }
    return {**made, **more}  # type: ignore[typeddict-item]
