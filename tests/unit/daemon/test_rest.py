# SPDX-License-Identifier: Apache-2.0
"""Looks are left out only where they would find what the last ones did."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.audit import rest as rests
from gpushare.daemon.audit.audit import Finding
from gpushare.daemon.audit.rest import SETTLED_LOOKS, Rest
from gpushare.daemon.cards.card import Use
from gpushare.daemon.node import Node

from . import fakes
from .fakes import GIB, FakeDriver

CARD = fakes.card().uuid
ME = os.getpid()


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver()
    made.uses = {CARD: (Use(ME, GIB, 0),)}
    return made


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[Node]:
    with fakes.node(tmp_path, driver) as made:
        yield made


def look(node: Node, rest: Rest) -> None:
    """Look in full."""
    assert node.driver is not None
    node.driver.truth.look()
    rest.note()


@pytest.fixture
def rest(node: Node) -> Rest:
    """One that has seen nothing new for long enough."""
    made = Rest(node)
    for _ in range(SETTLED_LOOKS + 1):
        assert not made.look()
        assert made.slower == 1
        look(node, made)
    assert made.look()
    assert made.slower > 1
    return made


def _another_process(_: Node, driver: FakeDriver) -> None:
    driver.uses = {CARD: (*driver.uses[CARD], Use(ME + 1, 0, 0))}


def _more_memory(_: Node, driver: FakeDriver) -> None:
    driver.uses = {CARD: (Use(ME, GIB + 1, 0),)}


def _a_busy_card(_: Node, driver: FakeDriver) -> None:
    driver.busy = {CARD: 1}


def _a_lost_card(_: Node, driver: FakeDriver) -> None:
    driver.lost = frozenset({CARD})


def _a_silent_driver(_: Node, driver: FakeDriver) -> None:
    driver.fault = "no answer"


def _another_driver(_: Node, driver: FakeDriver) -> None:
    driver.loads += 1


def _another_tenant(node: Node, _: FakeDriver) -> None:
    node.ledger.add(fakes.entry())


@pytest.mark.parametrize(
    "change",
    [
        _another_process,
        _more_memory,
        _a_busy_card,
        _a_lost_card,
        _a_silent_driver,
        _another_driver,
        _another_tenant,
    ],
)
def test_whatever_is_new_is_looked_at_in_full_at_once_and_for_a_while(
    node: Node, driver: FakeDriver, rest: Rest, change: Callable[[Node, FakeDriver], None]
) -> None:
    change(node, driver)
    assert not rest.look()
    look(node, rest)
    assert not rest.look()
    assert rest.slower == 1


def test_an_xid_that_comes_at_rest_is_counted_and_looked_at(
    node: Node, driver: FakeDriver, rest: Rest
) -> None:
    driver.xids = ((CARD, 31),)
    assert not rest.look()
    assert node.driver is not None
    assert node.driver.truth.health.xids == {(CARD, 31): 1}


def test_everybody_is_looked_at_again_after_a_time(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = time.monotonic() + rests.FULL_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert not rest.look()


def test_nobody_rests_beside_who_has_more_than_it_was_promised(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an audit concludes from many looks, all of which find the same, it must have."""
    entry = fakes.entry()
    node.ledger.add(entry)
    promised = entry.holdings[0].memory_bytes
    for held, rests_then in ((promised + 1, False), (promised, True)):
        monkeypatch.setattr(
            "gpushare.daemon.audit.truth.View.driver_bytes", lambda *_, held=held: held
        )
        rest = Rest(node)
        for _ in range(SETTLED_LOOKS + 1):
            look(node, rest)
        assert rest.look() is rests_then


def test_nobody_rests_while_there_is_something_to_find(node: Node, rest: Rest) -> None:
    found = Finding("warned", "warn", 2, 1, 0.0)
    node.audit.view = {("key", CARD): found}
    look(node, rest)
    assert not rest.look()
