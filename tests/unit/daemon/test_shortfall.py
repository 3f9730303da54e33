# SPDX-License-Identifier: Apache-2.0
"""A tenant's report of a shortfall is believed as far as pages and driver confirm it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from gpushare.daemon import limits
from gpushare.daemon.audit.judge import Judge
from gpushare.daemon.cards.driver_client import DriverSample, ProcessUse
from gpushare.daemon.limits import handle_shortfall, update_burst_limits
from gpushare.daemon.observed import AuditInput, Shortfall, UsageView
from gpushare.daemon.views.why import explain_memory
from gpushare.protocol import HostProcessGrant

from . import fakes, registered
from .fakes import GIB, FakeDaemon
from .operations import entry_of, opened

CARD = fakes.card(0).uuid


def reserves(node: FakeDaemon, tenant: HostProcessGrant, gib: int) -> None:
    """Let a process of the tenant hold so much by its own page."""
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, gib * GIB)


def takes(node: FakeDaemon, gib: int) -> None:
    """Let a non-tenant use so much by the driver's figures, and take a sample."""
    driver = node.node.loaded()
    driver.nvml.uses[CARD] = (ProcessUse(pid=1, bytes=gib * GIB),)  # type: ignore[attr-defined]
    node.sampler.look()


@pytest.fixture
def victim(node: FakeDaemon) -> HostProcessGrant:
    tenant = opened(node, memory="40GiB", devices="0")
    reserves(node, tenant, 30)
    takes(node, 120)
    return tenant


def lacked(node: FakeDaemon, tenant: HostProcessGrant) -> tuple[int, int] | None:
    lack = explain_memory(entry_of(node, tenant), node)[0]["cards"][0]["shortfall"]
    return None if lack is None else (lack["bytes"] // GIB, lack["times"])


def test_a_confirmed_report_is_recorded_and_shown(
    node: FakeDaemon, victim: HostProcessGrant
) -> None:
    assert lacked(node, victim) is None
    assert handle_shortfall(victim["key"], 0, 30 * GIB, node)
    assert handle_shortfall(victim["key"], 0, 20 * GIB, node)
    assert lacked(node, victim) == (20, 2)
    report, _ = explain_memory(entry_of(node, victim), node)
    assert report["advice"][0].startswith("shortfall (2 times): ")
    assert "Last request: 20 GiB. " in report["advice"][0]
    assert node.sample_now.is_set()


@pytest.mark.parametrize(
    ("number", "gib"),
    [(1, 30), (-1, 30), (99, 30), (0, 0), (0, 41), (0, 31)],
    ids=["no such card", "below none", "far from any", "nothing", "above all", "not reserved"],
)
def test_a_report_that_its_own_page_contradicts_is_ignored(
    number: int, gib: int, node: FakeDaemon, victim: HostProcessGrant
) -> None:
    assert not handle_shortfall(victim["key"], number, gib * GIB, node)
    assert lacked(node, victim) is None


def test_a_card_that_is_not_full_is_looked_at_again_and_nothing_else(
    node: FakeDaemon, victim: HostProcessGrant
) -> None:
    takes(node, 60)
    node.sample_now.clear()
    assert not handle_shortfall(victim["key"], 0, 30 * GIB, node)
    assert node.sample_now.is_set()
    takes(node, 120)
    assert handle_shortfall(victim["key"], 0, 30 * GIB, node)


def test_a_card_that_managed_memory_has_filled_is_full(
    node: FakeDaemon, victim: HostProcessGrant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver reports no figure of its processes, but one of the card."""
    takes(node, 60)
    look = node.observed.last
    assert look is not None
    assert not handle_shortfall(victim["key"], 0, 30 * GIB, node)
    sample = replace(look.sample, used={CARD: 120 * GIB})
    monkeypatch.setattr(node.observed, "last", replace(look, sample=sample))
    assert handle_shortfall(victim["key"], 0, 30 * GIB, node)


def test_the_card_grants_no_more_burst_memory(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = opened(node, memory="40GiB", devices="0")
    reserves(node, victim, 30)
    borrower = opened(node, memory="10GiB", memory_limit="100GiB", devices="0")
    reserves(node, borrower, 15)
    grant = node.tenants.pages[borrower["key"]].grant
    assert grant.limit_bytes(0) == 100 * GIB
    node.sampler.look()
    monkeypatch.setattr(limits, "_is_full", lambda *_: True)
    assert limits.handle_shortfall(victim["key"], 0, 30 * GIB, node)
    assert grant.limit_bytes(0) == 15 * GIB  # what it uses of it, it keeps
    update_burst_limits(node)
    assert grant.limit_bytes(0) == 15 * GIB
    node.withheld[CARD] = 0.0
    update_burst_limits(node)
    assert grant.limit_bytes(0) == 100 * GIB


TOTAL = fakes.card(0).memory_bytes
GUILTY, VICTIM, OTHER = "a" * 16, "b" * 16, "c" * 16


@pytest.fixture
def three(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        for key in (GUILTY, VICTIM, OTHER):
            made.ledger.add(replace(fakes.entry(key, memory_gib=40), state="bound"))
        yield made


def look(three: FakeDaemon, free_bytes: int, used: dict[str, int]) -> None:
    """Publish a sample by which the card has `free_bytes`, and tenants have `used`."""
    processes = {
        key: ((CARD, ProcessUse(pid=number + 1, bytes=size)),)
        for number, (key, size) in enumerate(used.items())
    }
    sample = DriverSample(time.monotonic_ns(), {CARD: ()}, {}, {}, used={CARD: TOTAL - free_bytes})
    three.observed.usage = UsageView(processes=processes)
    three.observed.last = AuditInput(three.ledger.entries, {}, sample, {}, {}, {})


def report(three: FakeDaemon, key: str, size: int = GIB) -> None:
    one = Shortfall(size, time.time(), time.monotonic_ns())
    three.observed.shortfalls = MappingProxyType({(key, CARD): one})


def short(three: FakeDaemon) -> int:
    return Judge(three)._shortfall_bytes((GUILTY, CARD))


def test_a_card_that_cannot_give_a_reporting_tenant_its_quota_is_short(three: FakeDaemon) -> None:
    look(three, 4 * GIB, {GUILTY: 80 * GIB, VICTIM: 10 * GIB})
    assert short(three) == 0
    report(three, VICTIM)
    assert short(three) == 26 * GIB  # of the 30 that it has not used


@pytest.mark.parametrize(
    ("free", "victim", "reports"),
    [(30, 10, VICTIM), (0, 40, VICTIM), (0, 0, GUILTY)],
    ids=["the card has the memory", "its whole quota is in use", "its own report"],
)
def test_a_forged_report_makes_no_card_short_that_has_the_memory(
    three: FakeDaemon, free: int, victim: int, reports: str
) -> None:
    look(three, free * GIB, {GUILTY: 80 * GIB, VICTIM: victim * GIB})
    report(three, reports, 39 * GIB)
    assert short(three) == 0
