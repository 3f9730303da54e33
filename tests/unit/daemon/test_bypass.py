# SPDX-License-Identifier: Apache-2.0
"""Only a tenant that bypasses the gate is frozen for it, and only if configured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest

from gpushare.daemon.freezer import CannotFreeze
from gpushare.daemon.observed import WINDOWS, ComputeUsage
from gpushare.daemon.policy import BYPASS_LOOKS
from gpushare.daemon.store.record import By, FreezeRecord
from gpushare.daemon.views.tenant_status import tenant_status

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
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    fault: str = ""
    spent: dict[tuple[str, str], ComputeUsage] = field(default_factory=dict)

    def freeze(self, key: str, by: By, why: str) -> None:
        if self.fault:
            raise CannotFreeze(self.fault)
        self.asked.append((key, by, why))
        self.node.ledger.freezes.put(FreezeRecord(key, by, why, 1.0))

    def looks(self, count: int = BYPASS_LOOKS) -> list[tuple[str, str, str]]:
        """Return what was asked in so many looks."""
        self.asked.clear()
        self.node.observed.compute = MappingProxyType(self.spent)
        for _ in range(count):
            self.now_ns += LOOK_NS
            self.node.audit.bypass.look(self.now_ns)
            self.node.freezing.run(lambda: None)
        return [*self.asked]

    def resumes(self) -> None:
        """An operator resumes the tenant."""
        self.node.ledger.freezes.forget(KEY)
        self.node.audit.bypass.resumed(KEY)

    def choose(self, compute: str) -> None:
        self.node.node.config = replace(
            self.node.node.config, terms=replace(self.node.node.config.terms, compute=compute)
        )


def figures(percent: float, charged: float, **more: Any) -> ComputeUsage:
    got = {1: charged, 10: charged, 60: charged}
    return ComputeUsage(
        source="gate",
        cores_used=got,
        throttled=dict.fromkeys(got, 0.0),
        driver=dict.fromkeys(WINDOWS, percent),
        lately_percent=percent,
        **more,
    )


@pytest.fixture
def held(node: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    made = Held(node)
    monkeypatch.setattr(node.freezer, "freeze", made.freeze)
    for key, policy, cores in ((KEY, "burst-share", 30), (OTHER, "burst-share", 70)):
        entry = fakes.entry(key, cores=cores)
        node.ledger.add(replace(entry, state="bound", policy=policy, pid=4, starttime=5))
    made.choose("freeze")
    made.spent[KEY, UUID] = figures(60, 0, gate_bypassed=True)
    made.spent[OTHER, UUID] = figures(40, 40)
    yield made
    node.ledger.close()


WHY = "bypasses the launch gate: the driver measured 60 % of the card, and it may have 30 %"
FROZEN = (KEY, "audit", WHY)


def test_a_bypass_is_frozen_once_after_several_samples(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    assert held.looks(BYPASS_LOOKS - 1) == []
    assert held.looks(1) == [FROZEN]
    held.spent[KEY, UUID] = figures(0, 0)
    assert held.looks(200) == []
    row = tenant_status(held.node.ledger.entries[KEY], held.node)
    assert [(one["by"], one["reason"]) for one in row["interventions"]] == [("audit", WHY)]
    logged = [line for line in capfd.readouterr().err.splitlines() if "gate-bypass-frozen" in line]
    assert [json.loads(line)["name"] for line in logged] == ["train"]


def test_one_sample_within_the_part_begins_the_count_again(held: Held) -> None:
    for _ in range(3):
        assert held.looks(BYPASS_LOOKS - 1) == []
        held.spent[KEY, UUID] = figures(34, 0, gate_bypassed=True)
        assert held.looks(1) == []
        held.spent[KEY, UUID] = figures(60, 0, gate_bypassed=True)
    assert held.looks() == [FROZEN]


def test_only_who_chose_it_has_it(held: Held) -> None:
    held.choose("warn")
    assert held.looks(20) == []


def test_a_capped_container_is_frozen_even_on_an_idle_card(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, policy="fixed-share"))
    held.spent[OTHER, UUID] = figures(0, 0)
    assert held.looks() == [FROZEN]


def test_exclusive_and_online_tenants_are_never_frozen(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, class_="online"))
    assert held.looks(20) == []
    [allocation] = entry.allocations
    held.node.ledger.add(replace(entry, allocations=(replace(allocation, whole=True),)))
    assert held.looks(20) == []


@pytest.mark.parametrize(
    "said",
    [
        ComputeUsage(),
        figures(60, 0, gate_bypassed=True, silent=True),
        figures(60, 60),
    ],
    ids=["nothing", "silent", "through the gate"],
)
def test_without_figures_of_a_bypass_none_is_frozen(held: Held, said: ComputeUsage) -> None:
    held.spent[KEY, UUID] = said
    assert held.looks(40) == []


def test_a_container_that_is_started_once_more_begins_anew(held: Held) -> None:
    assert held.looks(BYPASS_LOOKS - 1) == []
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, pid=40, starttime=50))
    assert held.looks(BYPASS_LOOKS - 1) == []
    assert held.looks(1) == [FROZEN]


def test_a_container_frozen_for_another_reason_is_left_alone(held: Held) -> None:
    held.node.ledger.freezes.put(FreezeRecord(KEY, "operator", "maintenance", 1.0))
    assert held.looks(40) == []


def test_an_operators_resume_is_respected_for_a_minute(held: Held) -> None:
    assert held.looks() == [FROZEN]
    held.resumes()
    assert held.looks(4 * 59) == []
    assert held.looks(8) == [FROZEN]


def test_a_freeze_that_failed_is_reported_and_tried_again(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    held.fault = "train shares its cgroup"
    assert held.looks(4 * 12) == []
    assert 1 < capfd.readouterr().err.count("tenant-freeze-failed") < 4
    held.fault = ""
    assert held.looks(4 * 6) == [FROZEN]


def test_a_failed_sample_begins_the_count_again(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert held.looks(BYPASS_LOOKS - 1) == []
    with monkeypatch.context() as patched:
        patched.setattr(held.node.observed, "compute_of", lambda *_: 1 / 0)
        assert held.looks(1) == []
    assert held.looks(BYPASS_LOOKS - 1) == []
    assert held.looks(1) == [FROZEN]
