# SPDX-License-Identifier: Apache-2.0
"""A tenant that writes false values into its status page affects no memory but its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages import tenants
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.daemon.views.why import explain_memory
from gpushare.protocol import MAX_REPLY_BYTES, HostProcessGrant, encode

from . import fakes, registered
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import entry_of, opened

CARD = fakes.card().uuid


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver) as made:
        yield made


def started(node: FakeDaemon, program: FakeProcess, **quota: str) -> tuple[HostProcessGrant, Pages]:
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, 0, node)
    process = processes.find_process(program.pid)
    assert process is not None
    pages = node.tenants.pages[tenant["key"]]
    registered.register(pages.status.fd, 0, program.pid, process.starttime)
    return tenant, pages


def test_a_well_timed_lower_claim_does_not_reduce_the_drivers_figure(
    node: FakeDaemon, driver: FakeDriver, program: FakeProcess
) -> None:
    """Claimed before each look at the driver and withdrawn after it, overhead is never seen."""
    _, pages = started(node, program, memory="4GiB")
    driver.uses = {CARD: (ProcessUse(program.pid, 60 * GIB),)}
    driver.during = lambda: registered.hold(pages.status.fd, 0, GIB)
    with registered.life(pages.status.fd, 0):
        for _ in range(4):
            registered.hold(pages.status.fd, 0, 60 * GIB)
            node.sampler.look()
    with pytest.raises(NoRoom, match=r"has 80 of 140 GiB available \(train 4 and 56 above it\)"):
        opened(node, memory="81GiB")
    opened(node, memory="80GiB")


def test_memory_taken_since_the_last_sample_counts_when_the_quota_shrinks(
    node: FakeDaemon, program: FakeProcess
) -> None:
    tenant, pages = started(node, program, memory="100GiB")
    with registered.life(pages.status.fd, 0):
        registered.hold(pages.status.fd, 0, 4 * GIB)
        node.sampler.look()
        registered.hold(pages.status.fd, 0, 60 * GIB)
        set_quota(entry_of(node, tenant), {"memory": "10GiB"}, node)
        with pytest.raises(
            NoRoom, match=r"has 80 of 140 GiB available \(train 10 and 50 above it\)"
        ):
            opened(node, memory="81GiB")


def test_no_claim_and_no_name_makes_a_row_that_cannot_be_sent(
    node: FakeDaemon,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    program: FakeProcess,
) -> None:
    tenant, pages = started(node, program, memory="4GiB")
    most = (1 << 64) - 1
    named = [processes.Process(4194304 - number, 1, 1, 4194304) for number in range(1024)]
    for number in range(1024):
        registered.register(
            pages.status.fd, number, (1 << 32) - 1, most, denied=most, denied_bytes=most
        )
        registered.hold(pages.status.fd, number, most, contexts=(1 << 32) - 1)
    driver.uses = {CARD: tuple(ProcessUse(one.pid, 1 << 50) for one in named)}
    monkeypatch.setattr(processes, "members", lambda *_: named)
    monkeypatch.setattr(processes, "name_of", lambda _: "\x01" * 15)
    monkeypatch.setattr(processes, "cgroups_of", lambda _: {})
    monkeypatch.setattr(StatusPage, "_is_locked", lambda *_: True)
    fakes.all_are_there(monkeypatch)
    monkeypatch.setattr(
        "gpushare.daemon.identity.pid_resolver.ProcessOwners.all_of",
        lambda *_: frozenset({tenant["key"]}),
    )
    node.sampler.look()
    entry = entry_of(node, tenant)
    assert len(encode({"row": {**tenant_status(entry, node)}})) <= MAX_REPLY_BYTES
    report, rows = explain_memory(entry, node)
    assert len(encode({"ok": True, "why": {**report}})) <= MAX_REPLY_BYTES
    assert max(len(encode({"row": {**row}})) for row in rows) <= MAX_REPLY_BYTES


def test_claims_that_are_costly_to_read_are_read_less_often(
    node: FakeDaemon, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for what a limit depends on: that is always what the page says now."""
    _, pages = started(node, program, memory="4GiB")
    monkeypatch.setattr(tenants, "COSTLY_SECONDS", -1.0)
    monkeypatch.setattr(tenants, "_PAUSE_TIMES", 1e9)
    registered.hold(pages.status.fd, 0, GIB)
    assert (pages.accounts()[0].held_bytes, pages.is_current) == (GIB, True)
    registered.hold(pages.status.fd, 0, 2 * GIB)
    assert (pages.accounts()[0].held_bytes, pages.is_current) == (GIB, False)
    assert pages.use(0)[0] == 2 * GIB
