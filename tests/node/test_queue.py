# SPDX-License-Identifier: Apache-2.0
"""Starts that wait for room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from gpushare.config import QueueLimits
from gpushare.daemon.lifecycle.queue import CANCELLED, EXPIRED, STARTED, TIMED_OUT, TicketNotFound
from gpushare.daemon.service.control_server import refusal_packet
from gpushare.errors import ErrorCode

from .node import StoryNode, node

LIMITS = QueueLimits()


#: What makes room for 25 GiB beside 50 GiB on one card, while the other is cordoned.
ROOM: Final[dict[str, Callable[[StoryNode], object]]] = {
    "less memory is set": lambda one: one.ask("set", name="a", memory="30GiB"),
    "the configuration reserves less": lambda one: one.configures(system_reserved="1GiB"),
    "no label cordons the other card": lambda one: one.ask("node-setting", key="cards.cordoned"),
}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[StoryNode]:
    with node(tmp_path) as made:
        yield made


def test_a_start_that_waits_gets_the_room_of_one_that_ends(one: StoryNode) -> None:
    one.opens("a", "70GiB")
    second = one.takes("b", "40GiB")
    assert second.waits()
    one.ends("a")
    assert second.is_granted
    second.starts()
    assert second.end == STARTED


def test_a_start_waits_as_long_as_it_may_and_no_longer(one: StoryNode) -> None:
    one.opens("a", "70GiB")
    second = one.takes("b", "40GiB", wait_seconds=30)
    one.wait(29)
    assert second.waits()
    one.wait(2)
    assert second.end == TIMED_OUT
    one.ends("a")
    assert second.end == TIMED_OUT


def test_room_that_is_not_used_is_given_to_the_next(one: StoryNode) -> None:
    one.opens("a", "70GiB")
    second, third = one.takes("b", "60GiB"), one.takes("c", "60GiB")
    assert second.waits(1)
    assert third.waits(2)
    one.ends("a")
    assert second.is_granted
    assert third.waits(1)
    one.wait(LIMITS.start_timeout_seconds + 1)
    assert second.end == EXPIRED
    assert third.is_granted


def test_a_restart_changes_no_order_and_loses_no_grant(tmp_path: Path) -> None:
    with node(tmp_path) as before:
        before.opens("a", "30GiB")
        granted, second, third = (before.takes(name, "45GiB") for name in "bcd")
        assert granted.is_granted
    with node(tmp_path) as after:
        again = [start.after_restart(after) for start in (granted, second, third)]
        assert again[0].is_granted
        assert again[1].waits(1)
        assert again[2].waits(2)


def test_who_is_cancelled_leaves_the_list_and_its_place_to_the_next(one: StoryNode) -> None:
    one.opens("a", "70GiB")
    second, third = one.takes("b", "40GiB"), one.takes("c", "40GiB")
    assert [row["name"] for row in one.ask("queue")["rows"]] == ["b", "c"]
    assert third.waits(2)
    assert second.cancel() == "b"
    assert [row["name"] for row in one.ask("queue")["rows"]] == ["c"]
    assert third.waits(1)
    assert second.end == CANCELLED
    with pytest.raises(TicketNotFound) as caught:
        second.cancel()
    packet = refusal_packet(caught.value)
    assert packet is not None
    assert (packet["code"], packet["key"]) == (ErrorCode.NOT_FOUND.text, "ticket")


@pytest.mark.parametrize("cause", ROOM)
def test_a_start_that_waits_has_the_room_at_once_whatever_has_made_it(
    tmp_path: Path, cause: str
) -> None:
    """The clock stands still, so nothing looks again because time has passed."""
    with node(tmp_path, cards=2) as one:
        one.configures(system_reserved="20GiB")
        one.ask("node-setting", key="cards.cordoned", value=one.uuid(1), source="node label x")
        one.opens("a", "50GiB")
        second = one.takes("b", "25GiB")
        assert second.waits()
        ROOM[cause](one)
        assert second.is_granted


def test_a_start_that_waits_has_the_card_that_is_uncordoned(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.ask("card-cordon", card="0", reason="a new fan")
        waiting = one.takes("a", "10GiB")
        assert waiting.waits()
        one.ask("card-uncordon", card="0")
        assert waiting.is_granted
