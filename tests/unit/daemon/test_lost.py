# SPDX-License-Identifier: Apache-2.0
"""Tenants whose entry and copy are both lost: taken from their pages, or said to be in doubt."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.identity import mounted, processes
from gpushare.daemon.life import recover, release
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.daemon.store.doubt import Doubt, InDoubt
from gpushare.daemon.store.entry import Holding
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.views.rows import status_row

from . import fakes
from .fakes import GIB
from .operations import opened
from .test_damage import BOOT, garbage, removed


def bound(node: Node, program: subprocess.Popen[bytes], **quota: str) -> str:
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant["key"]


def lose(folder: Path, *keys: str) -> None:
    """Damage the ledger, and the copies of `keys`."""
    garbage(folder / "run")
    for key in keys:
        (folder / "run" / "copies" / key).write_text("lost")


def has_mounted(
    monkeypatch: pytest.MonkeyPatch, program: subprocess.Popen[bytes], node: Node, key: str
) -> None:
    """Have `program` be the one in whose mount namespace the pages of `key` are."""
    directory = node.mounts.path(key).stat()
    found = processes.look(program.pid)
    assert found is not None
    monkeypatch.setattr(
        mounted, "who_has", lambda device: [found] if device == directory.st_dev else []
    )


def test_a_tenant_of_whom_only_the_pages_are_left_keeps_its_part(
    tmp_path: Path, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB", cores="30")
    lose(tmp_path, key)
    with fakes.again(tmp_path) as node:
        assert node.ledger.unknown == (key,)
        has_mounted(monkeypatch, program, node, key)
        release.adopt(node)
        found = node.ledger.entries[key]
        assert (found.state, found.pid) == ("bound", program.pid)
        assert found.holdings == (Holding("GPU-0000", 4 * GIB, 30, 30),)
        assert found.cgroup == processes.own_cgroup(program.pid, processes.cgroups_of(os.getpid()))
        assert node.doubt.why == ""
        [room] = node.rooms()
        assert (room.promised_bytes, room.cores_free) == (4 * GIB, 70)
        assert set_quota(found, {"memory": "6GiB"}, node).holdings[0].memory_bytes == 6 * GIB
        program.kill()
        program.wait()
        release.process_ended(key, node)
        assert not node.ledger.entries


def test_of_whom_nothing_is_known_stops_new_promises_until_an_operator_has_looked(
    tmp_path: Path, program: subprocess.Popen[bytes]
) -> None:
    """A whole card has no pages: with its entry and its copy it is known to nobody."""
    with fakes.node(tmp_path) as first:
        key = bound(first, program, count="1")
    lose(tmp_path, key)
    for _ in range(2):  # also after another restart
        with fakes.again(tmp_path) as node:
            release.adopt(node)
            with pytest.raises(InDoubt, match=f"what tenant {key} had is lost"):
                opened(node, memory="4GiB")
            assert any("nothing new is promised" in said for said in status_row(node)["warnings"])
    with fakes.again(tmp_path) as node:
        release.adopt(node)
        (tmp_path / "run" / "doubt").unlink()
        assert opened(node, memory="4GiB")["key"] in node.ledger.entries
        assert node.doubt.why == ""


def test_without_ledger_and_copies_nothing_is_promised(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as first:
        opened(first, memory="4GiB")
    garbage(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "copies")
    with fakes.again(tmp_path) as node:
        release.adopt(node)
        with pytest.raises(InDoubt, match="whole cards may be in use"):
            opened(node, memory="4GiB")


def test_with_ledger_and_copies_gone_who_is_there_keeps_its_part_and_nobody_gets_more(
    tmp_path: Path, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB")
    removed(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "copies")
    with fakes.again(tmp_path) as node:
        has_mounted(monkeypatch, program, node, key)
        release.adopt(node)
        assert node.rooms()[0].promised_bytes == 4 * GIB
        with pytest.raises(InDoubt, match="whole cards may be in use"):
            opened(node, memory="4GiB")


@pytest.mark.parametrize("lost", ["a copy", "all copies"])
def test_a_daemon_that_ends_before_it_has_looked_leaves_the_next_one_in_the_same_doubt(
    tmp_path: Path, program: subprocess.Popen[bytes], lost: str
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, count="1")
    lose(tmp_path, key)
    if lost == "all copies":
        shutil.rmtree(tmp_path / "run" / "copies")
    for _ in range(2):  # killed as soon as the ledger was made again
        Ledger(tmp_path / "run" / "ledger.db", "boot", Doubt(tmp_path / "run" / "doubt", "boot"))
    with fakes.again(tmp_path) as node:
        release.adopt(node)
        with pytest.raises(InDoubt):
            opened(node, memory="4GiB")


def test_pages_in_use_that_say_nothing_stop_new_promises(
    tmp_path: Path, program: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB")
        (first.mounts.path(key) / "grant").write_bytes(bytes(1 << 17))
    lose(tmp_path, key)
    with fakes.again(tmp_path) as node:
        has_mounted(monkeypatch, program, node, key)
        release.adopt(node)
        assert node.mounts.made() == [key]
        with pytest.raises(InDoubt, match=f"pages {key} are in use"):
            opened(node, memory="4GiB")


def test_a_doubt_ends_with_the_boot(tmp_path: Path) -> None:
    doubt = Doubt(tmp_path / "doubt", BOOT)
    doubt.add("something is lost")
    assert "something is lost" in Doubt(tmp_path / "doubt", BOOT).why
    assert Doubt(tmp_path / "doubt", "boot-2").why == ""
    assert not (tmp_path / "doubt").exists()


@pytest.mark.parametrize(
    ("cgroup", "identity"),
    [
        ("devices:/docker/4f1c", "4f1c"),
        (":/system.slice/docker-4f1c.scope", "4f1c"),
        (":/kubepods.slice/pod1.slice/cri-containerd-4f1c.scope", "4f1c"),
        ("pids:/machine/test-4f1c", "test-4f1c"),
        ("", ""),
    ],
)
def test_the_name_of_a_cgroup_says_which_container_it_is(cgroup: str, identity: str) -> None:
    assert recover._id(cgroup) == identity
