# SPDX-License-Identifier: Apache-2.0
"""Tenants that lie and make noise."""

from __future__ import annotations

import time
from pathlib import Path

from gpushare import abi

from .tenants import SharedCardStack, scheduler

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


def cpu_ns(pid: int) -> int:
    """The processor time that a process has had (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
