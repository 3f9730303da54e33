# SPDX-License-Identifier: Apache-2.0
"""What ends by time: idle memory, time limits and the watchdog, whatever the wall clock does."""

from __future__ import annotations

import ast
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import gpushare.daemon
from gpushare.daemon.audit import audit as rests
from gpushare.daemon.audit.audit import SETTLED_LOOKS, IdleBackoff
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.core import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.freezer import CannotFreeze
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.observe import time_limits
from gpushare.daemon.observe.time_limits import IdleHolders, TimeLimits
from gpushare.daemon.observed import AuditFinding, ComputeUsage, UsageView
from gpushare.daemon.service.systemd import Watchdog
from gpushare.daemon.store.record import FreezeRecord, TenantRecord
from gpushare.daemon.views.metrics import tenant_rows
from gpushare.daemon.views.tenant_status import tenant_status, warnings_of
from gpushare.quota.request_policy import IdlePolicy

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import opened

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
    fault: str = ""
    active: float = BEGAN
    source: str = "gate"
    held: int = GIB

    jump: float = 0.0

    def monotonic(self) -> float:
        return self.now - BEGAN

    def time(self) -> float:
        return self.now + self.jump

    def __post_init__(self) -> None:
        self.watch = IdleHolders(self.node, {"pause": self.pause, "kick": self.kick})

    def pause(self, _record: TenantRecord, why: str) -> None:
        if self.fault:
            raise CannotFreeze(self.fault)
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
        usage = ComputeUsage(source=self.source, last_active=self.active)
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

    log.attach_listener(sink)
    yield made
    log.detach_listener(sink)


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


def test_a_failed_action_is_an_event(course: Course) -> None:
    course.choose("pause")
    course.fault = "its cgroup is shared"
    course.after(0)
    course.after(7200)
    assert course.events == ["tenant-idle-warned", "tenant-idle-action-failed"]


CARD = fakes.card().uuid


ME = os.getpid()


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver()
    made.uses = {CARD: (ProcessUse(ME, GIB, 0),)}
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


@pytest.fixture
def rest(node: FakeDaemon) -> IdleBackoff:
    """One that has seen nothing new for long enough."""
    made = IdleBackoff(node)
    for _ in range(SETTLED_LOOKS + 1):
        assert not made.look(node.sampler)
        assert made.slower == 1
        look(node, made)
    assert made.look(node.sampler)
    assert made.slower > 1
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"uses": {CARD: (ProcessUse(ME, GIB, 0), ProcessUse(ME + 1, 0, 0))}},
        {"uses": {CARD: (ProcessUse(ME, GIB + 1, 0),)}},
        {"busy": {CARD: 1}},
        {"lost": frozenset({CARD})},
        {"fault": "no answer"},
        {"loads": 1},
        {},
    ],
    ids=["another-process", "more-memory", "busy", "lost", "fault", "a-new-driver", "nothing"],
)
def test_whatever_is_new_is_looked_at_in_full_at_once_and_for_a_while(
    node: FakeDaemon, driver: FakeDriver, rest: IdleBackoff, change: dict[str, object]
) -> None:
    driver.sensors = {CARD: {"power_milliwatts": 75_001}}
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
    driver.busy = {CARD: 0} if is_measured else {}
    rest, now = IdleBackoff(node), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(SETTLED_LOOKS + 1):
        look(node, rest)
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
    allocated = entry.allocations[0].quota_bytes
    for held, rests_then in ((allocated + 1, False), (allocated, True)):
        monkeypatch.setattr(
            "gpushare.daemon.observed.UsageView.driver_bytes", lambda *_, held=held: held
        )
        rest = IdleBackoff(node)
        for _ in range(SETTLED_LOOKS + 1):
            look(node, rest)
        assert rest.look(node.sampler) is rests_then


def test_no_tenant_rests_while_its_state_changes(node: FakeDaemon, rest: IdleBackoff) -> None:
    found = AuditFinding("warned", "warn", 2, 1, 0.0)
    node.observed.findings = {("key", CARD): found}
    look(node, rest)
    assert not rest.look(node.sampler)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        time_limits, "log", lambda event, _level="info", **about: found.append((event, about))
    )
    return found


class BootClock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = boottime()
        monkeypatch.setattr(time_limits, "boottime", lambda: self.now)


def running(node: FakeDaemon, **quota: str) -> TenantRecord:
    tenant = opened(node, memory="1GiB", **quota)
    return node.ledger.change(tenant["key"], state="bound", pid=1, starttime=1, cgroup="")


