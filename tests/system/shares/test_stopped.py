# SPDX-License-Identifier: Apache-2.0
"""A tenant that stops in its window loses it, and goes on when it may."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from gpushare import abi
from tests.system.waiting import wait_until

from .tenants import Busy, SharedCardStack

HALF = {"cores": "50", "policy": "burst-share"}
HERE = {**HALF, "devices": "0"}


def by_signal(tenant: Busy) -> Callable[[], object]:
    pids = tenant.pids

    def tell(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    tell(signal.SIGSTOP)
    return lambda: tell(signal.SIGCONT)


def by_freezer(tenant: Busy) -> Callable[[], object]:
    """As `docker pause` does."""
    assert tenant.call("pause").returncode == 0
    return lambda: tenant.call("resume")


def test_a_tenant_stopped_in_its_window_loses_it_and_continues_afterwards(
    place: SharedCardStack,
) -> None:
    stopped, other = place.start(HERE), place.start(HERE)
    for stop in (by_signal, by_freezer):
        # By then what it had queued while it was alone is done.
        wait_until(lambda: stopped.gate().windows > 6 and stopped.gate().mode == abi.GATE_WINDOW)
        go_on = stop(stopped)
        try:
            had, others = place.parts(stopped, other, seconds=1)
        finally:
            go_on()
        assert had < 15, stop  # what was queued when it was stopped
        assert others > 60, stop
        place.assert_parts({stopped: 48, other: 48})


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
