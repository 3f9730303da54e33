# SPDX-License-Identifier: Apache-2.0
"""Looks are left out only where they would find what the last ones did."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.audit import audit as rests
from gpushare.daemon.audit.audit import SETTLED_LOOKS, IdleBackoff
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.state import AuditFinding

from . import fakes
from .fakes import GIB, FakeDaemon, FakeDriver

CARD = fakes.card().uuid
ME = os.getpid()


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver()
    made.uses = {CARD: (ProcessUse(ME, GIB, 0),)}
    return made


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver) as made:
        yield made


def look(node: FakeDaemon, rest: IdleBackoff) -> None:
    """Look in full."""
    assert node.driver is not None
    node.sampler.look()
    rest.note()


@pytest.fixture
def rest(node: FakeDaemon) -> IdleBackoff:
    """One that has seen nothing new for long enough."""
    made = IdleBackoff(node)
    for _ in range(SETTLED_LOOKS + 1):
        assert not made.look(node.sampler)
        assert made.slower == 1
        look(node, made)
    assert made.look(node.sampler)
    assert made.slower > 1
    return made


@pytest.mark.parametrize(
    "change",
    [
        {"uses": {CARD: (ProcessUse(ME, GIB, 0), ProcessUse(ME + 1, 0, 0))}},
        {"uses": {CARD: (ProcessUse(ME, GIB + 1, 0),)}},
        *({"busy": {CARD: 1}}, {"lost": frozenset({CARD})}, {"fault": "no answer"}, {"loads": 1}),
        {},
    ],
    ids=str,
)
def test_whatever_is_new_is_looked_at_in_full_at_once_and_for_a_while(
    node: FakeDaemon, driver: FakeDriver, rest: IdleBackoff, change: dict[str, object]
) -> None:
    driver.sensors = {CARD: {"power_milliwatts": 75_001}}
    assert rest.look(node.sampler)  # sensors are not new
    vars(driver).update(change)
    if not change:
        node.ledger.add(fakes.entry())
    assert not rest.look(node.sampler)
    look(node, rest)
    assert not rest.look(node.sampler)
    assert rest.slower == 1


@pytest.mark.parametrize("is_measured", [True, False])
def test_every_tenant_is_sampled_again_after_a_time(
    node: FakeDaemon,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_measured: bool,
) -> None:
    """Sooner where a card that works looks to the driver like one that does not."""
    driver.busy = {CARD: 0} if is_measured else {}
    rest, now = IdleBackoff(node), time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(SETTLED_LOOKS + 1):
        look(node, rest)
    now += rests.UNMEASURED_SECONDS
    assert rest.look(node.sampler) is is_measured
    now += rests.FULL_SECONDS
    assert not rest.look(node.sampler)


def test_no_tenant_rests_beside_one_over_quota(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an audit concludes from many looks, all of which find the same, it must have."""
    entry = fakes.entry()
    node.ledger.add(entry)
    allocated = entry.allocations[0].memory_bytes
    for held, rests_then in ((allocated + 1, False), (allocated, True)):
        monkeypatch.setattr(
            "gpushare.daemon.state.UsageView.driver_bytes", lambda *_, held=held: held
        )
        rest = IdleBackoff(node)
        for _ in range(SETTLED_LOOKS + 1):
            look(node, rest)
        assert rest.look(node.sampler) is rests_then


def test_no_tenant_rests_while_its_state_changes(node: FakeDaemon, rest: IdleBackoff) -> None:
    found = AuditFinding("warned", "warn", 2, 1, 0.0)
    node.observed.findings = {("key", CARD): found}
    look(node, rest)
    assert not rest.look(node.sampler)
