# SPDX-License-Identifier: Apache-2.0
"""The ledger survives damage, and a daemon that is killed at any step: no reservation is lost."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.eviction.worker_main import CHECKPOINTED
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import recover, release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages.grant_page import GrantPage
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.store import record
from gpushare.daemon.store.claim import ClaimedDevice, ClaimRecord
from gpushare.daemon.store.ledger import IntegrityCheck, IntegrityLost, Ledger, LedgerError
from gpushare.daemon.store.record import CardAllocation, FreezeRecord, TenantRecord
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.daemon_status import status_row
from gpushare.quota.size import parse_size

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
    zeroed,
    garbage,
    torn,
    removed,
    a_record_removed,
    a_byte_of_an_amount,
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
        {"key": "f" * 16},
        {"state": "gone"},
        {"later": 1},
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


# What a killed process has open the kernel closes; here it is left to the collector.
left_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

ME = HostCommand(name="train", uid=os.getuid(), rootless=False)


class Killed(BaseException):
    """SIGKILL: what would have been done after it is not done."""


#: What a daemon does between a request and its answer, and at a tenant's end.
STARTING = [
    (Ledger, "add"),
    (TenantMounts, "make"),
    (GrantPage, "make"),
    (StatusPage, "make"),
    (TenantSocket, "listen"),
    (Tenants, "add"),
]


ENDING = [(Tenants, "remove"), (TenantMounts, "remove"), (Ledger, "release")]


@contextmanager
def killed(where: type, step: str, *, before: bool) -> Iterator[None]:
    """End the daemon before or after `step`, so that it undoes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        real = getattr(where, step)

        def die(*arguments: object, **named: object) -> None:
            patch.undo()
            patch.setattr(release, "release_tenant", lambda *_: None)
            if not before:
                real(*arguments, **named)
            raise Killed

        patch.setattr(where, step, die)
        with pytest.raises(Killed):
            yield


def free_after(folder: Path) -> int:
    """Return what is free once the next daemon has found everything out."""

    def find_out() -> None:
        release.adopt_tenants(node, node.freezer)
        for tenant in node.ledger.entries.values():
            if tenant.state == "reserved":
                node.ledger.add(replace(tenant, expires=boottime() - 1))
        release.reconcile_tenants(node, node.freezer)

    with fakes.again(folder) as node:
        node.decide.run(find_out)
        assert sorted(node.tenants.pages) == sorted(node.mounts.made())
        assert sorted(node.mounts.made()) == sorted(node.ledger.entries)
        return node.accounts.capacities()[0].available_bytes


@left_open
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("where", "step"), STARTING)
def test_a_start_that_was_cut_off_costs_nothing_in_the_end(
    tmp_path: Path, where: type, step: str, before: bool
) -> None:
    with fakes.node(tmp_path) as node, killed(where, step, before=before):
        open_tenant(ME, {"memory": "4GiB"}, node, node.room)
    assert free_after(tmp_path) == 140 * GIB


def running(node: FakeDaemon, program: FakeProcess) -> str:
    tenant = open_tenant(ME, {"memory": "4GiB"}, node, node.room)
    bind(tenant["key"], tenant["id"], program.pid, os.getpid(), node)
    return tenant["key"]


@left_open
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("where", "step"), ENDING)
def test_an_end_that_was_cut_off_is_finished(
    tmp_path: Path, program: FakeProcess, where: type, step: str, before: bool
) -> None:
    with fakes.node(tmp_path) as node:
        key = running(node, program)
        program.kill()
        with killed(where, step, before=before):
            release.release_if_gone(key, node, "it is gone")
    assert free_after(tmp_path) == 140 * GIB


@left_open
@pytest.mark.parametrize("before", [True, False])
def test_a_crash_while_binding_keeps_the_reservation_of_a_running_container(
    tmp_path: Path, program: FakeProcess, before: bool
) -> None:
    """The hook gets no answer, so the runtime gives the container up; or it was bound."""
    with fakes.node(tmp_path) as node, killed(Ledger, "change", before=before):
        running(node, program)
    assert free_after(tmp_path) == (140 * GIB if before else 136 * GIB)


