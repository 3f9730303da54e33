# SPDX-License-Identifier: Apache-2.0
"""The checks themselves can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.check import symbols
from tests.check.command import ROOT, Failure, run

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


def test_a_failure_shows_the_command_and_what_it_said() -> None:
    with pytest.raises(Failure, match=r"(?s)\$ sh -c .*the reason\nexit status 4"):
        run("sh", "-c", "echo the reason; exit 4")


def test_a_missing_checker_is_not_a_passed_check() -> None:
    with pytest.raises(Failure, match=r"no-such-checker is missing: \./dev setup"):
        run("no-such-checker")


def test_of_a_long_output_only_what_tells_is_shown() -> None:
    script = "echo note: a path; echo x.c:1: error: b; echo x.c:1: error: b; exit 1"
    with pytest.raises(Failure) as failure:
        run("sh", "-c", script, telling=" error: ")
    assert "path" not in str(failure.value).partition("\n")[2]
    assert str(failure.value).count("\nx.c:1: error: b") == 1


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.check", "rough"],
        cwd=Path(ROOT),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no such check: rough" in done.stderr
    assert "ruff" in done.stderr
