# SPDX-License-Identifier: Apache-2.0
"""A tenant that runs by turns: journaled, no hold, and ended by whoever does hold it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare.daemon.compute import schedule
from gpushare.daemon.control import freezer as module
from gpushare.daemon.control.freezer import CannotHold
from gpushare.daemon.control.pause import resume
from gpushare.daemon.node import Node
from gpushare.daemon.store import tables
from gpushare.daemon.store.holds import By

from .test_freezer import CGROUP, KEY, FakeGroup, add, again, group, held, words

__all__ = ["group", "held"]  # fixtures


@dataclass
class FakeTurns:
    """Turns that are taken when the test says so."""

    group: FakeGroup
    runs: float
    failed: Callable[[str], None]
    ended: bool = False
    stuck: bool = False

    def end(self) -> bool:
        self.ended = True
        if not self.stuck and self.group.frozen:
            self.group.thaw()
        return not self.stuck


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[FakeTurns]:
    made: list[FakeTurns] = []

    def begin(group: FakeGroup, runs: float, failed: Callable[[str], None]) -> FakeTurns:
        made.append(FakeTurns(group, runs, failed))
        return made[-1]

    monkeypatch.setattr(module, "Turns", begin)
    return made


def begin(node: Node) -> None:
    node.freezer.take_turns(KEY, "goes round the gate", 0.4, lambda _: None)


def test_it_is_journaled_and_keeps_its_share(
    held: Node, group: FakeGroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    assert words(held) == ["duty"]
    assert not held.freezer.is_held(KEY)
    assert set(schedule.parts(held)) == {KEY}
    held.freezer.pace(KEY, 0.7)
    assert taken[0].runs == 0.7
    held.freezer.set_right()
    assert not group.frozen
    assert held.freezer.release(KEY, "duty")
    assert (words(held), taken[0].ended, group.frozen) == ([], True, False)


@pytest.mark.usefixtures("taken")
def test_what_a_killed_daemon_left_frozen_is_thawed_by_the_next(
    held: Node, group: FakeGroup
) -> None:
    begin(held)
    group.frozen = True
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == ([], False)


def test_nobody_begins_who_is_held_or_was_paused(
    held: Node, group: FakeGroup, taken: list[FakeTurns]
) -> None:
    group.frozen = True
    with pytest.raises(CannotHold, match="paused by its engine"):
        begin(held)
    group.frozen = False
    held.freezer.hold(KEY, "operator", "maintenance")
    with pytest.raises(CannotHold, match="is held already"):
        begin(held)
    assert (words(held), taken) == (["operator"], [])


@pytest.mark.parametrize("by", ["operator", "audit"])
def test_who_holds_it_ends_its_turns_and_lets_it_go_on_after(
    held: Node, group: FakeGroup, taken: list[FakeTurns], by: By
) -> None:
    begin(held)
    group.frozen = True  # it is its turn to be
    held.freezer.hold(KEY, by, "over")
    assert (words(held), taken[0].ended, group.frozen) == ([by], True, True)
    assert not held.freezer.release(KEY, "duty")
    assert group.frozen
    held.freezer.release(KEY, by)
    assert not group.frozen


@pytest.mark.usefixtures("taken")
def test_a_daemon_that_was_killed_while_it_was_held_keeps_it_held(
    held: Node, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(held)
    monkeypatch.setattr(held.ledger.holds, "drop", lambda *_: None)
    held.freezer.hold(KEY, "operator", "maintenance")
    assert set(words(held)) == {"operator", "duty"}
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == (["operator"], True)


def test_what_its_engine_paused_meanwhile_stays_so(
    held: Node, group: FakeGroup, taken: list[FakeTurns], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(held)
    group.frozen = True
    monkeypatch.setattr(taken[0], "end", lambda: True)  # not by us
    held.freezer.release(KEY, "duty")
    assert group.frozen


def test_who_could_not_be_thawed_is_thawed_with_the_word(
    held: Node, group: FakeGroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    taken[0].stuck = group.frozen = True
    held.freezer.release(KEY, "duty")
    assert not group.frozen


@pytest.mark.usefixtures("group")
def test_an_operators_word_is_above_it(held: Node, taken: list[FakeTurns]) -> None:
    begin(held)
    resume(held.ledger.entries[KEY], held)
    assert (words(held), taken[0].ended) == ([], True)


def test_a_kill_ends_it_first(held: Node, group: FakeGroup, taken: list[FakeTurns]) -> None:
    begin(held)
    held.freezer.kill(KEY, "kicked")
    assert (taken[0].ended, group.killed) == (True, True)


def test_a_daemon_that_ends_lets_all_go_on(
    held: Node, group: FakeGroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    group.frozen = True
    held.freezer.end_all_turns()
    assert (words(held), group.frozen, taken[0].ended) == ([], False, True)
    with pytest.raises(CannotHold):
        begin(held)


def test_who_was_to_be_held_in_vain_may_take_turns_again(
    held: Node, group: FakeGroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    begin(held)
    assert len(taken) == 1
    group.fault = "no"
    with pytest.raises(CannotHold):
        held.freezer.hold(KEY, "operator", "maintenance")
    assert (words(held), held.freezer.pace(KEY, 0.5)) == (["duty"], False)
    begin(held)
    assert (words(held), len(taken)) == (["duty"], 2)


@pytest.mark.usefixtures("group")
def test_turns_of_who_has_ended_end(held: Node, taken: list[FakeTurns]) -> None:
    begin(held)
    held.ledger.release(KEY)
    assert not held.freezer.release(KEY, "duty")
    assert taken[0].ended
    add(held)
    assert words(held) == []


@pytest.mark.usefixtures("group")
def test_a_full_disk_freezes_nobody(
    held: Node, taken: list[FakeTurns], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(held.ledger.holds, "put", refuse)
    with pytest.raises(OSError, match="No space"):
        begin(held)
    assert taken == []


def test_holds_of_the_format_before_are_kept(tmp_path: Path) -> None:
    store = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    tables.make(store, tables.About("boot", 1))
    [(now,)] = store.execute("SELECT sql FROM sqlite_schema WHERE name = 'hold'").fetchall()
    store.execute("DROP TABLE hold")
    store.execute(now.replace(", 'duty'", ""))
    store.execute("UPDATE about SET format = 7")
    said = (KEY, "operator", "maintenance", 1.0, 0.0, CGROUP, 1)
    store.execute("INSERT INTO hold VALUES (?, ?, ?, ?, ?, ?, ?)", said)
    assert tables.check(store) == tables.About("boot", 1)
    assert store.execute("SELECT * FROM hold").fetchall() == [said]
    assert store.execute("SELECT sql FROM sqlite_schema WHERE name = 'hold'").fetchall() == [(now,)]
    store.close()
