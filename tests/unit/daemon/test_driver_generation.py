# SPDX-License-Identifier: Apache-2.0
"""The driver, its cards or their parts change, and cards fail: no container is accused for that."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.cards.driver_client import DriverGeneration, InvalidSample, ProcessUse
from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from gpushare.daemon.observe.sampler import UsageSampler
from gpushare.daemon.placement.model import Card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.daemon_status import status_row

from . import fakes
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import opened

CARD, OTHER = fakes.card(0), fakes.card(1)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(CARD, OTHER)


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver) as made:
        truth = made.sampler
        loader = DriverLoader(made)
        loader.sampler = truth
        truth._changed = lambda now: made.decide.submit(lambda: loader.take_over(now))
        truth.look()
        yield made


@pytest.fixture
def truth(node: FakeDaemon) -> UsageSampler:
    return node.sampler


def events(capfd: pytest.CaptureFixture[str], *names: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] in names]


def changed(node: FakeDaemon) -> None:
    """Look, have the change understood, and look again."""
    node.sampler.look()
    node.decide.run(lambda: None)
    node.sampler.look()


def health(node: FakeDaemon, card: Card = CARD) -> str:
    return node.observed.usage.cards[card.uuid].health


def test_a_card_under_mig_keeps_its_reservations_and_takes_no_new_ones(
    node: FakeDaemon, driver: FakeDriver
) -> None:
    opened(node, memory="4GiB", devices="0")
    driver.parts = {CARD.uuid: ()}
    changed(node)
    with pytest.raises(NoRoom, match="MIG is enabled"):
        opened(node, memory="4GiB", devices="0")
    assert len(node.ledger.entries) == 1
    [warning] = [text for text in status_row(node)["warnings"] if "MIG" in text]
    assert "card 0" in warning
    driver.parts = {}
    changed(node)
    opened(node, memory="4GiB", devices="0")


def test_reservations_follow_the_uuid_when_indices_change(
    node: FakeDaemon, driver: FakeDriver
) -> None:
    opened(node, memory="4GiB", devices="0")
    driver._cards = (replace(OTHER, index=0), replace(CARD, index=1))
    changed(node)
    allocated = {room.card.index: room.allocated_bytes for room in node.accounts.capacities()}
    assert allocated == {0: 0, 1: 4 * GIB}


def test_a_lost_card_frees_nothing_and_is_healthy_again_when_it_answers(
    node: FakeDaemon, driver: FakeDriver, truth: UsageSampler, capfd: pytest.CaptureFixture[str]
) -> None:
    opened(node, memory="4GiB", devices="0")
    driver.lost, driver.xids = frozenset({CARD.uuid}), ((CARD.uuid, 79),)
    truth.look()
    assert health(node).startswith("XID 79: it has fallen off the bus")
    assert health(node, OTHER) == "ok"
    with pytest.raises(NoRoom, match="XID 79"):
        opened(node, memory="4GiB", devices="0")
    assert [room.allocated_bytes for room in node.accounts.capacities()] == [4 * GIB, 0]
    driver.lost = frozenset()
    truth.look()
    assert health(node) == "ok"
    names = ["card-xid-reported", "card-unhealthy", "card-recovered"]
    assert [line["event"] for line in events(capfd, *names)] == names


def test_an_xid_that_makes_a_card_unfit_lasts_until_it_was_reset(
    node: FakeDaemon, driver: FakeDriver, truth: UsageSampler
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
def test_an_xid_of_a_program_is_counted_and_no_fault_of_the_card(
    node: FakeDaemon,
    driver: FakeDriver,
    truth: UsageSampler,
    number: int,
    capfd: pytest.CaptureFixture[str],
) -> None:
    driver.uses = {CARD.uuid: (ProcessUse(4242, GIB),)}
    driver.xids = ((CARD.uuid, number), (CARD.uuid, number))
    truth.look()
    assert health(node) == "ok"
    assert truth.health.xids == {(CARD.uuid, number): 2}
    said = events(capfd, "card-xid-reported")
    assert [(line["xid"], line["processes"]) for line in said] == [(number, [4242])] * 2


def test_impossible_figures_are_reported_and_accuse_no_container(
    node: FakeDaemon,
    driver: FakeDriver,
    truth: UsageSampler,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def lie() -> None:
        raise InvalidSample("card 0: process 7 holds more than there is")

    monkeypatch.setattr(driver, "during", lie)
    truth.look()
    truth.look()
    assert truth.observed.usage.stale == "card 0: process 7 holds more than there is"
    monkeypatch.setattr(driver, "during", lambda: None)
    truth.look()
    assert truth.observed.usage.stale == ""
    names = ["driver-sample-rejected", "driver-recovered"]
    assert [line["event"] for line in events(capfd, *names)] == names
    assert node.node.driver is not None


def test_which_cards_have_changed() -> None:
    both = DriverGeneration("1", ((0, "a"), (1, "b")))
    assert both.changed_cards(both) == frozenset()
    assert replace(both, loads=1).changed_cards(both) == frozenset()
    assert replace(both, driver="2").changed_cards(both) == {"a", "b"}
    assert replace(both, cards=((0, "a"),)).changed_cards(both) == {"b"}
    assert replace(both, cards=((0, "b"), (1, "a"))).changed_cards(both) == {"a", "b"}
    assert replace(both, parts=(("a", ("m",)),)).changed_cards(both) == {"a", "m"}
