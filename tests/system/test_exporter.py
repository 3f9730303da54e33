# SPDX-License-Identifier: Apache-2.0
"""gpushare-exporter beside a real daemon: what Prometheus gets, and which clients get nothing."""

from __future__ import annotations

import functools
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.exporter.exposition import FAMILIES
from gpushare.verify import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import find

from .scraped import EXPORTER, LOOPBACK, Exporter, Prometheus, answers, free_port
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


@contextmanager
def container(stack: Stack, **more: Any) -> Iterator[tuple[Bundle, ProbeTenant]]:
    bundle = Bundle(stack, **{"quota": {"memory": "4GiB", "cores": "30"}, **more})
    try:
        with bundle.run() as tenant:
            yield bundle, tenant
    finally:
        bundle.remove()


def test_a_container_has_its_series_before_it_calls_cuda_and_loses_them_at_its_end(
    own: Stack, exporter: Exporter
) -> None:
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    sleeping = ["/bin/busybox", "cat"]  # which never opens the driver
    with container(own, args=sleeping, files=busybox) as (bundle, _):
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
    wait_until(lambda: not exporter.series(OF_PARTS[0], container_id=bundle.id))


def has_series(exporter: Exporter, name: str, bundle: Bundle) -> bool:
    return bool(exporter.series(name, container_id=bundle.id))


def utilisation(exporter: Exporter, bundle: Bundle) -> float | None:
    return exporter.value("gpushare_container_cores_utilization_ratio", container_id=bundle.id)


def test_usage_and_refusals_are_counted_across_a_restart_of_the_daemon(
    own: Stack, exporter: Exporter
) -> None:
    with container(own) as (bundle, tenant):
        tenant.start()
        tenant.ask(f"alloc {GIB}")
        assert tenant.ask(f"alloc {8 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"

        def figure(name: str, **labels: str) -> float | None:
            return exporter.value(f"gpushare_container_{name}", container_id=bundle.id, **labels)

        wait_until(lambda: figure("memory_used_bytes", kind="buffer") == GIB)
        wait_until(lambda: figure("allocations_denied_total", reason="over-quota") == 1)
        assert (figure("memory_used_bytes", kind="context") or 0) > 0
        wait_until(lambda: (figure("memory_peak_bytes") or 0) >= GIB)
        before = exporter.value("gpushare_daemon_start_time_seconds")
        assert own.daemon is not None
        own.daemon.stop()
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


def test_a_hung_daemon_is_reported_as_down(own: Stack, exporter: Exporter) -> None:
    assert own.daemon is not None
    own.daemon.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: exporter.value("gpushare_up") == 0)
        assert exporter.series("gpushare_card_tenants") == []
    finally:
        own.daemon.process.send_signal(signal.SIGCONT)
    wait_until(lambda: exporter.value("gpushare_up") == 1)


def test_the_start_of_a_container_is_timed_and_a_refusal_counted(
    own: Stack, exporter: Exporter
) -> None:
    def count(name: str, **labels: str) -> float:
        return exporter.value(f"gpushare_operation_{name}", **labels) or 0.0

    creates = count("duration_seconds_count", operation="create")
    refused = count("failures_total", operation="create", code="refused")
    with container(own) as (_, tenant):
        tenant.start()
    with container(own, quota={"memory": "9000GiB"}) as (_, tenant):
        assert tenant.wait() != 0
    wait_until(lambda: count("duration_seconds_count", operation="create") == creates + 2)
    assert count("failures_total", operation="create", code="refused") == refused + 1
    assert count("duration_seconds_sum", operation="create") > 0


def test_a_container_cannot_reach_it(own: Stack, exporter: Exporter) -> None:
    busybox = {"/bin/busybox": Path(find("busybox")).read_bytes()}
    addresses = [LOOPBACK, *own_addresses()]
    script = "; ".join(
        f"/bin/busybox wget -T 5 -q -O - http://{one}:{exporter.port}/metrics" for one in addresses
    )
    args = ["/bin/busybox", "sh", "-c", f"{script}; echo tried >&2"]
    with container(own, args=args, files=busybox) as (_, tenant):
        tenant.wait()
        assert "tried" in tenant.errors
        assert "gpushare_" not in tenant.errors
        assert tenant._lines.get(timeout=30) is None  # nothing on stdout
    assert exporter.ask()[0] == 200


def own_addresses() -> list[str]:
    shown = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout
    return [address for address in shown.split() if ":" not in address]


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_it_does_not_show_itself_to_a_network_without_a_token(own: Stack, address: str) -> None:
    argv = [str(EXPORTER), "--socket", str(own.socket), "--listen", address]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "--token-file" in done.stderr


def test_over_a_network_it_answers_only_requests_with_the_token(own: Stack) -> None:
    file = own.root / "token"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(0o600)
    port = free_port()
    argv = [str(EXPORTER), "--socket", str(own.socket), "--listen", f"0.0.0.0:{port}"]
    program = own.start("exporter-token", [*argv, "--token-file", str(file)])
    program.wait_until(lambda: answers(port))
    asked = Exporter(own, program, port)
    assert asked.ask()[0] == 401
    assert asked.ask(Authorization="Bearer 0123456789abcdef0123456789abcdee")[0] == 401
    status, text = asked.ask(Authorization=f"Bearer {file.read_text().strip()}")
    assert (status, "gpushare_up" in text) == (200, True)
    program.stop()


def test_a_unix_socket_is_for_its_owner_and_goes_with_it(own: Stack) -> None:
    path = own.root / "metrics.sock"
    argv = [str(EXPORTER), "--socket", str(own.socket), "--listen", f"unix:{path}"]
    program = own.start("exporter-unix", argv)
    program.wait_until(path.exists)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        program.wait_until(lambda: link.connect_ex(str(path)) == 0)
        link.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert link.recv(12) == b"HTTP/1.1 200"
    assert path.stat().st_mode & 0o777 == 0o660
    program.stop()
    assert program.process.returncode == 0
    assert not path.exists()


def test_gpushare_metrics_prints_the_same_once(own: Stack, exporter: Exporter) -> None:
    def printed(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*own.cli, "metrics", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**own.environment, **env},
        )

    said = printed("--node", "node-1")
    assert said.returncode == 0
    names = {line.split("{")[0] for line in said.stdout.splitlines() if line[0] != "#"}
    _, text = exporter.ask()
    assert names == {line.split("{")[0] for line in text.splitlines() if line[0] != "#"}
    assert len(json.loads(printed("--json").stdout)["cards"]) == 2
    down = printed(GPUSHARE_SOCKET=str(own.root / "nobody.sock"))
    assert down.returncode == 1
    [only] = [line for line in down.stdout.splitlines() if line[0] != "#"]
    assert (only.partition("{")[0], only.split()[-1]) == ("gpushare_up", "0.0")
    assert "gpushared is not running" in down.stderr


def test_prometheus_scrapes_it(own: Stack, exporter: Exporter) -> None:
    prometheus = Prometheus(exporter)
    query, running = prometheus.query, prometheus.program
    with container(own) as (bundle, tenant):
        tenant.start()
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


def test_it_needs_no_capability(exporter: Exporter) -> None:
    status = Path(f"/proc/{exporter.program.process.pid}/status").read_text()
    held = {line.split()[1] for line in status.splitlines() if line.startswith("Cap")}
    assert held == {"0" * 16}
    assert exporter.ask()[0] == 200


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
    shown = subprocess.run(
        [*own.cli, "history", labels["gpu_uuid"]],
        check=True,
        capture_output=True,
        text=True,
        env=own.environment,
    )
    assert "XID 79" in shown.stdout
