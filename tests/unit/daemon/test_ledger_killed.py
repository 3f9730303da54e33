# SPDX-License-Identifier: Apache-2.0
"""The daemon ends at any write of the ledger or of its copies, and one of the two is lost too.

Each point is a process of its own that kills itself: nothing is undone, as nothing would be.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpushare.daemon.store.claim import ClaimedDevice, ClaimRecord
from gpushare.daemon.store.freezes import FreezeRecord
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.store.ticket import TicketRecord, TicketSource, digest

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

KEY = "a" * 16
OTHER = "b" * 16
CLAIM = "c" * 36
TICKET = "d" * 8
_MOST_POINTS = 400
#: What puts something on the disk, or takes it away.
WRITES = ("open", "write", "close", "rename", "replace", "unlink", "mkdir")


class Countdown:
    """Kills the process at the step with the given number, once it is on."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.on = False

    def step(self) -> None:
        if not self.on:
            return
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as two steps: before it and after it."""

        def stepped(*arguments: Any, **named: Any) -> Any:
            self.step()
            done = function(*arguments, **named)
            self.step()
            return done

        return stepped


Life = Callable[[Path, Countdown, int], None]


def enforce(file: Path, countdown: Countdown, _said: int) -> None:
    """The start of a daemon."""
    count(countdown)
    countdown.on = True
    Ledger(file, "boot-1")


def live(file: Path, countdown: Countdown, said: int) -> None:
    """A tenant's life in the ledger, reported step by step on `said`."""
    say = os.write
    count(countdown)
    ledger = Ledger(file, "boot-1")
    allocations = (CardAllocation("GPU-0000", 1 << 32), CardAllocation("GPU-1000", 1 << 32))
    ledger.add(TenantRecord(key=OTHER, state="bound", id="b", allocations=allocations))
    countdown.on = True

    ledger.add(TenantRecord(key=KEY, state="reserved", id="a", allocations=allocations))
    say(said, b"1")
    ledger.bind(KEY, pid=5, starttime=6, cgroup=":/a")
    say(said, b"2")
    doubled = tuple(CardAllocation(allocation.uuid, 1 << 33) for allocation in allocations)
    ledger.resize(replace(ledger.entries[KEY], allocations=doubled))
    say(said, b"3")
    ledger.freezes.put(FreezeRecord(KEY, "operator", "maintenance", 1.0))
    say(said, b"4")
    ledger.release(KEY)
    say(said, b"5")


def live_with_claim(file: Path, countdown: Countdown, said: int) -> None:
    """The life of a claim, with a container in it, reported step by step on `said`."""
    say = os.write
    count(countdown)
    ledger = Ledger(file, "boot-1")
    ledger.add(TenantRecord(key=OTHER, state="bound", id="b", allocations=(on_card(1 << 32),)))
    countdown.on = True

    devices = (ClaimedDevice("gpu", "GPU-0000", 1 << 34), ClaimedDevice("gpu", "GPU-1000", 1 << 34))
    claim = ClaimRecord(CLAIM, "team", "gpu", ("pod-1",), devices, {"policy": "best-effort"})
    ledger.put_claim(claim)
    say(said, b"1")
    ledger.put_claim(replace(claim, pods=("pod-1", "pod-2")))
    say(said, b"2")
    used = (on_card(1 << 33),)
    ledger.add(TenantRecord(key=KEY, state="bound", id="a", claim=CLAIM, allocations=used))
    say(said, b"3")
    ledger.release_claim(CLAIM)
    say(said, b"4")
    ledger.release(KEY)
    say(said, b"5")


def live_with_ticket(file: Path, countdown: Countdown, said: int) -> None:
    """The life of a ticket: it waits, is granted, and its start takes over."""
    say = os.write
    count(countdown)
    ledger = Ledger(file, "boot-1")
    ledger.add(TenantRecord(key=OTHER, state="bound", id="b", allocations=(on_card(1 << 32),)))
    countdown.on = True

    source = TicketSource({"memory": "8GiB"}, {}, {})
    ticket = TicketRecord(TICKET, 1, digest("x"), "train", 0, 5, 6, 5, source)
    ledger.put_ticket(ticket)
    say(said, b"1")
    ledger.put_ticket(replace(ticket, allocations=(on_card(1 << 33),)))
    say(said, b"2")
    allocations = (on_card(1 << 33),)
    ledger.add(TenantRecord(key=KEY, state="reserved", id="a", allocations=allocations))
    say(said, b"3")
    ledger.release_ticket(TICKET)
    say(said, b"4")
    ledger.release(KEY)
    say(said, b"5")


