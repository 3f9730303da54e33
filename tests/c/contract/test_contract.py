# SPDX-License-Identifier: Apache-2.0
"""The simulated driver holds to the contract, and the interposer library over it does too."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpushare import simulator

from .cases import FOLDER, cases, sources

CASES = [case.name for case in cases()]
ROOT = FOLDER.parents[2]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, as it is made for other drivers."""
    made = tmp_path_factory.mktemp("contract") / "contract"
    include = [f"-I{ROOT / 'libhook' / folder}" for folder in ("include", "")]
    files = [str(FOLDER / name) for name in sources()]
    library = str(simulator.libraries() / "libcuda.so.1")
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(
        [*command, *include, *files, library, "-o", str(made), "-ldl", "-pthread"], check=True
    )
    return made


def holds(command: list[str], env: dict[str, str]) -> None:
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES)
def test_the_simulator(case: str, program: Path, tmp_path: Path) -> None:
    machine = simulator.create(tmp_path, "h200", 2)
    env = {**machine.env, "LD_LIBRARY_PATH": str(simulator.libraries())}
    holds([str(program), case], env)
