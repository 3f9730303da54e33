# SPDX-License-Identifier: Apache-2.0
"""One machine with a card and two tenants, and the command line in front of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from gpushare import client, protocol
from gpushare.cli import gpushare

from .fake_daemon import AnsweringDaemon, Reply, Sockets, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpushare.protocol import CardStatus, DaemonStatus, TenantCard, TenantStatus

GIB = 1 << 30
Cli = Callable[..., Result]

CARD: CardStatus = {
    "index": 0,
    "uuid": "GPU-5b1f2f4e-0000-4000-8000-000000000000",
    "model": "NVIDIA H200",
    "brand": "nvidia",
    "compute_capability": "9.0",
    "is_datacenter": True,
    "memory_bytes": 140 * GIB,
    "system_reserved_bytes": 0,
    "allocated_bytes": 12 * GIB,
    "burst_used_bytes": 0,
    "burst_granted_bytes": 2 * GIB,
    "non_tenant_bytes": 1181116007,
    "non_tenant_processes": [{"pid": 812, "name": "Xorg", "bytes": 1181116007, "container": ""}],
    "unattributed_bytes": 0,
    "available_bytes": 126 * GIB + 900 * (1 << 20),
    "evicted_bytes": 0,
    "evicted_tenants": 0,
    "cores_available": 10,
    "tenants": 2,
    "max_tenants": 16,
    "mode": "shared",
    "utilization": 71,
    "temperature_celsius": 54,
    "power_milliwatts": 310200,
    "health": "ok",
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


def tenant(name: str, used: float, quota: float, **more: Any) -> TenantStatus:
    """Return a bound tenant of card 0; `more` replaces its keys, or its card's."""
    card: TenantCard = {
        "index": 0,
        "uuid": CARD["uuid"],
        "quota_bytes": math.ceil(quota * GIB),
        "burst_limit_bytes": math.ceil(quota * GIB),
        "current_limit_bytes": math.ceil(quota * GIB),
        "used_bytes": math.ceil(used * GIB),
        "burst_used_bytes": max(0, math.ceil((used - quota) * GIB)),
        "over_limit_bytes": max(0, math.ceil((used - quota) * GIB)),
        "tracked_bytes": math.ceil(used * GIB) - (500 << 20),
        "oversubscribed_bytes": 0,
        "oversubscribed_limit_bytes": 0,
        "overhead_bytes": 500 << 20,
        "contexts": 1,
        "cores": 30,
        "policy": "fixed-share",
        "share_percent": 30.0,
        "is_capped": True,
        "cores_used_1s": 29.8,
        "compute": {
            "cores_source": "gate",
            "gate": "window",
            "cores_used": {"1s": 29.8, "10s": 30.1, "60s": 30.0},
            "throttled": {"1s": 0.12, "10s": 0.1, "60s": 0.11},
            "charged_ns": 18 * 10**9,
            "windows": 600,
            "overruns": 2,
            "forced_launches": 1,
            "throttled_ns": 2500000000,
            "is_hung": False,
            "driver_utilization": 31.0,
            "gate_bypassed": False,
        },
        "denied_allocations": 2,
        "over_quota_state": "",
    }
    made: TenantStatus = {
        "key": "0123456789abcdef",
        "id": "4f5e6d7c8b9a" + "0" * 52,
        "name": name,
        "engine": "docker",
        "pod": None,
        "state": "bound",
        "reason": "",
        "pid": 4242,
        "policy": "fixed-share",
        "online": False,
        "priority": 5,
        "weight": 0,
        "isolation": "interposer",
        "mps": None,
        "over_quota_action": "freeze",
        "throttled_ratio": 0.12,
        "created_at": 1763700000.0,
        "idle_since": None,
        "ends_at": None,
        "evicted": None,
        "cards": [card],
        "processes": [
            {
                "pid": 4242,
                "container_pid": 1,
                "name": "python",
                "bytes": math.ceil(used * GIB),
                "cards": [{"index": 0, "bytes": math.ceil(used * GIB), "utilization": 29}],
            }
        ],
        "interventions": [],
        "quota": {"memory": "4GiB env", "cores": "30 env"},
        "notes": [],
        "warnings": [],
    }
    card["compute"] |= more.pop("compute", {})
    card["compute"]["cores_used"]["1s"] = more.get("cores_got", 29.8)
    card["compute"]["throttled"]["1s"] = more.get("throttled", 0.12)
    for key, value in more.items():
        for part in (card, made):
            if key in part:
                part[key] = value  # type: ignore[literal-required]
    return made


STATUS: DaemonStatus = {
    "version": "0.1.0",
    "pid": 77,
    "generation": 1,
    "scheduler_pid": 78,
    "driver_version": "580.159.04",
    "cuda_version": "13.0",
    "isolation": "interposer",
    "cards": 1,
    "tenants": 2,
    "simulated": False,
    "time_scale": 1.0,
    "config": "/etc/gpushare/gpushare.yaml",
    "library_dir": "/usr/local/lib/gpushare/current/lib",
    "run_dir": "/run/gpushare",
    "node_name": "",
    "kubernetes_mode": "annotations",
    "accepts_node_labels": True,
    "eviction_fault": "",
    "node_settings": {},
    "warnings": [],
}


@pytest.fixture(autouse=True)
def no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon is found but one of this process; time does not pass for a client that waits."""
    monkeypatch.setattr(client, "socket", Sockets())
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.0)


def answers() -> dict[str, list[Reply]]:
    """Return the answers of a daemon to every op that reads."""
    train = tenant("train", 3.9, 4)
    serve = tenant(
        "serve", 5.2, 8, cores=60, cores_got=41.0, policy="burst-share", throttled=0.0, pid=4343
    )
    serve["key"] = "fedcba9876543210"
    return copy.deepcopy(
        {
            "cards": rows(CARD),
            "tenants": rows(train, serve),
            "tenant": [{"ok": True, "tenant": train}],
            "set": [{"ok": True, "tenant": tenant("train", 3.9, 6)}],
            "card-policy": [{"ok": True, "card": {**CARD, "policy": "burst-share"}}],
            "status": [{"ok": True, **STATUS}],
        }
    )


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[AnsweringDaemon]:
    with AnsweringDaemon(tmp_path / "control.sock", answers()).answering() as answering:
        yield answering


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the command line against the socket in this test's folder."""

    def run(*words: str) -> Result:
        environment = {"GPUSHARE_SOCKET": str(tmp_path / "control.sock")}
        return CliRunner().invoke(gpushare, words, env=environment, prog_name="gpushare")

    return run
