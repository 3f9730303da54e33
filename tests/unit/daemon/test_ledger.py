# SPDX-License-Identifier: Apache-2.0
"""The ledger: what is in it survives the daemon, and damage loses no reservation."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.daemon.eviction.worker_main import CHECKPOINTED
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import recover, release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.store import record
from gpushare.daemon.store.claim import ClaimedDevice, ClaimRecord
from gpushare.daemon.store.ledger import IntegrityCheck, IntegrityLost, Ledger, LedgerError
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.views.daemon_status import status_row

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon, entry
from .operations import opened as reserved
from .registered import hold, register


def opened(folder: Path, boot: str = "boot-1") -> Ledger:
    return Ledger(folder / "ledger", boot)


def reopened(ledger: Ledger, boot: str = "boot-1") -> Ledger:
    ledger.close()
    return Ledger(ledger.folder, boot)


def full_entry() -> TenantRecord:
    return replace(
        entry("ab" * 8, cores=30),
        engine="docker",
        bundle="/run/bundle",
        quota={"memory": {"value": "4GiB", "source": "env"}},
        created=12.5,
        expires=99.5,
        notes=('env GPUSHARE_COUNT "4" was not applied',),
        namespace="team",
        container="train",
        labels={"team": "red"},
    )


def test_a_claim_comes_back_as_it_was(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    devices = (ClaimedDevice("gpu", "GPU-0000", 4 * GIB, 30, "share-1", whole=True),)
    claim = ClaimRecord("0a-1B", "team", "gpu", ("p1", "p2"), devices, {"class": "online"})
    ledger.put(claim)
    ledger.add(full_entry())
    again = reopened(ledger)
    assert again.claims == {"0a-1B": claim}
    assert again.entries == {full_entry().key: full_entry()}
    again.release(claim.file)
    again.release(claim.file)
    second = reopened(reopened(again), "boot-2")
    assert (second.claims, second.entries) == ({}, {})


@pytest.mark.parametrize(("memory", "limit"), [(0, None), (-1, None), (2 * GIB, GIB)])
def test_no_allocation_has_an_amount_that_cannot_be(memory: int, limit: int | None) -> None:
    with pytest.raises(ValueError, match="bytes of a card"):
        CardAllocation("GPU-0000", memory, memory_limit_bytes=limit)


def test_a_ledger_that_has_no_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("a file")
    with pytest.raises(LedgerError, match="gpushared needs this folder"):
        opened(tmp_path)


def test_each_daemon_has_the_next_number_of_this_boot(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    assert ledger.generation == 1
    ledger.confirm()
    ledger = reopened(ledger)
    assert ledger.generation == 2
    ledger.close()
    (ledger.folder / "about").write_bytes(b"damaged" * 1000)
    ledger = opened(tmp_path)
    assert ledger.generation == 3
    assert reopened(ledger, "boot-2").generation == 1


BOOT = "boot-1"
COUNT = 20
FOLDERS = ("ledger", "copies")

Damage = Callable[[Path], None]


def filled(folder: Path, count: int = COUNT) -> Mapping[str, TenantRecord]:
    """Leave a ledger of many records, as a daemon that was killed does."""
    ledger = opened(folder)
    ledger.confirm()
    for number in range(count):
        made = entry(f"{number:016x}", memory_gib=1 + number % 7, cores=number)
        ledger.add(replace(made, created=float(number)))
    for number in range(0, count, 3):
        ledger.change(
            f"{number:016x}", state="bound", pid=number + 2, starttime=7, cgroup=f":/{number}"
        )
    ledger.release("0" * 16)
    entries = ledger.entries
    ledger.close()
    return entries


def zeroed(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(bytes(file.stat().st_size))


def garbage(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(b"not a record opened all, but long enough" * 100)


def torn(folder: Path) -> None:
    for file in folder.iterdir():
        os.truncate(file, file.stat().st_size // 2)


def removed(folder: Path) -> None:
    shutil.rmtree(folder)


def a_record_removed(folder: Path) -> None:
    (folder / f"{1:016x}").unlink()


def a_byte_of_an_amount(folder: Path) -> None:
    """It is still the JSON of a record: only the checksum shows it."""
    file = folder / f"{1:016x}"
    file.write_bytes(file.read_bytes().replace(b'"quota_bytes":2', b'"quota_bytes":1'))


def of_another_format(folder: Path) -> None:
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes().replace(b"-ledger 1 ", b"-ledger 2 "))


DAMAGES = [
    *(zeroed, garbage, torn, removed, a_record_removed, a_byte_of_an_amount),
    of_another_format,
]


@pytest.mark.parametrize("which", FOLDERS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_ledger_that_is_damaged_is_made_again_as_it_was(
    tmp_path: Path, damage: Damage, which: str
) -> None:
    before = filled(tmp_path)
    damage(tmp_path / which)
    for _ in range(2):
        ledger = opened(tmp_path)
        assert ledger.entries == before
        assert not ledger.unknown
        assert ledger.is_complete
        ledger.close()
        removed(tmp_path / ("copies" if which == "ledger" else "ledger"))
    again = opened(tmp_path)
    again.close()
    again = opened(tmp_path)
    assert again.entries == before
    assert not again.notices
    again.close()


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_damage_loses_a_reservation(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of some records and of some copies: what is lost with both is reported as unknown."""
    folder = tmp_path_factory.mktemp("damage")
    before = filled(folder, 12)
    spoiled = []
    for which in FOLDERS:
        keys = data.draw(st.sets(st.sampled_from(sorted(before)), max_size=6))
        for key in keys:
            file = folder / which / key
            content = bytearray(file.read_bytes())
            start = data.draw(st.integers(0, len(content) - 1))
            if data.draw(st.booleans()):
                content[start:] = data.draw(st.binary(max_size=8))
            else:
                content[start : start + 4] = data.draw(st.randoms()).randbytes(4)
            file.write_bytes(content)
        spoiled.append(keys)
    ledger = opened(folder)
    for key, recorded in before.items():
        if key in spoiled[0] & spoiled[1]:
            assert key in ledger.entries or key in ledger.unknown
        else:
            assert ledger.entries[key] == recorded
    ledger.close()


