# SPDX-License-Identifier: Apache-2.0
"""One machine with a card and two tenants, and the command line in front of it."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpushare import client, protocol
from gpushare.cli import gpushare
from gpushare.protocol import DaemonStatus
from gpushare.protocol.rows import CardRow, TenantStatus
from tests.unit.rows import GIB, card_row, tenant_card, tenant_row

from .fake_daemon import AnsweringDaemon, Reply, Sockets, rows

Cli = Callable[..., Result]


@contextmanager
def in_utc() -> Iterator[None]:
    """Have local times be those of UTC."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


CARD: CardRow = card_row(
    model="NVIDIA H200",
    non_tenant_bytes=1181116007,
    non_tenant_processes=[{"pid": 812, "name": "Xorg", "bytes": 1181116007, "container": ""}],
    available_bytes=126 * GIB + 900 * (1 << 20),
)


def tenant(name: str, used: float, quota: float, **more: Any) -> TenantStatus:
    """Return a bound tenant of card 0; `more` replaces its keys, or its card's."""
    over = max(0, math.ceil((used - quota) * GIB))
    sizes = dict.fromkeys(
        ("quota_bytes", "burst_limit_bytes", "limit_bytes"), math.ceil(quota * GIB)
    )
    card = tenant_card(
        **sizes,
        used_bytes=math.ceil(used * GIB),
        over_limit_bytes=over,
        overhead_bytes=500 << 20,
    )
    made: TenantStatus = {
        **tenant_row(name, engine="docker", denied_allocations=2, cards=[card]),
        "reason": "",
        "pid": 4242,
        "weight": 0,
        "mps": None,
        "over_quota_action": "freeze",
        "ends_at": None,
        "processes": [
            {
                "pid": 4242,
                "container_pid": 1,
                "name": "python",
                "bytes": math.ceil(used * GIB),
                "cards": [{"index": 0, "bytes": math.ceil(used * GIB), "utilization": 29}],
            }
        ],
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
    "default_placement": "",
    "accepts_node_labels": True,
    "eviction_fault": "",
    "node_settings": {},
    "warnings": [],
    "unified_cards": [],
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
            "claims": rows(),
            "tenants": rows(train, serve),
            "tenant": [{"ok": True, "tenant": train}],
            "set": [{"ok": True, "tenant": tenant("train", 3.9, 6)}],
            "card-cordon": [{"ok": True, "card": {**CARD, "cordoned": True}}],
            "queue": rows(),
            "queue-take": [{"ok": True, "ticket": "3f2a8c01", "secret": "0" * 32}],
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
