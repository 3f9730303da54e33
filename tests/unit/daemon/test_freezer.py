# SPDX-License-Identifier: Apache-2.0
"""Holding tenants: the journal comes first, and whoever is held by nobody goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpushare.daemon import clock
from gpushare.daemon.compute import schedule, shares
from gpushare.daemon.control import freezer as module
from gpushare.daemon.control.freezer import CannotHold
from gpushare.daemon.control.own_group import NotOwn
from gpushare.daemon.identity import processes
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import State
from gpushare.host.freezing import Group

from . import fakes

KEY = "a" * 16
CGROUP = ":/docker/a"


@dataclass
class FakeGroup:
    """A cgroup as the kernel would have it."""

    frozen: bool = False
    killed: bool = False
    fault: str = ""
    lasts: int = 0  # how many kills it outlives
    directory: Path = Path("/sys/fs/cgroup/docker/a")
    file: Path = Path("/sys/fs/cgroup/docker/a/cgroup.freeze")
    journal: list[str] = field(default_factory=list)

    def freeze(self) -> bool:
        if self.fault:
            raise OSError(5, self.fault)
        self.frozen = True
        return True

    def thaw(self) -> None:
        self.frozen = False

    def is_set(self) -> bool:
        return self.frozen

    def is_empty(self, seconds: float) -> bool:
        del seconds
        return self.killed

    def kill(self, seconds: float) -> bool:
        del seconds
        self.lasts -= 1
        self.killed = self.lasts < 0
        self.frozen = False
        return self.killed


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> FakeGroup:
    made = FakeGroup()

    def own_groups(*_: object) -> dict[str, Group]:
        return {CGROUP: made}

    monkeypatch.setattr(module, "own_groups", own_groups)
    monkeypatch.setattr(module, "group_of", lambda *_: made)
    monkeypatch.setattr(processes.Cgroups, "processes", lambda *_: [4, 5])
    monkeypatch.setattr(processes, "is_being_killed", lambda pid: pid == 5)
    monkeypatch.setattr(processes, "is_nobodys_program", lambda _: False)
    return made


@pytest.fixture
def held(node: Node) -> Iterator[Node]:
    """A node whose one tenant runs."""
    add(node)
    yield node
    node.ledger.close()


def add(node: Node, state: State = "bound", pid: int = 4) -> None:
    entry = fakes.entry(KEY, cores=30)
    node.ledger.add(replace(entry, state=state, pid=pid, starttime=5, cgroup=CGROUP))


def again(node: Node) -> Node:
    """Return the same node after its daemon was killed and another started."""
    node.ledger.close()
    made = type(node.ledger)(node.ledger.file, "boot")
    node.ledger = made
    node.freezer = module.Freezer(made, lambda: None)
    return node


def words(node: Node) -> list[str]:
    return [hold.by for hold in node.freezer.holds_of(KEY)]


def test_a_tenant_is_frozen_while_anybody_holds_it(held: Node, group: FakeGroup) -> None:
    held.freezer.hold(KEY, "audit", "over by 1 GiB")
    held.freezer.hold(KEY, "operator", "maintenance")
    assert held.freezer.release(KEY, "audit")
    assert (group.frozen, held.freezer.is_held(KEY)) == (True, True)
    assert held.freezer.release(KEY, "operator")
    assert (group.frozen, held.freezer.is_held(KEY)) == (False, False)
    assert not held.freezer.release(KEY, "operator")


def test_the_intent_is_in_the_journal_before_the_kernel_is_told(
    held: Node, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look() -> bool:
        with sqlite3.connect(held.ledger.file) as store:
            seen.append(store.execute("SELECT by, why FROM hold").fetchall())
        store.close()
        return True

    monkeypatch.setattr(group, "freeze", look)
    monkeypatch.setattr(group, "thaw", look)
    held.freezer.hold(KEY, "audit", "over")
    held.freezer.release(KEY, "audit")
    assert seen == [[("audit", "over")]] * 2
    assert words(held) == []


def test_at_the_start_the_audits_are_thawed_and_the_operators_stay(
    held: Node, group: FakeGroup
) -> None:
    held.freezer.hold(KEY, "audit", "over")
    held.freezer.hold(KEY, "operator", "maintenance")
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == (["operator"], True)
    held.freezer.release(KEY, "operator")
    held.freezer.hold(KEY, "audit", "over")
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == ([], False)


def test_a_daemon_that_ended_before_it_froze_does_so_at_its_start(
    held: Node, group: FakeGroup
) -> None:
    held.freezer.hold(KEY, "operator", "maintenance")
    group.frozen = False
    again(held).freezer.adopt()
    assert group.frozen


def test_what_an_engine_thaws_is_frozen_again(
    held: Node, group: FakeGroup, capfd: pytest.CaptureFixture[str]
) -> None:
    held.freezer.hold(KEY, "operator", "maintenance")
    group.frozen = False
    held.freezer.set_right()
    assert group.frozen
    assert "tenant-frozen-again" in capfd.readouterr().err


def test_one_that_is_being_killed_is_not_frozen_again(
    held: Node, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.freezer.hold(KEY, "operator", "maintenance")
    group.frozen = False
    monkeypatch.setattr(processes, "is_being_killed", lambda _: True)
    held.freezer.set_right()
    assert not group.frozen


def test_what_an_engine_had_paused_before_is_not_ours_to_thaw(held: Node, group: FakeGroup) -> None:
    group.frozen = True
    held.freezer.hold(KEY, "audit", "over")
    held.freezer.hold(KEY, "operator", "maintenance")
    held.freezer.release(KEY, "audit")
    held.freezer.release(KEY, "operator")
    assert group.frozen


def test_what_the_engine_had_paused_and_let_go_is_ours_from_then_on(
    held: Node, group: FakeGroup
) -> None:
    group.frozen = True
    held.freezer.hold(KEY, "operator", "maintenance")
    group.frozen = False
    held.freezer.set_right()
    assert group.frozen
    held.freezer.release(KEY, "operator")
    assert not group.frozen


def test_a_cgroup_that_does_not_freeze_leaves_nothing_behind(held: Node, group: FakeGroup) -> None:
    group.fault = "no"
    with pytest.raises(CannotHold, match=r"train cannot be frozen: .*no"):
        held.freezer.hold(KEY, "audit", "over")
    assert words(held) == []


@pytest.mark.usefixtures("group")
def test_who_cannot_be_held_is_told_why(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotHold, match="it has ended"):
        node.freezer.hold(KEY, "operator", "")
    monkeypatch.setattr(processes, "is_nobodys_program", lambda pid: pid == 99)
    add(node, pid=99)
    with pytest.raises(CannotHold, match="is only being started"):
        node.freezer.hold(KEY, "operator", "")
    add(node, state="reserved")
    with pytest.raises(CannotHold, match="is only being started"):
        node.freezer.hold(KEY, "operator", "")
    add(node)

    def refuse(*_: object) -> dict[str, Group]:
        raise NotOwn("train shares its cgroup")

    monkeypatch.setattr(module, "own_groups", refuse)
    monkeypatch.setattr(processes, "look", lambda pid: processes.Process(pid, 5, 1, 1))
    with pytest.raises(CannotHold, match="shares its cgroup"):
        node.freezer.hold(KEY, "operator", "")
    monkeypatch.setattr(processes, "look", lambda _: None)
    with pytest.raises(CannotHold, match="has ended"):
        node.freezer.hold(KEY, "operator", "")
    assert words(node) == []


def test_a_kill_that_was_begun_is_finished_by_the_next_daemon(held: Node, group: FakeGroup) -> None:
    group.lasts = 2  # as long as it is in the kernel
    held.freezer.kill(KEY, "over for 2 s")
    assert not group.killed
    again(held).freezer.adopt()
    assert group.killed


@pytest.fixture
def full(held: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A disk that takes nothing any more."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(held.ledger.holds, "put", refuse)
    monkeypatch.setattr(held.ledger.holds, "drop", refuse)
    return held


def test_on_a_full_disk_nobody_is_frozen_whom_nobody_would_thaw(
    full: Node, group: FakeGroup
) -> None:
    with pytest.raises(OSError, match="No space"):
        full.freezer.hold(KEY, "audit", "over")
    assert not group.frozen


def test_on_a_full_disk_who_is_to_end_ends(full: Node, group: FakeGroup) -> None:
    full.freezer.kill(KEY, "over for 2 s")
    assert group.killed


def test_on_a_full_disk_who_is_held_is_frozen_again(
    held: Node, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.frozen = True  # by the engine, which lets it go
    held.freezer.hold(KEY, "operator", "maintenance")
    group.frozen = False

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(held.ledger.holds, "put", refuse)
    held.freezer.set_right()
    assert group.frozen


def test_a_kill_waits_as_long_as_it_was_told(
    held: Node, group: FakeGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.freezer.promise_kill(KEY, "kicked", 10)
    held.freezer.set_right()
    assert not group.killed
    soon = clock.boottime() + 10
    monkeypatch.setattr(clock, "boottime", lambda: soon)
    again(held).freezer.adopt()
    assert group.killed


def test_what_was_said_goes_with_the_tenant(held: Node, group: FakeGroup) -> None:
    del group
    held.freezer.hold(KEY, "operator", "maintenance")
    held.ledger.release(KEY)
    assert words(held) == []
    add(held)
    assert words(again(held)) == []


def test_a_ledger_from_before_anybody_was_held_is_read(held: Node, group: FakeGroup) -> None:
    with sqlite3.connect(held.ledger.file) as store:
        store.execute("DROP TABLE hold")
        store.execute("UPDATE about SET format = 4")
    store.close()
    again(held).freezer.hold(KEY, "operator", "maintenance")
    assert (words(again(held)), group.frozen) == (["operator"], True)


@pytest.mark.usefixtures("group")
def test_a_held_tenant_leaves_its_share_to_the_others(held: Node) -> None:
    other = replace(fakes.entry("b" * 16, cores=40), state="bound", policy="burst-share")
    held.ledger.add(other)
    uuid = other.holdings[0].uuid
    before = set(shares.of_card(uuid, held))
    held.freezer.hold(KEY, "audit", "over")
    assert before == {KEY, other.key}
    assert set(shares.of_card(uuid, held)) == {other.key}
    assert set(schedule.parts(held)) == {other.key}
    held.freezer.release(KEY, "audit")
    assert set(schedule.parts(held)) == {KEY, other.key}
