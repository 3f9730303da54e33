# SPDX-License-Identifier: Apache-2.0
"""Tenants whose record and copy are both lost: restored from their pages, or reported."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpushare.daemon.eviction import checkpoint_api
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import recover, release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.service.node_operations import status_row
from gpushare.daemon.store.integrity import IntegrityCheck, IntegrityLost
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon
from .operations import opened
from .registered import hold, register
from .test_ledger import BOOT, garbage, of_another_format


def bound(node: FakeDaemon, program: FakeProcess, **quota: str) -> str:
    tenant = opened(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant["key"]


def lose(folder: Path, *keys: str) -> None:
    """Damage the ledger, and the copies of `keys`."""
    garbage(folder / "run" / "ledger")
    for key in keys:
        (folder / "run" / "copies" / key).write_text("lost")


def other_version(folder: Path) -> None:
    for which in ("ledger", "copies"):
        of_another_format(folder / "run" / which)


def has_mounted(
    monkeypatch: pytest.MonkeyPatch, program: FakeProcess, node: FakeDaemon, key: str
) -> None:
    """Have `program` be the one in whose mount namespace the pages of `key` are."""
    directory = node.mounts.path(key).stat()
    found = processes.find_process(program.pid)
    assert found is not None
    monkeypatch.setattr(
        recover, "users_of", lambda device: [found] if device == directory.st_dev else []
    )


def test_a_tenant_with_only_its_pages_left_keeps_its_reservation(
    tmp_path: Path, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB", cores="30")
    lose(tmp_path, key)
    with fakes.again(tmp_path) as node:
        assert set(node.ledger.unknown) == {key}
        has_mounted(monkeypatch, program, node, key)
        release.adopt_tenants(node, node.freezer)
        found = node.ledger.entries[key]
        assert (found.state, found.pid) == ("bound", program.pid)
        assert found.allocations == (CardAllocation("GPU-0000", 4 * GIB, 30),)
        assert found.cgroup == processes.own_cgroup(program.pid, processes.cgroups_of(os.getpid()))
        assert node.integrity.why == ""
        [room] = node.capacities()
        assert (room.allocated_bytes, room.cores_available) == (4 * GIB, 70)
        assert set_quota(found, {"memory": "6GiB"}, node).allocations[0].memory_bytes == 6 * GIB
        program.kill()
        program.wait()
        release.handle_process_end(key, node)
        assert not node.ledger.entries


def test_a_ledger_of_another_version_is_not_read_and_its_tenants_keep_their_part(
    tmp_path: Path, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are restored from their pages. A whole card has none: then nothing more is reserved."""
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB", cores="30")
    other_version(tmp_path)
    with fakes.again(tmp_path) as node:
        assert "format 2, and this version of gpushare reads format 1" in node.ledger.unknown[key]
        has_mounted(monkeypatch, program, node, key)
        release.adopt_tenants(node, node.freezer)
        found = node.ledger.entries[key]
        assert found.allocations[0].memory_bytes == 4 * GIB
        assert any("it has format 2" in said for said in status_row(node)["warnings"])
        # Whole cards, which have no pages, could have been in a file that is not there any more.
        with pytest.raises(IntegrityLost, match="whole cards may be in use"):
            opened(node, memory="4GiB")
    kept = (tmp_path / "run" / "ledger" / f"{key}.damaged").read_bytes()
    assert kept.startswith(b"gpushare-ledger 2 ")


def test_a_tenant_without_any_record_stops_new_reservations_until_a_release(
    tmp_path: Path, program: FakeProcess
) -> None:
    """A whole card has no pages: without its record and its copy it is unknown."""
    with fakes.node(tmp_path) as first:
        key = bound(first, program, count="1")
    lose(tmp_path, key)
    for _ in range(2):  # also after another restart
        with fakes.again(tmp_path) as node:
            release.adopt_tenants(node, node.freezer)
            with pytest.raises(
                IntegrityLost, match=f"record of tenant {key} and its copy are lost"
            ):
                opened(node, memory="4GiB")
            assert any(
                "new reservations are refused" in said for said in status_row(node)["warnings"]
            )
    with fakes.again(tmp_path) as node:
        release.adopt_tenants(node, node.freezer)
        (tmp_path / "run" / "integrity-lost").unlink()
        assert opened(node, memory="4GiB")["key"] in node.ledger.entries
        assert node.integrity.why == ""


@pytest.mark.parametrize("lost", ["a copy", "all copies"])
def test_an_interrupted_check_leaves_the_same_check_to_the_next_daemon(
    tmp_path: Path, program: FakeProcess, lost: str
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, count="1")
    lose(tmp_path, key)
    if lost == "all copies":
        shutil.rmtree(tmp_path / "run" / "copies")
    for _ in range(2):  # killed as soon as the ledger was made again
        Ledger(
            tmp_path / "run" / "ledger",
            "boot",
            IntegrityCheck(tmp_path / "run" / "integrity-lost", "boot"),
        )
    with fakes.again(tmp_path) as node:
        release.adopt_tenants(node, node.freezer)
        with pytest.raises(IntegrityLost):
            opened(node, memory="4GiB")


def test_unreadable_pages_in_use_stop_new_reservations(
    tmp_path: Path, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB")
        (first.mounts.path(key) / "grant").write_bytes(bytes(1 << 17))
    lose(tmp_path, key)
    with fakes.again(tmp_path) as node:
        has_mounted(monkeypatch, program, node, key)
        release.adopt_tenants(node, node.freezer)
        assert node.mounts.made() == [key]
        with pytest.raises(IntegrityLost, match=f"pages {key} are in use"):
            opened(node, memory="4GiB")


def test_the_check_ends_with_a_reboot(tmp_path: Path) -> None:
    check = IntegrityCheck(tmp_path / "integrity-lost", BOOT)
    check.add("something is lost")
    assert "something is lost" in IntegrityCheck(tmp_path / "integrity-lost", BOOT).why
    assert IntegrityCheck(tmp_path / "integrity-lost", "boot-2").why == ""
    assert not (tmp_path / "integrity-lost").exists()


@pytest.mark.parametrize(
    ("cgroup", "identity"),
    [
        ("devices:/docker/4f1c", "4f1c"),
        (":/kubepods.slice/pod1.slice/cri-containerd-4f1c.scope", "4f1c"),
        ("pids:/machine/test-4f1c", "test-4f1c"),
        ("", ""),
    ],
)
def test_the_name_of_a_cgroup_says_which_container_it_is(cgroup: str, identity: str) -> None:
    assert recover._id(cgroup) == identity


def test_one_that_was_evicted_is_still_known_to_be(
    tmp_path: Path, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = processes.start_time(program.pid)
    assert started is not None
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB")
        register(first.tenants.pages[key].status.fd, 0, program.pid, started)
        hold(first.tenants.pages[key].status.fd, 0, 3 * GIB)
        first.tenants.pages[key].grant.set_evicted(evicted=True)
    lose(tmp_path, key)
    with fakes.again(tmp_path) as node:
        has_mounted(monkeypatch, program, node, key)
        release.adopt_tenants(node, node.freezer)
        eviction = node.ledger.entries[key].eviction
        assert eviction is not None
        assert [one.pid for one in eviction.processes] == [program.pid]
        assert (eviction.state, eviction.bytes) == ("evicting", 3 * GIB)
        assert node.tenants.pages[key].grant.evicted
        node.checkpoints.states[program.pid] = checkpoint_api.CHECKPOINTED
        node.evictions.settle()
        node.evictions.close(5)
        assert node.ledger.entries[key].is_off_card