def test_records_that_the_disk_refuses_are_kept_in_copies_until_it_accepts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = filled(tmp_path)
    zeroed(tmp_path / "ledger")
    monkeypatch.setattr(os, "write", fakes.no_space)
    ledger = opened(tmp_path)
    assert ledger.entries == before
    assert "No space left on device" in ledger.fault
    with pytest.raises(OSError, match="no reservation can be recorded"):
        ledger.add(entry("f" * 16))
    ledger.release(f"{1:016x}")
    ledger.settle()
    assert ledger.fault
    monkeypatch.undo()
    ledger.settle()
    assert not ledger.fault
    added = entry("f" * 16)
    ledger.add(added)
    after = dict(ledger.entries)
    assert after.keys() == (before.keys() | {added.key}) - {f"{1:016x}"}
    ledger.close()
    removed(tmp_path / "copies")
    again = opened(tmp_path)
    assert again.entries == after
    again.close()


@pytest.mark.parametrize("fits", [0, 1])  # nothing; the record, and not its copy
def test_a_change_that_a_full_disk_refuses_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    """Whichever of the two files it is that cannot be written: the other is as it was."""
    ledger = opened(tmp_path)
    ledger.add(entry())
    before = dict(ledger.entries)
    grown = replace(entry(), allocations=(CardAllocation("GPU-0000", 9 * GIB),))
    write = os.write
    steps: dict[str, Callable[[], object]] = {
        "add": lambda: ledger.add(entry("f" * 16)),
        "resize": lambda: ledger.put(grown),
    }
    for step in steps.values():
        answers = itertools.chain([write] * fits, itertools.repeat(fakes.no_space))
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *given, them=answers: next(them)(*given))
            with pytest.raises(OSError, match="no reservation can be recorded"):
                step()
        assert ledger.entries == before
        for which in FOLDERS:
            assert [file.name for file in (tmp_path / which).iterdir()] == [entry().key]
    ledger.close()
    for lost in FOLDERS:
        removed(tmp_path / lost)
        again = opened(tmp_path)
        assert again.entries == before
        again.close()


