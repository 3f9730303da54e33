# SPDX-License-Identifier: Apache-2.0
"""Burst limits: available memory is granted, and reserved memory never is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.limits import (
    STEP_BYTES,
    BurstUpdater,
    burst_limits,
    reclaim_burst,
    update_burst_limits,
    withhold_burst,
)
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.model import AllocationUse
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.rows import card_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol import HostProcessGrant
from gpushare.protocol.rows import CardRow, TenantCard
from gpushare.quota.errors import QuotaError

from . import fakes, registered
from .fakes import GIB, MIB, FakeDaemon
from .inline import InlineWorker
from .operations import entry_of, opened


def burst(node: FakeDaemon, memory: str = "10GiB", limit: str = "200GiB") -> HostProcessGrant:
    return opened(node, memory=memory, memory_limit=limit, devices="0")


def uses(node: FakeDaemon, tenant: HostProcessGrant, gib: float) -> None:
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, int(gib * GIB))


def limit(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    return node.tenants.pages[tenant["key"]].grant.limit_bytes(0) // GIB


def shown(node: FakeDaemon, tenant: HostProcessGrant) -> TenantCard:
    [card] = tenant_status(entry_of(node, tenant), node)["cards"]
    return card


def card(node: FakeDaemon) -> CardRow:
    return next(card_rows(node))


def test_unreserved_memory_is_available_for_bursts(node: FakeDaemon) -> None:
    opened(node, memory="40GiB", devices="0")
    tenant = burst(node)
    assert limit(node, tenant) == 100
    row = shown(node, tenant)
    assert (row["quota_bytes"], row["burst_limit_bytes"]) == (10 * GIB, 200 * GIB)
    assert (row["limit_bytes"], row["burst_used_bytes"]) == (100 * GIB, 0)
    uses(node, tenant, 60)
    assert shown(node, tenant)["burst_used_bytes"] == 50 * GIB
    both = card(node)
    assert (both["allocated_bytes"], both["burst_used_bytes"]) == (50 * GIB, 50 * GIB)
    assert (both["burst_granted_bytes"], both["available_bytes"]) == (90 * GIB, 40 * GIB)


def test_burst_memory_is_withdrawn_before_a_reservation_is_made(node: FakeDaemon) -> None:
    tenant = burst(node)
    assert limit(node, tenant) == 140
    opened(node, memory="100GiB", devices="0")
    assert limit(node, tenant) == 40


def test_an_allocation_during_the_withdrawal_is_detected(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allocates between the first sample and the new limit: that memory is not reserved."""
    tenant = burst(node)
    during(monkeypatch, lambda: uses(node, tenant, 50))
    with pytest.raises(NoRoom, match=r"has 90 of 140 GiB available \(train 10 and 40 burst\)"):
        opened(node, memory="100GiB", devices="0")
    update_burst_limits(node)
    assert limit(node, tenant) == 140


