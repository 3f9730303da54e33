# SPDX-License-Identifier: Apache-2.0
"""What a tenant is to get, what it got, and when it is frozen for a bypass of the gate."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.observed import WINDOWS, CardUsage, ComputeUsage, UsageView
from gpushare.daemon.pages.status_page import GateWaits
from gpushare.daemon.policy import (
    BYPASS_LOOKS,
    ShareRequest,
    charge_corrections,
    divide_compute,
    policy_on,
    reserved_cores,
)
from gpushare.daemon.store.record import By, FreezeRecord
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol import HostProcessGrant
from gpushare.quota.keys import POLICIES

from . import fakes, registered
from .fakes import FakeDaemon
from .operations import entry_of, opened

LOOK_NS = 250_000_000


MS = 1_000_000


UUID = "GPU-0000"


@dataclass
class ScheduledGate:
    """A tenant's gate as a scheduler would write it, and looks at it four times a second."""

    node: FakeDaemon
    tenant: HostProcessGrant
    now_ns: int = 10**12
    mode: int = abi.GATE_WINDOW
    charged_ns: int = 0
    claimed_ns: int = 0
    demand_ns: int = 0
    beats: bool = True
    percent: int | None = None
    utilization: dict[tuple[str, str], int] = field(default_factory=dict)
    uses: tuple[ProcessUse, ...] = ()

    def look(
        self, *, got_ms: int = 0, wanted_ms: int | None = None, claimed_ms: int | None = None
    ) -> ComputeUsage:
        """Go on by one look, in which the tenant was charged `got_ms` of 250."""
        self.now_ns += LOOK_NS
        self.charged_ns += got_ms * MS
        self.demand_ns += (got_ms if wanted_ms is None else wanted_ms) * MS
        self.write(abi.GATE_MODE, self.mode, 4)
        self.write(abi.GATE_CHARGED_NS, self.charged_ns)
        self.claimed_ns += (got_ms if claimed_ms is None else claimed_ms) * MS
        self.write(abi.GATE_CLAIMED_NS, self.claimed_ns)
        self.write(abi.GATE_DEMAND_NS, self.demand_ns)
        if self.beats:
            self.write(abi.GATE_HEARTBEAT_NS, self.now_ns)
        self.node.observed.usage = self.truth()
        self.node.meter.look(self.now_ns)
        return self.spent

    def looks(self, seconds: float, **course: int) -> ComputeUsage:
        for _ in range(round(seconds * 4)):
            self.look(**course)
        return self.spent

    @property
    def spent(self) -> ComputeUsage:
        return self.node.observed.compute_of(self.tenant["key"], UUID)

    def truth(self) -> UsageView:
        said = dict(self.utilization)
        if self.percent is not None:
            said[self.tenant["key"], UUID] = self.percent
        utilization = 0 if self.percent is None else self.percent
        cards = {UUID: CardUsage(utilization=utilization)}
        uses = {self.tenant["key"]: tuple((UUID, use) for use in self.uses)}
        return UsageView(cards, uses, said)

    def write(self, field_offset: int, value: int, size: int = 8) -> None:
        path = self.node.mounts.path(self.tenant["key"]) / abi.GRANT_NAME
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, value.to_bytes(size, "little"), abi.gate_offset(0) + field_offset)
        os.close(fd)


@pytest.fixture
def course(node: FakeDaemon) -> ScheduledGate:
    return ScheduledGate(node, opened(node, memory="4GiB", cores="30", devices="0"))


def test_the_charged_time_is_the_usage(course: ScheduledGate) -> None:
    spent = course.looks(61, got_ms=75, wanted_ms=250)
    assert (spent.source, spent.gate) == ("gate", "window")
    assert spent.cores_used == {1: 30.0, 10: 30.0, 60: 30.0}
    assert spent.throttled == {1: 0.7, 10: 0.7, 60: 0.7}


def test_nothing_is_known_while_the_scheduler_is_silent(course: ScheduledGate) -> None:
    course.looks(20, got_ms=75)
    course.beats = False
    spent = course.looks(0.75, got_ms=0)
    assert spent.silent
    assert (spent.source, spent.cores_used, spent.gate) == (
        "",
        {1: None, 10: None, 60: None},
        "window",
    )
    course.beats = True
    course.charged_ns = 0  # it was started again
    spent = course.looks(2, got_ms=75)
    assert spent.cores_used[1] == pytest.approx(30)
    assert spent.cores_used[10] == pytest.approx(30, abs=3)  # of the time in which it was known


def wait(course: ScheduledGate, number: int, throttled_ns: int, forced: int) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    work = abi.WORK.pack(0, 0, 0, 0, 0, 0, 0, throttled_ns, forced, 0)
    os.pwrite(status.fd, work, abi.status_work_offset(0, number))


def test_a_container_that_only_encodes_uses_its_card(course: ScheduledGate) -> None:
    last = course.look().last_active
    assert course.look().last_active == last
    course.uses = (ProcessUse(1, 0, 0, encoder_percent=3),)
    assert course.look().last_active > last


