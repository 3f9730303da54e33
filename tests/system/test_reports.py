# SPDX-License-Identifier: Apache-2.0
"""gpushare report on what a real gpushared counted, after gpushared has stopped."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from gpushare.history import FOLDER
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from tests.stack import Stack
from tests.stack.bundle import Bundle

from .waiting import wait_until

GIB = 1 << 30
SETTINGS = """
labels: [team]
prices: {currency: EUR, basis: used, gpu_hour: 3600}
"""


def test_reports_agree_with_the_counters_after_the_daemon_stopped() -> None:
    with Stack() as own:
        with own.config.open("a") as settings:
            settings.write(SETTINGS)
        own.start_daemon()
        quota = {"memory": "4GiB", "cores": "30"}
        bundle = Bundle(own, quota=quota, annotations={"team": "red"})
        with bundle.started() as tenant:
            assert tenant.ask(f"alloc {GIB}")["code"] == 0
            for _ in range(3):
                refused = tenant.ask(f"alloc {8 * GIB}")
                assert refused["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
            assert tenant.ask("spin 1000000 100")["code"] == 0
            wait_until(lambda: counters(own)["gpu_seconds"] > 0)
            # The history has microseconds.
            wait_until(lambda: recorded(own) == pytest.approx(counters(own), abs=1e-6))
            counted = counters(own)
        own.end_daemon(signal.SIGTERM)
        [used] = report(own, "usage", "--by", "label:team")["rows"]
        assert (used["label:team"], used["denied"]) == ("red", 3)
        assert used["gpu_seconds"] == pytest.approx(counted["gpu_seconds"], rel=1e-3)
        costs = report(own, "chargeback", "--by", "node")
        assert costs["rows"][0]["cost"] == pytest.approx(counted["gpu_seconds"], rel=1e-3)
        assert costs["currency"] == "EUR"
        [incident] = report(own, "oom")["rows"]
        assert (incident["refusals"], incident["quota_bytes"]) == (3, 4 * GIB)
        assert incident["used_now_bytes"] > GIB


def counters(stack: Stack) -> dict[str, float]:
    [tenant] = stack.client.metrics().tenants
    return {"gpu_seconds": tenant["cards"][0]["gpu_seconds"], "denied": tenant["denied"]}


def recorded(stack: Stack) -> dict[str, float]:
    """Return what the metrics history has of the same counters."""
    try:
        with HistoryReader(stack.root / "state" / FOLDER) as reader:
            [found] = reader.containers(0, 1e11)
            names = ("gpu_seconds", "denied")
            return {name: reader.total(found, name, 0, 1e11) for name in names}
    except (HistoryUnreadable, ValueError):
        return {}


def report(stack: Stack, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = stack.shown("report", *words, "--config", str(stack.config))
    return found
