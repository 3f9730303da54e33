# SPDX-License-Identifier: Apache-2.0
"""A container that holds memory and uses no card for `idle.after` is found, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import pytest

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.core import log
from gpushare.daemon.freezer.freezer import CannotFreeze
from gpushare.daemon.observe import idle_holders
from gpushare.daemon.observe.idle_holders import IdleHolders
from gpushare.daemon.state import ComputeUsage, UsageView
from gpushare.daemon.store.freezes import FreezeRecord
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.metrics import tenant_metrics
from gpushare.daemon.views.status_rows import tenant_row
from gpushare.quota.request import RequestRecord, SourceKind
from gpushare.quota.request_policy import IdlePolicy

from . import fakes
from .fakes import GIB, FakeDaemon

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
        terms = replace(self.node.config.terms, idle=IdlePolicy(after, action))
        self.node.config = replace(self.node.config, terms=terms)

    def after(self, seconds: float) -> float | None:
        """Look so much later; return since when the tenant is idle."""
        self.now += seconds
        uses = ((UUID, ProcessUse(4, self.held, 0)),) if self.held else ()
        self.node.observed.usage = UsageView(processes={KEY: uses})
        usage = ComputeUsage(source=self.source, active=self.active)
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
    monkeypatch.setattr(idle_holders, "time", made)
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
    row = tenant_row(course.row(), course.node)
    assert (row["idle_since"], row["warnings"]) == (BEGAN, [])
    assert [one["idle_since"] for one in tenant_metrics(course.node)] == [BEGAN]


def test_warn_also_warns_its_user(course: Course) -> None:
    course.choose("warn")
    course.after(0)
    course.after(7200)
    assert course.events == ["tenant-idle-warned"]
    [warning] = tenant_row(course.row(), course.node)["warnings"]
    assert "does not use its cards (idle.action: warn)" in warning


def test_the_use_of_a_card_begins_the_time_again(course: Course) -> None:
    course.after(0)
    course.after(7200)
    course.active = course.now
    assert course.after(0) is None
    assert course.after(7199) is None
    assert course.after(1) == BEGAN + 7200
    assert course.events == ["tenant-idle-detected"] * 2


def test_a_clock_that_is_set_ends_no_container(course: Course) -> None:
    course.choose("kick")
    course.after(0)
    course.jump = 10**6
    assert course.after(60) is None
    assert course.after(7140) == BEGAN
    assert len(course.acts) == 1


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


@pytest.mark.parametrize(
    ("after", "own", "kind", "least"),
    [
        (7200, "30m", "annotation", 1800),
        (7200, "7d", "annotation", 7200),
        (None, "30m", "env", 1800),
        (7200, "3h", "operator", 10800),
    ],
)
def test_a_container_has_its_own_time_at_most_that_of_the_node(
    course: Course, after: int | None, own: str, kind: SourceKind, least: int
) -> None:
    course.choose("pause", after)
    quota: RequestRecord = {"idle-after": {"value": own, "source": kind}}
    course.node.ledger.resize(replace(course.row(), quota=quota))
    course.after(0)
    assert course.after(least - 1) is None
    assert course.after(1) == BEGAN
    assert course.acts == [("pause", f"idle for {least} s (idle.action: pause)")]
