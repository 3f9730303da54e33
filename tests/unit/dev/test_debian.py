# SPDX-License-Identifier: Apache-2.0
"""The Debian roots that tests run on: made whole or not at all, once for a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import apply
import debian
import pytest

ROOT = debian.ENGINES


@pytest.fixture
def bootstraps(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The targets of what stands in for debootstrap: a file, and one to leave out."""
    made: list[Path] = []

    def run(command: Sequence[str], _log: Path) -> None:
        target = Path(command[command.index("trixie") + 1])
        (target / "var/cache/apt/archives").mkdir(parents=True)
        (target / "file").touch()
        made.append(target)

    monkeypatch.setattr(apply, "run", run)
    monkeypatch.setattr(debian, "_mirror", mirror)
    return made


#: apt takes a second for it, and says the same each time.
mirror = cache(debian._mirror)


def test_it_is_made_once(tmp_path: Path, bootstraps: list[Path]) -> None:
    assert not debian.is_made(tmp_path, ROOT)
    for _ in range(2):
        debian.make(tmp_path, ROOT, tmp_path / "log")
        assert debian.is_made(tmp_path, ROOT)
    assert len(bootstraps) == 1
    assert (debian.link(tmp_path, ROOT) / "file").exists()
    assert not (debian.link(tmp_path, ROOT) / "var/cache/apt").exists()


def test_another_recipe_makes_another_and_removes_the_first(
    tmp_path: Path, bootstraps: list[Path]
) -> None:
    debian.make(tmp_path, ROOT, tmp_path / "log")
    first = debian.link(tmp_path, ROOT).resolve()
    other = replace(ROOT, packages=("runc",))
    assert not debian.is_made(tmp_path, other)
    debian.make(tmp_path, other, tmp_path / "log")
    assert debian.is_made(tmp_path, other)
    assert not debian.is_made(tmp_path, ROOT)
    assert len(bootstraps) == 2
    assert not first.exists()


def test_one_that_was_cut_off_is_not_taken_for_made(
    tmp_path: Path, bootstraps: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(command: Sequence[str], _log: Path) -> None:
        (Path(command[command.index("trixie") + 1]) / "half").mkdir(parents=True)
        raise apply.StepError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(apply, "run", cut_off)
        with pytest.raises(apply.StepError, match="no network"):
            debian.make(tmp_path, ROOT, tmp_path / "log")
    assert not debian.is_made(tmp_path, ROOT)
    debian.make(tmp_path, ROOT, tmp_path / "log")
    assert debian.is_made(tmp_path, ROOT)
    assert not (debian.link(tmp_path, ROOT) / "half").exists()
    assert len(bootstraps) == 1


def test_a_recipe_says_what_is_left_out(tmp_path: Path, bootstraps: list[Path]) -> None:
    kept = replace(ROOT, left_out=())
    debian.make(tmp_path, kept, tmp_path / "log")
    assert (debian.link(tmp_path, kept) / "var/cache/apt").exists()
    assert not debian.is_made(tmp_path, ROOT)
    assert len(bootstraps) == 1


def test_the_source_of_packages_keeps_its_licences() -> None:
    assert "usr/share/doc" in debian.ENGINES.left_out
    assert "usr/share/doc" not in debian.SOURCE.left_out


@pytest.mark.parametrize("mirrors", [["http://mirror.example/debian"], []])
def test_a_suite_that_debootstrap_may_not_know_is_made_by_the_script_of_another(
    monkeypatch: pytest.MonkeyPatch, mirrors: list[str]
) -> None:
    monkeypatch.setattr(debian, "_mirror", lambda: mirrors)
    command = debian._command(debian.NEWER_CONTAINERD, Path("target"))
    assert command[-4:] == ["forky", "target", *(mirrors or [debian.ARCHIVE]), "sid"]
    assert debian._command(ROOT, Path("target"))[-1] == (mirrors or ["target"])[-1]
