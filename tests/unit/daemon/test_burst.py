# SPDX-License-Identifier: Apache-2.0
"""Memory beyond the quota: burst limits, managed memory, and reports of a shortfall."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare import abi
from gpushare.config import parse
from gpushare.daemon import limits
from gpushare.daemon.audit.judge import Judge
from gpushare.daemon.cards.driver_client import DriverSample, ProcessUse
from gpushare.daemon.lifecycle import release
from gpushare.daemon.limits import (
    STEP_BYTES,
    burst_limits,
)
from gpushare.daemon.observed import AuditInput, Shortfall, UsageView
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.model import AllocationUse
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.views.rows import card_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.daemon.views.why import explain_memory
from gpushare.protocol import HostProcessGrant
from gpushare.protocol.rows import CardRow, TenantCard
from gpushare.quota.errors import QuotaError

from . import fakes, registered
from .bundles import BundleToCreate
from .fakes import GIB, MIB, FakeDaemon, FakeDriver
from .operations import entry_of, opened, tenant_rows
from .test_queue import take


def bursting(node: FakeDaemon, memory: str = "10GiB", limit: str = "200GiB") -> HostProcessGrant:
    return opened(node, memory=memory, memory_limit=limit, devices="0")


def uses(node: FakeDaemon, tenant: HostProcessGrant, gib: float, managed_gib: int = 0) -> None:
    """Let a process of the tenant hold so much by its own page."""
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, int(gib * GIB), kinds={abi.KIND_MANAGED: managed_gib * GIB})


def limit(node: FakeDaemon, tenant: HostProcessGrant) -> int:
    return node.tenants.pages[tenant["key"]].grant.limit_bytes(0) // GIB


def shown(node: FakeDaemon, tenant: HostProcessGrant) -> TenantCard:
    [card] = tenant_status(entry_of(node, tenant), node)["cards"]
    return card


def card(node: FakeDaemon) -> CardRow:
    return next(card_rows(node))


def test_unreserved_memory_is_available_for_bursts(node: FakeDaemon) -> None:
    opened(node, memory="40GiB", devices="0")
    tenant = bursting(node)
    assert limit(node, tenant) == 100
    row = shown(node, tenant)
    assert (row["quota_bytes"], row["burst_limit_bytes"]) == (10 * GIB, 200 * GIB)
    assert (row["limit_bytes"], row["used_bytes"]) == (100 * GIB, 0)
    uses(node, tenant, 60)
    assert shown(node, tenant)["used_bytes"] == 60 * GIB
    both = card(node)
    assert both["allocated_bytes"] == 50 * GIB
    assert (both["burst_granted_bytes"], both["available_bytes"]) == (90 * GIB, 40 * GIB)


def test_burst_memory_is_withdrawn_before_a_reservation_is_made(node: FakeDaemon) -> None:
    tenant = bursting(node)
    assert limit(node, tenant) == 140
    opened(node, memory="100GiB", devices="0")
    assert limit(node, tenant) == 40


def test_an_allocation_during_the_withdrawal_is_detected(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It allocates between the first sample and the new limit: that memory is not reserved."""
    tenant = bursting(node)
    during(monkeypatch, lambda: uses(node, tenant, 50))
    with pytest.raises(NoRoom, match=r"has 90 of 140 GiB available \(train 10 and 40 burst\)"):
        opened(node, memory="100GiB", devices="0")
    node.limits.update()
    assert limit(node, tenant) == 140


