# SPDX-License-Identifier: Apache-2.0
"""Shares hold whatever a tenant does, and whichever of the scheduler and gpushared has died.

That shares are exact, and what misbehaviour costs, is shown in tests/c/scheduler.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import abi
from tests.system.waiting import wait_until

from .tenants import Busy, SharedCardStack, scheduler

HERE = {"cores": "50", "policy": "burst-share"}
AROUND = f"LD_LIBRARY_PATH={abi.DRIVER_DIR} exec work {{options}}"
AUDITED_SECONDS = 12  # the audit compares ten
TENANT = abi.TENANT_DIR
BEHIND_MIB = abi.STATUS_BYTES // (1 << 20) + 1
#: Random bytes for the records of its work, again and again; bytes into its bell without end; and
#: as much behind the page, in the same file, as its file system takes. What works beside that may
#: fall over it (a page that cannot be had any more), and begins anew.
LIAR = f"""
echo ready
while :; do
    dd if=/dev/urandom of={TENANT}/{abi.STATUS_NAME} bs=4096 count=64 conv=notrunc \\
        seek={abi.STATUS_WORK_OFFSET // 4096} 2>/dev/null
done &
while :; do cat /dev/zero > {TENANT}/{abi.WAKEUP_NAME}; done 2>/dev/null &
dd if=/dev/zero of={TENANT}/{abi.STATUS_NAME} bs=1M seek={BEHIND_MIB} conv=notrunc 2>/dev/null &
while :; do work {{options}}; done
"""
BUSY_CORE = 0.5  # of one processor: what a flood may make the scheduler use
#: Ten kernels of a millisecond, and a rest of 90: a tenth of the card.
ONLINE = {"kernels": 10, "gap-us": 90_000}


def test_neighbours_get_their_shares_and_are_accused_of_nothing(place: SharedCardStack) -> None:
    """Also once the driver's samples, each of which is of one process, count against them."""
    wanted = {
        place.start({"policy": "fixed-share", "cores": str(cores)}): cores for cores in (30, 70)
    }
    had = place.parts(*wanted, seconds=AUDITED_SECONDS)
    assert had == pytest.approx([*wanted.values()], abs=6)
    assert [row["warnings"] for row in place.ps()] == [[], []]


def test_a_bypass_is_reported_and_the_neighbour_gets_half_the_card(
    place: SharedCardStack,
) -> None:
    """The hardware divides the card. Charged for both, the neighbour would have 36 percent."""
    here = {"policy": "fixed-share"}
    capped = place.start({**here, "cores": "60"})
    beside = place.start({**here, "cores": "30"}, script=AROUND, work={"kernels": 2})
    wait_until(lambda: capped.row()["warnings"] != [])
    [had] = place.parts(capped, seconds=AUDITED_SECONDS)
    assert had > 47 - 6
    spent = capped.spent()
    assert spent["cores_source"] == "driver"
    assert spent["cores_used"]["10s"] == spent["driver_utilization"]
    assert not spent["gate_bypassed"]
    [warning] = capped.row()["warnings"]
    assert "another container bypasses the launch gate" in warning
    assert "work bypasses the launch gate" in beside.row()["warnings"][0]


def test_a_tenant_with_false_claims_and_floods_takes_nothing_from_others(
    place: SharedCardStack,
) -> None:
    here = {"policy": "burst-share"}
    thirty, fifty = (place.start({**here, "cores": cores}) for cores in ("30", "50"))
    place.start({**here, "cores": "20"}, script=LIAR)
    pid, began = scheduler(place.stack), time.monotonic_ns()
    spent = cpu_ns(pid)
    had = place.parts(thirty, fifty, seconds=3)
    assert had[0] > 30 - 8
    assert had[1] > 50 - 8
    assert scheduler(place.stack) == pid
    assert (cpu_ns(pid) - spent) / (time.monotonic_ns() - began) < BUSY_CORE


def cpu_ns(pid: int) -> int:
    """The processor time that a process has had (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def test_a_killed_process_leaves_the_card_usable(place: SharedCardStack) -> None:
    """It is killed at random moments, with work pending, or in a launch, or at the gate."""
    kills = 6
    script = f"""
for n in {" ".join(map(str, range(kills)))}; do
    work {{options}} & it=$!
    usleep $((100000 + RANDOM * 10))
    kill -9 $it
    wait $it
done
echo killed
exec work {{options}}
"""
    other = place.start(HERE)
    dying = place.start(HERE, script=script)
    _, others = place.parts(dying, other)
    assert others > 40
    wait_until(lambda: "killed\nready\n" in dying.said())
    place.assert_parts({dying: 48, other: 48})


class Three:
    """One capped at 30 %, one that may have what is left, and an online one that needs little."""

    def __init__(self, place: SharedCardStack) -> None:
        self.place = place
        self.fixed = place.start({"cores": "30", "policy": "fixed-share"})
        self.offline = place.start({"cores": "40", "policy": "burst-share"})
        quota = {"cores": "10", "policy": "burst-share", "class": "online"}
        self.online = place.start(quota, work=ONLINE)

    @property
    def all(self) -> list[Busy]:
        return [self.fixed, self.offline, self.online]

    def assert_hold(self) -> None:
        """All is in order while the scheduler runs; unreserved compute is given too."""
        wanted = {self.fixed: 28, self.offline: 52, self.online: 10}
        self.place.assert_parts(wanted, band=12)

    def are_kept(self) -> bool:
        """Whether a scheduler has lately been at all their gates."""
        return all(tenant.is_kept() for tenant in self.all)

    def forget(self) -> None:
        for tenant in self.all:
            tenant.remove()


@pytest.fixture(scope="module")
def three(shared_place: SharedCardStack) -> Iterator[Three]:
    made = Three(shared_place)
    yield made
    made.forget()


def test_a_scheduler_that_is_killed_is_started_again_and_shares_hold(three: Three) -> None:
    place = three.place
    three.assert_hold()
    before = scheduler(place.stack)
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: scheduler(place.stack) not in (0, before) and three.are_kept())
    three.assert_hold()


def test_a_daemon_that_is_killed_leaves_the_scheduler_at_work(three: Three) -> None:
    place = three.place
    before = scheduler(place.stack)
    place.stack.end_daemon()
    three.assert_hold()
    place.stack.start_daemon()
    three.assert_hold()
    assert scheduler(place.stack) == before


def test_with_both_dead_each_holds_itself_to_its_share_and_online_is_exempt(
    three: Three,
) -> None:
    place = three.place
    place.stack.end_daemon()
    os.kill(scheduler(place.stack), signal.SIGKILL)
    wait_until(lambda: scheduler(place.stack) == 0 and not three.are_kept())
    fixed, offline, online = place.parts(*three.all)
    assert 5 < fixed < 30 + 6
    assert 5 < offline < 40 + 6
    assert online > 5  # of ten: the others' turns come between its kernels

    place.stack.start_daemon()
    wait_until(three.are_kept)
    three.assert_hold()
