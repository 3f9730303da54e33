# SPDX-License-Identifier: Apache-2.0
"""The figures of metrics: there from the grant on, whole at the end, never more than is known."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.observe.compute_usage import DRIVER, GATE
from gpushare.daemon.observe.sampler import update_peaks
from gpushare.daemon.observed import WINDOWS, ComputeUsage
from gpushare.daemon.views import metrics, rows
from gpushare.daemon.views.metrics import ended_rows
from gpushare.protocol import HostProcessGrant
from gpushare.protocol.rows import TenantRow

from . import fakes, registered
from .fakes import GIB, FakeDaemon, FakeDriver, card
from .operations import opened, tenant_rows
from .test_compute_usage import ScheduledGate, wait

UUID = card(0).uuid


def row(node: FakeDaemon) -> TenantRow:
    [found] = tenant_rows(node)
    return found


def bound(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    """Bind the tenant to this process; return the descriptor of its status page."""
    me = os.getpid()
    bind(tenant["key"], tenant["id"], me, me, node)
    return node.tenants.pages[tenant["key"]].status.fd


def uses(node: FakeDaemon, *found: ProcessUse, busy: int = 0, lost: str = "") -> None:
    """Have the driver list these processes of card 0, and look twice."""
    driver = node.driver
    driver.uses, driver.busy = {UUID: found}, {UUID: busy}
    driver.lost = frozenset({lost} - {""})
    for _ in range(2):
        node.sampler.look()
    node.observed.peaks = update_peaks(node.observed.peaks, node.observed.usage)


def test_a_row_is_made_again_only_if_something_in_it_may_be_another(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB")
    status = bound(node, tenant)
    [first], [again] = metrics.tenant_packets(node), metrics.tenant_packets(node)
    assert again is first
    registered.register(status, 0, 1, 1)
    registered.hold(status, 0, GIB)
    assert row(node)["cards"][0]["used_bytes"] == GIB
    node.tenants.pages[tenant["key"]].write_limit(0, 4 * GIB, 5 * GIB)
    assert row(node)["cards"][0]["limit_bytes"] == 5 * GIB
    node.observed.peaks = {(tenant["key"], UUID): 2 * GIB}
    assert row(node)["cards"][0]["peak_bytes"] == 2 * GIB
    node.observed.idle = {tenant["key"]: 7.0}
    assert row(node)["idle_since"] == 7.0


def test_a_row_follows_the_share_that_another_container_takes(node: FakeDaemon) -> None:
    opened(node, memory="4GiB")
    [alone] = tenant_rows(node)
    opened(node, memory="1GiB")
    beside, _ = tenant_rows(node)
    shares = [row["cards"][0]["share_percent"] for row in (alone, beside)]
    assert shares == [100.0, 50.0]


def test_a_card_has_its_sensors_as_long_as_the_driver_answers(tmp_path: Path) -> None:
    driver = FakeDriver()
    driver.sensors = {UUID: {"temperature_celsius": 41, "power_milliwatts": 250_500}}
    with fakes.node(tmp_path, driver) as node:
        node.sampler.look()
        [found] = rows.card_rows(node)
        assert found["sensors"] == driver.sensors[UUID]
        assert [row["sensors"] for row in node.ask("cards")] == [found["sensors"]]
        driver.fault = "it hangs"
        node.sampler.look()
        [found] = rows.card_rows(node)
        assert found["sensors"] == {}


def test_the_most_that_was_used_stays(node: FakeDaemon) -> None:
    fd = bound(node, opened(node, memory="4GiB", devices="0"))
    registered.register(fd, 0, os.getpid(), processes.start_time(os.getpid()) or 0)
    with registered.life(fd, 0):
        for held in (GIB, 3 * GIB, 2 * GIB):
            registered.hold(fd, 0, held)
            uses(node)
    [part] = row(node)["cards"]
    assert (part["used_bytes"], part["peak_bytes"]) == (2 * GIB, 3 * GIB)
    release.release_tenant(row(node)["key"], node, "it ended")
    uses(node)
    assert tenant_rows(node) == []
    assert node.observed.peaks == {}


@pytest.mark.parametrize(
    ("driver", "source", "gate", "said"),
    [
        (31.0, GATE, 29.0, (31.0, "driver")),
        (0.0, GATE, 29.0, (29.0, "gate")),
        (None, GATE, 29.0, (29.0, "gate")),
        (0.0, GATE, 0.0, (0.0, "driver")),
        (12.0, DRIVER, 12.0, (12.0, "driver")),
    ],
)
def test_utilization_is_the_drivers_else_the_gates_else_unknown(
    driver: float | None, source: str, gate: float, said: tuple[float, str]
) -> None:
    got = {1: 9.0, 10: gate, 60: 9.0}
    usage = ComputeUsage(driver=dict.fromkeys(WINDOWS, driver), source=source, cores_used=got)
    assert rows.busy_cores(usage, running=True) == said
    assert rows.busy_cores(ComputeUsage(), running=True) == (None, "")
    assert rows.busy_cores(ComputeUsage(), running=False) == (0.0, "gate")


def test_a_cards_use_is_the_sum_over_its_processes(node: FakeDaemon) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    bound(node, tenant)
    uses(node, ProcessUse(os.getpid(), GIB, 7), ProcessUse(1, 2 * GIB, None), busy=50)
    first, second = rows.card_rows(node)
    assert (first["used_bytes"], first["allocated_bytes"]) == (3 * GIB, 4 * GIB)
    assert (first["non_tenant_actions"]["ignore"], first["utilization"]) == (1, 50)
    assert (first["cores_available"], first["tenants"]) == (70, 1)
    assert (second["used_bytes"], second["tenants"], second["health"]) == (0, 0, "ok")
    uses(node, ProcessUse(os.getpid(), None, 7), lost=card(1).uuid)
    first, second = rows.card_rows(node)
    assert first["used_bytes"] is None
    assert second["health"] != "ok"


def test_a_containers_codec_use_is_that_of_its_processes(node: FakeDaemon) -> None:
    tenant = opened(node, devices="0")
    bind(tenant["key"], tenant["id"], os.getpid(), os.getpid(), node)
    use = ProcessUse(os.getpid(), GIB, 0, encoder_percent=40, decoder_percent=5)
    uses(node, use, replace(use, pid=1))
    [part] = row(node)["cards"]
    assert (part["encoder_percent"], part["decoder_percent"]) == (40, 5)
    uses(node, replace(use, encoder_percent=None))
    [part] = row(node)["cards"]
    assert (part["encoder_percent"], part["decoder_percent"]) == (None, 5)


def test_a_whole_card_has_the_drivers_figures(node: FakeDaemon) -> None:
    tenant = opened(node, devices="0")
    bind(tenant["key"], tenant["id"], os.getpid(), os.getpid(), node)
    for look_ns in range(2):
        uses(node, ProcessUse(os.getpid(), 9 * GIB, 80), busy=80)
        node.meter.look(10**9 * (1 + look_ns))
    found = row(node)
    [part] = found["cards"]
    assert found["isolation"] == "exclusive"
    assert (part["used_bytes"], part["kinds"]["unaccounted"]) == (9 * GIB, 9 * GIB)
    assert (part["utilization"], part["utilization_source"]) == (80.0, "driver")
    assert (part["peak_bytes"], part["expected_bytes"]) == (9 * GIB, None)


@pytest.fixture
def course(node: FakeDaemon) -> ScheduledGate:
    return ScheduledGate(node, opened(node, memory="4GiB", cores="30", devices="0"))


def test_the_last_figures_of_a_tenant_are_there_after_its_end(
    node: FakeDaemon, course: ScheduledGate
) -> None:
    fd = node.tenants.pages[course.tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    wait(course, 0, 10**9, 0)
    course.looks(3, got_ms=75)
    [before] = tenant_rows(node)
    began = time.time()
    release.release_tenant(course.tenant["key"], node, "its process has ended")
    assert not tenant_rows(node)
    [last] = ended_rows(node.tenants)
    assert (last["key"], last["created"]) == (before["key"], before["created"])
    assert began <= last["ended"] <= time.time()
    [part] = last["cards"]
    assert [part] == before["cards"]
    assert part["gpu_seconds"] > 0
    # Any number of clients see it, and the rows of the others are as before.
    for _ in range(2):
        assert [row["ended"] for row in node.ask("metrics") if "ended" in row] == [last]
    assert not [row for row in node.ask("metrics") if "tenant" in row]


def test_a_fault_of_the_figures_keeps_no_tenant(
    node: FakeDaemon, course: ScheduledGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "tenant_row", lambda *_: 1 / 0)
    release.release_tenant(course.tenant["key"], node, "its process has ended")
    assert not node.ledger.entries
    assert not list(ended_rows(node.tenants))
