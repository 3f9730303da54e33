# SPDX-License-Identifier: Apache-2.0
"""The daemon ends at any write of the ledger or of its copies, and one of the two may be lost too.

Each point is a process of its own that kills itself: nothing is undone, as nothing would be.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare.daemon.store.entry import Entry, Holding
from gpushare.daemon.store.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

KEY = "a" * 16
OTHER = "b" * 16
_MOST_POINTS = 400
#: What puts something on the disk, or takes it away.
WRITES = ("open", "write", "rename", "replace", "unlink")


class Countdown:
    """Kills the process at the step whose number it is given, once it is on."""

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


def set_right(file: Path, countdown: Countdown, _said: int) -> None:
    """The start of a daemon."""
    count(countdown)
    countdown.on = True
    Ledger(file, "boot-1")


def live(file: Path, countdown: Countdown, said: int) -> None:
    """A tenant's life in the ledger, saying on `said` what was done."""
    say = os.write
    count(countdown)
    ledger = Ledger(file, "boot-1")
    holdings = (Holding("GPU-0000", 1 << 32), Holding("GPU-1000", 1 << 32))
    ledger.add(Entry(key=OTHER, state="bound", id="b", holdings=holdings))
    countdown.on = True

    ledger.add(Entry(key=KEY, state="reserved", id="a", holdings=holdings))
    say(said, b"1")
    ledger.bind(KEY, pid=5, starttime=6, cgroup=":/a")
    say(said, b"2")
    doubled = tuple(Holding(holding.uuid, 1 << 33) for holding in holdings)
    ledger.resize(replace(ledger.entries[KEY], holdings=doubled))
    say(said, b"3")
    ledger.release(KEY)
    say(said, b"4")


def count(countdown: Countdown) -> None:
    """Have all that writes from now on be steps."""
    for name in WRITES:
        setattr(os, name, countdown.around(getattr(os, name)))

    class Counted(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            done: sqlite3.Cursor = countdown.around(super().execute)(*arguments)
            return done

        def executemany(self, *arguments: Any) -> sqlite3.Cursor:
            done: sqlite3.Cursor = countdown.around(super().executemany)(*arguments)
            return done

        def commit(self) -> None:
            countdown.around(super().commit)()

        def __exit__(self, *error: object) -> Any:
            return countdown.around(super().__exit__)(*error)

    connect = sqlite3.connect
    sqlite3.connect = lambda *a, **k: connect(*a, factory=Counted, **k)  # type: ignore[assignment]


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
    assert [holding.memory_bytes for holding in ledger.entries[OTHER].holdings] == [1 << 32] * 2
    found = ledger.entries.get(KEY)
    if found is None:
        return "none"
    assert len(found.holdings) == 2, "half an entry"
    sizes = {holding.memory_bytes for holding in found.holdings}
    assert len(sizes) == 1, "half a resize"
    if found.state == "reserved":
        return "added"
    assert (found.pid, found.starttime, found.cgroup) == (5, 6, ":/a"), "half a bind"
    return "resized" if sizes == {1 << 33} else "bound"


STEPS = ["none", "added", "bound", "resized", "none"]


@contextmanager
def opened(folder: Path) -> Iterator[Ledger]:
    ledger = Ledger(folder / "ledger.db", "boot-1")
    try:
        yield ledger
    finally:
        ledger.close()


def as_it_is(_folder: Path) -> None:
    """Nothing more happens."""


def ledger_lost(folder: Path) -> None:
    (folder / "ledger.db").write_bytes(b"\0" * 8192)


def end_of_the_ledger_lost(folder: Path) -> None:
    """SQLite takes a write-ahead log up to its first bad frame, and says nothing."""
    (folder / "ledger.db-wal").write_bytes(b"")


def copies_lost(folder: Path) -> None:
    shutil.rmtree(folder / "copies")


@pytest.mark.parametrize("loss", [as_it_is, ledger_lost, end_of_the_ledger_lost, copies_lost])
def test_a_daemon_that_is_killed_at_any_write_loses_nothing(
    tmp_path: Path, loss: Callable[[Path], None]
) -> None:
    """At each point it is as before or as after the step, and never behind what was said."""
    seen = set()
    for point in range(_MOST_POINTS):
        folder = tmp_path / str(point)
        folder.mkdir()
        steps, killed = lived(folder / "ledger.db", point)
        loss(folder)
        with opened(folder) as found:
            state = state_of(found)
            assert not found.unknown
        seen.add(state)
        assert state in {STEPS[steps], STEPS[min(steps + 1, 4)]}, (point, steps)
        with opened(folder) as again:  # what was set right is on the disk
            assert state_of(again) == state
            assert not again.told
        shutil.rmtree(folder)
        if not killed:
            assert steps == 4
            break
    else:
        pytest.fail("it never got to the end")
    assert point > 50
    assert seen == set(STEPS)


def spoil(folder: Path) -> None:
    """Leave a damaged ledger, one damaged copy, one torn draft and one that was committed."""
    with opened(folder) as ledger:
        for number in range(6):
            ledger.add(Entry(key=f"{number:016x}", state="bound", id="x", created=float(number)))
        ledger.confirm()
    copies = folder / "copies"
    (copies / f"{1:016x}").write_text("damaged")
    (copies / f".{2:016x}").write_text("torn")
    (copies / f"{3:016x}").rename(copies / f".{3:016x}")
    (folder / "ledger.db").write_bytes(b"damaged" * 2000)


def test_a_daemon_that_is_killed_while_it_sets_things_right_loses_nothing(tmp_path: Path) -> None:
    spoiled = tmp_path / "spoiled"
    spoiled.mkdir()
    spoil(spoiled)
    for point in range(_MOST_POINTS):
        folder = tmp_path / str(point)
        shutil.copytree(spoiled, folder)
        _, killed = lived(folder / "ledger.db", point, set_right)
        with opened(folder) as found:
            # Of a draft alone it is not known whether it was being made or ended: neither is owed.
            kept = set(found.entries) - {f"{3:016x}"}
            assert kept == {f"{number:016x}" for number in (0, 2, 4, 5)}, point
            assert found.unknown == (f"{1:016x}",), point
        shutil.rmtree(folder)
        if not killed:
            break
    else:
        pytest.fail("it never got to the end")
    assert point > 20
