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
from typing import Any

import pytest

from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.host_process import open_tenant
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages.tenants import GrantPage
from gpushare.daemon.store.ledger import IntegrityCheck, IntegrityLost, Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord, to_json
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.daemon.views.daemon_status import status_row
from gpushare.quota.size import parse_size

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, entry
from .operations import ME, bound
from .operations import opened as reserved

# What a killed process has open the kernel closes; here it is left to the collector.
left_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def opened(folder: Path, boot: str = "boot-1") -> Ledger:
    return Ledger(folder / "ledger", boot)


def reopened(ledger: Ledger, boot: str = "boot-1") -> Ledger:
    ledger.close()
    return Ledger(ledger.folder, boot)


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


FOLDERS = ("ledger", "copies")

Damage = Callable[[Path], None]


def filled(folder: Path, count: int = 20) -> Mapping[str, TenantRecord]:
    """Leave a ledger of many records, as a daemon that was killed does."""
    ledger = opened(folder)
    ledger.confirm()
    for number in range(count):
        made = entry(f"{number:016x}", memory_gib=1 + number % 7, cores=number)
        made = replace(made, notes=("not applied",), labels={"team": "red"})
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


@pytest.mark.parametrize("which", FOLDERS)
@pytest.mark.parametrize(
    "damage",
    [zeroed, garbage, removed, a_record_removed, a_byte_of_an_amount, of_another_format],
)
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
    steps: list[Callable[[], object]] = [
        lambda: ledger.add(entry("f" * 16)),
        lambda: ledger.put(grown),
    ]
    for step in steps:
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
    record = {**to_json(entry()), **change}
    ledger._ledger.write(entry().key, {"record": record, "freezes": []})
    again = reopened(ledger)
    assert again.entries == {entry().key: entry()}
    assert "files of" in again.notices[0]


def test_a_ledger_of_another_version_is_not_read_and_nothing_more_is_reserved(
    tmp_path: Path, program: FakeProcess
) -> None:
    with fakes.node(tmp_path) as first:
        key = bound(first, program, memory="4GiB", cores="30")["key"]
    for which in FOLDERS:
        of_another_format(tmp_path / "run" / which)
    with fakes.again(tmp_path) as node:
        assert "format 2, and this version of gpushare reads format 1" in node.ledger.unknown[key]
        release.adopt_tenants(node, node.freezer)
        assert node.mounts.made() == []
        assert any("it has format 2" in said for said in status_row(node)["warnings"])
        with pytest.raises(IntegrityLost, match=f"the record of tenant {key} and its copy are los"):
            reserved(node, memory="4GiB")
        # Whole cards, which have no pages, could have been in a file that is not there any more.
        assert "whole cards may be in use" in node.ledger.integrity.why
    kept = (tmp_path / "run" / "ledger" / f"{key}.damaged").read_bytes()
    assert kept.startswith(b"gpushare-ledger 2 ")


def test_pages_without_a_record_stop_new_reservations(tmp_path: Path) -> None:
    with fakes.node(tmp_path) as first:
        key = reserved(first, memory="1GiB")["key"]
    for which in FOLDERS:
        (tmp_path / "run" / which / key).unlink()
    for _ in range(2):  # also after another restart, though they are gone by then
        with fakes.again(tmp_path) as node:
            release.adopt_tenants(node, node.freezer)
            assert node.mounts.made() == []
            with pytest.raises(IntegrityLost, match=f"the pages {key} have no record"):
                reserved(node, memory="4GiB")


@left_open
def test_a_tenant_without_any_record_stops_new_reservations_until_a_release(
    tmp_path: Path, program: FakeProcess
) -> None:
    """A whole card has no pages: without its record and its copy it is unknown."""
    with fakes.node(tmp_path) as first:
        key = bound(first, program, count="1")["key"]
    garbage(tmp_path / "run" / "ledger")
    (tmp_path / "run" / "copies" / key).write_text("lost")
    Ledger(tmp_path / "run" / "ledger", "boot")  # of a daemon that was killed before it looked
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


def test_the_check_ends_with_a_reboot(tmp_path: Path) -> None:
    check = IntegrityCheck(tmp_path / "integrity-lost", BOOT)
    check.add("something is lost")
    assert "something is lost" in IntegrityCheck(tmp_path / "integrity-lost", BOOT).why
    assert IntegrityCheck(tmp_path / "integrity-lost", "boot-2").why == ""
    assert not (tmp_path / "integrity-lost").exists()


class Killed(BaseException):
    """SIGKILL: what would have been done after it is not done."""


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


def lived(file: Path, point: int, life: Life) -> tuple[int, bool]:
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


@contextmanager
def ledger_of(folder: Path) -> Iterator[Ledger]:
    ledger = Ledger(folder / "ledger", "boot-1")
    try:
        yield ledger
    finally:
        ledger.close()


#: What happens to which folder after the daemon was killed.
LOSSES = [("", None), *itertools.product(FOLDERS, (removed, zeroed))]


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


#: What a ledger shows of `live_with_ticket`, in this order.
STATES = ["none", "waits", "granted", "started", "named", "none"]


@left_open
def test_a_daemon_that_is_killed_at_any_write_loses_nothing(tmp_path: Path) -> None:
    """At each point it is as before or as after the step, and never behind what was reported."""
    seen = {loss: set[str]() for loss in LOSSES}
    for point in range(_MOST_POINTS):
        left = tmp_path / str(point)
        left.mkdir()
        steps, killed = lived(left / "ledger", point, live_with_ticket)
        for loss in LOSSES:
            folder = shutil.copytree(left, tmp_path / f"{point}-damaged")
            which, damage = loss
            if damage:
                damage(folder / which)
            with ledger_of(folder) as found:
                state = state_of_ticket(found)
                if not damage:
                    assert not found.notices, point  # a crash is no damage
                # A draft, or a first file without its copy, was never reported to a client.
                assert not found.unknown.keys() - {KEY}
            seen[loss].add(state)
            assert state in STATES[steps : steps + 2], (point, steps, loss)
            with ledger_of(folder) as again:  # what was set right is on the disk
                assert state_of_ticket(again) == state
                assert not again.notices or again.unknown
            shutil.rmtree(folder)
        shutil.rmtree(left)
        if not killed:
            break
    assert (steps, point > 50) == (5, True)
    assert all(states == set(STATES) for states in seen.values())


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