@left_open
@pytest.mark.parametrize("memory", ["1GiB", "100GiB"])
@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_change_leaves_one_quota_after_a_restart(
    tmp_path: Path, before: bool, memory: str
) -> None:
    """What the tenant reads and what others are not given are the same."""
    with fakes.node(tmp_path) as node:
        tenant = open_tenant(ME, {"memory": "4GiB"}, node, node.room)
        with killed(GrantPage, "set_memory", before=before):
            set_quota(node.ledger.entries[tenant["key"]], {"memory": memory}, node)
    with fakes.again(tmp_path) as node:
        release.adopt_tenants(node, node.freezer)
        [allocation] = node.ledger.entries[tenant["key"]].allocations
        grant = node.tenants.pages[tenant["key"]].grant
        assert grant.memory_bytes(0) == grant.limit_bytes(0) == allocation.quota_bytes
        assert allocation.quota_bytes == parse_size(memory)


KEY = "a" * 16


OTHER = "b" * 16


CLAIM = "c" * 36


_MOST_POINTS = 400
#: What puts something on the disk, or takes it away.
WRITES = ("open", "write", "close", "rename", "replace", "unlink", "mkdir")


Life = Callable[[Path, "Countdown"], None]


class Countdown:
    """Once it is on, ends the daemon at the step with the given number and at each one after it."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.on = False
        self.reported = 0  # steps of its life

    def step(self) -> None:
        if not self.on:
            return
        self.left -= 1
        if self.left < 0:
            raise Killed

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as two steps: before it and after it."""

        def stepped(*arguments: Any, **named: Any) -> Any:
            self.step()
            done = function(*arguments, **named)
            self.step()
            return done

        return stepped

    def does(self, *steps: Callable[[], object]) -> None:
        """Do what the daemon reports to its clients step by step."""
        self.on = True
        for step in steps:
            step()
            self.reported += 1


def start(file: Path, countdown: Countdown) -> None:
    """The start of a daemon."""
    countdown.does(lambda: Ledger(file, "boot-1"))


def with_another(file: Path, *allocations: CardAllocation) -> Ledger:
    ledger = Ledger(file, "boot-1")
    ledger.add(TenantRecord(OTHER, "bound", "b", allocations=allocations))
    return ledger


def live(file: Path, countdown: Countdown) -> None:
    """A tenant's life in the ledger."""
    allocations = (CardAllocation("GPU-0000", 1 << 32), CardAllocation("GPU-1000", 1 << 32))
    doubled = tuple(CardAllocation(allocation.uuid, 1 << 33) for allocation in allocations)
    ledger = with_another(file, *allocations)
    countdown.does(
        lambda: ledger.add(TenantRecord(KEY, "reserved", "a", allocations=allocations)),
        lambda: ledger.change(KEY, state="bound", pid=5, starttime=6, cgroup=":/a"),
        lambda: ledger.put(replace(ledger.entries[KEY], allocations=doubled)),
        lambda: ledger.freezes.put(FreezeRecord(KEY, "operator", "maintenance", 1.0)),
        lambda: ledger.release(KEY),
    )


def live_with_claim(file: Path, countdown: Countdown) -> None:
    """The life of a claim, with a container in it."""
    devices = (ClaimedDevice("gpu", "GPU-0000", 1 << 34), ClaimedDevice("gpu", "GPU-1000", 1 << 34))
    claim = ClaimRecord(CLAIM, "team", "gpu", ("pod-1",), devices, {"policy": "best-effort"})
    used = TenantRecord(KEY, "bound", "a", claim=CLAIM, allocations=(on_card(1 << 33),))
    ledger = with_another(file, on_card(1 << 32))
    countdown.does(
        lambda: ledger.put(claim),
        lambda: ledger.put(replace(claim, pods=("pod-1", "pod-2"))),
        lambda: ledger.add(used),
        lambda: ledger.release(claim.file),
        lambda: ledger.release(KEY),
    )


