# SPDX-License-Identifier: Apache-2.0
"""Tenants that lie, make noise, or go around the gate; and two that wait for each other.

What takes its time to be told is begun first, beside the other tests, and looked at last.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gpushare import abi
from tests.system.waiting import wait_until

from .tenants import Busy, SharedCardStack, scheduler

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
#: A driver library of its own: the real one, by the path that the container has it at.
AROUND = f"""
echo ready
exec gpushare-probe --library {abi.DRIVER_DIR}/libcuda.so.1 'spin 4000000 1000000'
"""
#: It launches under a lock for which the process waits that keeps it from the card.
LAUNCHES = """
mkdir /lock/held
echo ready
until [ -e /lock/go ]; do usleep 20000; done
sleep 600 | gpushare-probe 'spin 1000000 1' > /tmp/said &
until grep -q spin /tmp/said; do usleep 20000; done
rmdir /lock/held
wait
"""
#: It has the card, as it is online, until it has the lock.
WAITS = """
work {options} & it=$!
until mkdir /lock/held 2>/dev/null; do usleep 20000; done
kill $it
echo got
sleep 600
"""
#: A queue that outlasts any delay of the host's: nothing keeps an online tenant from filling it.
NEVER_IDLE = {"streams": 3, "kernels": 900}
BUSY_CORE = 0.5  # of one processor: what a flood may make the scheduler use


@pytest.fixture(scope="module", autouse=True)
def outside(shared_place: SharedCardStack) -> Iterator[Busy]:
    """On the second card: a container that bypasses the gate, beside one that does not."""
    half = {"cores": "50", "policy": "burst-share", "devices": "1"}
    other = shared_place.start(half)
    made = shared_place.start({**half, "cores": "20"}, script=AROUND)
    yield made
    made.remove()
    other.remove()


class Locked(NamedTuple):
    """One launches under a lock, and one that is online waits for it."""

    launches: Busy
    waits: Busy

    def is_forced(self) -> bool:
        """Wait until the launch has gone ahead; whether it did while its gate was closed."""
        wait_until(lambda: "got" in self.waits.said())
        try:
            wait_until(lambda: self.launches.spent()["forced_launches"] > 0)
        except AssertionError:
            return False
        return True


@contextmanager
def lock_each_other(place: SharedCardStack, lock: Path) -> Iterator[Locked]:
    """On a machine of their own."""
    launches = Busy(place, {}, script=LAUNCHES, mounts={"/lock": lock}).start()
    online = {"class": "online"}
    waits = Busy(place, online, script=WAITS, work=NEVER_IDLE, mounts={"/lock": lock})
    waits.start()
    wait_until(lambda: launches.gate().mode == abi.GATE_CLOSED)
    (lock / "go").touch()
    yield Locked(launches, waits)
    waits.remove()
    launches.remove()


@pytest.fixture(scope="module", autouse=True)
def locked(
    quick_place: SharedCardStack, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Locked]:
    """It takes its time while other tests run."""
    with lock_each_other(quick_place, tmp_path_factory.mktemp("lock")) as made:
        yield made


def test_a_tenant_with_false_claims_and_floods_takes_nothing_from_others(
    place: SharedCardStack,
) -> None:
    here = {"policy": "burst-share", "devices": "0"}
    thirty, fifty = (place.start({**here, "cores": cores}) for cores in ("30", "50"))
    place.start({**here, "cores": "20"}, script=LIAR)
    pid, began = scheduler(place.stack), time.monotonic_ns()
    spent = cpu_ns(pid)
    had = place.parts(thirty, fifty, seconds=3)
    assert had[0] > 30 - 8
    assert had[1] > 50 - 8
    assert scheduler(place.stack) == pid
    assert (cpu_ns(pid) - spent) / (time.monotonic_ns() - began) < BUSY_CORE


def test_work_that_bypasses_the_gate_is_reported(outside: Busy) -> None:
    wait_until(lambda: outside.spent()["gate_bypassed"])


def test_a_launch_that_holds_a_lock_of_the_current_tenant_goes_ahead(
    locked: Locked, quick_place: SharedCardStack, tmp_path: Path
) -> None:
    """If the online one is kept from the processor for so long that it has no work, none is forced.

    Then it is tried again.
    """
    if locked.is_forced():
        return
    for number in range(3):
        (lock := tmp_path / str(number)).mkdir()
        with lock_each_other(quick_place, lock) as again:
            if again.is_forced():
                return
    pytest.fail("no launch was forced")


def cpu_ns(pid: int) -> int:
    """The processor time that a process has had (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
