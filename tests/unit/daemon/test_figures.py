# SPDX-License-Identifier: Apache-2.0
"""The figures that metrics are made of: there from the grant on, and never more than is known."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.cards.capacity import Foreign, Room
from gpushare.daemon.cards.card import Use
from gpushare.daemon.compute.spent import DRIVER, GATE, Spent, _Course
from gpushare.daemon.control.cordon import cordon
from gpushare.daemon.identity import processes
from gpushare.daemon.life import release
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.daemon.pages.account import Claim
from gpushare.daemon.pages.grant import Gate
from gpushare.daemon.pages.status import Waits
from gpushare.daemon.service.durations import Durations
from gpushare.daemon.tenants import Denials
from gpushare.daemon.views import figures
from gpushare.figures import ACTIONS, BOUNDS, KINDS, TenantFigures
from gpushare.protocol import Opened

from . import fakes, registered
from .fakes import GIB, MIB, FakeDriver, card
from .operations import opened

UUID = card(0).uuid


def row(node: Node) -> TenantFigures:
    [found] = figures.tenants(node)
    return found


def bound(node: Node, tenant: Opened) -> int:
    """Bind the tenant to this process; return the descriptor of its status page."""
    me = os.getpid()
    bind(tenant["key"], tenant["id"], me, me, node)
    return node.tenants.pages[tenant["key"]].status.fd


def test_a_tenant_has_figures_before_it_has_done_anything(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    found = row(node)
    [part] = found["cards"]
    assert (found["key"], found["mode"], found["denied"]) == (tenant["key"], "shared", 0)
    assert (part["memory_bytes"], part["limit_bytes"], part["used_bytes"]) == (4 * GIB, 4 * GIB, 0)
    assert part["kinds"] == dict.fromkeys(KINDS, 0)
    assert (part["utilisation"], part["gpu_seconds"], part["throttled_seconds"]) == (0.0, 0.0, 0.0)
    assert part["active"] >= found["created"] > 0


def test_what_is_used_is_split_by_what_it_is_for(node: Node) -> None:
    fd = bound(node, opened(node, memory="4GiB", devices="0"))
    registered.register(fd, 0, 1, 1)
    kinds = {abi.KIND_CONTEXT: 500 * MIB, abi.KIND_POOL: MIB, abi.KIND_MANAGED: 2 * MIB}
    registered.hold(fd, 0, GIB, contexts=1, kinds=kinds)
    [part] = row(node)["cards"]
    assert part["used_bytes"] == sum(part["kinds"].values()) == GIB
    assert (part["kinds"]["context"], part["kinds"]["pool"]) == (500 * MIB, MIB)
    assert part["drift_bytes"] == GIB - 2 * MIB  # the driver has nothing; managed it never tells


def test_the_most_that_was_used_stays(node: Node) -> None:
    fd = bound(node, opened(node, memory="4GiB", devices="0"))
    registered.register(fd, 0, os.getpid(), starttime())
    assert node.driver is not None
    with registered.life(fd, 0):
        for held in (GIB, 3 * GIB, 2 * GIB):
            registered.hold(fd, 0, held)
            node.driver.truth.look()
            node.peaks.look(node.driver.truth.view)
    [part] = row(node)["cards"]
    assert (part["used_bytes"], part["peak_bytes"]) == (2 * GIB, 3 * GIB)
    release.end(row(node)["key"], node, "it ended")
    node.driver.truth.look()
    node.peaks.look(node.driver.truth.view)
    assert list(figures.tenants(node)) == []
    assert node.peaks._most == {}


def starttime() -> int:
    me = processes.look(os.getpid())
    assert me is not None
    return me.starttime


def test_what_an_earlier_daemon_had_counted_is_not_counted_again(tmp_path: Path) -> None:
    """Its figures were in the same series: from 0 on, a restart is what Prometheus expects."""
    with fakes.node(tmp_path) as first:
        tenant = opened(first, memory="4GiB", cores="30", devices="0")
        fd = bound(first, tenant)
        registered.register(fd, 0, os.getpid(), starttime(), denied=3)
        waited(fd, 5)
        first.tenants.pages[tenant["key"]].claims()
        look(first)
        assert (row(first)["denied"], row(first)["cards"][0]["throttled_seconds"]) == (3, 5.0)
    with fakes.again(tmp_path) as second:
        release.adopt(second)
        look(second)
        assert (row(second)["denied"], row(second)["cards"][0]["throttled_seconds"]) == (0, 0.0)
        fd = second.tenants.pages[tenant["key"]].status.fd
        registered.register(fd, 0, os.getpid(), starttime(), denied=5)
        waited(fd, 7)
        look(second)
        assert (row(second)["denied"], row(second)["cards"][0]["throttled_seconds"]) == (2, 2.0)


def waited(fd: int, seconds: int) -> None:
    work = abi.WORK.pack(0, 0, 0, 0, 0, 0, 0, seconds * 10**9, 0, 0)
    os.pwrite(fd, work, abi.status_work_offset(0))


def look(node: Node) -> None:
    assert node.driver is not None
    node.spending.look(node.driver.truth.view)


@pytest.mark.parametrize(
    ("spent", "said"),
    [
        (Spent(driver_percent=31.0, source=GATE, got={1: 9, 10: 29.0, 60: 9}), (31.0, "nvml")),
        (Spent(driver_percent=0.0, source=GATE, got={1: 9, 10: 29.0, 60: 9}), (29.0, "gate")),
        (Spent(driver_percent=None, source=GATE, got={1: 9, 10: 29.0, 60: 9}), (29.0, "gate")),
        (Spent(driver_percent=0.0, source=GATE, got={1: 0, 10: 0.0, 60: 0}), (0.0, "nvml")),
        (Spent(driver_percent=12.0, source=DRIVER, got={1: 9, 10: 12.0, 60: 9}), (12.0, "nvml")),
        (Spent(), (None, "")),
    ],
)
def test_utilisation_is_the_drivers_else_the_gates_else_unknown(
    spent: Spent, said: tuple[float | None, str]
) -> None:
    assert figures.busy(spent, running=True) == said


def test_before_its_process_is_there_a_tenant_has_used_nothing() -> None:
    assert figures.busy(Spent(), running=False) == (0.0, "gate")


def test_a_card_has_what_processes_have_of_it(node: Node) -> None:
    tenant = opened(node, memory="4GiB", cores="30", devices="0")
    bound(node, tenant)
    assert node.driver is not None
    driver = node.driver.nvml
    assert isinstance(driver, FakeDriver)
    driver.uses[UUID] = (Use(os.getpid(), GIB, 7), Use(1, 2 * GIB, None))
    driver.busy[UUID] = 50
    for _ in range(2):
        node.driver.truth.look()
    first, second = figures.cards(node)
    assert (first["used_bytes"], first["bypass"]["ignore"], first["utilisation"]) == (
        3 * GIB,
        1,
        50,
    )
    assert (first["granted_bytes"], first["cores_granted"], first["shares"]) == (4 * GIB, 30, 1)
    assert (second["used_bytes"], second["shares"], second["healthy"]) == (0, 0, True)
    assert not first["cordoned"]
    cordon(card(0), "its fan", node)
    assert [one["cordoned"] for one in figures.cards(node)] == [True, False]
    driver.uses[UUID] = (Use(os.getpid(), None, 7),)
    driver.lost = frozenset({card(1).uuid})
    node.driver.truth.look()
    first, second = figures.cards(node)
    assert first["used_bytes"] is None
    assert not second["healthy"]


def test_durations_go_into_the_bucket_that_they_are_within() -> None:
    durations = Durations()
    for seconds in (0.0005, BOUNDS[0], 0.3, 99.0):
        durations.note("create", seconds)
    durations.note("create", 0.3, "refused")
    durations.note("cards", 1.0)  # nobody's start waits for it
    durations.note(["no op"], 1.0)
    found = durations.figures()
    assert sorted(found) == ["bind", "create", "open", "release"]
    counts = found["create"]["buckets"]
    assert len(counts) == len(BOUNDS) + 1
    assert (counts[0], counts[BOUNDS.index(0.5)], counts[-1]) == (2, 2, 1)
    assert found["create"]["failures"] == {"refused": 1}
    assert found["bind"] == {"buckets": [0] * (len(BOUNDS) + 1), "seconds": 0, "failures": {}}


class Tick(NamedTuple):
    """A quarter of a second: what the scheduler's counter says, whether it is heard, and so on."""

    charged_ms: int
    mode: int
    heard: bool
    percent: int | None
    waited_ms: int
    denied: int
    another: bool  # the process is another by now, whose record begins with 0


