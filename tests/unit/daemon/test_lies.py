# SPDX-License-Identifier: Apache-2.0
"""A tenant that writes what is not so into its status page moves nobody's memory but its own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.cards.card import Use
from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.identity import processes
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.daemon.pages.status import Status
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.tenants import Pages
from gpushare.daemon.views.rows import tenant_row
from gpushare.daemon.views.why import why
from gpushare.protocol import MAX_REPLY_BYTES, Opened, encode

from . import fakes, registered
from .fakes import GIB, FakeDriver
from .operations import entry_of, opened

CARD = fakes.card().uuid


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[Node]:
    with fakes.node(tmp_path, driver) as made:
        yield made


def started(node: Node, program: subprocess.Popen[bytes], **quota: str) -> tuple[Opened, Pages]:
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, 0, node)
    process = processes.look(program.pid)
    assert process is not None
    pages = node.tenants.pages[tenant["key"]]
    registered.register(pages.status.fd, 0, program.pid, process.starttime)
    return tenant, pages


def test_who_claims_less_at_the_right_moment_still_uses_what_the_driver_says(
    node: Node, driver: FakeDriver, program: subprocess.Popen[bytes]
) -> None:
    """Claimed before each look at the driver and withdrawn after it, overhead is never seen."""
    _, pages = started(node, program, memory="4GiB")
    driver.uses = {CARD: (Use(program.pid, 60 * GIB),)}
    driver.during = lambda: registered.hold(pages.status.fd, 0, GIB)
    with registered.life(pages.status.fd, 0):
        for _ in range(4):
            registered.hold(pages.status.fd, 0, 60 * GIB)
            node.loaded().truth.look()
    with pytest.raises(NoRoom, match=r"has 80 of 140 GiB free \(train 4 and 56 above it\)"):
        opened(node, memory="81GiB")
    opened(node, memory="80GiB")


def test_what_was_taken_since_the_last_look_counts_when_the_quota_shrinks(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant, pages = started(node, program, memory="100GiB")
    with registered.life(pages.status.fd, 0):
        registered.hold(pages.status.fd, 0, 4 * GIB)
        node.loaded().truth.look()
        registered.hold(pages.status.fd, 0, 60 * GIB)
        set_quota(entry_of(node, tenant), {"memory": "10GiB"}, node)
        with pytest.raises(NoRoom, match=r"has 80 of 140 GiB free \(train 10 and 50 above it\)"):
            opened(node, memory="81GiB")


def test_records_that_are_all_one_process_cost_one_look_at_it(
    node: Node, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand claims of one process, with no lock held, and maps that take long to read."""
    _, pages = started(node, program, memory="4GiB")
    process = processes.look(program.pid)
    assert process is not None
    for number in range(200):
        registered.register(pages.status.fd, number, program.pid, process.starttime)
    looked: list[int] = []

    def mapped(pid: int, _file: object) -> bool:
        looked.append(pid)
        return True

    monkeypatch.setattr(processes, "may_map", mapped)
    node.loaded().truth.look()
    assert looked == [program.pid]
    assert len(pages.claims()) == 200


def test_who_shows_life_is_not_looked_for(
    node: Node, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, pages = started(node, program, memory="4GiB")

    def members(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(processes, "members", members)
    with registered.life(pages.status.fd, 0):
        node.loaded().truth.look()
    assert not node.loaded().truth.view.stale
    assert len(pages.claims()) == 1


def test_no_claim_and_no_name_makes_a_row_that_cannot_be_sent(
    node: Node,
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    program: subprocess.Popen[bytes],
) -> None:
    tenant, pages = started(node, program, memory="4GiB")
    most = (1 << 64) - 1
    named = [processes.Process(4194304 - number, 1, 1, 4194304) for number in range(1024)]
    for number in range(1024):
        registered.register(
            pages.status.fd, number, (1 << 32) - 1, most, denied=most, denied_bytes=most
        )
        registered.hold(pages.status.fd, number, most, contexts=(1 << 32) - 1)
    driver.uses = {CARD: tuple(Use(one.pid, 1 << 50) for one in named)}
    monkeypatch.setattr(processes, "members", lambda *_: named)
    monkeypatch.setattr(processes, "name_of", lambda _: "\x01" * 15)
    monkeypatch.setattr(processes, "cgroups_of", lambda _: {})
    monkeypatch.setattr(Status, "_is_locked", lambda *_: True)
    fakes.all_are_there(monkeypatch)
    monkeypatch.setattr(
        "gpushare.daemon.identity.owners.Owners.all_of", lambda *_: frozenset({tenant["key"]})
    )
    node.loaded().truth.look()
    entry = entry_of(node, tenant)
    assert len(encode({"row": {**tenant_row(entry, node)}})) <= MAX_REPLY_BYTES
    report, rows = why(entry, node)
    assert len(encode({"ok": True, "why": {**report}})) <= MAX_REPLY_BYTES
    assert max(len(encode({"row": {**row}})) for row in rows) <= MAX_REPLY_BYTES