def live_with_ticket(file: Path, countdown: Countdown) -> None:
    """The life of a ticket, which a start takes over."""
    source = TicketSource({"memory": "8GiB"}, {}, {})
    waiting = TicketRecord("0" * 8, 1, "", "job", 0, 5, 6, 5, source)
    granted = replace(waiting, allocations=(on_card(1 << 33),), granted=1.0)
    start = TenantRecord(KEY, "reserved", "a", allocations=granted.allocations, ticket=waiting.id)
    ledger = with_another(file, on_card(1 << 32))
    countdown.does(
        lambda: ledger.put(waiting),
        lambda: ledger.put(granted),
        lambda: ledger.add(start),
        lambda: ledger.change(KEY, name="job"),
        lambda: ledger.release(KEY),
    )


def on_card(memory_bytes: int) -> CardAllocation:
    return CardAllocation("GPU-0000", memory_bytes)


def lived(file: Path, point: int, life: Life = live) -> tuple[int, bool]:
    """Return how many steps were acknowledged before the daemon ended at `point`, and if it did."""
    countdown, others = Countdown(point), descriptors()
    killed = False
    with pytest.MonkeyPatch.context() as patch:
        for name in WRITES:
            patch.setattr(os, name, countdown.around(getattr(os, name)))
        try:
            life(file, countdown)
        except Killed:
            killed = True
    for descriptor in descriptors() - others:  # as the kernel does for a process that ends
        os.close(descriptor)
    return countdown.reported, killed


def descriptors() -> set[int]:
    listed = list(Path("/proc/self/fd").iterdir())
    return {int(entry.name) for entry in listed if entry.is_symlink()}  # not that of the listing


def state_of(ledger: Ledger) -> str:
    assert [allocation.quota_bytes for allocation in ledger.entries[OTHER].allocations] == [
        1 << 32
    ] * 2
    found = ledger.entries.get(KEY)
    if found is None:
        return "none"
    assert len(found.allocations) == 2, "half an entry"
    sizes = {allocation.quota_bytes for allocation in found.allocations}
    assert len(sizes) == 1, "half a resize"
    if found.state == "reserved":
        return "added"
    assert (found.pid, found.starttime, found.cgroup) == (5, 6, ":/a"), "half a bind"
    if ledger.freezes.of(KEY):
        assert sizes == {1 << 33}
        return "held"
    return "resized" if sizes == {1 << 33} else "bound"


@contextmanager
def ledger_of(folder: Path) -> Iterator[Ledger]:
    ledger = Ledger(folder / "ledger", "boot-1")
    try:
        yield ledger
    finally:
        ledger.close()


#: What happens to which folder after the daemon was killed.
LOSSES = [("", None), *itertools.product(FOLDERS, (removed, zeroed))]


def state_of_claim(ledger: Ledger) -> str:
    """Return which step of `live_with_claim` the ledger shows, with the memory that is reserved."""
    claim, has_container = ledger.claims.get(CLAIM), KEY in ledger.entries
    assert OTHER in ledger.entries
    unused = sum(use.quota_bytes for use in ledger.reserved_beside("GPU-0000", ""))
    if claim is None:
        assert unused == 0
        return "container" if has_container else "none"
    assert [device.memory_bytes for device in claim.devices] == [1 << 34] * 2, "half a claim"
    assert claim.parameters == {"policy": "best-effort"}
    assert unused == (1 << 33 if has_container else 1 << 34), "reserved twice, or not at all"
    if has_container:
        return "used"
    return "two pods" if claim.pods == ("pod-1", "pod-2") else "claim"


