# SPDX-License-Identifier: Apache-2.0
"""Managed memory beyond the quota: what it is bounded by, and what shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.config import parse
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.lifecycle.queue import Applicant
from gpushare.daemon.lifecycle.recover import _allocations
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.store.record import record_from_json
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.metrics import tenant_rows
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.daemon.views.why import explain_memory
from gpushare.protocol import HostProcessGrant
from gpushare.quota.errors import QuotaError

from . import fakes, registered
from .bundles import BundleToCreate
from .fakes import GIB, FakeDaemon, FakeDriver
from .operations import ME, entry_of, opened

TEXT = "oversubscribe: {host_memory: 64GiB, per_container: 32GiB}"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    driver = FakeDriver(fakes.card(0), fakes.card(1))
    with fakes.node(tmp_path, driver, parse(TEXT, Path("gpushare.yaml"))) as made:
        yield made


def managed(node: FakeDaemon, tenant: HostProcessGrant) -> list[int]:
    return [one.managed_bytes for one in entry_of(node, tenant).allocations]


@pytest.mark.parametrize(("asked", "gib"), [("host", 32), ("host:8GiB", 8), ("host:32Gi", 32)])
def test_a_container_gets_what_it_asks_for_or_what_the_node_gives(
    node: FakeDaemon, asked: str, gib: int
) -> None:
    tenant = opened(node, memory="4GiB", oversubscribe=asked)
    assert managed(node, tenant) == [gib * GIB]
    grant = node.tenants.pages[tenant["key"]].grant
    assert grant.managed_limit_bytes(0) == gib * GIB
    assert (grant.memory_bytes(0), grant.limit_bytes(0)) == (4 * GIB, 4 * GIB)


def test_the_node_never_promises_more_host_memory_than_it_has(node: FakeDaemon) -> None:
    first = opened(node, memory="4GiB", oversubscribe="host", count="1")
    opened(node, memory="1GiB", oversubscribe="host:8GiB", count="2")
    with pytest.raises(NoRoom, match=r"48 GiB of 64 GiB .* is reserved .*32 GiB") as refused:
        opened(node, memory="1GiB", oversubscribe="host:9GiB", count="2")
    assert "no host memory is left for 18 GiB of managed memory" in str(refused.value)
    opened(node, memory="1GiB", oversubscribe="host:16GiB")
    with pytest.raises(NoRoom, match="no host memory is left"):
        opened(node, memory="1GiB", oversubscribe="host:1GiB")
    node.decide.run(lambda: release.release_tenant(first["key"], node, "it has ended"))
    opened(node, memory="1GiB", oversubscribe="host:32GiB")


def test_it_is_within_the_containers_own_memory_limit(node: FakeDaemon, tmp_path: Path) -> None:
    def limited(identity: str, limit: int, **quota: str) -> BundleToCreate:
        env = {"memory": "1GiB", "oversubscribe": "host:4GiB", **quota}
        variables = [f"GPUSHARE_{key.upper()}={text}" for key, text in env.items()]
        linux = {"resources": {"memory": {"limit": limit}}}
        return BundleToCreate(tmp_path / identity, *variables, identity=identity, linux=linux)

    with pytest.raises(QuotaError, match=r"needs 4GiB of host memory, and .* limit is 3GiB"):
        limited("a", 3 * GIB).create(node)
    with pytest.raises(QuotaError, match="needs 8GiB of host memory on 2 cards"):
        limited("b", 5 * GIB, count="2").create(node)
    assert limited("c", 4 * GIB).create(node)["mode"] == "shared"
    assert limited("d", -1).create(node)["mode"] == "shared"


def claim(node: FakeDaemon, tenant: HostProcessGrant, kinds: dict[int, int]) -> None:
    """Write a process that holds `kinds`, in bytes, on the tenant's first card."""
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, 7, 1)
    noted = {kind: size for kind, size in kinds.items() if kind != abi.KIND_BUFFER}
    registered.hold(fd, 0, sum(kinds.values()), kinds=noted)


def test_it_is_beside_the_use_and_takes_nothing_from_others(node: FakeDaemon) -> None:
    tenant = opened(node, memory="8GiB", oversubscribe="host:16GiB", devices="0")
    record = entry_of(node, tenant)
    claim(node, tenant, {abi.KIND_BUFFER: 3 * GIB, abi.KIND_MANAGED: 18 * GIB})
    free = node.accounts.capacities()[0].available_bytes
    [card] = tenant_status(record, node)["cards"]
    assert (card["used_bytes"], card["burst_used_bytes"]) == (5 * GIB, 0)
    assert (card["oversubscribed_bytes"], card["oversubscribed_limit_bytes"]) == (
        *(16 * GIB, 16 * GIB),
    )
    report, _ = explain_memory(record, node)
    [row] = report["cards"]
    assert (row["used_bytes"], row["kinds"]["managed"]) == (5 * GIB, 2 * GIB)
    assert row["oversubscribed_bytes"] == 16 * GIB
    assert sum(row["kinds"].values()) == row["used_bytes"]
    [metric] = [one for one in tenant_rows(node) if one["key"] == record.key]
    assert metric["cards"][0]["used_bytes"] == 5 * GIB
    assert metric["cards"][0]["oversubscribed_bytes"] == 16 * GIB
    # A card of 140 GiB: nothing but the quota is taken of it.
    assert free == node.accounts.capacities()[1].available_bytes - 8 * GIB


