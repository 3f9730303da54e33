# SPDX-License-Identifier: Apache-2.0
"""A tenant that lacks what it was promised is believed as far as pages and driver bear it out."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from gpushare.daemon.cards.card import Use
from gpushare.daemon.life.release import end
from gpushare.daemon.memory import lack
from gpushare.daemon.memory.lack import heard
from gpushare.daemon.memory.lend import lend
from gpushare.daemon.node import Node
from gpushare.daemon.views.why import why
from gpushare.protocol import Opened

from . import fakes, registered
from .fakes import GIB
from .operations import entry_of, opened

CARD = fakes.card(0).uuid


def reserves(node: Node, tenant: Opened, gib: int) -> None:
    """Let a process of the tenant hold so much by its own page."""
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, gib * GIB)


def takes(node: Node, gib: int) -> None:
    """Let a process of nobody's have so much by the driver's figures, and look."""
    driver = node.loaded()
    driver.nvml.uses[CARD] = (Use(pid=1, bytes=gib * GIB),)  # type: ignore[attr-defined]
    driver.truth.look()


@pytest.fixture
def victim(node: Node) -> Opened:
    tenant = opened(node, memory="40GiB", devices="0")
    reserves(node, tenant, 30)
    takes(node, 120)
    return tenant


def lacked(node: Node, tenant: Opened) -> tuple[int, int] | None:
    lack = why(entry_of(node, tenant), node)[0]["cards"][0]["lacked"]
    return None if lack is None else (lack["bytes"] // GIB, lack["times"])


def test_it_is_believed_and_shown(node: Node, victim: Opened) -> None:
    assert lacked(node, victim) is None
    assert heard(victim["key"], 0, 30 * GIB, node)
    assert heard(victim["key"], 0, 20 * GIB, node)
    assert lacked(node, victim) == (20, 2)
    report, _ = why(entry_of(node, victim), node)
    assert "had not got what it was promised, 2 times, the last time 20 GiB" in report["advice"][0]
    assert node.audit.hurry.is_set()


def test_it_ends_with_the_tenant(node: Node, victim: Opened) -> None:
    assert heard(victim["key"], 0, 30 * GIB, node)
    end(victim["key"], node, "test")
    assert node.lacked.of(victim["key"], CARD) is None


@pytest.mark.parametrize(
    ("number", "gib"),
    [(1, 30), (-1, 30), (99, 30), (0, 0), (0, 41), (0, 31)],
    ids=["no such card", "below none", "far from any", "nothing", "above all", "not reserved"],
)
def test_what_its_own_page_does_not_bear_out_is_not_believed(
    number: int, gib: int, node: Node, victim: Opened
) -> None:
    assert not heard(victim["key"], number, gib * GIB, node)
    assert lacked(node, victim) is None


def test_who_has_more_than_it_was_promised_lacks_nothing(node: Node, victim: Opened) -> None:
    reserves(node, victim, 41)
    assert not heard(victim["key"], 0, 30 * GIB, node)


def test_a_card_that_is_not_full_is_looked_at_again_and_nothing_else(
    node: Node, victim: Opened
) -> None:
    takes(node, 60)
    node.audit.hurry.clear()
    assert not heard(victim["key"], 0, 30 * GIB, node)
    assert node.audit.hurry.is_set()
    takes(node, 120)
    assert heard(victim["key"], 0, 30 * GIB, node)


def test_a_card_that_managed_memory_has_filled_is_full(
    node: Node, victim: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver tells it of no process, and of the card."""
    takes(node, 60)
    look = node.loaded().truth.last
    assert look is not None
    assert not heard(victim["key"], 0, 30 * GIB, node)
    sample = replace(look.sample, used={CARD: 120 * GIB})
    monkeypatch.setattr(node.loaded().truth, "last", replace(look, sample=sample))
    assert heard(victim["key"], 0, 30 * GIB, node)


def test_a_tenant_that_is_gone_is_not_heard(node: Node) -> None:
    assert not heard("0" * 16, 0, GIB, node)


def test_nothing_more_is_lent_of_that_card(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = opened(node, memory="40GiB", devices="0")
    reserves(node, victim, 30)
    borrower = opened(node, memory="10GiB", memory_limit="100GiB", devices="0")
    reserves(node, borrower, 15)
    grant = node.tenants.pages[borrower["key"]].grant
    assert grant.limit_bytes(0) == 100 * GIB
    node.loaded().truth.look()
    monkeypatch.setattr(lack, "_is_full", lambda *_: True)
    assert lack.heard(victim["key"], 0, 30 * GIB, node)
    assert grant.limit_bytes(0) == 15 * GIB  # what it uses of it, it keeps
    lend(node)
    assert grant.limit_bytes(0) == 15 * GIB
    node.withheld[CARD] = 0.0
    lend(node)
    assert grant.limit_bytes(0) == 100 * GIB