def state_of_ticket(ledger: Ledger) -> str:
    """Return which step of `live_with_ticket` the ledger shows; its room is reserved once."""
    assert OTHER in ledger.entries
    found, waits = ledger.entries.get(KEY), ledger.has_waiting_tickets
    reserved = sum(use.quota_bytes for use in ledger.reserved_beside("GPU-0000", ""))
    reserved += sum(one.quota_bytes for one in (found.allocations if found else ()))
    assert reserved == (1 << 33 if found or (ledger.tickets and not waits) else 0)
    if found is not None:
        assert not ledger.tickets
        return "named" if found.name else "started"
    return "waits" if waits else "granted" if ledger.tickets else "none"


class LedgerLife(NamedTuple):
    """What a daemon does, what a ledger shows of it, and in which order."""

    live: Life
    shown: Callable[[Ledger], str]
    states: list[str]
    lost: set[str]  # what is unknown with a first file that has no copy


LIVES = {
    "container": LedgerLife(
        live, state_of, ["none", "added", "bound", "resized", "held", "none"], {KEY}
    ),
    "claim": LedgerLife(
        live_with_claim,
        state_of_claim,
        ["none", "claim", "two pods", "used", "container", "none"],
        {KEY, f"claim-{CLAIM}"},
    ),
    "ticket": LedgerLife(
        live_with_ticket,
        state_of_ticket,
        ["none", "waits", "granted", "started", "named", "none"],
        {KEY},
    ),
}


@left_open
@pytest.mark.parametrize("kind", LIVES)
def test_a_daemon_that_is_killed_at_any_write_loses_nothing(tmp_path: Path, kind: str) -> None:
    """At each point it is as before or as after the step, and never behind what was reported."""
    life, seen = LIVES[kind], {loss: set[str]() for loss in LOSSES}
    for point in range(_MOST_POINTS):
        left = tmp_path / str(point)
        left.mkdir()
        steps, killed = lived(left / "ledger", point, life.live)
        for loss in LOSSES:
            folder = shutil.copytree(left, tmp_path / f"{point}-damaged")
            which, damage = loss
            if damage:
                damage(folder / which)
            with ledger_of(folder) as found:
                state = life.shown(found)
                if not damage:
                    assert not found.notices, point  # a crash is no damage
                # A draft, or a first file without its copy, was never reported to a client.
                assert not found.unknown.keys() - life.lost
            seen[loss].add(state)
            assert state in life.states[steps : steps + 2], (point, steps, loss)
            with ledger_of(folder) as again:  # what was set right is on the disk
                assert life.shown(again) == state
                assert not again.notices or again.unknown
            shutil.rmtree(folder)
        shutil.rmtree(left)
        if not killed:
            break
    assert (steps, point > 50) == (5, True)
    assert all(states == set(life.states) for states in seen.values())


def spoil(folder: Path) -> None:
    """Leave damage of every kind: of a record, of a copy, of both, and a torn draft."""
    with ledger_of(folder) as ledger:
        for number in range(6):
            ledger.add(
                TenantRecord(key=f"{number:016x}", state="bound", id="x", created=float(number))
            )
        ledger.confirm()
    for which, number in (("ledger", 0), ("ledger", 1), ("copies", 1), ("copies", 2)):
        (folder / which / f"{number:016x}").write_text("damaged")
    (folder / "ledger" / f".{3:016x}").write_text("torn")
    (folder / "copies" / f"{4:016x}").unlink()
    (folder / "ledger" / f"{5:016x}").unlink()
    (folder / "ledger" / "about").write_text("damaged")


@left_open
def test_a_daemon_that_is_killed_while_it_sets_things_right_loses_nothing(tmp_path: Path) -> None:
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    spoil(spoiled)
    for point in range(_MOST_POINTS):
        folder = tmp_path / str(point)
        shutil.copytree(spoiled, folder)
        _, killed = lived(folder / "ledger", point, start)
        with ledger_of(folder) as found:
            assert set(found.entries) == {f"{number:016x}" for number in (0, 2, 3, 4, 5)}, point
            assert set(found.unknown) == {f"{1:016x}"}, point
            assert found.is_complete
        shutil.rmtree(folder)
        if not killed:
            break
    else:
        pytest.fail("it never got to the end")
    assert point > 20
