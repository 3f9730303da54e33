# SPDX-License-Identifier: Apache-2.0
"""The child that runs kernels, on a driver that keeps their time and runs none of their code."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.gpu import handover, slices
from tools.gpu.cuda import KERNELS, TARGETS, source
from tools.gpu.driver import DriverPaths
from tools.gpu.process import Child
from tools.gpu.report import NotMeasured
from tools.gpu.slices import workers


@pytest.fixture
def worker(driver: DriverPaths) -> Iterator[Child]:
    with workers(driver, 1) as (made,):
        yield made


def test_each_context_of_a_process_has_its_rate(worker: Child) -> None:
    rates = worker.ask("work 100000 10 0.05 2")["rates"]
    assert len(rates) == 2
    assert all(rate > 0 for rate in rates)


def test_a_trace_keeps_its_time_and_logs_nothing_where_no_code_runs(worker: Child) -> None:
    answer = worker.ask("trace 1000000 10000 1")
    assert (answer["looks"], answer["log"]) == (0, [])


@pytest.mark.parametrize("command", ["record 10 3", "query 50000000 1 10 3", "drain 100000 1 5"])
def test_costs_are_positive(worker: Child, command: str) -> None:
    costs = {name: cost for name, cost in worker.ask(command).items() if name.endswith("_ns")}
    assert costs
    assert all(cost > 0 for cost in costs.values())


def test_rounds_are_found_whose_kernel_takes_as_long_as_wanted(worker: Child) -> None:
    found = worker.ask("calibrate 1000000")
    assert found["took_ns"] >= 1_000_000  # however slow the host is, the card is not faster
    assert found["rounds"] >= 1


def test_a_kernel_that_ends_before_its_queries_is_not_measured(worker: Child) -> None:
    with pytest.raises(NotMeasured, match="the kernel ended before its event was asked 10 times"):
        worker.ask("query 0 1 10 1")


def test_alone_every_step_is_a_kernel_long(worker: Child) -> None:
    steps = worker.ask("steps 100000 1 100 20")["steps_ns"]
    assert len(steps) == 19
    assert steps == pytest.approx([100_000] * 19, abs=1000)


def test_slices_and_switches_are_those_of_the_card_by_events_alone(driver: DriverPaths) -> None:
    expected = {
        f"{count} contexts, by events: {what}": pytest.approx(value, rel=tolerance)
        for count in (2, 3)
        for what, value, tolerance in (("slice", 2e6, 0.02), ("switch", 1.6e5, 0.1))
    }
    for attempt in range(5):  # on a busy machine, a context may be late
        rows = {row.name: row.value for row in slices.by_events(driver)}
        found = {name: rows[name] for name in expected}
        if found == expected or attempt == 4:
            break
    assert found == expected


def test_a_handover_loses_the_time_of_a_slice_outside_its_kernels(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "TURNS", 5)
    turn, lost, told = handover.rows(driver)
    assert isinstance(turn.value, float)
    assert turn.value >= 5_000_000  # 25 kernels of 200 us; later where the host is late, never less
    assert isinstance(lost.value, float)
    assert isinstance(told.value, float)
    assert told.value > 0


def test_a_command_that_is_none_is_refused_by_name(worker: Child) -> None:
    with pytest.raises(NotMeasured, match=r"juggle 3: KeyError: 'juggle'"):
        worker.ask("juggle 3")


@pytest.mark.parametrize("kernel", sorted(path.stem for path in KERNELS.glob("*.ptx")))
def test_a_kernel_assembles_for_each_target_it_may_name(kernel: str, tmp_path: Path) -> None:
    ptxas = Path(sysconfig.get_path("purelib")) / "nvidia" / "cuda_nvcc" / "bin" / "ptxas"
    for version, target in TARGETS:
        file = tmp_path / f"{target}.ptx"
        file.write_text(source(kernel, version, target))
        cubin = tmp_path / f"{target}.cubin"
        subprocess.run([ptxas, "-arch=sm_90", "-o", cubin, file], check=True)
        assert cubin.read_bytes().startswith(b"\x7fELF")