def on_card(memory_bytes: int) -> CardAllocation:
    return CardAllocation("GPU-0000", memory_bytes)


def count(countdown: Countdown) -> None:
    """Have all that writes from now on be steps."""
    for name in WRITES:
        setattr(os, name, countdown.around(getattr(os, name)))


def lived(file: Path, point: int, life: Life = live) -> tuple[int, bool]:
    """Return how many steps were acknowledged before the daemon ended at `point`, and if it did."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            life(file, Countdown(point), write)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        steps = len(said.read())
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    assert killed or os.waitstatus_to_exitcode(status) == 0
    return steps, killed


def state_of(ledger: Ledger) -> str:
    assert [allocation.memory_bytes for allocation in ledger.entries[OTHER].allocations] == [
        1 << 32
    ] * 2
    found = ledger.entries.get(KEY)
    if found is None:
        return "none"
    assert len(found.allocations) == 2, "half an entry"
    sizes = {allocation.memory_bytes for allocation in found.allocations}
    assert len(sizes) == 1, "half a resize"
    if found.state == "reserved":
        return "added"
    assert (found.pid, found.starttime, found.cgroup) == (5, 6, ":/a"), "half a bind"
    if ledger.freezes.of(KEY):
        assert sizes == {1 << 33}
        return "held"
    return "resized" if sizes == {1 << 33} else "bound"


STEPS = ["none", "added", "bound", "resized", "held", "none"]


@contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    ledger = Ledger(folder / "ledger", "boot-1")
    try:
        yield ledger
    finally:
        ledger.close()


def as_it_is(_folder: Path) -> None:
    """Nothing more happens."""


def ledger_lost(folder: Path) -> None:
    shutil.rmtree(folder / "ledger")


def ledger_damaged(folder: Path) -> None:
    for file in (folder / "ledger").iterdir():
        file.write_bytes(b"\0" * 1000)


def copies_lost(folder: Path) -> None:
    shutil.rmtree(folder / "copies")


def copies_damaged(folder: Path) -> None:
    for file in (folder / "copies").iterdir():
        file.write_bytes(b"\0" * 1000)


LOSSES = [as_it_is, ledger_lost, ledger_damaged, copies_lost, copies_damaged]


class Ended(NamedTuple):
    """What a daemon has left that ended at a point, and how many steps it had acknowledged."""

    folder: Path
    steps: int


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> list[Ended]:
    """A daemon that was killed, for each point in turn, and one that lived to the end."""
    root, made = tmp_path_factory.mktemp("ends"), []
    for point in range(_MOST_POINTS):
        folder = root / str(point)
        folder.mkdir()
        steps, killed = lived(folder / "ledger", point)
        made.append(Ended(folder, steps))
        if not killed:
            assert steps == 5
            assert point > 50
            return made
    pytest.fail("it never got to the end")


@pytest.mark.parametrize("loss", LOSSES)
def test_a_daemon_that_is_killed_at_any_write_loses_nothing(
    tmp_path: Path, ends: list[Ended], loss: Callable[[Path], None]
) -> None:
    """At each point it is as before or as after the step, and never behind what was reported."""
    seen = set()
    for point, (left, steps) in enumerate(ends):
        folder = shutil.copytree(left, tmp_path / str(point))
        loss(folder)
        with opened(folder) as found:
            state = state_of(found)
            if loss is as_it_is:
                assert not found.notices, point  # a crash is no damage
            # A draft, or a first file without its copy, was never reported to a client.
            assert not found.unknown.keys() - {KEY}
        seen.add(state)
        assert state in {STEPS[steps], STEPS[min(steps + 1, 5)]}, (point, steps)
        with opened(folder) as again:  # what was set right is on the disk
            assert state_of(again) == state
            assert not again.notices or again.unknown
        shutil.rmtree(folder)
    assert seen == set(STEPS)


CLAIM_STEPS = ["none", "claim", "two pods", "used", "container", "none"]


def state_of_claim(ledger: Ledger) -> str:
    """Return which step of `live_with_claim` the ledger shows, with the memory that is reserved."""
    claim, has_container = ledger.claims.get(CLAIM), KEY in ledger.entries
    assert OTHER in ledger.entries
    unused = sum(use.memory_bytes for use in ledger.unused_claims("GPU-0000", ""))
    if claim is None:
        assert unused == 0
        return "container" if has_container else "none"
    assert [device.memory_bytes for device in claim.devices] == [1 << 34] * 2, "half a claim"
    assert claim.parameters == {"policy": "best-effort"}
    assert unused == (1 << 33 if has_container else 1 << 34), "reserved twice, or not at all"
    if has_container:
        return "used"
    return "two pods" if claim.pods == ("pod-1", "pod-2") else "claim"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_daemon_that_is_killed_at_any_write_loses_no_claim(
    tmp_path: Path, loss: Callable[[Path], None]
) -> None:
    seen = set()
    for point in range(_MOST_POINTS):
        folder = tmp_path / str(point)
        folder.mkdir()
        steps, killed = lived(folder / "ledger", point, live_with_claim)
        loss(folder)
        with opened(folder) as found:
            state = state_of_claim(found)
            assert loss is not as_it_is or not found.notices, point
            assert not found.unknown.keys() - {KEY, f"claim-{CLAIM}"}
        assert state in {CLAIM_STEPS[steps], CLAIM_STEPS[min(steps + 1, 5)]}, (point, steps)
        with opened(folder) as again:
            assert state_of_claim(again) == state
        seen.add(state)
        shutil.rmtree(folder)
        if not killed:
            break
    assert point > 50
    assert seen == set(CLAIM_STEPS)


TICKET_STEPS = ["none", "waiting", "granted", "taken over", "container", "none"]


def state_of_ticket(ledger: Ledger) -> str:
    """Return which step of `live_with_ticket` the ledger shows, with what is reserved."""
    ticket, has_container = ledger.tickets.get(TICKET), KEY in ledger.entries
    assert OTHER in ledger.entries
    reserved = sum(use.memory_bytes for use in ledger.granted_parts("GPU-0000"))
    if ticket is None or not ticket.is_granted:
        assert reserved == 0
        assert ticket is None or not has_container, "a start without a grant"
        return "waiting" if ticket is not None else "container" if has_container else "none"
    assert reserved == 1 << 33
    return "taken over" if has_container else "granted"


@pytest.mark.parametrize("loss", LOSSES)
def test_a_daemon_that_is_killed_at_any_write_loses_no_ticket(
    tmp_path: Path, loss: Callable[[Path], None]
) -> None:
    seen = set()
    for point in range(_MOST_POINTS):
        folder = tmp_path / str(point)
        folder.mkdir()
        steps, killed = lived(folder / "ledger", point, live_with_ticket)
        loss(folder)
        with opened(folder) as found:
            state = state_of_ticket(found)
            assert not found.unknown.keys() - {KEY}
        assert state in {TICKET_STEPS[steps], TICKET_STEPS[min(steps + 1, 5)]}, (point, steps)
        with opened(folder) as again:
            assert state_of_ticket(again) == state
        seen.add(state)
        shutil.rmtree(folder)
        if not killed:
            break
    assert point > 50
    assert seen == set(TICKET_STEPS)


def spoil(folder: Path) -> None:
    """Leave damage of every kind: of a record, of a copy, of both, and a torn draft."""
    with opened(folder) as ledger:
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
        _, killed = lived(folder / "ledger", point, enforce)
        with opened(folder) as found:
            assert set(found.entries) == {f"{number:016x}" for number in (0, 2, 3, 4, 5)}, point
            assert set(found.unknown) == {f"{1:016x}"}, point
            assert found.is_complete
        shutil.rmtree(folder)
        if not killed:
            break
    else:
        pytest.fail("it never got to the end")
    assert point > 20
