# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed at every step of a tenant's life: nothing is lost or allocated twice."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.lifecycle import release
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.host_process import HostCommand, open_tenant
from gpushare.daemon.operator.resize import set_quota
from gpushare.daemon.pages.grant_page import GrantPage
from gpushare.daemon.pages.mounts import TenantMounts
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import Tenants
from gpushare.daemon.store.claim import ClaimedDevice, ClaimRecord
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, FreezeRecord, TenantRecord
from gpushare.daemon.store.ticket import TicketRecord, TicketSource
from gpushare.quota.size import parse_size

from . import fakes
from .fake_process import FakeProcess
from .fakes import GIB, FakeDaemon
from .test_ledger import FOLDERS, removed, zeroed

# What a killed process has open the kernel closes; here it is left to the collector.
pytestmark = pytest.mark.filterwarnings(
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
        for entry in node.ledger.entries.values():
            if entry.state == "reserved":
                node.ledger.add(replace(entry, expires=boottime() - 1))
        release.reconcile_tenants(node, node.freezer)

    with fakes.again(folder) as node:
        node.decide.run(find_out)
        assert sorted(node.tenants.pages) == sorted(node.mounts.made())
        assert sorted(node.mounts.made()) == sorted(node.ledger.entries)
        return node.accounts.capacities()[0].available_bytes


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


@pytest.mark.parametrize("before", [True, False])
def test_a_crash_while_binding_keeps_the_reservation_of_a_running_container(
    tmp_path: Path, program: FakeProcess, before: bool
) -> None:
    """The hook gets no answer, so the runtime gives the container up; or it was bound."""
    with fakes.node(tmp_path) as node, killed(Ledger, "change", before=before):
        running(node, program)
    assert free_after(tmp_path) == (140 * GIB if before else 136 * GIB)


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