def test_it_is_warned_once_and_then_stopped(
    node: FakeDaemon,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[tuple[str, dict[str, Any]]],
) -> None:
    clock = BootClock(monkeypatch)
    stopped: list[tuple[str, str]] = []
    limits = TimeLimits(node, lambda record, why: stopped.append((record.name, why)))
    record = running(node, time_limit="8h")
    running(node)
    limits.look()
    assert logged == []
    clock.now += 8 * 3600 - 299
    for _ in range(2):
        limits.look()
    ((event, about),) = logged
    assert (event, about["limit_seconds"], about["left_seconds"]) == (
        "tenant-time-limit-near",
        28800,
        299,
    )
    assert next(warnings_of(record, [], [], node)).endswith(
        "its time limit is 8h; to extend it: gpushare set train --time-limit TIME"
    )
    assert stopped == []
    clock.now += 300
    limits.look()
    node.freezing.run(lambda: None)
    assert stopped == [("train", "its time limit of 8h is over")]


SOURCES = Path(gpushare.daemon.__file__).parent


_READS = frozenset({"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"})

#: Where the time of day is read, and why nothing that is allocated, held or ended rests on it.
SHOWN_ONLY = {
    "audit/audit.py": "since when a tenant is over quota, as it is shown",
    "observe/compute_usage.py": "when a tenant was last at work, as it is shown",
    "freezer.py": "since when a tenant is frozen, as it is shown",
    "mps/card.py": "since when a tenant has lost its MPS server, as it is shown",
    "limits.py": "when a tenant last had a shortfall, as it is shown",
    "eviction/preconditions.py": "since when a tenant is evicted, as it is shown",
    "eviction/steps.py": "since when a tenant is evicted, as it is shown",
    "eviction/evictions.py": "since when a tenant is restored or waits for it, as it is shown",
    "lifecycle/recover.py": "`created`, as it is shown",
    "lifecycle/reserve.py": "`created`, as it is shown",
    "core/loop.py": "for the queue: since when a start waits, as it is shown",
    "core/log.py": "the time of a line",
    "state.py": "since when the daemon serves, as metrics have it",
    "lifecycle/queue.py": "since when a start waits, and when it was granted, as it is shown",
    "observe/time_limits.py": "since when a tenant is idle, and when it is stopped, as it is shown",
    "views/metrics.py": "how long a start has waited, when a tenant ended, as metrics have it",
    "lifecycle/old_installations.py": "an unused folder is removed some time after it was made",
    "store/history.py": "when an event was, and how long it is kept",
    "pages/tenants.py": "when an allocation was last refused, as it is shown",
}


def readers() -> Iterator[str]:
    """Yield the files of the daemon that read the time of day."""
    for source in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr not in _READS:
                continue
            of = node.value.attr if isinstance(node.value, ast.Attribute) else None
            of = node.value.id if isinstance(node.value, ast.Name) else of
            if of in {"time", "datetime", "date"}:
                yield str(source.relative_to(SOURCES))


def test_the_time_of_day_is_read_where_it_is_only_shown() -> None:
    assert set(readers()) <= SHOWN_ONLY.keys()


def test_no_settable_clock_is_read_by_its_number() -> None:
    asking = [
        str(source.relative_to(SOURCES))
        for source in SOURCES.rglob("*.py")
        if "CLOCK_REALTIME" in source.read_text() or "CLOCK_TAI" in source.read_text()
    ]
    assert asking == []


@pytest.mark.parametrize("years", [-20, 20])
def test_a_clock_jump_ends_and_delays_nothing(
    node: FakeDaemon,
    program: FakeProcess,
    monkeypatch: pytest.MonkeyPatch,
    years: int,
) -> None:
    """The one that waits goes on waiting, the one that runs runs, the one that is late expires."""
    waiting, late = opened(node, memory="1GiB"), opened(node, memory="2GiB")
    running = opened(node, memory="4GiB")
    bind(running["key"], running["id"], program.pid, os.getpid(), node)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + years * 365 * 86400)
    release.reconcile_tenants(node, node.freezer)
    assert set(node.ledger.entries) == {waiting["key"], late["key"], running["key"]}
    expires = node.ledger.entries[late["key"]].expires
    monkeypatch.setattr(release, "boottime", lambda: expires)
    release.reconcile_tenants(node, node.freezer)
    assert late["key"] not in node.ledger.entries
    assert running["key"] in node.ledger.entries


LIMIT = 60.0


class ManualClock:
    """Continues when it is released."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("stuck", ["decide", "truth"])
def test_a_thread_that_hangs_starves_it_and_is_named_once(
    stuck: str, capfd: pytest.CaptureFixture[str]
) -> None:
    clock, said = ManualClock(), list[str]()
    pulse = Watchdog(("decide", "truth"), LIMIT, clock)
    hung = clock.now
    fed = hung
    while clock.now < hung + 2 * LIMIT:
        clock.now += pulse.period
        pulse.beat("truth" if stuck == "decide" else "decide")
        before = len(said)
        pulse.feed(said.append)
        fed = clock.now if len(said) > before else fed
    # systemd acts LIMIT after the last word: before twice that has gone by since it hung.
    assert fed - hung <= LIMIT / 2
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["event"], line["threads"]) for line in logged] == [("thread-hung", [stuck])]
    pulse.beat(stuck)
    pulse.feed(said.append)
    assert said[-1] == "WATCHDOG=1"
    assert json.loads(capfd.readouterr().err)["event"] == "thread-recovered"
