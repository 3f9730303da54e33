# SPDX-License-Identifier: Apache-2.0
"""What a tenant got: by its gate, by the driver where the gate counts nothing, or unknown."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from gpushare import abi
from gpushare.daemon.audit.view import CardTruth, View
from gpushare.daemon.compute.spent import Spent
from gpushare.daemon.node import Node
from gpushare.daemon.pages.status import Waits
from gpushare.daemon.views.rows import tenant_row
from gpushare.protocol import Opened

from . import registered
from .operations import entry_of, opened

LOOK_NS = 250_000_000
MS = 1_000_000
UUID = "GPU-0000"


@dataclass
class Course:
    """A tenant's gate as a scheduler would write it, and looks at it four times a second."""

    node: Node
    tenant: Opened
    now_ns: int = 10**12
    mode: int = abi.GATE_WINDOW
    charged_ns: int = 0
    wanted_ns: int = 0
    beats: bool = True
    percent: int | None = None

    def look(self, *, got_ms: int = 0, wanted_ms: int | None = None) -> Spent:
        """Go on by one look, in which the tenant was charged `got_ms` of 250."""
        self.now_ns += LOOK_NS
        self.charged_ns += got_ms * MS
        self.wanted_ns += (got_ms if wanted_ms is None else wanted_ms) * MS
        self.write(abi.GATE_MODE, self.mode, 4)
        self.write(abi.GATE_CHARGED_NS, self.charged_ns)
        self.write(abi.GATE_WANTED_NS, self.wanted_ns)
        if self.beats:
            self.write(abi.GATE_HEARTBEAT_NS, self.now_ns)
        self.node.spending.look(self.truth(), self.now_ns)
        return self.spent

    def looks(self, seconds: float, **course: int) -> Spent:
        for _ in range(round(seconds * 4)):
            self.look(**course)
        return self.spent

    @property
    def spent(self) -> Spent:
        return self.node.spending.of(self.tenant["key"], UUID)

    def truth(self) -> View:
        said = {} if self.percent is None else {(self.tenant["key"], UUID): self.percent}
        utilisation = 0 if self.percent is None else self.percent
        return View(cards={UUID: CardTruth(utilisation=utilisation)}, utilisation=said)

    def write(self, field_offset: int, value: int, size: int = 8) -> None:
        path = self.node.mounts.path(self.tenant["key"]) / abi.GRANT_NAME
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, value.to_bytes(size, "little"), abi.gate_offset(0) + field_offset)
        os.close(fd)


@pytest.fixture
def course(node: Node) -> Course:
    return Course(node, opened(node, memory="4GiB", cores="30", devices="0"))


def test_what_was_charged_is_what_it_got(course: Course) -> None:
    spent = course.looks(61, got_ms=75, wanted_ms=250)
    assert (spent.source, spent.gate) == ("gate", "window")
    assert spent.got == {1: 30.0, 10: 30.0, 60: 30.0}
    assert spent.throttled == {1: 0.7, 10: 0.7, 60: 0.7}


def test_each_time_is_its_own(course: Course) -> None:
    course.looks(60, got_ms=0)
    course.looks(9, got_ms=50)
    spent = course.looks(1, got_ms=250)
    assert spent.got[1] == pytest.approx(100)
    assert spent.got[10] == pytest.approx(28)
    assert spent.got[60] == pytest.approx(28 / 6)


def test_who_wants_nothing_is_not_throttled(course: Course) -> None:
    assert course.looks(2, got_ms=0, wanted_ms=0).throttled[1] == 0


def test_one_look_says_nothing_yet(course: Course) -> None:
    assert course.look(got_ms=75).got == {1: None, 10: None, 60: None}


def test_an_open_gate_has_the_drivers_figure(course: Course) -> None:
    course.mode, course.percent = abi.GATE_OPEN, 97
    spent = course.looks(11)
    assert (spent.source, spent.gate) == ("driver", "open")
    assert spent.got[1] == spent.got[10] == pytest.approx(97)
    assert spent.throttled[10] == 0


def test_a_driver_that_makes_a_figure_a_second_is_not_read_as_idle_between(course: Course) -> None:
    course.mode = abi.GATE_OPEN
    for number in range(48):
        course.percent = 80 if number % 4 == 0 else None
        course.node.spending.look(course.truth(), course.now_ns)
        course.look()
    assert course.spent.got[10] == pytest.approx(80, abs=9)


def test_a_gate_that_closes_after_it_was_open_counts_from_there(course: Course) -> None:
    course.mode, course.percent = abi.GATE_OPEN, 100
    course.looks(30)
    course.mode = abi.GATE_WINDOW
    spent = course.looks(30, got_ms=125)
    assert spent.source == "gate"
    assert spent.got[10] == pytest.approx(50)
    assert spent.got[60] == pytest.approx(75, abs=0.5)


def test_nothing_is_known_while_the_scheduler_is_silent(course: Course) -> None:
    course.looks(20, got_ms=75)
    course.beats = False
    spent = course.looks(0.75, got_ms=0)
    assert spent.silent
    assert (spent.source, spent.got, spent.gate) == ("", {1: None, 10: None, 60: None}, "window")
    course.beats = True
    course.charged_ns = 0  # it was started again
    spent = course.looks(2, got_ms=75)
    assert spent.got[1] == pytest.approx(30)
    assert spent.got[10] == pytest.approx(30, abs=3)  # of the time in which it was known


