# SPDX-License-Identifier: Apache-2.0
"""The Debian 13 that tests run on: made whole or not at all, once for a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import apply
import debian
import pytest


@pytest.fixture
def bootstraps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The targets of what stands in for debootstrap: a file, and one to leave out."""
    made: list[Path] = []

    def run(command: Sequence[str], _log: Path) -> None:
        target = Path(command[command.index(debian.SUITE) + 1])
        (target / "var/cache/apt/archives").mkdir(parents=True)
        (target / "file").touch()
        made.append(target)

    monkeypatch.setattr(apply, "run", run)
    monkeypatch.setattr(debian, "_mirror", mirror)
    return made


#: apt takes a second for it, and says the same each time.
mirror = cache(debian._mirror)


def test_it_is_made_once(tmp_path: Path, bootstraps: list[Path]) -> None:
    assert not debian.is_made(tmp_path)
    for _ in range(2):
        debian.make(tmp_path, tmp_path / "log")
        assert debian.is_made(tmp_path)
    assert len(bootstraps) == 1
    assert (debian.link(tmp_path) / "file").exists()
    assert not (debian.link(tmp_path) / "var/cache/apt").exists()


def test_another_recipe_makes_another_and_removes_the_first(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    debian.make(tmp_path, tmp_path / "log")
    first = debian.link(tmp_path).resolve()
    monkeypatch.setattr(debian, "PACKAGES", ("runc",))
    assert not debian.is_made(tmp_path)
    debian.make(tmp_path, tmp_path / "log")
    assert debian.is_made(tmp_path)
    assert len(bootstraps) == 2
    assert not first.exists()


def test_one_that_was_cut_off_is_not_taken_for_made(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(command: Sequence[str], _log: Path) -> None:
        (Path(command[command.index(debian.SUITE) + 1]) / "half").mkdir(parents=True)
        raise apply.StepError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(apply, "run", cut_off)
        with pytest.raises(apply.StepError, match="no network"):
            debian.make(tmp_path, tmp_path / "log")
    assert not debian.is_made(tmp_path)
    debian.make(tmp_path, tmp_path / "log")
    assert debian.is_made(tmp_path)
    assert not (debian.link(tmp_path) / "half").exists()
    assert len(bootstraps) == 1
