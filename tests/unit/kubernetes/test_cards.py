# SPDX-License-Identifier: Apache-2.0
"""What gpushare-node knows of the cards, also while gpushared is away, and the labels of a node."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.client import Client, DaemonUnreachable
from gpushare.kubernetes import StatusLog
from gpushare.kubernetes.api.labels import label_value, labels_of
from gpushare.kubernetes.cards import OUTAGE, OUTAGE_SECONDS, POLL_SECONDS, CardFollower, NodeCards
from gpushare.protocol.rows import CardRow

from .made import GIB, card, node

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


class Daemon(Client):
    """Reports `rows`, or is away while they are None; `now` is the time."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] | None = [ROW]
        self.now = 100.0
        self.asked = 0

    def cards(self) -> list[CardRow]:
        self.asked += 1
        if self.rows is None:
            raise DaemonUnreachable("gpushared is not running: start it")
        return cast("list[CardRow]", self.rows)

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


VALID = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@given(st.text(max_size=200))
def test_any_text_becomes_a_valid_value(text: str) -> None:
    assert VALID.fullmatch(label_value(text))


def test_a_node_of_two_equal_cards() -> None:
    assert labels_of(node(card(0), card(1))) == {
        "gpushare.io/mode": "dra",
        "gpushare.io/isolation": "interposer",
        "gpushare.io/gpu.count": "2",
        "gpushare.io/gpu.product": "NVIDIA-H200",
        "gpushare.io/gpu.memory": str(140 * 1024),
        "gpushare.io/gpu.compute.major": "9",
        "gpushare.io/gpu.compute.minor": "0",
        "gpushare.io/cuda.driver-version.full": "580.95.05",
        "gpushare.io/cuda.driver-version.major": "580",
        "gpushare.io/cuda.driver-version.minor": "95",
        "gpushare.io/cuda.driver-version.revision": "5",
        "gpushare.io/cuda.runtime-version.full": "13.0",
        "gpushare.io/cuda.runtime-version.major": "13",
        "gpushare.io/cuda.runtime-version.minor": "0",
        "cuda-major-version": "13",
        "cuda-minor-version": "0",
    }


def test_of_different_cards_the_least_counts() -> None:
    old = card(1, model="Tesla T4", compute_capability="7.5", memory_bytes=15 * GIB)
    found = labels_of(node(card(0), old))
    assert found["gpushare.io/gpu.product"] == "mixed"
    assert found["gpushare.io/gpu.memory"] == str(15 * 1024)
    assert found["gpushare.io/gpu.compute.major"] == "7"


def test_of_a_node_without_cards_only_the_mode_is_known() -> None:
    empty = NodeCards([], "plugin", driver_version="580.95.05")
    assert labels_of(empty) == {"gpushare.io/mode": "plugin"}


@pytest.mark.parametrize("version", ["", "unknown", "580.x"])
def test_a_version_that_is_none_makes_no_label(version: str) -> None:
    found = labels_of(node(driver_version=version, cuda_version=version))
    assert not [name for name in found if "version" in name]
