# SPDX-License-Identifier: Apache-2.0
"""What gpushare-node knows of the cards while gpushared restarts, and while it is away."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpushare.client import DaemonUnreachable
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.cards import OUTAGE, OUTAGE_SECONDS, POLL_SECONDS, CardFollower
from gpushare.protocol import CardStatus
from gpushare.protocol.kubernetes import device_name

ROW = {
    "uuid": "GPU-A",
    "memory_bytes": 100,
    "system_reserved_bytes": 10,
    "schedulable_bytes": 70,
    "is_schedulable": True,
    "schedulable_reason": "",
    "numa_node": 1,
    "allowed_mode": "any",
}


class Daemon:
    """Reports `rows`, or is away while they are None; `now` is the time."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] | None = [ROW]
        self.now = 100.0
        self.asked = 0

    def cards(self) -> list[CardStatus]:
        self.asked += 1
        if self.rows is None:
            raise DaemonUnreachable("gpushared is not running: start it")
        return cast("list[CardStatus]", self.rows)

    def after(self, seconds: float) -> Daemon:
        self.now += seconds
        return self


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def follower(daemon: Daemon) -> CardFollower:
    return CardFollower(daemon, StatusLog(), lambda: daemon.now)


def test_a_card_has_what_the_system_does_not_reserve(follower: CardFollower) -> None:
    [card] = follower.poll() or ()
    assert (card.memory_bytes, card.schedulable_bytes, card.numa_node) == (90, 70, 1)
    assert card.allows_shares


def test_a_card_that_is_drained_has_nothing_for_the_scheduler(
    follower: CardFollower, daemon: Daemon
) -> None:
    daemon.rows = [{**ROW, "is_schedulable": False, "schedulable_reason": "cordoned: repair"}]
    [card] = follower.poll() or ()
    assert (card.memory_bytes, card.schedulable_bytes) == (90, 0)
    assert card.reason == "cordoned: repair"


def test_nothing_is_known_before_the_first_answer(follower: CardFollower, daemon: Daemon) -> None:
    daemon.rows = None
    assert follower.poll() is None
    daemon.rows = [ROW]
    assert follower.poll() is None  # it is asked every few seconds
    daemon.after(POLL_SECONDS)
    assert follower.poll() is not None
    assert daemon.asked == 2


def test_a_restart_changes_nothing_and_an_outage_ends_scheduling(
    follower: CardFollower, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    before = follower.poll()
    daemon.rows = None
    daemon.after(POLL_SECONDS)
    assert follower.poll() == before
    daemon.after(OUTAGE_SECONDS)
    [card] = follower.poll() or ()
    assert (card.memory_bytes, card.schedulable_bytes, card.reason) == (90, 0, OUTAGE)
    daemon.rows = [ROW]
    daemon.after(POLL_SECONDS)
    assert follower.poll() == before
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "gpushare-node: gpushared reports 1 cards",
        "gpushare-node: gpushared is not running: start it",
        "gpushare-node: gpushared reports 1 cards",
    ]


def test_a_devices_name_is_a_dns_label() -> None:
    assert device_name("GPU-5F3C-00aB") == "card-5f3c-00ab"
