# SPDX-License-Identifier: Apache-2.0
"""`set`, and what a node gives where nobody says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon import processes
from gpushare.daemon.bind import bind
from gpushare.daemon.cards import Card
from gpushare.daemon.node import Node
from gpushare.daemon.placement import NoRoom
from gpushare.daemon.resize import NotResizable, set_memory
from gpushare.quota import QuotaError

from . import fakes, registered
from .fakes import GIB, FakeDriver
from .operations import entry_of, grant, opened


def test_set_changes_the_page_the_ledger_and_what_the_container_gets_next(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    resized = set_memory(entry_of(node, tenant), "6GiB", node)
    assert resized.holdings[0].memory_bytes == 6 * GIB
    assert resized.quota["memory"] == "6GiB operator"
    assert node.ledger.entries[tenant["key"]] == resized
    assert node.overrides.of(tenant["id"]) == {"memory": "6GiB"}
    memory = int.from_bytes(grant(node, tenant).read_bytes()[4096 + 48 : 4096 + 56], "little")
    assert memory == 6 * GIB
    assert node.tenants.pages[tenant["key"]].grant.generation == 2


def test_set_refuses_what_there_is_no_room_for(node: Node) -> None:
    tenant = opened(node, memory="100GiB", devices="0")
    opened(node, memory="20GiB", devices="0")
    with pytest.raises(NoRoom, match=r"no room to grow by 21 GiB: card 0 has 20 of 140 GiB free"):
        set_memory(entry_of(node, tenant), "121GiB", node)
    assert entry_of(node, tenant).holdings[0].memory_bytes == 100 * GIB
    assert node.overrides.of(tenant["id"]) == {}
    set_memory(entry_of(node, tenant), "120GiB", node)


def test_set_refuses_less_than_is_used(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    pages = node.tenants.pages[tenant["key"]]
    pages.grant.set_measured(0, 3 * GIB, 0)
    with pytest.raises(QuotaError, match=r"is less than train uses, 3 GiB; .* set 3GiB or more"):
        set_memory(entry_of(node, tenant), "2GiB", node)
    set_memory(entry_of(node, tenant), "3GiB", node)


def test_set_does_not_count_what_a_process_held_that_has_died(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="4GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    pages = node.tenants.pages[tenant["key"]]
    living = processes.look(program.pid)
    assert living is not None
    for starttime in (living.starttime, living.starttime + 1):  # the second is nobody's
        registered.register(pages.status.fd, 0, program.pid, starttime)
        registered.hold(pages.status.fd, 0, 3 * GIB)
        if starttime == living.starttime:
            with pytest.raises(QuotaError, match="is less than train uses, 3 GiB"):
                set_memory(entry_of(node, tenant), "1GiB", node)
    assert set_memory(entry_of(node, tenant), "1GiB", node).holdings[0].memory_bytes == GIB


@pytest.mark.parametrize("text", ["4G", "0GiB", "", "many"])
def test_set_refuses_what_is_no_size(node: Node, text: str) -> None:
    tenant = opened(node, memory="4GiB")
    with pytest.raises(QuotaError):
        set_memory(entry_of(node, tenant), text, node)


def test_set_is_not_for_whole_cards(node: Node) -> None:
    tenant = opened(node, count="1")
    with pytest.raises(NotResizable, match="has whole cards"):
        set_memory(entry_of(node, tenant), "4GiB", node)


def test_the_node_may_give_defaults(tmp_path: Path) -> None:
    config = Config(default_memory_bytes=2 * GIB, whole_is_share=True, reserve_bytes=GIB)
    card = Card(0, "GPU-0000", "H200", 4 * GIB, 0)
    with fakes.node(tmp_path, FakeDriver(card), config) as node:
        tenant = opened(node, count="1")
        assert entry_of(node, tenant).holdings[0].memory_bytes == 2 * GIB
        with pytest.raises(NoRoom, match=r"has 1 of 4 GiB free \(train 2, reserve 1\)"):
            opened(node, memory="2GiB")
