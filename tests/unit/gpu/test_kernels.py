# SPDX-License-Identifier: Apache-2.0
"""The child that runs kernels, on a driver that keeps their time and runs none of their code."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.cuda import KERNELS, TARGETS, source
from tests.gpu.driver import Driver
from tests.gpu.process import Child
from tests.gpu.report import NotMeasured
from tests.gpu.slices import workers


@pytest.fixture
def worker(driver: Driver) -> Iterator[Child]:
    with workers(driver, 1) as (made,):
        yield made


def test_each_context_of_a_process_has_its_rate(worker: Child) -> None:
    rates = worker.ask("work 10 0.05 2")["rates"]
    assert len(rates) == 2
    assert all(rate > 0 for rate in rates)


def test_a_trace_keeps_its_time_and_logs_nothing_where_no_code_runs(worker: Child) -> None:
    answer = worker.ask("trace 1000000 10000 1")
    assert (answer["looks"], answer["log"]) == (0, [])


@pytest.mark.parametrize("command", ["record 10 3", "drain 10 5"])
def test_costs_are_positive(worker: Child, command: str) -> None:
    costs = {name: cost for name, cost in worker.ask(command).items() if name.endswith("_ns")}
    assert costs
    assert all(cost > 0 for cost in costs.values())


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
