# SPDX-License-Identifier: Apache-2.0
"""A frozen container that keeps another from its quota: judged by the driver's figures alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from gpushare.daemon.audit import audit
from gpushare.daemon.cards.driver_client import DriverSample, ProcessUse
from gpushare.daemon.state import AuditInput, Shortfall, UsageView

from . import fakes
from .fakes import GIB, FakeDaemon

CARD = fakes.card(0).uuid
TOTAL = fakes.card(0).memory_bytes
GUILTY, VICTIM, OTHER = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        for key in (GUILTY, VICTIM, OTHER):
            made.ledger.add(replace(fakes.entry(key, memory_gib=40), state="bound"))
        yield made


def look(node: FakeDaemon, free_bytes: int, used: dict[str, int]) -> None:
    """Publish a sample by which the card has `free_bytes`, and tenants have `used`."""
    processes = {
        key: ((CARD, ProcessUse(pid=number + 1, bytes=size)),)
        for number, (key, size) in enumerate(used.items())
    }
    sample = DriverSample(time.monotonic_ns(), {CARD: ()}, {}, {}, used={CARD: TOTAL - free_bytes})
    node.observed.usage = UsageView(processes=processes)
    node.observed.last = AuditInput(node.ledger.entries, {}, sample, {}, {}, {})


def report(node: FakeDaemon, key: str, size: int = GIB) -> None:
    one = Shortfall(size, time.time(), time.monotonic_ns())
    node.observed.shortfalls = MappingProxyType({(key, CARD): one})


def short(node: FakeDaemon) -> int:
    return audit._shortfall_bytes(node, (GUILTY, CARD))


def test_a_card_that_cannot_give_a_reporting_tenant_its_quota_is_short(node: FakeDaemon) -> None:
    look(node, 4 * GIB, {GUILTY: 80 * GIB, VICTIM: 10 * GIB})
    assert short(node) == 0
    report(node, VICTIM)
    assert short(node) == 26 * GIB  # of the 30 that it has not used


def test_a_forged_report_makes_no_card_short_that_has_the_memory(node: FakeDaemon) -> None:
    look(node, 30 * GIB, {GUILTY: 80 * GIB, VICTIM: 10 * GIB})
    report(node, VICTIM, 39 * GIB)
    assert short(node) == 0


def test_a_tenant_with_its_whole_quota_in_use_has_no_shortfall(node: FakeDaemon) -> None:
    look(node, 0, {GUILTY: 80 * GIB, VICTIM: 40 * GIB})
    report(node, VICTIM)
    assert short(node) == 0


def test_a_tenants_own_report_is_no_shortfall_against_it(node: FakeDaemon) -> None:
    look(node, 0, {GUILTY: 80 * GIB, VICTIM: 0})
    report(node, GUILTY)
    assert short(node) == 0
