# SPDX-License-Identifier: Apache-2.0
"""A duty cycle: journaled, not a freeze, and ended by any freeze."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gpushare.daemon.compute import scheduler_sync
from gpushare.daemon.freezer import freezer as module
from gpushare.daemon.freezer.freezer import CannotFreeze
from gpushare.daemon.store.freezes import By

from .fakes import FakeDaemon
from .test_freezer import KEY, FakeCgroup, again, group, held, words

__all__ = ["group", "held"]  # fixtures


@dataclass
class FakeTurns:
    """Turns that are taken when the test says so."""

    group: FakeCgroup
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

    def begin(group: FakeCgroup, runs: float, failed: Callable[[str], None]) -> FakeTurns:
        made.append(FakeTurns(group, runs, failed))
        return made[-1]

    monkeypatch.setattr(module, "DutyCycle", begin)
    return made


def begin(node: FakeDaemon) -> None:
    node.freezer.start_duty_cycle(KEY, "bypasses the launch gate", 0.4, lambda _: None)


def test_it_is_journaled_and_keeps_its_share(
    held: FakeDaemon, group: FakeCgroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    assert words(held) == ["duty"]
    assert not held.freezer.is_frozen(KEY)
    assert set(scheduler_sync.scheduled_shares(held)) == {KEY}
    held.freezer.set_duty_cycle(KEY, 0.7)
    assert taken[0].runs == 0.7
    held.freezer.enforce()
    assert not group.frozen
    assert held.freezer.release(KEY, "duty")
    assert (words(held), taken[0].ended, group.frozen) == ([], True, False)


@pytest.mark.usefixtures("taken")
def test_a_container_frozen_by_a_killed_daemon_is_thawed_by_the_next(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    begin(held)
    group.frozen = True
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == ([], False)


def test_a_frozen_or_paused_tenant_gets_no_duty_cycle(
    held: FakeDaemon, group: FakeCgroup, taken: list[FakeTurns]
) -> None:
    group.frozen = True
    with pytest.raises(CannotFreeze, match="paused by its engine"):
        begin(held)
    group.frozen = False
    held.freezer.freeze(KEY, "operator", "maintenance")
    with pytest.raises(CannotFreeze, match="is already paused or frozen"):
        begin(held)
    assert (words(held), taken) == (["operator"], [])


@pytest.mark.parametrize("by", ["operator", "audit"])
def test_an_operators_freeze_ends_the_duty_cycle_and_a_resume_thaws(
    held: FakeDaemon, group: FakeCgroup, taken: list[FakeTurns], by: By
) -> None:
    begin(held)
    group.frozen = True  # it is its turn to be
    held.freezer.freeze(KEY, by, "over")
    assert (words(held), taken[0].ended, group.frozen) == ([by], True, True)
    assert not held.freezer.release(KEY, "duty")
    assert group.frozen
    held.freezer.release(KEY, by)
    assert not group.frozen


@pytest.mark.usefixtures("taken")
def test_a_frozen_container_stays_frozen_if_the_daemon_is_killed(
    held: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(held)
    monkeypatch.setattr(held.ledger.freezes, "drop", lambda *_: None)
    held.freezer.freeze(KEY, "operator", "maintenance")
    assert set(words(held)) == {"operator", "duty"}
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == (["operator"], True)


def test_a_container_that_its_engine_paused_meanwhile_stays_paused(
    held: FakeDaemon, group: FakeCgroup, taken: list[FakeTurns], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(held)
    group.frozen = True
    monkeypatch.setattr(taken[0], "end", lambda: True)  # not by us
    held.freezer.release(KEY, "duty")
    assert group.frozen


@pytest.mark.usefixtures("group")
def test_an_operators_command_takes_precedence(held: FakeDaemon, taken: list[FakeTurns]) -> None:
    begin(held)
    held.run_control.resume(held.ledger.entries[KEY])
    assert (words(held), taken[0].ended) == ([], True)


def test_a_daemon_that_ends_lets_all_go_on(
    held: FakeDaemon, group: FakeCgroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    group.frozen = True
    held.freezer.end_duty_cycles()
    assert (words(held), group.frozen, taken[0].ended) == ([], False, True)
    with pytest.raises(CannotFreeze):
        begin(held)


def test_a_failed_freeze_does_not_prevent_a_later_duty_cycle(
    held: FakeDaemon, group: FakeCgroup, taken: list[FakeTurns]
) -> None:
    begin(held)
    begin(held)
    assert len(taken) == 1
    group.fault = "no"
    with pytest.raises(CannotFreeze):
        held.freezer.freeze(KEY, "operator", "maintenance")
    assert (words(held), held.freezer.set_duty_cycle(KEY, 0.5)) == (["duty"], False)
    begin(held)
    assert (words(held), len(taken)) == (["duty"], 2)


@pytest.mark.usefixtures("group")
def test_a_full_disk_prevents_a_freeze(
    held: FakeDaemon, taken: list[FakeTurns], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(held.ledger.freezes, "put", refuse)
    with pytest.raises(OSError, match="No space"):
        begin(held)
    assert taken == []
