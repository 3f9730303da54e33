# SPDX-License-Identifier: Apache-2.0
"""gpushare-probe under the bare simulated driver: its commands, and its answers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.install import InstallSource
from gpushare.verify import ProbeFailed, ProbeTenant

WAYS = (
    *("cuMemAlloc", "cuMemAllocPitch", "cuMemAllocAsync"),
    *("cuMemAllocFromPoolAsync", "cuMemCreate", "cuArrayCreate", "cuGraphLaunch"),
    "cuModuleLoadData",
)
PROBE = InstallSource.of_package().libraries / "gpushare-probe"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    card = simulator.create(tmp_path, "t4")
    return {**os.environ, **card.env, "LD_LIBRARY_PATH": str(simulator.libraries())}


@pytest.mark.parametrize("api", WAYS)
def test_it_takes_memory_and_gives_it_back(env: dict[str, str], api: str) -> None:
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        assert probe.start()["code"] == 0
        before = probe.ask("info")
        one = probe.ask(f"alloc {api} {64 << 20}")
        assert one["code"] == 0
        assert before["free"] - probe.ask("info")["free"] >= 64 << 20
        filled = probe.ask(f"fill {api}")
        assert filled["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        assert probe.ask("info")["free"] < 2 * filled["granule"]
        assert probe.ask("free")["bytes"] == filled["bytes"] + one["bytes"]
        assert probe.ask("info") == before


def test_managed_memory_is_nowhere_before_it_is_used(env: dict[str, str]) -> None:
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        probe.start()
        before = probe.ask("info")
        assert probe.ask(f"alloc cuMemAllocManaged {64 << 20}")["code"] == 0
        assert probe.ask("info") == before
        assert probe.ask("free")["bytes"] == 64 << 20


def test_it_knows_what_it_has_written(env: dict[str, str]) -> None:
    sizes = {"cuMemAlloc": (5 << 20) + 24, "cuMemAllocAsync": 1 << 20, "cuArrayCreate": 1 << 20}
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        probe.start()
        for api, size in sizes.items():
            assert probe.ask(f"alloc {api} {size}")["code"] == 0
        linear = sizes["cuMemAlloc"] + sizes["cuMemAllocAsync"]
        written = {"bytes": linear, "different": 0, "code": 0, "result": "CUDA_SUCCESS"}
        assert probe.ask("write 7") == written | {"event": "write"}
        assert probe.ask("check 7") == written | {"event": "check"}
        assert probe.ask("check 8")["different"] == linear
        # A buffer that was not written.
        assert probe.ask(f"alloc cuMemAlloc {1 << 20}")["code"] == 0
        assert probe.ask("check 7")["different"] > 0


def test_it_keeps_the_card_busy_for_the_requested_time(env: dict[str, str]) -> None:
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        probe.start()
        probe.tell("busy 1000000 200000000")
        done = probe.answer("busy")
    assert done["code"] == 0
    assert done["took_ns"] >= 200_000_000
    assert done["asked_ns"] == done["kernels"] * 1_000_000
    assert done["kernels"] >= 20  # two batches of 10 ms are launched whatever becomes of the first
    assert done["asked_ns"] <= done["took_ns"]


def test_its_kernels_take_the_requested_time(env: dict[str, str]) -> None:
    with ProbeTenant("probe", [str(PROBE)], env) as probe:
        probe.start()
        spun = probe.ask("spin 1000000 20")
        assert spun["code"] == 0
        assert spun["took_ns"] >= spun["asked_ns"] == 20_000_000


@pytest.mark.parametrize("words", [["serve"], ["alloc", "many"], ["--what", "1"], ["--card"]])
def test_a_command_line_that_is_wrong_is_an_error(env: dict[str, str], words: list[str]) -> None:
    done = subprocess.run([str(PROBE), *words], check=False, capture_output=True, env=env)
    assert done.returncode == 2
    assert b"usage: gpushare-probe" in done.stderr


def test_a_program_that_is_no_probe_is_recognized_by_its_answer() -> None:
    with (
        ProbeTenant("echo", ["sh", "-c", "echo nothing here; echo why >&2"]) as other,
        pytest.raises(ProbeFailed, match="nothing here"),
    ):
        other.start()


def test_a_probe_that_ends_is_reported_with_its_last_line() -> None:
    with (
        ProbeTenant("gone", ["sh", "-c", "echo out of paper >&2; exit 1"]) as other,
        pytest.raises(ProbeFailed, match="out of paper"),
    ):
        other.start()