def test_damaged_files_are_kept_a_bounded_number_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_MOST_DAMAGED", 4)
    filled(tmp_path)
    zeroed(tmp_path / "ledger")
    opened(tmp_path).close()
    assert len(list((tmp_path / "ledger").glob("*.damaged"))) == 4


def test_no_other_user_reads_or_locks_the_ledger(tmp_path: Path) -> None:
    filled(tmp_path)
    for which in FOLDERS:
        assert (tmp_path / which).stat().st_mode & 0o777 == 0o700
        assert {file.stat().st_mode & 0o777 for file in (tmp_path / which).iterdir()} == {0o600}


@pytest.mark.parametrize(
    "change",
    [
        *({"key": "f" * 16}, {"state": "gone"}, {"later": 1}),
        {"allocations": [{"uuid": "GPU-0000", "quota_bytes": 0}]},
    ],
)
def test_a_file_of_another_tenant_is_rejected(tmp_path: Path, change: dict[str, object]) -> None:
    """Its checksum is right: a bug, or another version that did not change the format."""
    ledger = opened(tmp_path)
    ledger.add(entry())
    record = {**entry().to_json(), **change}
    ledger._ledger.write(entry().key, {"record": record, "freezes": []})
    again = reopened(ledger)
    assert again.entries == {entry().key: entry()}
    assert "files of" in again.notices[0]


def bound(node: FakeDaemon, program: FakeProcess, **quota: str) -> str:
    tenant = reserved(node, **quota)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant["key"]


def lose(folder: Path, *keys: str) -> None:
    """Damage the ledger, and the copies of `keys`."""
    garbage(folder / "run" / "ledger")
    for key in keys:
        (folder / "run" / "copies" / key).write_text("lost")


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


def test_a_ledger_of_another_version_is_not_read_and_its_tenants_keep_their_part(
    tmp_path: Path, program: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are restored from their pages. A whole card has none: then nothing more is reserved."""
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB", cores="30")
    for which in FOLDERS:
        of_another_format(tmp_path / "run" / which)
    with fakes.again(tmp_path) as node:
        assert "format 2, and this version of gpushare reads format 1" in node.ledger.unknown[key]
        has_mounted(monkeypatch, program, node, key)
        release.adopt_tenants(node, node.freezer)
        found = node.ledger.entries[key]
        assert (found.state, found.pid) == ("bound", program.pid)
        assert found.allocations == (CardAllocation("GPU-0000", 4 * GIB, 30),)
        assert found.cgroup == processes.own_cgroup(program.pid, processes.cgroups_of(os.getpid()))
        assert any("it has format 2" in said for said in status_row(node)["warnings"])
        # Whole cards, which have no pages, could have been in a file that is not there any more.
        with pytest.raises(IntegrityLost, match="whole cards may be in use"):
            reserved(node, memory="4GiB")
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
            with pytest.raises(IntegrityLost, match=f"record of tenant {key} and its copy are lo"):
                reserved(node, memory="4GiB")
            assert "new reservations are refused" in "".join(status_row(node)["warnings"])
    with fakes.again(tmp_path) as node:
        release.adopt_tenants(node, node.freezer)
        (tmp_path / "run" / "integrity-lost").unlink()
        assert reserved(node, memory="4GiB")["key"] in node.ledger.entries
        assert node.ledger.integrity.why == ""


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
        Ledger(tmp_path / "run" / "ledger", "boot")
    with fakes.again(tmp_path) as node:
        release.adopt_tenants(node, node.freezer)
        with pytest.raises(IntegrityLost):
            reserved(node, memory="4GiB")


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
            reserved(node, memory="4GiB")


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
        node.checkpoints.states[program.pid] = CHECKPOINTED
        node.evictions.settle()
        node.evictions.close(5)
        assert node.ledger.entries[key].is_off_card
