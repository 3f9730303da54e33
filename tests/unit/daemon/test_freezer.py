# SPDX-License-Identifier: Apache-2.0
"""Freezing tenants: the journal comes first, and a tenant without a reason is thawed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gpushare.daemon import freezer as module
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.freezer import CannotFreeze
from gpushare.daemon.identity import processes
from gpushare.daemon.operator import run_state
from gpushare.daemon.store.record import FreezeRecord, TenantState
from gpushare.daemon.views.rows import interventions
from gpushare.daemon.views.tenant_status import tenant_status
from gpushare.protocol.rows import RUN_STATES

from . import fakes
from .fakes import FakeDaemon

KEY = "a" * 16
CGROUP = ":/docker/a"


@dataclass
class FakeCgroup:
    """A cgroup as the kernel would have it."""

    frozen: bool = False
    killed: bool = False
    fault: str = ""
    lasts: int = 0  # how many kills it outlives
    directory: Path = Path("/sys/fs/cgroup/docker/a")
    file: Path = Path("/sys/fs/cgroup/docker/a/cgroup.freeze")

    def freeze(self) -> bool:
        if self.fault:
            raise OSError(5, self.fault)
        self.frozen = True
        return True

    def thaw(self) -> None:
        self.frozen = False

    def is_set(self) -> bool:
        return self.frozen

    def is_frozen(self) -> bool:
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
def group(monkeypatch: pytest.MonkeyPatch) -> FakeCgroup:
    made = FakeCgroup()
    monkeypatch.setattr(module, "cgroup_freezer", lambda *_: made)
    monkeypatch.setattr(processes.Cgroups, "processes", lambda *_: [4, 5])
    monkeypatch.setattr(processes, "is_being_killed", lambda pid: pid == 5)
    monkeypatch.setattr(processes, "is_nobodys_program", lambda _: False)
    return made


@pytest.fixture
def held(node: FakeDaemon) -> Iterator[FakeDaemon]:
    """A node whose one tenant runs."""
    add(node)
    yield node
    node.ledger.close()


def add(node: FakeDaemon, state: TenantState = "bound", pid: int = 4) -> None:
    entry = fakes.entry(KEY, cores=30)
    node.ledger.add(replace(entry, state=state, pid=pid, starttime=5, cgroup=CGROUP))


def again(node: FakeDaemon) -> FakeDaemon:
    """Return the same node after its daemon was killed and another started."""
    node.ledger.close()
    made = type(node.ledger)(node.ledger.folder, "boot")
    node.ledger = made
    node.freezer = module.Freezer(made, lambda: None)
    return node


def words(node: FakeDaemon) -> list[str]:
    return [freeze.by for freeze in node.ledger.freezes.of(KEY)]


def test_a_tenant_is_frozen_while_any_reason_remains(held: FakeDaemon, group: FakeCgroup) -> None:
    held.freezer.freeze(KEY, "audit", "over by 1 GiB")
    held.freezer.freeze(KEY, "operator", "maintenance")
    assert held.freezer.release(KEY, "audit")
    assert (group.frozen, held.ledger.is_frozen(KEY)) == (True, True)
    assert held.freezer.release(KEY, "operator")
    assert (group.frozen, held.ledger.is_frozen(KEY)) == (False, False)
    assert not held.freezer.release(KEY, "operator")


def test_the_intent_is_journaled_before_the_cgroup_is_frozen(
    held: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def look() -> bool:
        _, written = (held.ledger.folder / KEY).read_text().splitlines()
        seen.append([(one["by"], one["why"]) for one in json.loads(written)["freezes"]])
        return True

    monkeypatch.setattr(group, "freeze", look)
    monkeypatch.setattr(group, "thaw", look)
    held.freezer.freeze(KEY, "audit", "over")
    held.freezer.release(KEY, "audit")
    assert seen == [[("audit", "over")]] * 2
    assert words(held) == []


def test_at_the_start_the_audits_are_thawed_and_the_operators_stay(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    held.freezer.freeze(KEY, "audit", "over")
    held.freezer.freeze(KEY, "operator", "maintenance")
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == (["operator"], True)
    held.freezer.release(KEY, "operator")
    held.freezer.freeze(KEY, "audit", "over")
    again(held).freezer.adopt()
    assert (words(held), group.frozen) == ([], False)


def test_a_container_that_an_engine_thaws_is_frozen_again_unless_it_is_being_killed(
    held: FakeDaemon,
    group: FakeCgroup,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held.freezer.freeze(KEY, "operator", "maintenance")
    for is_killed in (False, True):
        monkeypatch.setattr(processes, "is_being_killed", lambda _, killed=is_killed: killed)
        group.frozen = False
        held.freezer.enforce()
        assert group.frozen != is_killed
    assert "tenant-refrozen" in capfd.readouterr().err


def test_a_container_that_an_engine_paused_before_is_not_thawed(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    group.frozen = True
    held.freezer.freeze(KEY, "audit", "over")
    held.freezer.freeze(KEY, "operator", "maintenance")
    held.freezer.release(KEY, "audit")
    held.freezer.release(KEY, "operator")
    assert group.frozen


@pytest.mark.usefixtures("group")
def test_a_freeze_that_is_impossible_is_reported_with_its_reason(
    node: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(why: str) -> None:
        with pytest.raises(CannotFreeze, match=why):
            node.freezer.freeze(KEY, "operator", "")
        assert words(node) == []

    refused("it has exited")
    monkeypatch.setattr(processes, "is_nobodys_program", lambda pid: pid == 99)
    add(node, pid=99)
    refused("is still starting")
    add(node, state="reserved")
    refused("is still starting")
    add(node)
    monkeypatch.setattr(module, "freezable_group", Mock(side_effect=CannotFreeze("it shares")))
    monkeypatch.setattr(processes, "find_process", lambda pid: processes.Process(pid, 5, 1, 1))
    refused("it shares")
    monkeypatch.setattr(processes, "find_process", lambda _: None)
    refused("has ended")


def test_a_freeze_that_the_kernel_refuses_is_forgotten(held: FakeDaemon, group: FakeCgroup) -> None:
    group.fault = "Input/output error"
    with pytest.raises(CannotFreeze, match=r"cannot be frozen: .*Input/output error"):
        held.freezer.freeze(KEY, "operator", "maintenance")
    assert words(held) == []
    group.fault = ""
    held.freezer.freeze(KEY, "operator", "maintenance")
    (first,) = held.ledger.freezes.of(KEY)
    held.freezer.freeze(KEY, "operator", "again")
    assert held.ledger.freezes.of(KEY) == (first,)
    group.frozen, group.fault = False, "Input/output error"
    held.freezer.enforce()
    assert words(held) == ["operator"]


def test_what_was_to_happen_to_a_container_that_has_ended_is_forgotten(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    killed: list[str] = []
    group.lasts = 9
    held.freezer.kill(KEY, "stopped", lambda: killed.append(KEY))
    assert (group.lasts, killed) == (7, [])  # it was tried twice, and is tried again
    held.ledger.freezes.put(FreezeRecord("b" * 16, "operator", "", 0.0))
    held.decide.run(lambda: held.ledger.release(KEY))
    held.freezer.enforce()
    assert killed == [KEY]
    assert held.ledger.freezes.all == {}


def test_a_kill_that_is_postponed_is_done_later(held: FakeDaemon, group: FakeCgroup) -> None:
    killed: list[str] = []
    waits = [True]
    held.freezer = module.Freezer(held.ledger, lambda: None, lambda *_: waits[0])
    held.freezer.kill(KEY, "stopped", lambda: killed.append("killed"))
    held.freezer.enforce()
    assert (group.killed, killed) == (False, [])
    waits[0] = False
    held.freezer.enforce()
    assert (group.killed, killed) == (True, ["killed"])


@pytest.fixture
def full(held: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    """A disk that takes nothing any more."""
    monkeypatch.setattr(held.ledger, "_write", fakes.no_space)
    return held


def test_on_a_full_disk_a_container_is_frozen_all_the_same(
    full: FakeDaemon, group: FakeCgroup, capfd: pytest.CaptureFixture[str]
) -> None:
    full.freezer.freeze(KEY, "audit", "over")
    assert group.frozen
    assert full.ledger.is_frozen(KEY)
    assert "freeze-record-failed" in capfd.readouterr().err
    assert full.freezer.release(KEY, "audit")
    assert not group.frozen


def test_freezes_that_a_full_disk_refused_are_written_later(
    full: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    full.freezer.freeze(KEY, "operator", "maintenance")
    monkeypatch.undo()
    full.ledger.settle()
    full.ledger.close()
    found = type(full.ledger)(full.ledger.folder, "boot")
    assert [freeze.by for freeze in found.freezes.of(KEY)] == ["operator"]
    found.close()
    assert group.frozen


def test_a_container_whose_record_a_full_disk_lost_stays_frozen_until_resumed(
    full: FakeDaemon, group: FakeCgroup
) -> None:
    full.freezer.freeze(KEY, "audit", "over")
    again(full).freezer.adopt()
    found = [group.frozen]
    record = full.ledger.entries[KEY]
    [warning] = tenant_status(record, full)["warnings"]
    assert "docker unpause" in warning
    assert warning.endswith("otherwise: gpushare resume train")
    control = run_state.RunControl(full, full.freezer, full.audit, full.servers)
    control.resume(record)
    assert [*found, group.frozen] == [True, False]
    with pytest.raises(CannotFreeze, match="neither paused nor frozen"):
        control.resume(record)


def test_a_pause_by_another_program_is_shown_as_long_as_it_lasts(
    held: FakeDaemon, group: FakeCgroup
) -> None:
    record = held.ledger.entries[KEY]

    def shown() -> list[str]:
        return [RUN_STATES[one["by"]] for one in interventions(record, held.ledger)]

    assert shown() == []
    group.frozen = True  # docker pause
    assert shown() == ["paused"]
    held.freezer.freeze(KEY, "audit", "over by 1 GiB")
    assert shown() == ["frozen"]
    held.freezer.release(KEY, "audit")
    assert shown() == ["paused"]
    group.frozen = False
    assert shown() == []


@pytest.mark.parametrize(
    ("op", "fields", "by"),
    [("pause", {}, "operator"), ("stop", {"signal": "TERM", "timeout": 600}, "stop")],
)
def test_an_operator_has_the_answer_when_the_decision_is_recorded(
    held: FakeDaemon,
    group: FakeCgroup,
    monkeypatch: pytest.MonkeyPatch,
    op: str,
    fields: dict[str, Any],
    by: str,
) -> None:
    """A daemon that is killed right after the answer keeps to it at its next start."""
    del group
    store = held.ledger.store_freezes

    def store_later(key: str) -> None:
        time.sleep(0.2)
        store(key)

    held.ledger.freezes.store = lambda key: held.decide.submit(lambda: store_later(key))
    monkeypatch.setattr(run_state, "_send_signal", lambda *_: None)
    held.ask(op, name=KEY, **fields)
    assert [freeze.by for freeze in again(held).ledger.freezes.of(KEY)] == [by]


def stop(node: FakeDaemon, seconds: int) -> None:
    node.ask("stop", name=KEY, signal="TERM", timeout=seconds)


def test_a_second_stop_does_not_postpone_the_first(
    held: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    del group
    monkeypatch.setattr(run_state, "_send_signal", lambda *_: None)
    stop(held, 10)
    (first,) = held.ledger.freezes.of(KEY)
    stop(held, 3600)
    (second,) = held.ledger.freezes.of(KEY)
    assert second.due == first.due
    stop(held, 1)
    (third,) = held.ledger.freezes.of(KEY)
    assert third.due < first.due


def test_a_kill_waits_for_its_timeout(
    held: FakeDaemon, group: FakeCgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.freezer.promise_kill(KEY, "stopped", 10)
    held.freezer.enforce()
    assert not group.killed
    soon = boottime() + 10
    monkeypatch.setattr(module, "boottime", lambda: soon)
    again(held).freezer.adopt()
    assert group.killed
