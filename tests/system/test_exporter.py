# SPDX-License-Identifier: Apache-2.0
"""gpushare-exporter beside a real daemon: what Prometheus gets, and which clients get nothing."""

from __future__ import annotations

import functools
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.exporter.exposition import FAMILIES
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import find

from .scraped import LOOPBACK, Exporter, Prometheus
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
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    sleeping = ["/bin/busybox", "cat"]  # which never opens the driver
    bundle = Bundle(own, quota=QUOTA, args=sleeping, files=busybox)
    with bundle.run():
        wait_until(lambda: len(exporter.series(OF_PARTS[0], container_id=bundle.id)) == 1)
        wait_until(lambda: utilisation(exporter, bundle) == 0)
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
    bundle.remove()
    wait_until(lambda: not exporter.series(OF_PARTS[0], container_id=bundle.id))


def has_series(exporter: Exporter, name: str, bundle: Bundle) -> bool:
    return bool(exporter.series(name, container_id=bundle.id))


def utilisation(exporter: Exporter, bundle: Bundle) -> float | None:
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

        wait_until(lambda: figure("memory_used_bytes", kind="buffer") == GIB)
        wait_until(lambda: figure("allocations_denied_total", reason="over-quota") == 1)
        assert (figure("memory_used_bytes", kind="context") or 0) > 0
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
        assert figure("memory_used_bytes", kind="buffer") == GIB
        tenant.ask(f"alloc {8 * GIB}")
        wait_until(lambda: figure("allocations_denied_total", reason="over-quota") == 1)
    created = exporter.value("gpushare_events_total", event="tenant-released")
    assert created is not None


def test_a_container_cannot_reach_it(own: Stack, exporter: Exporter) -> None:
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    addresses = [LOOPBACK, *own_addresses()]
    script = "; ".join(
        f"/bin/busybox wget -T 5 -q -O - http://{one}:{exporter.port}/metrics" for one in addresses
    )
    args = ["/bin/busybox", "sh", "-c", f"{script}; echo tried >&2"]
    with Bundle(own, quota=QUOTA, args=args, files=busybox).run() as tenant:
        tenant.wait()
        assert "tried" in tenant.errors
        assert "gpushare_" not in tenant.errors
        assert tenant._lines.get(timeout=30) is None  # nothing on stdout
    assert exporter.ask()[0] == 200


def own_addresses() -> list[str]:
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout
    return [address for address in shown.split() if ":" not in address]


@pytest.mark.needs("prometheus")
def test_prometheus_scrapes_it(own: Stack, exporter: Exporter) -> None:
    prometheus = Prometheus(exporter)
    query, running = prometheus.query, prometheus.program
    bundle = Bundle(own, quota=QUOTA)
    with bundle.started() as tenant:
        tenant.ask(f"alloc {GIB}")
        used = (
            f'sum by (container_id) (gpushare_container_memory_used_bytes{{kind="buffer",'
            f'container_id="{bundle.id}"}})'
        )
        running.wait_until(lambda: [row["value"][1] for row in query(used)] == [str(GIB)])
        assert [row["value"][1] for row in query('up{job="gpushare"}')] == ["1"]
        quantile = "histogram_quantile(0.5, gpushare_operation_duration_seconds_bucket)"
        assert {row["metric"]["operation"] for row in query(quantile)} >= {"create", "bind"}
        running.wait_until(lambda: prometheus.health() == {"ok"})
    running.stop()


def test_a_lost_card_is_reported_with_its_xid_and_in_the_history(
    own: Stack, exporter: Exporter
) -> None:
    """The last: the card is not to be used again."""
    assert exporter.value("gpushare_card_xid_errors_total", gpu_index="1", xid="79") == 0
    assert exporter.value("gpushare_card_healthy", gpu_index="1") == 1
    simulator.raise_xid(Path(own.env["GPUSHARE_SIM_DEVICE"]), 79, card=1)
    name = "gpushare_card_xid_errors_total"
    wait_until(lambda: exporter.value(name, gpu_index="1", xid="79") == 1)
    wait_until(lambda: exporter.value("gpushare_card_healthy", gpu_index="1") == 0)
    assert exporter.value(name, gpu_index="0") == 0
    assert exporter.value("gpushare_card_healthy", gpu_index="0") == 1
    [(labels, _)] = exporter.series("gpushare_card_healthy", gpu_index="1")
    assert "XID 79" in own.gpushare("history", labels["gpu_uuid"]).stdout
