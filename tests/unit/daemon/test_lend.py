# SPDX-License-Identifier: Apache-2.0
"""A memory-limit: what is free is lent, and what is promised never was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.life.release import adopt, end
from gpushare.daemon.memory.lend import Lending, lend, make_room
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.tenants import Pages
from gpushare.daemon.views.rows import card_row, tenant_row
from gpushare.protocol import Card, Opened, TenantCard
from gpushare.quota import QuotaError

from . import fakes, registered
from .fakes import GIB
from .operations import entry_of, opened


def burst(node: Node, memory: str = "10GiB", limit: str = "200GiB") -> Opened:
    return opened(node, memory=memory, memory_limit=limit, devices="0")


def uses(node: Node, tenant: Opened, gib: int) -> None:
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, gib * GIB)


def limit(node: Node, tenant: Opened) -> int:
    return node.tenants.pages[tenant["key"]].grant.limit_bytes(0) // GIB


def shown(node: Node, tenant: Opened) -> TenantCard:
    [card] = tenant_row(entry_of(node, tenant), node)["cards"]
    return card


def card(node: Node) -> Card:
    return card_row(node.rooms()[0])


def test_what_is_promised_to_nobody_is_lent(node: Node) -> None:
    opened(node, memory="40GiB", devices="0")
    tenant = burst(node)
    assert limit(node, tenant) == 100
    row = shown(node, tenant)
    assert (row["memory_bytes"], row["memory_limit_bytes"]) == (10 * GIB, 200 * GIB)
    assert (row["limit_bytes"], row["borrowed_bytes"]) == (100 * GIB, 0)
    uses(node, tenant, 60)
    assert shown(node, tenant)["borrowed_bytes"] == 50 * GIB
    both = card(node)
    assert (both["promised_bytes"], both["borrowed_bytes"]) == (50 * GIB, 50 * GIB)
    assert (both["lent_bytes"], both["free_bytes"]) == (90 * GIB, 40 * GIB)


def test_no_more_is_lent_than_was_asked_for(node: Node) -> None:
    assert limit(node, burst(node, "10GiB", "15GiB")) == 15


def test_before_a_promise_is_made_no_more_of_it_is_lent(node: Node) -> None:
    tenant = burst(node)
    assert limit(node, tenant) == 140
    opened(node, memory="100GiB", devices="0")
    assert limit(node, tenant) == 40


def test_a_tenant_that_takes_what_it_was_lent_while_the_limit_shrinks_is_seen(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allocates between the first look and the new limit: that memory is promised to nobody."""
    tenant = burst(node)
    during(monkeypatch, lambda: uses(node, tenant, 50))
    with pytest.raises(NoRoom, match=r"has 90 of 140 GiB free \(train 10 and 40 borrowed\)"):
        opened(node, memory="100GiB", devices="0")
    lend(node)
    assert limit(node, tenant) == 140