def test_a_tenant_that_claims_more_at_each_sample_delays_no_reservation(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one claims, the other's limit has to shrink by, and the decide thread would go on."""
    rises, _ = burst(node, "5GiB"), burst(node, "5GiB")
    grows = opened(node, memory="10GiB", devices="0")
    claims = iter(range(30 * 1024, 45 * 1024, 8))
    during(monkeypatch, lambda: uses(node, rises, next(claims) / 1024))
    with pytest.raises(NoRoom, match="keeps changing how much burst memory it uses; try again"):
        opened(node, memory="80GiB", devices="0")
    with pytest.raises(NoRoom, match="keeps changing"):
        set_quota(entry_of(node, grows), {"memory": "90GiB"}, node)
    assert next(claims) < 32 * 1024


def during(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Have something happen just before a tenant's limit is next written."""
    write = Pages.write_limit

    def wrapped(pages: Pages, *arguments: int) -> None:
        happens()
        write(pages, *arguments)

    monkeypatch.setattr(Pages, "write_limit", wrapped)


def test_a_reservation_that_fits_beside_bursts_withdraws_nothing(node: FakeDaemon) -> None:
    tenant = burst(node, "10GiB", "40GiB")
    rooms = node.accounts.capacities()
    assert not reclaim_burst({fakes.card(0).uuid: 100 * GIB}, rooms, node)
    assert reclaim_burst({fakes.card(0).uuid: 101 * GIB}, rooms, node)
    assert limit(node, tenant) == 39


def test_without_burst_limits_nothing_is_computed(node: FakeDaemon) -> None:
    opened(node, memory="100GiB", devices="0")
    node.decide.finish(5)
    BurstUpdater(node).again()
    assert isinstance(node.decide, InlineWorker)
    assert not node.decide._submitted


def test_a_limit_below_the_memory_is_refused_and_both_are_named(node: FakeDaemon) -> None:
    with pytest.raises(QuotaError, match=r"--memory-limit=8GiB: below memory 10GiB"):
        opened(node, memory="10GiB", memory_limit="8GiB")
    with pytest.raises(QuotaError, match=r'=8GiB: below --memory-percent "10", 14GiB'):
        opened(node, memory_percent="10", memory_limit="8GiB")
    tenant = burst(node)
    with pytest.raises(QuotaError, match=r"=8GiB: below the memory 10GiB of train"):
        set_quota(entry_of(node, tenant), {"memory-limit": "8GiB"}, node)


def test_stale_figures_grant_no_burst_memory(tmp_path: Path) -> None:
    driver = fakes.FakeDriver()
    with fakes.node(tmp_path, driver) as node:
        truth = node.sampler
        driver.fault = "it hangs"
        truth.look()
        tenant = burst(node)
        assert limit(node, tenant) == 10
        driver.fault = ""
        truth.look()
        update_burst_limits(node)
        assert limit(node, tenant) == 140


def test_what_is_withheld_is_given_again_without_a_sample(node: FakeDaemon) -> None:
    """An idle node is not sampled for up to a minute."""
    tenant, uuid = burst(node), fakes.card().uuid
    updater = BurstUpdater(node)
    withhold_burst(uuid, node)
    updater.again_when_due()
    assert limit(node, tenant) == 10
    node.withheld = {uuid: 0.0}  # the time is over
    updater.again_when_due()
    node.decide.finish(5)
    assert limit(node, tenant) == 140


sizes = st.integers(0, 8 * GIB)


@st.composite
def parts(draw: st.DrawFn) -> AllocationUse:
    memory, more = draw(st.integers(MIB, 8 * GIB)), draw(st.just(0) | sizes)
    return AllocationUse("", memory, burst_limit_bytes=memory + more, used_bytes=draw(sizes))


cards = st.lists(parts(), max_size=6)
capacities = st.integers(0, 64 * GIB)


def part(memory_gib: float, most_gib: float = 0, used_gib: float = 0) -> AllocationUse:
    memory, most, used = (int(gib * GIB) for gib in (memory_gib, most_gib, used_gib))
    return AllocationUse("", memory, burst_limit_bytes=max(memory, most), used_bytes=used)


def taken(one: AllocationUse) -> int:
    return max(one.quota_bytes, one.used_bytes)


@given(capacities, cards)
def test_reserved_and_used_memory_is_never_granted_for_bursts(
    capacity: int, found: list[AllocationUse]
) -> None:
    limits = list(zip(found, burst_limits(capacity, found), strict=True))
    all_taken = sum(map(taken, found))
    assert sum(max(limit, one.used_bytes) for one, limit in limits) <= max(capacity, all_taken)
    for one, limit in limits:
        assert one.quota_bytes <= limit <= one.burst_limit_bytes
        if all_taken <= capacity:
            assert limit >= min(one.used_bytes, one.burst_limit_bytes)
        else:
            assert limit <= taken(one)


@given(capacities, cards)
def test_no_tenant_gets_more_while_another_that_wants_it_has_less(
    capacity: int, found: list[AllocationUse]
) -> None:
    bursting = [
        (limit - one.quota_bytes, one)
        for one, limit in zip(found, burst_limits(capacity, found), strict=True)
    ]
    for above, one in bursting:
        if above > one.burst_used_bytes:  # it may take more than it has
            assert all(
                above <= less + STEP_BYTES
                for less, other in bursting
                if less < other.burst_limit_bytes - other.quota_bytes
            )


def test_two_that_want_the_same_get_the_same_and_small_wishes_are_met_first() -> None:
    limits = burst_limits(100 * GIB, [part(10, 100), part(10, 100), part(10, 15)])
    assert limits == (int(42.5 * GIB), int(42.5 * GIB), 15 * GIB)


def test_growing_non_tenant_use_reduces_the_largest_burst_first() -> None:
    limits = burst_limits(
        60 * GIB, [part(10, 100, used_gib=50), part(10, 100, used_gib=20), part(10)]
    )
    assert limits == (30 * GIB, 20 * GIB, 10 * GIB)
