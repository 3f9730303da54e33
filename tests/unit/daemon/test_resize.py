# SPDX-License-Identifier: Apache-2.0
"""`set`, and the node's defaults."""

from __future__ import annotations

import os

import pytest

from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.views.status_rows import tenant_row
from gpushare.quota.errors import QuotaError

from . import registered
from .fake_process import FakeProcess
from .fakes import GIB, MIB
from .operations import entry_of, grant, opened


def test_set_changes_the_page_the_ledger_and_the_next_container(
    node: DaemonState,
) -> None:
    tenant = opened(node, memory="4GiB")
    resized = set_quota(entry_of(node, tenant), {"memory": "6GiB"}, node)
    assert resized.allocations[0].memory_bytes == 6 * GIB
    assert resized.quota["memory"] == {"value": "6GiB", "source": "operator"}
    assert node.ledger.entries[tenant["key"]] == resized
    assert node.overrides.of(tenant["id"]) == {"memory": "6GiB"}
    memory = int.from_bytes(grant(node, tenant).read_bytes()[4096 + 48 : 4096 + 56], "little")
    assert memory == 6 * GIB
    assert node.tenants.pages[tenant["key"]].grant.generation == 2


def test_set_refuses_more_than_is_available(node: DaemonState) -> None:
    tenant = opened(node, memory="100GiB", devices="0")
    opened(node, memory="20GiB", devices="0")
    with pytest.raises(
        NoRoom, match=r"cannot grow train by 21 GiB: card 0 has 20 of 140 GiB available"
    ):
        set_quota(entry_of(node, tenant), {"memory": "121GiB"}, node)
    assert entry_of(node, tenant).allocations[0].memory_bytes == 100 * GIB
    assert node.overrides.of(tenant["id"]) == {}
    set_quota(entry_of(node, tenant), {"memory": "120GiB"}, node)


def test_a_quota_below_the_use_refuses_new_memory_and_takes_none_away(
    node: DaemonState,
) -> None:
    tenant = opened(node, memory="4GiB", devices="0")
    pages = node.tenants.pages[tenant["key"]]
    registered.register(pages.status.fd, 0, os.getpid(), 1)
    registered.hold(pages.status.fd, 0, 3 * GIB)
    row = tenant_row(set_quota(entry_of(node, tenant), {"memory": "1GiB"}, node), node)
    [card] = row["cards"]
    assert (card["quota_bytes"], card["current_limit_bytes"]) == (GIB, GIB)
    assert (card["used_bytes"], card["over_limit_bytes"]) == (3 * GIB, 2 * GIB)
    assert row["warnings"] == [
        "train uses 3 GiB of 1 GiB on card 0: allocations fail until it frees 2 GiB"
    ]


def test_memory_still_used_after_a_shrink_is_not_reserved_again(
    node: DaemonState, program: FakeProcess
) -> None:
    tenant = opened(node, memory="100GiB", devices="0")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, program.pid, 1)
    registered.hold(fd, 0, 60 * GIB)
    with registered.life(fd, 0):
        set_quota(entry_of(node, tenant), {"memory": "10GiB"}, node)
    with pytest.raises(NoRoom, match=r"has 80 of 140 GiB available \(train 10 and 50 above it\)"):
        opened(node, memory="81GiB", devices="0")
    registered.hold(fd, 0, 20 * GIB)
    opened(node, memory="81GiB", devices="0")


def test_an_impossible_claim_blocks_no_placement(node: DaemonState, program: FakeProcess) -> None:
    tenant = opened(node, memory="4GiB", devices="0")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, 1 << 60)
    opened(node, memory="136GiB", devices="0")


def test_a_quota_that_holds_no_context_is_refused(node: DaemonState) -> None:
    tenant = opened(node, memory="4GiB")
    node.tenants.pages[tenant["key"]].grant.set_context(0, 500 * MIB)
    with pytest.raises(QuotaError, match="too small for a CUDA context, 500 MiB"):
        set_quota(entry_of(node, tenant), {"memory": "500MiB"}, node)
    assert entry_of(node, tenant).allocations[0].memory_bytes == 4 * GIB
    assert node.overrides.of(tenant["id"]) == {}
