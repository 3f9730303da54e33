# SPDX-License-Identifier: Apache-2.0
"""The driver, its cards or their parts become others, and cards fail: nobody is judged by that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon import startup
from gpushare.daemon.audit.truth import Truth
from gpushare.daemon.cards.card import Card, Generation, Implausible, Use
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.views.rows import status_row

from . import fakes
from .fakes import GIB, FakeDriver
from .operations import opened

CARD, OTHER = fakes.card(0), fakes.card(1)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(CARD, OTHER)


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[Node]:
    with fakes.node(tmp_path, driver) as made:
        truth = made.loaded().truth
        truth.changed = lambda now: made.decide.submit(lambda: startup.understand(made, now))
        truth.look()
        yield made


@pytest.fixture
def truth(node: Node) -> Truth:
    return node.loaded().truth


def events(capfd: pytest.CaptureFixture[str], *names: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] in names]


def health(node: Node, card: Card = CARD) -> str:
    return node.loaded().truth.view.cards[card.uuid].health


def test_the_look_at_another_driver_judges_nobody(
    node: Node, driver: FakeDriver, truth: Truth, capfd: pytest.CaptureFixture[str]
) -> None:
    driver.driver_version = "590.10.01"
    truth.look()
    assert "not as it was" in truth.view.stale
    assert health(node) != "ok"
    node.decide.run(lambda: None)
    truth.look()
    assert truth.view.stale == ""
    assert health(node) == "ok"
    [said] = events(capfd, "driver-generation")
    assert (said["before"], said["driver"]) == ("580.65.06", "590.10.01")


def test_what_has_changed_is_promised_to_nobody_until_it_is_understood(
    node: Node, driver: FakeDriver, truth: Truth
) -> None:
    truth.changed = lambda _: None
    driver.parts = {CARD.uuid: ("MIG-1",)}
    truth.look()
    truth.look()
    with pytest.raises(NoRoom, match="has just changed"):
        opened(node, memory="4GiB", devices="0")
    opened(node, memory="4GiB", devices="1")
    assert truth.view.cards[CARD.uuid].health.startswith("it has just changed")


def test_a_card_under_mig_keeps_its_promises_and_takes_no_new_ones(
    node: Node, driver: FakeDriver, truth: Truth
) -> None:
    opened(node, memory="4GiB", devices="0")
    driver.parts = {CARD.uuid: ()}
    truth.look()
    node.decide.run(lambda: None)
    truth.look()
    with pytest.raises(NoRoom, match="MIG is on"):
        opened(node, memory="4GiB", devices="0")
    assert len(node.ledger.entries) == 1
    [warning] = [text for text in status_row(node)["warnings"] if "MIG" in text]
    assert "card 0" in warning
    driver.parts = {}
    truth.look()
    node.decide.run(lambda: None)
    truth.look()
    opened(node, memory="4GiB", devices="0")


def test_promises_follow_the_uuid_where_indices_change(
    node: Node, driver: FakeDriver, truth: Truth
) -> None:
    opened(node, memory="4GiB", devices="0")
    driver._cards = (replace(OTHER, index=0), replace(CARD, index=1))
    truth.look()
    node.decide.run(lambda: None)
    truth.look()
    promised = {room.card.index: room.promised_bytes for room in node.rooms()}
    assert promised == {0: 0, 1: 4 * GIB}


def test_another_memory_is_another_capacity(node: Node, driver: FakeDriver, truth: Truth) -> None:
    driver._cards = (replace(CARD, memory_bytes=70 * GIB), OTHER)
    driver.loads += 1
    truth.look()
    node.decide.run(lambda: None)
    assert [room.card.memory_bytes for room in node.rooms()] == [70 * GIB, 140 * GIB]


def test_a_lost_card_frees_nothing_and_is_well_when_it_answers(
    node: Node, driver: FakeDriver, truth: Truth, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(node, memory="4GiB", devices="0")
    driver.lost, driver.xids = frozenset({CARD.uuid}), ((CARD.uuid, 79),)
    truth.look()
    assert health(node).startswith("XID 79: it has fallen off the bus")
    assert health(node, OTHER) == "ok"
    with pytest.raises(NoRoom, match="XID 79"):
        opened(node, memory="4GiB", devices="0")
    assert [room.promised_bytes for room in node.rooms()] == [4 * GIB, 0]
    assert truth.health.xids == {(CARD.uuid, 79): 1}
    truth.look()
    driver.lost = frozenset()
    truth.look()
    assert health(node) == "ok"
    said = events(capfd, "card-xid", "card-unwell", "card-well")
    assert [line["event"] for line in said] == ["card-xid", "card-unwell", "card-well"]


def test_an_xid_that_makes_a_card_unfit_lasts_until_it_was_reset(
    node: Node, driver: FakeDriver, truth: Truth
) -> None:
    driver.xids = ((CARD.uuid, 95),)
    truth.look()
    truth.look()
    assert health(node).startswith("XID 95")
    driver.lost = frozenset({CARD.uuid})
    truth.look()
    driver.lost = frozenset()
    truth.look()
    assert health(node) == "ok"


@pytest.mark.parametrize("number", [13, 31, 43, 45, 94, 12345])
def test_what_a_program_did_is_counted_and_no_fault_of_the_card(
    node: Node,
    driver: FakeDriver,
    truth: Truth,
    number: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver.uses = {CARD.uuid: (Use(4242, GIB),)}
    driver.xids = ((CARD.uuid, number), (CARD.uuid, number))
    truth.look()
    assert health(node) == "ok"
    assert truth.health.xids == {(CARD.uuid, number): 2}
    said = events(capfd, "card-xid")
    assert [(line["xid"], line["processes"]) for line in said] == [(number, [4242])] * 2


def test_figures_that_cannot_be_are_told_and_judge_nobody(
    node: Node,
    driver: FakeDriver,
    truth: Truth,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def lie() -> None:
        raise Implausible("card 0: process 7 holds more than there is")

    monkeypatch.setattr(driver, "during", lie)
    truth.look()
    truth.look()
    assert truth.view.stale == "card 0: process 7 holds more than there is"
    monkeypatch.setattr(driver, "during", lambda: None)
    truth.look()
    assert truth.view.stale == ""
    said = events(capfd, "driver-implausible", "driver-answers")
    assert [line["event"] for line in said] == ["driver-implausible", "driver-answers"]
    assert node.driver is not None


def test_which_cards_have_changed() -> None:
    both = Generation("1", ((0, "a"), (1, "b")))
    assert both.changed_cards(both) == frozenset()
    assert replace(both, loads=1).changed_cards(both) == frozenset()
    assert replace(both, driver="2").changed_cards(both) == {"a", "b"}
    assert replace(both, cards=((0, "a"),)).changed_cards(both) == {"b"}
    assert replace(both, cards=((0, "b"), (1, "a"))).changed_cards(both) == {"a", "b"}
    assert replace(both, parts=(("a", ("m",)),)).changed_cards(both) == {"a"}
