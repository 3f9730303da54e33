# SPDX-License-Identifier: Apache-2.0
"""Only a tenant that bypasses the gate is limited by freezing, and only if configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from gpushare.daemon.freezer.freezer import CannotFreeze
from gpushare.daemon.policy import escalation
from gpushare.daemon.state import WINDOWS, ComputeUsage
from gpushare.daemon.store.freezes import FreezeRecord
from gpushare.daemon.views.status_rows import tenant_row

from . import fakes
from .fakes import FakeDaemon

KEY, OTHER = "a" * 16, "b" * 16
UUID = fakes.card().uuid
LOOK_NS = 250 * 10**6


@dataclass
class Held:
    """A node whose one tenant bypasses the gate, and the calls of its freezer."""

    node: FakeDaemon
    now_ns: int = 10**12
    asked: list[tuple[str, str]] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    fault: str = ""
    lost: Callable[[str], None] = lambda _: None
    spent: dict[tuple[str, str], ComputeUsage] = field(default_factory=dict)

    def start_duty_cycle(
        self, key: str, why: str, runs: float, failed: Callable[[str], None]
    ) -> None:
        del runs
        if self.fault:
            raise CannotFreeze(self.fault)
        self.asked.append((key, why))
        self.taken.add(key)
        self.lost = failed

    def set_duty_cycle(self, key: str, runs: float) -> bool:
        del runs
        return key in self.taken

    def release(self, key: str, by: str) -> bool:
        self.asked.append((key, f"release {by}"))
        self.taken.discard(key)
        return True

    def looks(self, count: int = escalation.LOOKS) -> list[tuple[str, str]]:
        """Return what was asked in so many looks."""
        self.asked.clear()
        self.node.observed.compute = MappingProxyType(self.spent)
        for _ in range(count):
            self.now_ns += LOOK_NS
            self.node.bypass.look(self.now_ns)
            self.node.freezing.run(lambda: None)
        return [*self.asked]

    def choose(self, compute: str) -> None:
        self.node.config = replace(
            self.node.config, terms=replace(self.node.config.terms, compute=compute)
        )


def figures(percent: float, charged: float, **more: Any) -> ComputeUsage:
    got = {1: charged, 10: charged, 60: charged}
    return ComputeUsage(
        source="gate",
        got=got,
        throttled=dict.fromkeys(got, 0.0),
        driver=dict.fromkeys(WINDOWS, percent),
        lately_percent=percent,
        **more,
    )


@pytest.fixture
def held(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(node)
    monkeypatch.setattr(node.freezer, "start_duty_cycle", made.start_duty_cycle)
    monkeypatch.setattr(node.freezer, "set_duty_cycle", made.set_duty_cycle)
    monkeypatch.setattr(node.freezer, "release", made.release)
    for key, policy, cores in ((KEY, "burst-share", 30), (OTHER, "burst-share", 70)):
        entry = fakes.entry(key, cores=cores)
        node.ledger.add(replace(entry, state="bound", policy=policy, pid=4, starttime=5))
    made.choose("freeze")
    made.spent[KEY, UUID] = figures(60, 0, bypassed=True)
    made.spent[OTHER, UUID] = figures(40, 40)
    yield made
    node.ledger.close()


HELD = (KEY, "bypasses the launch gate: limited to 30 % by freezing")
LET_GO = (KEY, "release duty")


def test_a_bypass_is_frozen_after_several_samples_and_reported(held: Held) -> None:
    assert held.looks(escalation.LOOKS - 1) == []
    assert held.looks(1) == [HELD]
    assert held.looks(20) == []
    row = tenant_row(held.node.ledger.entries[KEY], held.node)
    assert row["warnings"] == [f"train on card 0: {HELD[1]}, the driver measured 60 %"]
    assert row["interventions"] == []
    assert row["cards"][0]["share_percent"] == 30


def test_a_capped_container_is_frozen_even_on_an_idle_card(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, policy="fixed-share"))
    held.spent[OTHER, UUID] = figures(0, 0)
    assert held.looks() == [HELD]


def test_exclusive_and_online_tenants_are_never_frozen(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, class_="online"))
    assert held.looks(20) == []
    [allocation] = entry.allocations
    held.node.ledger.add(replace(entry, allocations=(replace(allocation, whole=True),)))
    assert held.looks(20) == []


@pytest.mark.parametrize(
    "said", [ComputeUsage(), figures(60, 0, bypassed=True, silent=True)], ids=["nothing", "silent"]
)
def test_without_figures_a_container_is_thawed_and_none_is_frozen(
    held: Held, said: ComputeUsage
) -> None:
    assert held.looks() == [HELD]
    held.spent[KEY, UUID] = said
    assert held.looks(1) == [LET_GO]
    assert held.looks(40) == []


def test_a_container_that_is_started_once_more_begins_anew(held: Held) -> None:
    assert held.looks() == [HELD]
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, pid=40, starttime=50))
    assert held.looks(1) == [LET_GO]


def test_a_container_frozen_for_another_reason_is_left_alone(held: Held) -> None:
    assert held.looks() == [HELD]
    held.node.ledger.freezes.put(FreezeRecord(KEY, "operator", "maintenance", 1.0))
    assert held.looks(1) == [LET_GO]
    assert held.looks(40) == []


def test_an_operators_resume_is_respected_for_a_minute(held: Held) -> None:
    assert held.looks() == [HELD]
    held.release(KEY, "duty")
    held.node.bypass.resumed(KEY)
    assert held.looks(4 * 59) == []
    assert held.looks(8) == [HELD]


def test_a_freeze_that_failed_is_reported_and_retried(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    held.fault = "train shares its cgroup"
    assert held.looks(4 * 12) == []
    assert 1 < capfd.readouterr().err.count("duty-cycle-failed") < 4
    held.fault = ""
    assert held.looks(4 * 6) == [HELD]


def test_a_duty_cycle_that_ends_by_itself_is_reported_and_restarted(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    assert held.looks() == [HELD]
    held.asked.clear()
    held.lost("another program froze it")
    held.node.freezing.run(lambda: None)
    assert held.asked == [LET_GO]
    assert "another program froze it" in capfd.readouterr().err
    assert held.looks(4 * 4) == []
    assert held.looks(4 * 3) == [HELD]


def test_a_failed_sample_thaws_all_containers(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    assert held.looks() == [HELD]
    monkeypatch.setattr(held.node.observed, "compute_of", lambda *_: 1 / 0)
    assert held.looks(1) == [LET_GO]