ticks = st.lists(
    st.builds(
        Tick,
        charged_ms=st.integers(0, 5000),
        mode=st.sampled_from([abi.GATE_OPEN, abi.GATE_METERED, abi.GATE_WINDOW, abi.GATE_CLOSED]),
        heard=st.booleans(),
        percent=st.none() | st.integers(0, 100),
        waited_ms=st.integers(0, 5000),
        denied=st.integers(0, 9),
        another=st.booleans(),
    ),
    min_size=2,
    max_size=20,
)


@settings(max_examples=200)
@given(ticks)
def test_a_counter_never_goes_back_whatever_scheduler_and_processes_do(course: list[Tick]) -> None:
    """The scheduler may be started again, processes end, the driver fall silent."""
    spent, denials, now_ns, starttime = _Course(0), Denials(watched=True), 0, 1
    before = (0, 0, 0)
    for tick in course:
        now_ns += 250_000_000
        starttime += tick.another
        gate = Gate(
            mode=tick.mode,
            heartbeat_ns=now_ns if tick.heard else 1,
            charged_ns=tick.charged_ms * 10**6,
            windows=0,
            overruns=0,
            wanted_ns=tick.charged_ms * 10**6,
            hung=False,
        )
        spent.hear({0: Waits(tick.waited_ms * 10**6, 0)})
        denials.observe([Claim(0, 1, starttime, tick.denied, 0, ())])
        seen = spent.look(now_ns, gate, tick.percent, says=tick.percent is not None)
        now = (seen.got_ns, seen.waited_ns, denials.seen)
        assert all(one >= other for one, other in zip(now, before, strict=True)), (before, now)
        before = now