def test_a_tenant_that_claims_more_at_each_sample_delays_no_reservation(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one claims, the other's limit has to shrink by, and the decide thread would go on."""
    rises, _ = bursting(node, "5GiB"), bursting(node, "5GiB")
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


def test_a_limit_below_the_memory_is_refused_and_both_are_named(node: FakeDaemon) -> None:
    with pytest.raises(QuotaError, match=r'=8GiB: below --memory-percent "10", 14GiB'):
        opened(node, memory_percent="10", memory_limit="8GiB")
    tenant = bursting(node)
    with pytest.raises(QuotaError, match=r"=8GiB: below the memory 10GiB of train"):
        set_quota(entry_of(node, tenant), {"memory-limit": "8GiB"}, node)


def test_stale_figures_grant_no_burst_memory(tmp_path: Path) -> None:
    driver = fakes.FakeDriver()
    with fakes.node(tmp_path, driver) as node:
        truth = node.sampler
        driver.fault = "it hangs"
        truth.look()
        tenant = bursting(node)
        assert limit(node, tenant) == 10
        driver.fault = ""
        truth.look()
        node.limits.update()
        assert limit(node, tenant) == 140


def test_what_is_withheld_is_given_again_without_a_sample(node: FakeDaemon) -> None:
    """An idle node is not sampled for up to a minute."""
    tenant, uuid = bursting(node), fakes.card().uuid
    node.limits.withhold(uuid)
    node.limits.update_when_due()
    assert limit(node, tenant) == 10
    node.limits.withheld = {uuid: 0.0}  # the time is over
    node.limits.update_when_due()
    node.decide.finish(5)
    assert limit(node, tenant) == 140


sizes = st.integers(0, 8 * GIB)


@st.composite
def parts(draw: st.DrawFn) -> AllocationUse:
    memory, more = draw(st.integers(MIB, 8 * GIB)), draw(st.just(0) | sizes)
    return AllocationUse("", memory, burst_limit_bytes=memory + more, used_bytes=draw(sizes))


cards = st.lists(parts(), max_size=6)


capacities = st.integers(0, 64 * GIB)


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


TEXT = "oversubscribe: {host_memory: 64GiB, per_container: 32GiB}"


@pytest.fixture
def host_node(tmp_path: Path) -> Iterator[FakeDaemon]:
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(tmp_path, driver, parse(TEXT, Path("gpushare.yaml"))) as made:
        yield made


def test_the_node_never_promises_more_host_memory_than_it_has(host_node: FakeDaemon) -> None:
    first = opened(host_node, memory="4GiB", oversubscribe="host", count="1")
    opened(host_node, memory="1GiB", oversubscribe="host:8GiB", count="2")
    with pytest.raises(NoRoom) as refused:
        opened(host_node, memory="1GiB", oversubscribe="host:9GiB", count="2")
    assert str(refused.value) == (  # it names no container: that may be another namespace's
        "no host memory is left for 18 GiB of managed memory: 48 GiB of 64 GiB "
        "(oversubscribe.host_memory) is reserved; request less (oversubscribe), or see gpushare ps"
    )
    opened(host_node, memory="1GiB", oversubscribe="host:16GiB")
    with pytest.raises(NoRoom, match="no host memory is left"):
        opened(host_node, memory="1GiB", oversubscribe="host:1GiB")
    host_node.decide.run(lambda: release.release_tenant(first["key"], host_node, "it has ended"))
    opened(host_node, memory="1GiB", oversubscribe="host:32GiB")


def test_it_is_within_the_containers_own_memory_limit(
    host_node: FakeDaemon, tmp_path: Path
) -> None:
    def limited(identity: str, limit: int, **quota: str) -> BundleToCreate:
        env = {"memory": "1GiB", "oversubscribe": "host:4GiB", **quota}
        variables = [f"GPUSHARE_{key.upper()}={text}" for key, text in env.items()]
        linux = {"resources": {"memory": {"limit": limit}}}
        return BundleToCreate(tmp_path / identity, *variables, identity=identity, linux=linux)

    with pytest.raises(QuotaError, match="needs 4GiB, above the container's memory limit, 3GiB"):
        limited("a", 3 * GIB).create(host_node)
    with pytest.raises(QuotaError, match="needs 8GiB on 2 cards"):
        limited("b", 5 * GIB, count="2").create(host_node)
    assert limited("c", 4 * GIB).create(host_node)["mode"] == "shared"
    assert limited("d", -1).create(host_node)["mode"] == "shared"


def test_it_is_beside_the_use_and_takes_nothing_from_others(host_node: FakeDaemon) -> None:
    tenant = opened(host_node, memory="8GiB", oversubscribe="host:16GiB", devices="0")
    record = entry_of(host_node, tenant)
    uses(host_node, tenant, 21, managed_gib=18)
    [card] = tenant_status(record, host_node)["cards"]
    assert card["used_bytes"] == 5 * GIB
    assert card["oversubscribed_bytes"] == card["oversubscribed_limit_bytes"] == 16 * GIB
    [row] = explain_memory(record, host_node)[0]["cards"]
    assert (row["kinds"]["managed"], row["oversubscribed_bytes"]) == (2 * GIB, 16 * GIB)
    assert sum(row["kinds"].values()) == row["used_bytes"] == 5 * GIB
    # A card of 140 GiB: nothing but the quota is taken of it.
    own, other = (room.available_bytes for room in host_node.accounts.capacities())
    assert own == other - 8 * GIB


def test_whatever_it_claims_all_commands_show_the_same(host_node: FakeDaemon) -> None:
    """Nobody holds more than the card has, beside what is in host memory."""
    tenant = opened(host_node, memory="8GiB", oversubscribe="host:16GiB", devices="0")
    record, most = entry_of(host_node, tenant), fakes.card().memory_bytes
    uses(host_node, tenant, 300, managed_gib=18)
    [row] = tenant_status(record, host_node)["cards"]
    [part] = explain_memory(record, host_node)[0]["cards"]
    [metric] = [one for one in tenant_rows(host_node) if one["key"] == record.key]
    assert row["used_bytes"] == part["used_bytes"] == metric["cards"][0]["used_bytes"] == most


def test_a_grant_of_the_queue_reserves_host_memory(host_node: FakeDaemon) -> None:
    opened(host_node, memory="4GiB", oversubscribe="host")
    granted, _ = take(host_node, "4GiB", oversubscribe="host:24GiB")
    waiting, _ = take(host_node, "4GiB", oversubscribe="host:16GiB")
    assert (granted.is_granted, waiting.is_granted) == (True, False)
    assert "56 GiB of 64 GiB" in host_node.queue.reasons[waiting.id]
    with pytest.raises(NoRoom, match="56 GiB of 64 GiB"):
        opened(host_node, memory="1GiB", oversubscribe="host:9GiB")


@pytest.mark.parametrize(
    ("text", "asked", "why"),
    [
        ("", {}, "off on this node"),
        (TEXT, {"oversubscribe": "host:33GiB"}, r"exceeds oversubscribe.per_container"),
        (TEXT, {"memory": "", "cores": "100"}, "for shares: a whole card has no quota"),
        (TEXT.replace("64", "33"), {"count": "2"}, "needs 64GiB on 2 cards, above oversubscribe"),
    ],
)
def test_nobody_gets_more_host_memory_than_the_node_gives_to_one(
    host_node: FakeDaemon, text: str, asked: dict[str, str], why: str
) -> None:
    host_node.node.config = parse(text, Path("gpushare.yaml"))
    quota = {"memory": "4GiB", "oversubscribe": "host", **asked}
    with pytest.raises(QuotaError, match=why):
        opened(host_node, **{key: text for key, text in quota.items() if text})


CARD = fakes.card(0).uuid


def takes(node: FakeDaemon, gib: int) -> None:
    """Let a non-tenant use so much by the driver's figures, and take a sample."""
    node.driver.uses[CARD] = (ProcessUse(pid=1, bytes=gib * GIB),)
    node.sampler.look()


@pytest.fixture
def victim(node: FakeDaemon) -> HostProcessGrant:
    tenant = opened(node, memory="40GiB", devices="0")
    uses(node, tenant, 30)
    takes(node, 120)
    return tenant


def lacked(node: FakeDaemon, tenant: HostProcessGrant) -> tuple[int, int] | None:
    lack = explain_memory(entry_of(node, tenant), node)[0]["cards"][0]["shortfall"]
    return None if lack is None else (lack["bytes"] // GIB, lack["times"])


def test_a_confirmed_report_is_recorded_and_shown(
    node: FakeDaemon, victim: HostProcessGrant
) -> None:
    assert lacked(node, victim) is None
    assert node.limits.handle_shortfall(victim["key"], 0, 30 * GIB)
    assert node.limits.handle_shortfall(victim["key"], 0, 20 * GIB)
    assert lacked(node, victim) == (20, 2)
    report, _ = explain_memory(entry_of(node, victim), node)
    assert report["advice"][0].startswith("shortfall (2 times): ")
    assert "Last request: 20 GiB. " in report["advice"][0]
    assert node.observed.sample_now.is_set()


@pytest.mark.parametrize(
    ("number", "gib"),
    [(1, 30), (-1, 30), (99, 30), (0, 0), (0, 41), (0, 31)],
    ids=["no such card", "below none", "far from any", "nothing", "above all", "not reserved"],
)
def test_a_report_that_its_own_page_contradicts_is_ignored(
    number: int, gib: int, node: FakeDaemon, victim: HostProcessGrant
) -> None:
    assert not node.limits.handle_shortfall(victim["key"], number, gib * GIB)
    assert lacked(node, victim) is None


def test_a_card_that_is_not_full_is_looked_at_again_and_nothing_else(
    node: FakeDaemon, victim: HostProcessGrant
) -> None:
    takes(node, 60)
    node.observed.sample_now.clear()
    assert not node.limits.handle_shortfall(victim["key"], 0, 30 * GIB)
    assert node.observed.sample_now.is_set()
    takes(node, 120)
    assert node.limits.handle_shortfall(victim["key"], 0, 30 * GIB)


def test_the_card_grants_no_more_burst_memory(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = opened(node, memory="40GiB", devices="0")
    uses(node, victim, 30)
    borrower = opened(node, memory="10GiB", memory_limit="100GiB", devices="0")
    uses(node, borrower, 15)
    grant = node.tenants.pages[borrower["key"]].grant
    assert grant.limit_bytes(0) == 100 * GIB
    node.sampler.look()
    monkeypatch.setattr(limits.MemoryLimits, "_is_full", lambda *_: True)
    assert node.limits.handle_shortfall(victim["key"], 0, 30 * GIB)
    assert grant.limit_bytes(0) == 15 * GIB  # what it uses of it, it keeps
    node.limits.update()
    assert grant.limit_bytes(0) == 15 * GIB
    node.limits.withheld[CARD] = 0.0
    node.limits.update()
    assert grant.limit_bytes(0) == 100 * GIB


GUILTY, VICTIM, OTHER = "a" * 16, "b" * 16, "c" * 16


@pytest.mark.parametrize(
    ("free", "victim", "reports", "short"),
    [(4, 10, "victim", 26), (30, 10, "victim", 0), (0, 40, "victim", 0), (0, 0, "guilty", 0)],
    ids=["true", "the card has the memory", "its whole quota is in use", "its own report"],
)
def test_a_forged_report_makes_no_card_short_that_has_the_memory(
    tmp_path: Path, free: int, victim: int, reports: str, short: int
) -> None:
    """A card is short of what it cannot give of the 30 GiB that a tenant has not used."""
    keys, used = {"guilty": "a" * 16, "victim": "b" * 16}, {"guilty": 80, "victim": victim}
    with fakes.node(tmp_path) as node:
        for key in keys.values():
            node.ledger.add(replace(fakes.entry(key, memory_gib=40), state="bound"))
        card_used = fakes.card(0).memory_bytes - free * GIB
        sample = DriverSample(time.monotonic_ns(), {CARD: ()}, {}, {}, used={CARD: card_used})
        node.observed.usage = UsageView(
            processes={
                keys[who]: ((CARD, ProcessUse(pid=size + 1, bytes=size * GIB)),)
                for who, size in used.items()
            }
        )
        node.observed.last = AuditInput(node.ledger.entries, {}, sample, {}, {}, {})
        judge, place = Judge(node.node, node.observed), (keys["guilty"], CARD)
        assert judge._shortfall_bytes(place) == 0
        report = Shortfall(39 * GIB, time.time(), time.monotonic_ns())
        node.observed.shortfalls = MappingProxyType({(keys[reports], CARD): report})
        assert judge._shortfall_bytes(place) == short * GIB
