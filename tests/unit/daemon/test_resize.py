# SPDX-License-Identifier: Apache-2.0
"""`set`, and what a node gives where nobody says."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from gpushare.config import Config
from gpushare.daemon.cards.card import Card
from gpushare.daemon.control.resize import NotResizable, set_quota
from gpushare.daemon.identity import processes
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.daemon.placement.choose import NoRoom
from gpushare.daemon.views.rows import tenant_row
from gpushare.quota import Defaults, QuotaError, Terms

from . import fakes, registered
from .fakes import GIB, MIB, FakeDriver
from .operations import entry_of, grant, opened


def test_set_changes_the_page_the_ledger_and_what_the_container_gets_next(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    resized = set_quota(entry_of(node, tenant), {"memory": "6GiB"}, node)
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
        set_quota(entry_of(node, tenant), {"memory": "121GiB"}, node)
    assert entry_of(node, tenant).holdings[0].memory_bytes == 100 * GIB
    assert node.overrides.of(tenant["id"]) == {}
    set_quota(entry_of(node, tenant), {"memory": "120GiB"}, node)


def test_a_quota_below_what_is_used_holds_back_what_comes_and_takes_nothing(node: Node) -> None:
    tenant = opened(node, memory="4GiB", devices="0")
    pages = node.tenants.pages[tenant["key"]]
    registered.register(pages.status.fd, 0, os.getpid(), 1)
    registered.hold(pages.status.fd, 0, 3 * GIB)
    row = tenant_row(set_quota(entry_of(node, tenant), {"memory": "1GiB"}, node), node)
    [card] = row["cards"]
    assert (card["memory_bytes"], card["limit_bytes"]) == (GIB, GIB)
    assert (card["used_bytes"], card["over_bytes"]) == (3 * GIB, 2 * GIB)
    assert row["warnings"] == [
        "train uses 3 GiB of 1 GiB on card 0: it gets nothing more until it frees 2 GiB"
    ]


def test_what_a_tenant_still_has_of_a_larger_quota_is_promised_to_nobody(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="100GiB", devices="0")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, program.pid, 1)
    registered.hold(fd, 0, 60 * GIB)
    with registered.life(fd, 0):
        set_quota(entry_of(node, tenant), {"memory": "10GiB"}, node)
    with pytest.raises(NoRoom, match=r"has 80 of 140 GiB free \(train 10 and 50 above it\)"):
        opened(node, memory="81GiB", devices="0")
    registered.hold(fd, 0, 20 * GIB)
    opened(node, memory="81GiB", devices="0")


def test_nobody_is_kept_off_a_card_by_claiming_what_cannot_be(
    node: Node, program: subprocess.Popen[bytes]
) -> None:
    tenant = opened(node, memory="4GiB", devices="0")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, os.getpid(), 1)
    registered.hold(fd, 0, 1 << 60)
    opened(node, memory="136GiB", devices="0")


def test_a_quota_that_holds_no_context_is_refused(node: Node) -> None:
    tenant = opened(node, memory="4GiB")
    node.tenants.pages[tenant["key"]].grant.set_context(0, 500 * MIB)
    with pytest.raises(QuotaError, match="holds not even one CUDA context, 500 MiB"):
        set_quota(entry_of(node, tenant), {"memory": "500MiB"}, node)
    assert entry_of(node, tenant).holdings[0].memory_bytes == 4 * GIB
    assert node.overrides.of(tenant["id"]) == {}


def test_set_does_not_count_what_a_process_held_that_has_died(
    node: Node, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = opened(node, memory="4GiB")
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    pages = node.tenants.pages[tenant["key"]]
    living = processes.look(program.pid)
    assert living is not None
    over = []
    for starttime in (living.starttime, living.starttime + 1):  # the second is nobody's
        registered.register(pages.status.fd, 0, program.pid, starttime)
        registered.hold(pages.status.fd, 0, 3 * GIB)
        with monkeypatch.context() as patched:
            patched.setattr(processes, "may_map", lambda pid, _inode: pid == living.pid)
            row = tenant_row(set_quota(entry_of(node, tenant), {"memory": "1GiB"}, node), node)
        over.append(row["cards"][0]["over_bytes"])
    assert over == [2 * GIB, 0]


def test_an_earlier_versions_ledger_is_read(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as before:
        tenant = opened(before, memory="4GiB")
    shutil.rmtree(tmp_path / "run" / "copies")  # that version had none
    store = sqlite3.connect(tmp_path / "run" / "ledger.db")
    with store:
        store.execute("ALTER TABLE about DROP COLUMN generation")
        for column in ("maker", "maker_starttime", "asked"):
            store.execute(f"ALTER TABLE tenant DROP COLUMN {column}")
        store.execute("ALTER TABLE holding DROP COLUMN memory_limit_bytes")
        later = ("notes", "namespace", "sandbox", "container", "uninterposed", "compat")
        for column in (*later, "weight", "priority", "class"):
            store.execute(f"ALTER TABLE tenant DROP COLUMN {column}")
        store.execute("DROP TABLE hold")
        store.execute("UPDATE about SET format = 1")
    store.close()
    with fakes.again(tmp_path) as after:
        [holding] = entry_of(after, tenant).holdings
        assert (holding.memory_bytes, holding.memory_limit_bytes) == (4 * GIB, None)
        assert (entry_of(after, tenant).notes, entry_of(after, tenant).sandbox) == ((), "")


def test_a_ledger_that_only_noted_classes_is_read_with_them(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as before:
        said = {"class": "online", "priority": "2", "weight": "30"}
        plain, tenant = opened(before, memory="4GiB"), opened(before, memory="4GiB", **said)
    shutil.rmtree(tmp_path / "run" / "copies")  # that version had none
    store = sqlite3.connect(tmp_path / "run" / "ledger.db")
    with store:
        store.execute("ALTER TABLE about DROP COLUMN generation")
        for column in ("maker", "maker_starttime", "asked"):
            store.execute(f"ALTER TABLE tenant DROP COLUMN {column}")
        for column in ("weight", "priority", "class"):
            store.execute(f"ALTER TABLE tenant DROP COLUMN {column}")
        store.execute("DROP TABLE hold")
        store.execute("UPDATE about SET format = 3")
    store.close()
    with fakes.again(tmp_path) as after:
        found = entry_of(after, tenant)
        assert (found.class_, found.priority, found.weight) == ("online", 2, 30)
        found = entry_of(after, plain)
        assert (found.class_, found.priority, found.weight) == ("offline", 5, 0)


@pytest.mark.parametrize("text", ["4G", "0GiB", "", "many"])
def test_set_refuses_what_is_no_size(node: Node, text: str) -> None:
    tenant = opened(node, memory="4GiB")
    with pytest.raises(QuotaError):
        set_quota(entry_of(node, tenant), {"memory": text}, node)


def test_set_is_not_for_whole_cards(node: Node) -> None:
    tenant = opened(node, count="1")
    with pytest.raises(NotResizable, match="has whole cards"):
        set_quota(entry_of(node, tenant), {"memory": "4GiB"}, node)


def test_the_node_may_give_defaults(tmp_path: Path) -> None:
    defaults = Defaults(memory_bytes=2 * GIB, whole_is_share=True)
    config = Config(terms=Terms(defaults), reserve_bytes=GIB)
    card = Card(0, "GPU-0000", "H200", 4 * GIB, 0)
    with fakes.node(tmp_path, FakeDriver(card), config) as node:
        tenant = opened(node, count="1")
        assert entry_of(node, tenant).holdings[0].memory_bytes == 2 * GIB
        with pytest.raises(NoRoom, match=r"has 1 of 4 GiB free \(train 2, reserve 1\)"):
            opened(node, memory="2GiB")
