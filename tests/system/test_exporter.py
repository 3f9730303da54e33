# SPDX-License-Identifier: Apache-2.0
"""gpushare-exporter beside a real daemon: what Prometheus gets, and which clients get nothing."""

from __future__ import annotations

import functools
import signal
import subprocess
from collections.abc import Iterator

import pytest

from gpushare.exporter.exposition import FAMILIES
from gpushare.kubernetes.cluster.figures import node_figures
from tests.stack import Stack
from tests.stack.bundle import Bundle, busybox

from .scraped import LOOPBACK, Exporter
from .waiting import wait_until

GIB = 1 << 30
OF_PARTS = [
    family.name for family in FAMILIES if {"container_id", "gpu_uuid"} <= set(family.labels)
]


@pytest.fixture(scope="module")
def own() -> Iterator[Stack]:
    """A stack with two cards whose daemon may be stopped."""
    with Stack(cards=2) as made:
        made.start_daemon()
        yield made


@pytest.fixture(scope="module")
def exporter(own: Stack) -> Exporter:
    return Exporter.of(own)


QUOTA = {"memory": "4GiB", "cores": "30"}


@pytest.mark.gate
def test_a_container_has_its_series_before_it_calls_cuda_and_loses_them_at_its_end(
    own: Stack, exporter: Exporter
) -> None:
    sleeping = ["/bin/busybox", "cat"]  # which never opens the driver
    bundle = Bundle(own, quota=QUOTA, args=sleeping, files=busybox())
    with bundle.run():
        wait_until(lambda: len(exporter.series(OF_PARTS[0], container_id=bundle.id)) == 1)
        wait_until(lambda: utilization(exporter, bundle) == 0)
        for name in OF_PARTS:
            wait_until(functools.partial(has_series, exporter, name, bundle))
        used = exporter.value("gpushare_container_memory_used_bytes", container_id=bundle.id)
        denied = exporter.value(
            "gpushare_container_allocations_denied_total", container_id=bundle.id
        )
        assert (used, denied) == (0, 0)
        [(labels, _)] = exporter.series(OF_PARTS[0], container_id=bundle.id)
        assert (labels["node"], labels["mode"], labels["policy"]) == (
            "node-1",
            "shared",
            "fixed-share",
        )
        figures = node_figures("node-1", exporter.ask("/rows")[1])
        assert (len(figures.cards), figures.problem) == (2, "")
        [row] = [one for one in figures.containers if one["id"] == bundle.id]
        assert (row["quota_bytes"], row["cores"], row["used_bytes"]) == (4 * GIB, 30, 0)
    bundle.remove()
    wait_until(lambda: not exporter.series(OF_PARTS[0], container_id=bundle.id))


def has_series(exporter: Exporter, name: str, bundle: Bundle) -> bool:
    return bool(exporter.series(name, container_id=bundle.id))


def utilization(exporter: Exporter, bundle: Bundle) -> float | None:
    return exporter.value("gpushare_container_cores_utilization_ratio", container_id=bundle.id)


def test_usage_and_refusals_are_counted_across_a_restart_of_the_daemon(
    own: Stack, exporter: Exporter
) -> None:
    bundle = Bundle(own, quota=QUOTA)
    with bundle.started() as tenant:
        tenant.ask(f"alloc {GIB}")
        assert tenant.ask(f"alloc {8 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"

        def figure(name: str, **labels: str) -> float | None:
            return exporter.value(f"gpushare_container_{name}", container_id=bundle.id, **labels)

        wait_until(lambda: figure("memory_used_bytes", kind="buffers") == GIB)
        wait_until(lambda: figure("allocations_denied_total", reason="over-quota") == 1)
        assert (figure("memory_used_bytes", kind="contexts") or 0) > 0
        wait_until(lambda: (figure("memory_peak_bytes") or 0) >= GIB)
        before = exporter.value("gpushare_daemon_start_time_seconds")
        own.end_daemon(signal.SIGTERM)
        wait_until(lambda: exporter.value("gpushare_up") == 0)
        assert exporter.series("gpushare_container_memory_quota_bytes") == []
        own.start_daemon()
        wait_until(lambda: exporter.value("gpushare_up") == 1)
        assert (exporter.value("gpushare_daemon_start_time_seconds") or 0) > (before or 0)
        # Counters begin with 0 again, as Prometheus expects of what was started anew.
        assert figure("allocations_denied_total", reason="over-quota") == 0
        assert figure("memory_used_bytes", kind="buffers") == GIB
        tenant.ask(f"alloc {8 * GIB}")
        wait_until(lambda: figure("allocations_denied_total", reason="over-quota") == 1)
    created = exporter.value("gpushare_events_total", event="tenant-released")
    assert created is not None


def test_a_container_cannot_reach_it(own: Stack, exporter: Exporter) -> None:
    addresses = [LOOPBACK, *own_addresses()]
    script = "; ".join(
        f"/bin/busybox wget -T 5 -q -O - http://{one}:{exporter.port}/metrics" for one in addresses
    )
    args = ["/bin/busybox", "sh", "-c", f"{script}; echo tried >&2"]
    with Bundle(own, quota=QUOTA, args=args, files=busybox()).run() as tenant:
        tenant.wait()
        assert "tried" in tenant.errors
        assert "gpushare_" not in tenant.errors
        assert tenant._lines.get(timeout=30) is None  # nothing on stdout
    assert exporter.ask()[0] == 200


def own_addresses() -> list[str]:
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout
    return [address for address in shown.split() if ":" not in address]