def test_waiting_times_are_kept_when_processes_end(course: ScheduledGate) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    registered.register(status.fd, 1, os.getpid(), 1)
    wait(course, 0, 3 * 10**9, 2)
    wait(course, 1, 10**9, 0)
    assert (course.look().throttled_ns, course.spent.forced_launches) == (4 * 10**9, 2)
    wait(course, 0, 0, 0)  # its record was cleared
    course.look()
    wait(course, 0, 10**9, 1)  # another's by now
    assert (course.look().throttled_ns, course.spent.forced_launches) == (5 * 10**9, 3)


def test_a_claim_above_every_figure_stays_a_number(course: ScheduledGate) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    registered.register(status.fd, 0, os.getpid(), 1)
    wait(course, 0, 2**64 - 1, 2**32 - 1)
    assert course.look().throttled_ns == 1 << 53
    assert status.waits(0) == {0: GateWaits(1 << 53, 2**32 - 1)}
    os.ftruncate(status.fd, 8192)
    assert status.waits(0) == {}


def test_a_gate_bypass_is_reported_once(
    course: ScheduledGate, capfd: pytest.CaptureFixture[str]
) -> None:
    course.percent = 40
    assert not course.looks(8, got_ms=30).gate_bypassed, "it takes ten seconds to be sure"
    assert course.looks(4, got_ms=30).gate_bypassed
    assert course.spent.driver_percent == pytest.approx(40)
    row = tenant_status(entry_of(course.node, course.tenant), course.node)
    assert row["warnings"] == [
        "train on card 0: charged 12 %, the driver measured 40 %: work bypasses the launch gate"
    ]
    course.looks(4, got_ms=30)
    assert capfd.readouterr().err.count("gate-bypass-detected") == 1
    course.percent = 12
    assert not course.looks(12, got_ms=30).gate_bypassed


@pytest.mark.parametrize(("percent", "got_ms", "seconds"), [(9, 0, 30), (90, 125, 10)])
def test_usage_that_sampling_may_explain_is_no_bypass(
    course: ScheduledGate, percent: int, got_ms: int, seconds: int
) -> None:
    course.percent = percent
    assert not course.looks(seconds, got_ms=got_ms).gate_bypassed


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5, 0.7])
def test_samples_that_count_for_whoever_came_last_accuse_no_tenant(
    course: ScheduledGate, share: float
) -> None:
    """As on a real card: of each fifth of a second one process is said to have had all of it."""
    chance = random.Random(share)
    last = [0, 0, 0, 0, 0]
    for _ in range(4 * 300):
        last = [*last[1:], chance.random() < share]
        course.percent = 20 * sum(last)
        spent = course.look(got_ms=round(250 * share))
        assert (spent.gate_bypassed, spent.correction_percent) == (False, 0)


def test_claims_of_others_accuse_no_tenant(course: ScheduledGate) -> None:
    """Its charge is lower because of them; its own claims contain all that the driver measured."""
    course.percent = 76
    spent = course.looks(61, got_ms=145, claimed_ms=190)
    assert spent.charged_percent == pytest.approx(58)
    assert spent.cores_used[10] == pytest.approx(76)
    assert not spent.gate_bypassed
    assert spent.correction_percent == 18


def test_work_at_a_closed_gate_bypasses_it_though_it_is_claimed(course: ScheduledGate) -> None:
    course.percent = 50
    for look in range(1, 50):
        course.write(abi.GATE_UNGATED_NS, look * 100 * MS)
        course.look(got_ms=125)
    assert course.spent.gate_bypassed
    [warning] = tenant_status(entry_of(course.node, course.tenant), course.node)["warnings"]
    assert warning.endswith("measured 50 %: it launches work while its gate is closed")


def test_forged_claims_do_not_explain_the_use_of_a_card_without_a_window(
    course: ScheduledGate,
) -> None:
    course.percent, course.mode = 46, abi.GATE_CLOSED
    assert not course.looks(8, got_ms=125).gate_bypassed
    assert course.looks(4, got_ms=125).gate_bypassed
    course.write(abi.GATE_WINDOWS, 1)
    assert not course.looks(9, got_ms=125).gate_bypassed
    course.write(abi.GATE_HUNG, 1, 4)  # a kernel that does not end
    assert not course.looks(12, got_ms=125).gate_bypassed


def claim(key: str, policy: str = "best-effort", cores: int = 0, weight: int = 0) -> ShareRequest:
    return ShareRequest(key, policy, cores, weight, "offline", 5)


@st.composite
def claims(draw: st.DrawFn) -> list[ShareRequest]:
    made = []
    for number in range(draw(st.integers(0, 20))):
        policy = draw(st.sampled_from(POLICIES))
        made.append(
            ShareRequest(
                key=f"{number:02}",
                policy=policy,
                cores=draw(st.integers(policy in {"fixed-share", "burst-share"}, 100)),
                weight=draw(st.integers(0, 1000)),
                class_=draw(st.sampled_from(["online", "offline"])),
                priority=draw(st.integers(0, 9)),
                policy_is_set=draw(st.booleans()),
            )
        )
    return made


