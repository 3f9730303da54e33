# SPDX-License-Identifier: Apache-2.0
"""What each command of `./dev` sets up in a fresh clone: a copy of it runs, beside stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: In place of each Python.
PYTHON = """\
#!/bin/sh
[ "$1" = -c ] || echo "$(readlink /proc/self/fd/0) $*" >>log
"""

pytestmark = pytest.mark.gate


def run(clone: Path, *words: str) -> list[str]:
    """Run `./dev WORDS` in a fresh clone, without stdin; return what it did."""
    shutil.copy(ROOT / "dev", clone)
    programs = clone / ".venv/bin"
    programs.mkdir(parents=True)
    for name in ("python", "python3"):
        (programs / name).write_text(PYTHON)
        (programs / name).chmod(0o755)
    # As if tests.supervise had started it, which is not in this clone.
    environment = os.environ | {"GPUSHARE_DEV": str(os.getpid())}
    command = ["sh", "-c", 'exec "$0" "$@" <&-', str(clone / "dev"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (clone / "log").read_text().replace(f" {clone}/build", "").splitlines()


@pytest.mark.parametrize(
    ("command", "setup", "groups"),
    [
        ("setup", ["setup"], "gate"),
        ("test", ["setup"], "gate"),
        ("check ruff", ["setup"], "gate"),
        ("check --all", ["setup aarch64 docs"], "gate docs"),
        ("docs", ["setup docs"], "gate docs"),
        ("bench launch", ["setup"], "gate"),
        ("package wheel deb", ["setup package"], "gate package"),
        ("package image", ["setup package rpm", "setup --debian source12"], "gate package"),
        ("package", ["setup package rpm", "setup --debian source12"], "gate package"),
        (
            "test --all",
            ["setup all", "setup --debian", "setup --helm"],
            "gate browser chart clients docs measure package",
        ),
    ],
)
def test_a_command_sets_up_what_it_needs_and_no_more(
    tmp_path: Path, command: str, setup: list[str], groups: str
) -> None:
    done = run(tmp_path, *command.split())
    steps = (line.partition(" packaging/") for line in done if " packaging/setup" in line)
    assert {step for _, _, step in steps} == set(setup)
    (installed,) = (line for line in done if "install --group" in line)
    assert installed.partition(" --group ")[2].split(" --group ") == groups.split()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], "--numprocesses 3 --gate --checks=gate"),
        (["--all"], "--numprocesses 3 --checks=all"),
        (["--all", "tests/system/packages"], "tests/system/packages"),
        (["tests/unit/quota", "-k", "size"], "tests/unit/quota -k size"),
    ],
)
def test_the_tests_that_are_named_run_without_input(
    tmp_path: Path, words: list[str], options: str
) -> None:
    assert run(tmp_path, "test", *words)[-1] == f"/dev/null -m pytest {options}"
