# SPDX-License-Identifier: Apache-2.0
"""What ends by time: idle memory, time limits and the watchdog, whatever the wall clock does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pytest

from gpushare.daemon.audit import audit as rests
from gpushare.daemon.audit.audit import SETTLED_LOOKS, IdleBackoff
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.core import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.lifecycle import release
from gpushare.daemon.observe import time_limits
from gpushare.daemon.observe.time_limits import IdleHolders, TimeLimits
from gpushare.daemon.observed import AuditFinding, ComputeUsage, UsageView
from gpushare.daemon.store.record import FreezeRecord, TenantRecord
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.quota.request_policy import IdlePolicy

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import bound, opened, tenant_rows

KEY = "a" * 16


UUID = fakes.card().uuid


BEGAN = 1_000_000.0


@dataclass
class Course:
    """A node with one bound tenant, and a clock that the test moves."""

    node: FakeDaemon
    now: float = BEGAN
    acts: list[tuple[str, str]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    source: str = "gate"
    held: int = GIB

    def monotonic(self) -> float:
        return self.now - BEGAN

    def time(self) -> float:
        return self.now

    def __post_init__(self) -> None:
        self.watch = IdleHolders(self.node, {"pause": self.pause, "kick": self.kick})

    def pause(self, _record: TenantRecord, why: str) -> None:
        self.acts.append(("pause", why))

    def kick(self, _record: TenantRecord, why: str) -> None:
        self.acts.append(("kick", why))

    def choose(self, action: str = "report", after: int | None = 7200) -> None:
        terms = replace(self.node.node.config.terms, idle=IdlePolicy(after, action))
        self.node.node.config = replace(self.node.node.config, terms=terms)

    def after(self, seconds: float) -> float | None:
        """Look so much later; return since when the tenant is idle."""
        self.now += seconds
        uses = ((UUID, ProcessUse(4, self.held, 0)),) if self.held else ()
        self.node.observed.usage = UsageView(processes={KEY: uses})
        usage = ComputeUsage(source=self.source, last_active=BEGAN)
        self.node.observed.compute = MappingProxyType({(KEY, UUID): usage})
        self.watch.look()
        self.node.freezing.run(lambda: None)
        return self.node.observed.idle.get(KEY)

    def row(self) -> TenantRecord:
        return self.node.ledger.entries[KEY]


@pytest.fixture
def course(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Course]:
    node.ledger.add(replace(fakes.entry(KEY), state="bound", pid=4, starttime=5))
    made = Course(node)
    monkeypatch.setattr(time_limits, "time", made)
    made.choose()

    def sink(_time: float, event: str, _level: str, _fields: object) -> None:
        if event.startswith("tenant-idle"):
            made.events.append(event)

    log.sinks.append(sink)
    yield made
    log.sinks.remove(sink)


def test_it_is_idle_after_the_time_and_reported_once(course: Course) -> None:
    assert course.after(0) is None
    assert course.after(7199) is None
    assert course.after(1) == BEGAN
    assert course.after(60) == BEGAN
    assert (course.events, course.acts) == (["tenant-idle-detected"], [])
    row = tenant_status(course.row(), course.node)
    assert (row["idle_since"], row["warnings"]) == (BEGAN, [])
    assert [one["idle_since"] for one in tenant_rows(course.node)] == [BEGAN]


def test_without_memory_or_figures_it_is_not_idle(course: Course) -> None:
    course.after(0)
    course.held = 0
    assert course.after(7200) is None
    course.held = GIB
    assert course.after(60) is None
    course.source = ""
    assert course.after(7200) is None
    course.source = "gate"
    assert course.after(7199) is None
    assert course.after(7200) is not None


def test_a_paused_container_is_not_counted_until_it_has_run_as_long_again(course: Course) -> None:
    course.choose("pause")
    course.after(0)
    course.after(7200)
    course.node.ledger.freezes.put(FreezeRecord(KEY, "operator", "idle", course.now))
    assert course.after(9000) is None
    course.node.ledger.freezes.drop(KEY, "operator")
    assert course.after(60) is None
    assert course.after(7199) is None
    assert len(course.acts) == 1
    assert course.after(1) is not None
    assert len(course.acts) == 2


ME = os.getpid()


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver()
    made.uses = {UUID: (ProcessUse(ME, GIB, 0),)}
    return made


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver) as made:
        yield made


def look(node: FakeDaemon, rest: IdleBackoff) -> None:
    """Look in full."""
    assert node.node.driver is not None
    node.sampler.look()
    rest.note()


def looked(node: FakeDaemon) -> IdleBackoff:
    """Return one that has looked for long enough to see whether nothing is new."""
    made = IdleBackoff(node.ledger, node.tenants, node.observed)
    for _ in range(SETTLED_LOOKS + 1):
        assert not made.look(node.sampler)
        assert made.slower == 1
        look(node, made)
    return made


@pytest.fixture
def rest(node: FakeDaemon) -> IdleBackoff:
    """One that has seen nothing new."""
    made = looked(node)
    assert made.look(node.sampler)
    assert made.slower > 1
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"uses": {UUID: (ProcessUse(ME, GIB, 0), ProcessUse(ME + 1, 0, 0))}},
        {"uses": {UUID: (ProcessUse(ME, GIB + 1, 0),)}},
        {"busy": {UUID: 1}},
        {"lost": frozenset({UUID})},
        {"fault": "no answer"},
        {"loads": 1},
        {},
    ],
    ids=["another-process", "more-memory", "busy", "lost", "fault", "a-new-driver", "nothing"],
)
def test_whatever_is_new_is_looked_at_in_full_at_once_and_for_a_while(
    node: FakeDaemon, driver: FakeDriver, rest: IdleBackoff, change: dict[str, object]
) -> None:
    driver.sensors = {UUID: {"power_milliwatts": 75_001}}
    assert rest.look(node.sampler)  # sensors are not new
    vars(driver).update(change)
    if not change:
        node.ledger.add(fakes.entry())
    assert not rest.look(node.sampler)
    look(node, rest)
    assert not rest.look(node.sampler)
    assert rest.slower == 1


@pytest.mark.parametrize("is_measured", [True, False])
def test_every_tenant_is_sampled_again_after_a_time(
    node: FakeDaemon,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_measured: bool,
) -> None:
    """Sooner where a card that works looks to the driver like one that does not."""
    driver.busy = {UUID: 0} if is_measured else {}
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rest = looked(node)
    now += rests.UNMEASURED_SECONDS
    assert rest.look(node.sampler) is is_measured
    now += rests.FULL_SECONDS
    assert not rest.look(node.sampler)


def test_no_tenant_rests_beside_one_over_quota(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an audit concludes from many looks, all of which find the same, it must have."""
    entry = fakes.entry()
    node.ledger.add(entry)
    part = entry.allocations[0]
    for held, rests_then in ((part.quota_bytes + 1, False), (part.quota_bytes, True)):
        listed = {(entry.key, part.uuid): held}
        monkeypatch.setattr(
            UsageView, "__post_init__", lambda view, held=listed: view.driver_bytes.update(held)
        )
        assert looked(node).look(node.sampler) is rests_then


