# SPDX-License-Identifier: Apache-2.0
"""Programs written by others run on the simulator as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file
from tests.c.simulator.conftest import SimulatorMachine
from tests.stack import Stack

HERE = Path(__file__).parent
BESIDE = Path(sys.executable).parent
OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

pytestmark = pytest.mark.needs("clients")


@pytest.fixture
def machine(tmp_path: Path) -> SimulatorMachine:
    return SimulatorMachine(simulator.create(tmp_path, cards=2), device_file.libraries())


def output(machine: SimulatorMachine, *command: str | Path) -> str:
    return subprocess.run(
        [str(word) for word in command],
        env={**machine.env, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def ask(machine: SimulatorMachine, client: str) -> Any:
    return json.loads(output(machine, sys.executable, HERE / client).splitlines()[-1])


def test_cuda_bindings_copies_there_and_back_and_times_a_kernel(machine: SimulatorMachine) -> None:
    answer = ask(machine, "bindings.py")
    assert answer["same"]
    assert answer["pending"]
    assert answer["elapsed_ms"] >= answer["kernel_ms"]
    assert answer["table_bytes"] == 4000
    assert answer["name"] == "NVIDIA H200"
    assert answer["version"] == 13000
    assert answer["kernel_name"] == "spin"


def test_numba_cuda_has_its_quota_and_its_copies_come_back() -> None:
    with Stack() as stack:
        stack.start_daemon()
        command = (sys.executable, str(HERE / "numba_program.py"))
        done = stack.gpushare("run", "--memory", "1GiB", "--", *command)
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["total"] == 1 << 30
    assert answer["refused"] == OUT_OF_MEMORY
    assert answer["same"]
    assert answer["elapsed_ms"] >= answer["kernel_ms"]


def test_nvitop_lists_the_card_and_its_process(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        pid = tenant.ask("pid")
        screen = output(machine, BESIDE / "nvitop", "--once", "--no-unicode")
    assert "H200" in screen
    assert "580.65.06" in screen
    assert any(f" {pid} C " in line for line in screen.splitlines()), screen
