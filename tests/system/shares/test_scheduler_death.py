# SPDX-License-Identifier: Apache-2.0
"""The scheduler has died: shares continue to hold, and hold as before once it is back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.system.waiting import wait_until

from .tenants import Busy, SharedCardStack, scheduler

#: Ten kernels of a millisecond, and a rest of 90: a tenth of the card.
ONLINE = {"kernels": 10, "gap-us": 90_000}


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
        return all(tenant.gate().is_kept for tenant in self.all)

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
    kill_daemon(place)
    three.assert_hold()
    place.stack.start_daemon()
    three.assert_hold()
    assert scheduler(place.stack) == before


def test_with_both_dead_each_holds_itself_to_its_share_and_online_is_exempt(
    three: Three,
) -> None:
    place = three.place
    kill_daemon(place)
    os.kill(scheduler(place.stack), signal.SIGKILL)
    wait_until(lambda: scheduler(place.stack) == 0 and not three.are_kept())
    fixed, offline, online = place.parts(*three.all)
    assert 5 < fixed < 30 + 6
    assert 5 < offline < 40 + 6
    assert online > 5  # of ten: the others' turns come between its kernels

    place.stack.start_daemon()
    wait_until(three.are_kept)
    three.assert_hold()


def kill_daemon(place: SharedCardStack) -> None:
    assert place.stack.daemon is not None
    place.stack.daemon.process.kill()
    place.stack.daemon.process.wait()