def test_whatever_it_claims_all_commands_show_the_same(node: FakeDaemon) -> None:
    """Nobody holds more than the card has, beside what is in host memory."""
    tenant = opened(node, memory="8GiB", oversubscribe="host:16GiB", devices="0")
    record, most = entry_of(node, tenant), fakes.card().memory_bytes
    claim(node, tenant, {abi.KIND_BUFFER: 2 * most, abi.KIND_MANAGED: 18 * GIB})
    [row] = tenant_status(record, node)["cards"]
    [part] = explain_memory(record, node)[0]["cards"]
    [metric] = [one for one in tenant_rows(node) if one["key"] == record.key]
    assert row["used_bytes"] == part["used_bytes"] == metric["cards"][0]["used_bytes"] == most


def test_set_keeps_it_and_a_restart_finds_it(node: FakeDaemon) -> None:
    tenant = opened(node, memory="8GiB", oversubscribe="host:16GiB")
    node.decide.run(lambda: set_quota(entry_of(node, tenant), {"memory": "6GiB"}, node))
    record = entry_of(node, tenant)
    assert [(one.quota_bytes, one.managed_bytes) for one in record.allocations] == [
        (6 * GIB, 16 * GIB)
    ]
    grant = node.tenants.pages[record.key].grant
    assert (grant.memory_bytes(0), grant.managed_limit_bytes(0)) == (6 * GIB, 16 * GIB)
    assert record_from_json(record.to_json()).allocations == record.allocations
    # Also where only the pages are left of it.
    assert _allocations(grant) == tuple(
        replace(one, memory_limit_bytes=None) for one in record.allocations
    )


def taken(node: FakeDaemon, **quota: str) -> TicketRecord:
    applicant = Applicant("job", 0, os.getpid(), is_rootless=False)
    source = TicketSource({"memory": "4GiB", **quota}, {}, {})
    return node.decide.run(lambda: node.tickets.take(applicant, source)[0])


def test_a_grant_of_the_queue_reserves_host_memory(node: FakeDaemon) -> None:
    first = opened(node, memory="4GiB", oversubscribe="host")
    granted = taken(node, oversubscribe="host:24GiB")
    assert granted.managed_bytes == 24 * GIB
    waiting = taken(node, oversubscribe="host:16GiB")
    assert not waiting.is_granted
    assert "no host memory is left for 16 GiB" in node.queue.reasons[waiting.id]
    assert f"ticket {granted.id} 24 GiB" in node.queue.reasons[waiting.id]
    assert not node.queue.withheld
    with pytest.raises(NoRoom, match="56 GiB of 64 GiB"):
        opened(node, memory="1GiB", oversubscribe="host:9GiB")
    tenant = open_tenant(
        ME,
        {"memory": "4GiB", "oversubscribe": "host:24GiB"},
        node,
        node.room,
        node.ledger.tickets[granted.id],
    )
    assert managed(node, tenant) == [24 * GIB]
    node.decide.run(lambda: release.release_tenant(first["key"], node, "it has ended"))
    node.decide.run(lambda: None)
    assert node.ledger.tickets[waiting.id].managed_bytes == 16 * GIB


def test_a_ticket_for_more_host_memory_than_there_ever_is_is_refused(node: FakeDaemon) -> None:
    with pytest.raises(QuotaError, match="for shares: a whole card has no quota"):
        opened(node, oversubscribe="host", cores="100")
    with pytest.raises(QuotaError, match=r"exceeds oversubscribe.per_container"):
        taken(node, oversubscribe="host:33GiB")
    text = "oversubscribe: {host_memory: 40GiB, per_container: 32GiB}"
    node.node.config = parse(text, Path("gpushare.yaml"))
    with pytest.raises(QuotaError, match=r"needs 64GiB on 2 cards, above oversubscribe.host_mem"):
        taken(node, oversubscribe="host:32GiB", count="2")
    assert not node.ledger.tickets


def test_it_is_off_by_default(tmp_path: Path) -> None:
    with fakes.node(tmp_path, FakeDriver()) as plain:
        with pytest.raises(QuotaError, match=r"oversubscribe.*host: off on this node"):
            opened(plain, memory="4GiB", oversubscribe="host")
        assert managed(plain, opened(plain, memory="4GiB", oversubscribe="none")) == [0]
