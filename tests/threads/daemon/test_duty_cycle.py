# SPDX-License-Identifier: Apache-2.0
"""A group that is frozen and thawed by turns, and never left frozen."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpushare.daemon.freezer.freezer import DutyCycle
from gpushare.daemon.policy import escalation
from tests.unit.daemon.test_freezer import FakeCgroup

PATIENCE_SECONDS = 20.0


@dataclass
class CountingCgroup(FakeCgroup):
    """A cgroup that counts."""

    freezes: int = 0
    twice: threading.Event = field(default_factory=threading.Event)

    def write(self) -> None:
        self.file.write_text("1")

    def freeze(self) -> bool:
        self.write()
        self.frozen = True
        self.freezes += 1
        if self.freezes == 2:
            self.twice.set()
        return super().freeze()


class Failed:
    def __init__(self) -> None:
        self.why = ""
        self.said = threading.Event()

    def __call__(self, why: str) -> None:
        self.why = why
        self.said.set()


@pytest.fixture
def group(tmp_path: Path) -> CountingCgroup:
    made = CountingCgroup(directory=tmp_path, file=tmp_path / "cgroup.freeze")
    made.write()
    return made


@pytest.fixture
def failed() -> Failed:
    return Failed()


def test_it_is_frozen_again_and_again_and_thawed_at_the_end(
    group: CountingCgroup, failed: Failed
) -> None:
    turns = DutyCycle(group, 0.3, failed)
    assert group.twice.wait(PATIENCE_SECONDS)
    assert turns.end()
    assert not group.frozen
    had = group.freezes
    assert not failed.said.is_set()
    assert turns.end()
    assert group.freezes == had


def test_a_cgroup_that_cannot_be_frozen_is_thawed_and_reported(
    group: CountingCgroup, failed: Failed
) -> None:
    group.fault = "no"
    turns = DutyCycle(group, 0.3, failed)
    assert failed.said.wait(PATIENCE_SECONDS)
    assert "no" in failed.why
    assert not group.frozen
    assert turns.end()


def test_a_cgroup_frozen_by_another_program_is_left_alone(
    group: CountingCgroup, failed: Failed
) -> None:
    group.frozen = True
    turns = DutyCycle(group, 0.3, failed)
    assert failed.said.wait(PATIENCE_SECONDS)
    assert "another" in failed.why
    assert turns.end()
    assert (group.frozen, group.freezes) == (True, 0)


def test_a_cgroup_that_another_program_freezes_meanwhile_stays_frozen(
    group: CountingCgroup, failed: Failed
) -> None:
    turns = DutyCycle(group, escalation.LEAST, failed)
    while not failed.said.wait(0.005):
        if group.frozen:
            group.write()
    assert "another" in failed.why
    assert turns.end()
    assert group.frozen


def test_one_that_cannot_be_thawed_is_known(
    group: CountingCgroup, failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse() -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(group, "thaw", refuse)
    turns = DutyCycle(group, 0.3, failed)
    assert failed.said.wait(PATIENCE_SECONDS)
    assert not turns.end()