@given(claims(), st.sampled_from(("", *POLICIES)))
def test_no_share_is_allocated_twice_and_none_is_zero(
    found: list[ShareRequest], card_policy: str
) -> None:
    given_to = divide_compute(found, card_policy)
    parts = {key: share.permille for key, share in given_to.items()}
    policies = {
        one.key: policy_on(one.policy, one.cores, card_policy, is_set=one.policy_is_set)
        for one in found
    }
    reserved = {one.key: reserved_cores(policies[one.key], one.cores) * 10 for one in found}
    others = [key for key, cores in reserved.items() if not cores]
    assert parts.keys() == reserved.keys()
    assert sum(parts.values()) <= 1000
    assert min(parts.values(), default=1) >= 1
    if others:  # they have at least one percent, and all that is left
        assert sum(parts[key] for key in others) >= 10
        assert sum(parts.values()) == 1000
    if sum(reserved.values()) + (max(10, len(others)) if others else 0) <= 1000:
        assert all(parts[key] == permille or not permille for key, permille in reserved.items())
    for one in found:
        share, online = given_to[one.key], one.class_ == "online"
        assert share.capped == (policies[one.key] == "fixed-share")
        assert share.online == (online and not share.capped)
        assert share.priority == (0 if online else one.priority + 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([claim("a"), claim("b"), claim("c")], [334, 333, 333]),
        ([claim("a", "burst-share", 30), claim("b")], [300, 700]),
        ([claim("a", "native-burst-share", 0, 3), claim("b")], [750, 250]),
        ([claim("a", "native-burst-share", 60), claim("b", "native-burst-share", 20)], [750, 250]),
        ([claim("a", "best-effort", 90, 9), claim("b")], [500, 500]),
        (
            [claim("a", "fixed-share", 60), claim("b", "burst-share", 40), claim("c")],
            [594, 396, 10],
        ),
    ],
)
def test_parts_in_permille(found: list[ShareRequest], expected: list[int]) -> None:
    assert [share.permille for share in divide_compute(found).values()] == expected


@given(st.dictionaries(st.text(max_size=2), st.tuples(st.floats(0, 100), st.floats(0, 100))))
def test_all_compensation_was_owed(figures: dict[str, tuple[float, float]]) -> None:
    found = charge_corrections(figures)
    owed = sum(percent for percent in found.values() if percent > 0)
    assert -sum(percent for percent in found.values() if percent < 0) <= owed + 1e-6


KEY, OTHER = "a" * 16, "b" * 16


@dataclass
class Held:
    """A node whose one tenant bypasses the gate, and the calls of its freezer."""

    node: FakeDaemon
    now_ns: int = 10**12
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    spent: dict[tuple[str, str], ComputeUsage] = field(default_factory=dict)

    def freeze(self, key: str, by: By, why: str) -> None:
        self.asked.append((key, by, why))
        self.node.ledger.freezes.put(FreezeRecord(key, by, why, 1.0))

    def looks(self, count: int = BYPASS_LOOKS) -> list[tuple[str, str, str]]:
        """Return what was asked in so many looks."""
        self.asked.clear()
        self.node.observed.compute = MappingProxyType(self.spent)
        for _ in range(count):
            self.now_ns += LOOK_NS
            self.node.audit.look(self.now_ns)
            self.node.freezing.run(lambda: None)
        return [*self.asked]


def figures(percent: float, charged: float, **more: Any) -> ComputeUsage:
    return ComputeUsage(
        source="gate",
        cores_used=dict.fromkeys(WINDOWS, charged),
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
    terms = replace(node.node.config.terms, compute="freeze")
    node.node.config = replace(node.node.config, terms=terms)
    made.spent[KEY, UUID] = figures(60, 0, gate_bypassed=True)
    made.spent[OTHER, UUID] = figures(40, 40)
    yield made
    node.ledger.close()


WHY = "bypasses the launch gate: the driver measured 60 % of the card, and it may have 30 %"


def test_a_bypass_is_frozen_once_after_several_samples(
    held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    assert held.looks(BYPASS_LOOKS - 1) == []
    assert held.looks(1) == [(KEY, "audit", WHY)]
    held.spent[KEY, UUID] = figures(0, 0)
    assert held.looks(200) == []
    row = tenant_status(held.node.ledger.entries[KEY], held.node)
    assert [(one["by"], one["reason"]) for one in row["interventions"]] == [("audit", WHY)]
    logged = [line for line in capfd.readouterr().err.splitlines() if "gate-bypass-frozen" in line]
    assert [json.loads(line)["name"] for line in logged] == ["train"]


def test_exclusive_and_online_tenants_are_never_frozen(held: Held) -> None:
    entry = held.node.ledger.entries[KEY]
    held.node.ledger.add(replace(entry, class_="online"))
    assert held.looks(20) == []
    [allocation] = entry.allocations
    held.node.ledger.add(replace(entry, allocations=(replace(allocation, whole=True),)))
    assert held.looks(20) == []
