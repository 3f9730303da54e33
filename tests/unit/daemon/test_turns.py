# SPDX-License-Identifier: Apache-2.0
"""A group that is frozen and thawed by turns, and never left frozen."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpushare.daemon.control.turns import Turns

PATIENCE_SECONDS = 20.0


class FakeGroup:
    """A cgroup as the kernel would have it, that counts."""

    directory = Path("/sys/fs/cgroup/docker/a")

    def __init__(self) -> None:
        self.frozen = False
        self.freezes = 0
        self.fault = ""
        self.twice = threading.Event()

    def freeze(self) -> bool:
        self.frozen = True
        self.freezes += 1
        if self.freezes == 2:
            self.twice.set()
        if self.fault:
            raise OSError(5, self.fault)
        return True

    def thaw(self) -> None:
        self.frozen = False

    def is_set(self) -> bool:
        return self.frozen

    def is_empty(self, seconds: float) -> bool:
        raise NotImplementedError

    def kill(self, seconds: float) -> bool:
        raise NotImplementedError


class Failed:
    def __init__(self) -> None:
        self.why = ""
        self.said = threading.Event()

    def __call__(self, why: str) -> None:
        self.why = why
        self.said.set()


@pytest.fixture
def failed() -> Failed:
    return Failed()


def test_it_is_frozen_again_and_again_and_thawed_at_the_end(failed: Failed) -> None:
    group = FakeGroup()
    turns = Turns(group, 0.3, failed)
    assert group.twice.wait(PATIENCE_SECONDS)
    assert turns.end()
    assert not group.frozen
    had = group.freezes
    assert not failed.said.is_set()
    assert turns.end()
    assert group.freezes == had


def test_who_cannot_be_frozen_is_thawed_and_told(failed: Failed) -> None:
    group = FakeGroup()
    group.fault = "no"
    turns = Turns(group, 0.3, failed)
    assert failed.said.wait(PATIENCE_SECONDS)
    assert "no" in failed.why
    assert not group.frozen
    assert turns.end()


def test_who_was_paused_by_another_is_left_alone(failed: Failed) -> None:
    group = FakeGroup()
    group.frozen = True
    turns = Turns(group, 0.3, failed)
    assert failed.said.wait(PATIENCE_SECONDS)
    assert "another" in failed.why
    assert turns.end()
    assert (group.frozen, group.freezes) == (True, 0)


def test_one_that_cannot_be_thawed_is_known(
    failed: Failed, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = FakeGroup()

    def refuse() -> None:
        raise OSError(5, "no")

    monkeypatch.setattr(group, "thaw", refuse)
    turns = Turns(group, 0.3, failed)
    assert failed.said.wait(PATIENCE_SECONDS)
    assert not turns.end()
