# SPDX-License-Identifier: Apache-2.0
"""The checks themselves can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.check import symbols, tidy
from tools.check.changed import changed
from tools.check.command import ROOT, Failure, run
from tools.check.steps import STEPS

OBJDUMP = """
libcuda.so.1:     file format elf64-x86-64

DYNAMIC SYMBOL TABLE:
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.2.5) strlen
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.17) clock_gettime
0000000000000000      DF *UND*\t0000000000000000  GLIBC_2.34  dlopen
0000000000001570 g    DF .text\t000000000000000b  Base        cuInit
"""


def test_a_symbol_newer_than_the_oldest_image_is_named() -> None:
    assert symbols.newer_than((2, 17), OBJDUMP) == ["dlopen needs GLIBC_2.34"]


def test_versions_are_numbers_not_text() -> None:
    assert symbols.newer_than((2, 4), " (GLIBC_2.17) clock_gettime\n")
    assert not symbols.newer_than((2, 17), " (GLIBC_2.4) memcpy\n")


def test_a_failure_shows_the_command_and_its_output() -> None:
    with pytest.raises(Failure, match=r"(?s)\$ sh -c .*the reason\nexit status 4"):
        run("sh", "-c", "echo the reason; exit 4")


def test_a_missing_checker_is_not_a_passed_check() -> None:
    with pytest.raises(Failure, match=r"no-such-checker is missing: \./dev setup"):
        run("no-such-checker")


def test_a_long_output_is_reduced_to_its_telling_lines() -> None:
    script = "echo note: a path; echo x.c:1: error: b; echo x.c:1: error: b; exit 1"
    with pytest.raises(Failure) as failure:
        run("sh", "-c", script, telling=" error: ")
    assert "path" not in str(failure.value).partition("\n")[2]
    assert str(failure.value).count("\nx.c:1: error: b") == 1


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.check", "rough"],
        cwd=Path(ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such check: rough" in done.stderr
    assert "ruff" in done.stderr


def git(root: Path, *words: str) -> None:
    name = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True)


def test_changed_files_are_those_that_main_does_not_have(tmp_path: Path) -> None:
    git(tmp_path, "init", "--initial-branch=main")
    for name in ("kept", "edited", "deleted", "committed"):
        (tmp_path / name).write_text("before")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message=first")
    assert changed(tmp_path) == set()
    git(tmp_path, "switch", "--create=topic")
    (tmp_path / "committed").write_text("after")
    git(tmp_path, "commit", "--all", "--message=second")
    (tmp_path / "edited").write_text("after")
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").write_text("new")
    assert changed(tmp_path) == {Path(n) for n in ("committed", "edited", "deleted", "new")}


def test_files_that_git_does_not_know_count_as_changed(tmp_path: Path) -> None:
    assert changed(tmp_path) is None
    assert all(step.concerns(None) for step in STEPS)


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("docs/index.md", {"aarch64", "clang-tidy", "asan", "tsan", "gcc", "table", "mypy"}),
        ("gpushare/client.py", {"aarch64", "clang-tidy", "asan", "tsan", "gcc", "table", "site"}),
        ("runtime/main.c", {"table", "mypy", "site"}),
        ("libhook/table/cuda.inc", {"mypy", "site"}),
        ("pyproject.toml", {"table"}),
    ],
)
def test_a_check_is_left_out_where_nothing_that_it_is_about_changed(
    path: str, left: set[str]
) -> None:
    assert {step.name for step in STEPS if not step.concerns({Path(path)})} == left


def test_clang_tidy_runs_again_after_a_header_or_a_setting_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / ".clang-tidy").write_text("Checks: bugprone-*")
    header = tmp_path / "a.h"
    header.write_text("enum { ONE = 1 };")
    source = tmp_path / "a.c"
    source.write_text('#include "a.h"\nint one(void) { return ONE; }')

    def key(command: str = "gcc -DX") -> str:
        tidy._digest.cache_clear()
        parts = tidy._parts(str(source), command)
        assert parts == {Path("a.c"), Path("a.h")}
        return tidy._key(command, parts)

    before = key()
    assert key() == before
    assert key("gcc -DY") != before
    header.write_text("enum { ONE = 2 };")
    after = key()
    assert after != before
    (tmp_path / ".clang-tidy").write_text("Checks: performance-*")
    assert key() not in {before, after}
    tidy._digest.cache_clear()