def test_no_tenant_rests_while_its_state_changes(node: FakeDaemon, rest: IdleBackoff) -> None:
    found = AuditFinding("warned", "warn", 2, 1, 0.0)
    node.observed.findings = {("key", UUID): found}
    look(node, rest)
    assert not rest.look(node.sampler)


def test_no_tenant_rests_while_one_encodes(node: FakeDaemon, driver: FakeDriver) -> None:
    driver.busy = {UUID: 0}
    driver.uses = {UUID: (ProcessUse(ME, GIB, 0, encoder_percent=3),)}
    assert not looked(node).look(node.sampler)


def test_a_container_is_stopped_when_its_time_is_over_and_not_before(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    now, stopped = [boottime()], list[tuple[str, str]]()
    monkeypatch.setattr(time_limits, "boottime", lambda: now[0])
    limits = TimeLimits(
        node.ledger, node.freezing, lambda record, why: stopped.append((record.name, why))
    )
    for quota in ({"time_limit": "8h"}, {}):
        key = opened(node, memory="1GiB", **quota)["key"]
        node.ledger.change(key, state="bound", pid=1, starttime=1, cgroup="")
    for seconds, warned in ((0, 0), (8 * 3600 - 299, 1), (0, 0), (300, 0)):
        assert stopped == []
        now[0] += seconds
        limits.look()
        node.freezing.run(lambda: None)
        assert capfd.readouterr().err.count("tenant-time-limit-near") == warned
    assert stopped == [("train", "its time limit of 8h is over")]


@pytest.mark.parametrize("years", [-20, 20])
def test_a_clock_jump_ends_and_delays_nothing(
    node: FakeDaemon,
    program: FakeProcess,
    monkeypatch: pytest.MonkeyPatch,
    years: int,
) -> None:
    """The one that waits goes on waiting, the one that runs runs, the one that is late expires."""
    waiting, late = opened(node, memory="1GiB"), opened(node, memory="2GiB")
    running = bound(node, program, memory="4GiB")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + years * 365 * 86400)
    release.reconcile_tenants(node, node.freezer)
    assert set(node.ledger.entries) == {waiting["key"], late["key"], running["key"]}
    expires = node.ledger.entries[late["key"]].expires
    monkeypatch.setattr(release, "boottime", lambda: expires)
    release.reconcile_tenants(node, node.freezer)
    assert late["key"] not in node.ledger.entries
    assert running["key"] in node.ledger.entries
