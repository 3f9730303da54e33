# SPDX-License-Identifier: Apache-2.0
"""Programs written by others run on the simulator as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare import simulator

from .conftest import SimulatorMachine

BESIDE = Path(sys.executable).parent


def _program(name: str) -> Path:
    program = BESIDE / name
    if not program.exists():
        pytest.fail(f"{name} is not installed: run ./dev setup")
    return program


def test_cuda_bindings_copies_there_and_back_and_times_a_kernel(machine: SimulatorMachine) -> None:
    answer = machine.ask("bindings.py")
    assert answer["same"]
    assert answer["pending"]
    assert answer["elapsed_ms"] >= answer["kernel_ms"]
    assert answer["table_bytes"] == 4000
    assert answer["name"] == "NVIDIA H200"
    assert answer["version"] == 13000
    assert answer["kernel_name"] == "spin"


def test_numba_arrays_are_copied(machine: SimulatorMachine) -> None:
    answer = machine.ask("arrays.py")
    assert answer["same"]
    assert answer["part"] == [10.0, 11.0, 12.0]
    assert answer["pinned"] == 7000
    assert answer["managed"] == 300
    assert 0 < answer["free"] < answer["total"]


@pytest.mark.parametrize("profile", ["h200", "a100-40gb", "t4", "t4-driver-520"])
def test_nvidia_ml_py_sees_the_profiles_card(
    simulate: Callable[..., SimulatorMachine], profile: str
) -> None:
    machine = simulate(profile, cards=3)
    wanted = simulator.load_profile(profile)
    told = machine.ask("nvml.py")
    assert told["driver"] == wanted["driver_version"]
    assert tuple(card["uuid"] for card in told["cards"]) == machine.simulator.uuids
    for index, card in enumerate(told["cards"]):
        assert card["name"] == wanted["name"]
        assert card["index"] == card["index_by_bus"] == index
        assert card["total"] == wanted["memory_bytes"]
        assert card["reserved"] == wanted["reserved_bytes"]
        assert card["free"] == card["total"] - card["reserved"]
        assert card["capability"] == [wanted["compute_major"], wanted["compute_minor"]]
        assert card["mig"] == ([0, 0] if wanted["mig_capable"] else None)


def test_nvitop_lists_the_card_and_its_process(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        pid = tenant.ask("pid")
        screen = machine.run(_program("nvitop"), "--once", "--no-unicode", COLUMNS="120")
    assert "H200" in screen
    assert "580.65.06" in screen
    assert any(f" {pid} C " in line for line in screen.splitlines()), screen


def test_gpustat_lists_every_card(simulate: Callable[..., SimulatorMachine]) -> None:
    screen = simulate("a100-40gb", cards=2).run(_program("gpustat"), "--no-color")
    assert screen.count("NVIDIA A100-SXM4-40GB") == 2
    assert "/ 40960 MB" in screen


def test_a_program_linked_with_lcuda_runs(
    machine: SimulatorMachine, compiled: Callable[..., Path], tmp_path: Path
) -> None:
    # As the packages of the toolkit's stubs do it: the name that -lcuda looks for.
    (tmp_path / "libcuda.so").symlink_to(machine.libraries / "libcuda.so.1")
    program = compiled("linked.c", f"-L{tmp_path}", "-lcuda")
    assert machine.run(program) == "there and back\n"


@pytest.mark.parametrize("cuda_version", ["11.8", "12.0", "12.4", "12.8", "13.0"])
def test_every_name_is_looked_up_as_the_runtime_library_does(
    simulate: Callable[..., SimulatorMachine], compiled: Callable[..., Path], cuda_version: str
) -> None:
    major, minor = cuda_version.split(".")
    number = int(major) * 1000 + int(minor) * 10
    machine = simulate(cuda_version=cuda_version)
    assert int(machine.run(compiled("lookups.c", "-ldl"), str(number))) > 4000


def test_a_call_that_is_not_simulated_is_reported_on_request(machine: SimulatorMachine) -> None:
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuIpcGetEventHandle())"
    assert machine.run(sys.executable, "-c", code) == "801\n"
    told = machine.run("sh", "-c", f'"{sys.executable}" -c "{code}" 2>&1', GPUSHARE_SIM_TRACE="1")
    assert "cuIpcGetEventHandle is not simulated" in told