def during(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have something happen just before a tenant's limit is next written."""
    write = Pages.write_limit

    def wrapped(pages: Pages, *arguments: int) -> None:
        happens()
        write(pages, *arguments)

    monkeypatch.setattr(Pages, "write_limit", wrapped)


def test_another_card_is_taken_where_a_borrower_was_faster(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = burst(node)
    opened(node, memory="5GiB", devices="1")
    during(monkeypatch, lambda: uses(node, tenant, 50))
    other = opened(node, memory="100GiB")
    assert entry_of(node, other).holdings[0].uuid == fakes.card(1).uuid


def test_a_promise_that_fits_beside_what_is_lent_shrinks_nobody(node: Node) -> None:
    tenant = burst(node, "10GiB", "40GiB")
    rooms = node.rooms()
    assert not make_room({fakes.card(0).uuid: 100 * GIB}, rooms, node)
    assert make_room({fakes.card(0).uuid: 101 * GIB}, rooms, node)
    assert limit(node, tenant) == 39


def test_a_tenant_that_grows_is_not_lent_its_own_promise_twice(node: Node) -> None:
    grows, tenant = opened(node, memory="10GiB", devices="0"), burst(node)
    assert limit(node, tenant) == 130
    set_quota(entry_of(node, grows), {"memory": "100GiB"}, node)
    assert limit(node, tenant) == 40
    uses(node, tenant, 40)
    with pytest.raises(NoRoom, match=r"\(train 100, train-\w+ 10 and 30 borrowed\)"):
        set_quota(entry_of(node, grows), {"memory": "101GiB"}, node)


def test_a_borrower_may_be_promised_what_it_borrows(node: Node) -> None:
    tenant = burst(node)
    uses(node, tenant, 140)
    set_quota(entry_of(node, tenant), {"memory": "140GiB"}, node)
    row = shown(node, tenant)
    assert (row["memory_bytes"], row["borrowed_bytes"], row["over_bytes"]) == (140 * GIB, 0, 0)


def test_what_is_freed_is_lent_again(node: Node) -> None:
    first, tenant = opened(node, memory="100GiB", devices="0"), burst(node)
    assert limit(node, tenant) == 40
    end(first["key"], node, "it has ended")
    lend(node)
    assert limit(node, tenant) == 140


def test_after_each_look_it_is_decided_again_and_never_twice_at_a_time(node: Node) -> None:
    first, tenant = opened(node, memory="100GiB", devices="0"), burst(node)
    node.decide.finish(5)  # what is submitted now waits
    end(first["key"], node, "it has ended")
    lending = Lending(node)
    for _ in range(3):
        lending.again()
    assert node.decide._jobs.qsize() == 1
    job = node.decide._jobs.get()
    assert job is not None
    job()
    assert limit(node, tenant) == 140
    lending.again()
    assert node.decide._jobs.qsize() == 1


def test_of_a_card_that_is_not_well_no_more_is_lent(tmp_path: Path) -> None:
    """What strangers hold of it is not known either."""
    driver = fakes.FakeDriver(fakes.card(0))
    with fakes.node(tmp_path, driver) as node:
        first, tenant = opened(node, memory="100GiB", devices="0"), burst(node)
        driver.lost = frozenset({fakes.card(0).uuid})
        node.loaded().truth.look()
        end(first["key"], node, "it has ended")
        lend(node)
        assert limit(node, tenant) == 40
        driver.lost = frozenset()
        node.loaded().truth.look()
        lend(node)
        assert limit(node, tenant) == 140


def test_where_nobody_borrows_nothing_is_decided(node: Node) -> None:
    opened(node, memory="100GiB", devices="0")
    node.decide.finish(5)
    Lending(node).again()
    assert node.decide._jobs.empty()


def test_the_page_tells_of_each_change_once(node: Node) -> None:
    tenant = burst(node)
    grant = node.tenants.pages[tenant["key"]].grant
    before = grant.generation
    lend(node)
    assert grant.generation == before
    opened(node, memory="100GiB", devices="0")
    assert grant.generation == before + 1


def test_a_limit_is_set_for_a_running_tenant_and_for_its_next_start(node: Node) -> None:
    tenant = opened(node, memory="10GiB", devices="0")
    assert limit(node, tenant) == 10
    set_quota(entry_of(node, tenant), {"memory-limit": "20GiB"}, node)
    assert limit(node, tenant) == 20
    assert node.overrides.of(tenant["id"]) == {"memory-limit": "20GiB"}
    set_quota(entry_of(node, tenant), {"memory-limit": "10GiB"}, node)
    assert limit(node, tenant) == 10


def test_a_memory_above_the_limit_takes_the_limit_along(node: Node) -> None:
    """Else the container would contradict itself at its next start."""
    tenant = burst(node, "10GiB", "20GiB")
    set_quota(entry_of(node, tenant), {"memory": "30GiB"}, node)
    assert node.overrides.of(tenant["id"]) == {"memory": "30GiB", "memory-limit": "30GiB"}
    set_quota(entry_of(node, tenant), {"memory": "5GiB"}, node)
    assert limit(node, tenant) == 30


def test_a_limit_below_the_memory_is_refused_and_both_are_named(node: Node) -> None:
    with pytest.raises(QuotaError, match=r'--memory-limit: "8GiB" is below memory 10GiB'):
        opened(node, memory="10GiB", memory_limit="8GiB")
    with pytest.raises(QuotaError, match=r'"8GiB" is below --memory-percent "10", 14GiB'):
        opened(node, memory_percent="10", memory_limit="8GiB")
    tenant = burst(node)
    with pytest.raises(QuotaError, match=r'"8GiB" is below the memory 10GiB of train'):
        set_quota(entry_of(node, tenant), {"memory-limit": "8GiB"}, node)


def test_what_was_lent_is_there_after_a_restart(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as before:
        tenant = burst(before)
        assert limit(before, tenant) == 140
    with fakes.again(tmp_path) as after:
        adopt(after)
        assert entry_of(after, tenant).holdings[0].memory_limit_bytes == 200 * GIB
        assert limit(after, tenant) == 140
        uses(after, tenant, 100)
        with pytest.raises(NoRoom, match=r"train 10 and 90 borrowed"):
            opened(after, memory="50GiB", devices="0")


def test_a_tenant_reads_no_limit_below_its_quota(node: Node) -> None:
    tenant = burst(node, "10GiB", "20GiB")
    page = (node.mounts.path(tenant["key"]) / "grant").read_bytes()[4096:]
    memory = int.from_bytes(page[abi.GRANT_CARD_MEMORY_BYTES :][:8], "little")
    most = int.from_bytes(page[abi.GRANT_CARD_MEMORY_LIMIT_BYTES :][:8], "little")
    assert (memory, most) == (10 * GIB, 20 * GIB)


def test_nothing_is_lent_on_figures_that_are_old(tmp_path: Path) -> None:
    driver = fakes.FakeDriver()
    with fakes.node(tmp_path, driver) as node:
        truth = node.loaded().truth
        driver.fault = "it hangs"
        truth.look()
        tenant = burst(node)
        assert limit(node, tenant) == 10
        driver.fault = ""
        truth.look()
        lend(node)
        assert limit(node, tenant) == 140


def test_a_change_of_its_quota_takes_nothing_back_that_stays_lent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be using it at that very moment."""
    tenant = burst(node)
    written: list[int] = []
    during(monkeypatch, lambda: written.append(limit(node, tenant)))
    set_quota(entry_of(node, tenant), {"memory-limit": "120GiB"}, node)
    assert [*written, limit(node, tenant)] == [140, 120]