@pytest.mark.parametrize("unknown", ["ignore", "warn", "kill"])
def test_who_is_in_a_container_that_was_given_none_is_what_the_operator_says(unknown: str) -> None:
    host, inside = Foreign(1, "Xorg", GIB), Foreign(2, "python", GIB, "docker 4f5e6d7c8b9a")
    counts = figures.bypass(Room(card(0), foreign=(host, inside, inside)), unknown)
    assert counts == {**dict.fromkeys(ACTIONS, 0), "ignore": 1} | (
        {"ignore": 3} if unknown == "ignore" else {unknown: 2}
    )


def test_a_whole_card_has_the_drivers_figures(node: Node) -> None:
    tenant = opened(node, devices="0")
    bind(tenant["key"], tenant["id"], os.getpid(), os.getpid(), node)
    assert node.driver is not None
    driver = node.driver.nvml
    assert isinstance(driver, FakeDriver)
    driver.uses[UUID] = (Use(os.getpid(), 9 * GIB, 80),)
    driver.busy[UUID] = 80
    for look_ns in range(2):
        node.driver.truth.look()
        node.peaks.look(node.driver.truth.view)
        node.spending.look(node.driver.truth.view, 10**9 * (1 + look_ns))
    found = row(node)
    [part] = found["cards"]
    assert (found["mode"], found["isolation"]) == ("exclusive", "exclusive")
    assert (part["used_bytes"], part["kinds"]["beyond"]) == (9 * GIB, 9 * GIB)
    assert (part["utilisation"], part["source"]) == (80.0, "nvml")
    assert (part["peak_bytes"], part["drift_bytes"]) == (9 * GIB, None)
