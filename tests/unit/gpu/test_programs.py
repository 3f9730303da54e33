# SPDX-License-Identifier: Apache-2.0
"""The C programs: where they come from on a machine that may have no compiler."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from tools.gpu import programs
from tools.gpu.report import NotMeasured


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(programs, "MADE", tmp_path / "gpu")
    return tmp_path / "gpu"


@pytest.fixture
def bare(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a compiler."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    return made


@pytest.mark.usefixtures("bare")
def test_with_neither_a_compiler_nor_a_carried_program_there_is_none() -> None:
    with pytest.raises(NotMeasured, match="no C compiler, and no program"):
        programs.program("recorder")


def test_a_carried_program_is_taken(bare: Path) -> None:
    bare.mkdir()
    file = bare / f"recorder-{programs._digest(programs.PROGRAMS['recorder'])}"
    file.touch()
    assert programs.program("recorder") == file


def test_one_made_from_other_sources_is_not(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare.mkdir()
    old = programs.PROGRAMS["recorder"]
    (bare / f"recorder-{programs._digest(old)}").touch()
    other = programs.ProgramBuild(("tools/bench/driver.c",), old.flags)
    monkeypatch.setitem(programs.PROGRAMS, "recorder", other)
    with pytest.raises(NotMeasured):
        programs.program("recorder")


def test_the_message_of_the_compiler_is_the_reason(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(programs.PROGRAMS, "recorder", programs.ProgramBuild(("pyproject.toml",)))
    with pytest.raises(NotMeasured, match=r"recorder cannot be compiled: .*pyproject"):
        programs.program("recorder")
    assert not [*made.glob("recorder*")]