def test_a_gate_that_was_never_beaten_at_is_not_known(course: Course) -> None:
    course.beats = False
    assert course.looks(2, got_ms=75).source == ""


def test_a_driver_that_says_nothing_leaves_an_open_gate_unknown(course: Course) -> None:
    course.mode = abi.GATE_OPEN
    course.now_ns += LOOK_NS
    course.write(abi.GATE_MODE, abi.GATE_OPEN, 4)
    for seconds in range(3):
        course.node.spending.look(View(), course.now_ns + seconds * 10**9)
    assert (course.spent.source, course.spent.got[1]) == ("", None)


def test_whole_cards_have_the_drivers_figure_and_no_gate(node: Node) -> None:
    tenant = opened(node, devices="0")
    key = tenant["key"]
    for look in range(8):
        view = View(cards={UUID: CardTruth(utilisation=60)}, utilisation={(key, UUID): 60})
        node.spending.look(view, 10**12 + look * LOOK_NS)
    spent = node.spending.of(key, UUID)
    assert (spent.source, spent.gate) == ("driver", "")
    assert spent.got[1] == pytest.approx(60)


def test_the_counts_are_handed_on(course: Course) -> None:
    course.write(abi.GATE_WINDOWS, 7)
    course.write(abi.GATE_OVERRUNS, 3)
    course.write(abi.GATE_HUNG, 1, 4)
    spent = course.look(got_ms=75)
    assert (spent.windows, spent.overruns, spent.hung) == (7, 3, True)
    assert spent.charged_ns == 75 * MS
    row = tenant_row(entry_of(course.node, course.tenant), course.node)
    assert row["warnings"] == [
        "train on card 0: work is pending that seems never to end; it is charged, others go on"
    ]


def wait(course: Course, number: int, throttled_ns: int, forced: int) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    work = abi.WORK.pack(0, 0, 0, 0, 0, 0, 0, throttled_ns, forced, 0)
    os.pwrite(status.fd, work, abi.status_work_offset(0, number))


def test_what_processes_waited_is_kept_when_they_end(course: Course) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    registered.register(status.fd, 1, os.getpid(), 1)
    wait(course, 0, 3 * 10**9, 2)
    wait(course, 1, 10**9, 0)
    assert (course.look().waited_ns, course.spent.forced) == (4 * 10**9, 2)
    wait(course, 0, 0, 0)  # its record was cleared
    course.look()
    wait(course, 0, 10**9, 1)  # another's by now
    assert (course.look().waited_ns, course.spent.forced) == (5 * 10**9, 3)


def test_a_claim_beyond_measure_stays_a_number(course: Course) -> None:
    status = course.node.tenants.pages[course.tenant["key"]].status
    registered.register(status.fd, 0, os.getpid(), 1)
    wait(course, 0, 2**64 - 1, 2**32 - 1)
    assert course.look().waited_ns == 1 << 53
    assert status.waits(0) == {0: Waits(1 << 53, 2**32 - 1)}
    os.ftruncate(status.fd, 8192)
    assert status.waits(0) == {}


def test_work_that_goes_round_the_gate_is_told_once(
    course: Course, capfd: pytest.CaptureFixture[str]
) -> None:
    course.percent = 40
    assert not course.looks(8, got_ms=30).bypassed, "it takes ten seconds to be sure"
    assert course.looks(4, got_ms=30).bypassed
    assert course.spent.driver_percent == pytest.approx(40)
    row = tenant_row(entry_of(course.node, course.tenant), course.node)
    assert row["warnings"] == [
        "train on card 0: charged 12 %, the driver saw 40 %: work goes round the gate"
    ]
    course.looks(4, got_ms=30)
    assert capfd.readouterr().err.count("gate-bypassed") == 1
    course.percent = 12
    assert not course.looks(12, got_ms=30).bypassed


@pytest.mark.parametrize(("percent", "got_ms"), [(40, 80), (9, 0), (100, 200), (38, 75)])
def test_what_sampling_may_explain_is_no_bypass(course: Course, percent: int, got_ms: int) -> None:
    course.percent = percent
    assert not course.looks(30, got_ms=got_ms).bypassed


def test_an_open_gate_is_not_gone_round(course: Course) -> None:
    course.mode, course.percent = abi.GATE_OPEN, 100
    assert not course.looks(30).bypassed
    course.mode = abi.GATE_WINDOW
    course.percent = 0
    assert not course.looks(1, got_ms=0).bypassed, "what was open is no charge of 0"


def test_a_look_that_fails_is_no_end_of_looking(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    course.looks(2, got_ms=75)
    pages = course.node.tenants.pages[course.tenant["key"]]
    with monkeypatch.context() as patched:
        patched.setattr(pages.status, "waits", lambda _card: 1 / 0)
        assert course.look() == Spent()
    assert course.looks(2, got_ms=75).got[1] == pytest.approx(30)


def test_rows_name_the_times(course: Course) -> None:
    course.looks(2, got_ms=75, wanted_ms=250)
    row = tenant_row(entry_of(course.node, course.tenant), course.node)
    [card] = row["cards"]
    assert card["cores_got"] == 30.0
    assert card["spent"]["got"] == {"1s": 30.0, "10s": 30.0, "60s": 30.0}
    assert row["throttled"] == card["spent"]["throttled"]["1s"] == 0.7
    assert row["warnings"] == []
