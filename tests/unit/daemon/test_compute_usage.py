# SPDX-License-Identifier: Apache-2.0
"""What a tenant got: by its gate, by the driver where the gate counts nothing, or unknown."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from gpushare import abi
from gpushare.daemon.observe.compute_usage import ComputeMeter
from gpushare.daemon.observed import CardUsage, ComputeUsage, UsageView
from gpushare.daemon.pages.status_page import GateWaits
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol import HostProcessGrant

from . import registered
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
        return UsageView(cards={UUID: CardUsage(utilization=utilization)}, utilization=said)

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


def test_each_time_is_its_own(course: ScheduledGate) -> None:
    course.looks(60, got_ms=0)
    course.looks(9, got_ms=50)
    spent = course.looks(1, got_ms=250)
    assert spent.cores_used[1] == pytest.approx(100)
    assert spent.cores_used[10] == pytest.approx(28)
    assert spent.cores_used[60] == pytest.approx(28 / 6)


def test_one_sample_gives_no_figure(course: ScheduledGate) -> None:
    assert course.look(got_ms=75).cores_used == {1: None, 10: None, 60: None}


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


def test_the_counts_are_handed_on(course: ScheduledGate) -> None:
    course.write(abi.GATE_WINDOWS, 7)
    course.write(abi.GATE_OVERRUNS, 3)
    course.write(abi.GATE_HUNG, 1, 4)
    spent = course.look(got_ms=75)
    assert (spent.windows, spent.overruns, spent.is_hung) == (7, 3, True)
    assert spent.charged_ns == 75 * MS
    [warning] = tenant_status(entry_of(course.node, course.tenant), course.node)["warnings"]
    assert "work is pending that appears never to complete" in warning


def wait(course: ScheduledGate, number: int, throttled_ns: int, forced: int) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    work = abi.WORK.pack(0, 0, 0, 0, 0, 0, 0, throttled_ns, forced, 0)
    os.pwrite(status.fd, work, abi.status_work_offset(0, number))


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


@pytest.mark.parametrize(("percent", "got_ms"), [(40, 80), (9, 0), (100, 200), (38, 75)])
def test_usage_that_sampling_may_explain_is_no_bypass(
    course: ScheduledGate, percent: int, got_ms: int
) -> None:
    course.percent = percent
    assert not course.looks(30, got_ms=got_ms).gate_bypassed


def test_claims_of_others_accuse_no_tenant(course: ScheduledGate) -> None:
    """Its charge is lower because of them; its own claims contain all that the driver measured."""
    course.percent = 76
    spent = course.looks(30, got_ms=145, claimed_ms=190)
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


def test_a_container_that_is_slowed_by_another_has_the_drivers_figure(
    course: ScheduledGate,
) -> None:
    node, key = course.node, course.tenant["key"]
    victim = ScheduledGate(node, opened(node, memory="4GiB", cores="60", devices="0"))
    row = entry_of(node, victim.tenant)
    corrected: list[int] = []
    node.meter = ComputeMeter(
        node.ledger, node.tenants, node.observed, lambda: corrected.append(course.now_ns)
    )
    course.utilization = {(key, UUID): 49, (row.key, UUID): 36}
    victim.write(abi.GATE_MODE, abi.GATE_WINDOW, 4)
    for look in range(60):
        for field_offset in (abi.GATE_CHARGED_NS, abi.GATE_CLAIMED_NS):
            victim.write(field_offset, look * 150 * MS)
        victim.write(abi.GATE_HEARTBEAT_NS, course.now_ns + LOOK_NS)
        course.look(got_ms=0)
    assert course.spent.gate_bypassed
    assert (victim.spent.gate_bypassed, victim.spent.overcharged) == (False, True)
    assert victim.spent.source == "driver"
    assert victim.spent.cores_used[10] == pytest.approx(36)
    assert (course.spent.correction_percent, victim.spent.correction_percent) == (49, -24)
    [warning] = tenant_status(row, node)["warnings"]
    assert warning.endswith("another container bypasses the launch gate and slows this one")
    apart = [after - before for before, after in pairwise(corrected)]
    assert max(apart) <= 2 * 10**9  # a correction applies for five seconds


def test_a_failed_sample_does_not_stop_the_sampling(
    course: ScheduledGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.looks(2, got_ms=75)
    pages = course.node.tenants.pages[course.tenant["key"]]
    with monkeypatch.context() as patched:
        patched.setattr(pages.status, "waits", lambda _card: 1 / 0)
        assert course.look() == ComputeUsage()
    assert course.looks(2, got_ms=75).cores_used[1] == pytest.approx(30)
