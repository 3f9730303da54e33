# SPDX-License-Identifier: Apache-2.0
"""What the driver takes, step by step: on the simulated driver, what that is known to take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare.verify import ProbeFailed
from tools.gpu import kept, loads, shared, takes
from tools.gpu.driver import DriverPaths
from tools.gpu.report import ReportRow
from tools.gpu.scale import MemoryReading, Weighed, taken, weighed

MIB = 1 << 20
GIB = 1 << 30


def measured(rows: Iterator[ReportRow]) -> dict[str, ReportRow]:
    return {row.name: row for row in rows}


def test_linear_memory_is_in_blocks_which_small_allocations_share(driver: DriverPaths) -> None:
    rows = measured(takes.alone(driver, takes.linear))
    assert rows["cuMemAlloc of 512 bytes: the first"].value == 2 * MIB
    assert rows["cuMemAlloc of 4 KiB: each"].value == 4096
    assert "lie 512 bytes apart" in rows["cuMemAlloc of 512 bytes: each"].note
    assert rows["cuMemAlloc of 2 MiB + 1: each"].value == 4 * MIB
    assert rows["cuMemAlloc of 1 GiB + 1: the first"].value == GIB + 2 * MIB
    assert "of the process 1.002 GiB" in rows["cuMemAlloc of 1 GiB + 1: the first"].note


def test_managed_memory_is_in_no_process_s_figure(driver: DriverPaths) -> None:
    rows = measured(takes.alone(driver, takes.managed))
    prefetched = rows["managed: prefetched to the card"]
    assert prefetched.value == takes.MANAGED
    assert "of the process 0 bytes" in prefetched.note
    assert rows["managed: freed"].value == -takes.MANAGED


def test_physical_memory_is_taken_until_handle_and_mapping_are_gone(driver: DriverPaths) -> None:
    rows = measured(takes.alone(driver, takes.physical))
    assert rows["cuMemGetAllocationGranularity: minimum"].value == 2 * MIB
    assert rows["cuMemCreate of 64 MiB"].value == 64 * MIB
    assert rows["its handle released while it is mapped"].value == 0
    assert rows["unmapped"].value == -64 * MIB


def test_arrays_are_rounded_to_blocks(driver: DriverPaths) -> None:
    rows = measured(takes.alone(driver, takes.arrays))
    assert rows["array, 4096 x 4096"].value == 64 * MIB
    assert rows["array, 1025 x 1025"].value == 6 * MIB
    assert rows["mipmapped array of 11 levels, 1024 x 1024: destroyed"].value == -6 * MIB


def test_a_pool_s_chunks_and_when_they_go_back(driver: DriverPaths) -> None:
    rows = measured(kept.rows(driver))
    assert rows["cuMemAllocAsync of 512 bytes"].value == 32 * MIB
    assert "reserved 33554432, used 512" in rows["cuMemAllocAsync of 512 bytes"].note
    assert rows["cuMemAllocAsync of 512 bytes: freed"].value == 0
    assert rows["cuMemAllocAsync of 512 bytes: freed and waited for"].value == -32 * MIB
    assert rows["threshold: freed and waited for"].value == 0
    assert rows["threshold: trimmed"].value == -224 * MIB
    assert rows["a graph that allocates 128 MiB: instantiated"].value == 0
    assert rows["a graph that allocates 128 MiB: uploaded"].value == kept.GRAPH
    assert rows["a second one like it: launched after the first"].value == 0


def test_memory_mapped_by_two_processes_counts_for_its_maker(driver: DriverPaths) -> None:
    rows = measured(shared.rows(driver))
    name = "256 MiB by IPC handle"
    assert rows[f"{name}: the exporter allocates"].value == shared.SHARED
    assert "of the process 0 bytes" in rows[f"{name}: the importer opens it"].note
    name = "256 MiB of physical memory"
    assert "of the process 0 bytes" in rows[f"{name}: the importer imports it"].note
    assert "of the process -256 MiB" in rows[f"{name}: the exporter releases it"].note
    assert rows[f"{name}: the importer unmaps it"].value == -shared.SHARED


def test_a_context_and_modules_are_weighed_by_how_they_are_loaded(driver: DriverPaths) -> None:
    rows = measured(loads.contexts(driver))
    assert rows["CUDA_MODULE_LOADING=LAZY: a context"].value == 524 * MIB
    assert "of the process 524 MiB" in rows["CUDA_MODULE_LOADING=EAGER: a context"].note
    rows = measured(loads.modules(driver))
    assert rows["ptx, LAZY: 80 MiB of variables: loaded"].value == 80 * MIB
    assert rows["cubin, EAGER: 80 MiB of variables: unloaded"].value == -80 * MIB


def test_limits_are_weighed_at_each_step(driver: DriverPaths) -> None:
    rows = measured(loads.limits(driver))
    assert rows["heap: by default"].value == 8 * MIB
    assert rows["heap: raised by 256 MiB"].value == 256 * MIB
    assert rows["fifo: set back"].value == -64 * MIB
    stack = rows["stack: raised to 16 KiB"]
    assert stack.note.startswith(f"{stack.value} bytes more for all threads")


def test_a_missing_runtime_is_reported(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "runtime", lambda: "")
    (row,) = loads._runtime(driver)
    assert row.missing == "no libcudart is on this machine"


def test_a_process_that_exits_leaves_its_later_measurements_missing(driver: DriverPaths) -> None:
    def ending(process: Weighed) -> Iterator[ReportRow]:
        process.process.process.kill()
        process.process.process.wait()
        yield from takes.linear(process)

    (*_, last) = takes.alone(driver, ending)
    assert last.name == "the rest of ending"
    assert "memory" in last.missing


def test_a_step_that_the_driver_refuses_costs_its_own_row(driver: DriverPaths) -> None:
    with weighed(driver, "memory") as process:
        refused, done = process.steps((("too much", f"linear {1 << 50}"), ("one", "linear 512")))
    assert "CUDA_ERROR_OUT_OF_MEMORY" in refused.missing
    assert done.value == 2 * MIB


def test_a_process_that_nvml_does_not_list_has_the_others_figures() -> None:
    grown = MemoryReading(card=5 * MIB, process=None, free=7).since(
        MemoryReading(3 * MIB, None, 10)
    )
    row = taken("a step", grown)
    assert (row.value, row.note) == (3, "NVML: of the card 2 MiB, of the process does not list it")


def test_before_there_is_a_context_it_is_the_card_that_is_read() -> None:
    grown = MemoryReading(card=5, process=2, free=None).since(
        MemoryReading(card=3, process=None, free=None)
    )
    assert (grown.taken, grown.process) == (2, 2)


def test_a_process_that_does_not_answer_is_killed_and_not_queried_again(
    driver: DriverPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def silent(event: str) -> dict[str, object]:
        asked.append(event)
        raise ProbeFailed(f"memory gave no answer to {event}")

    def hanging(process: Weighed) -> Iterator[ReportRow]:
        monkeypatch.setattr(process.process, "answer", silent)
        yield from takes.linear(process)

    (row,) = takes.alone(driver, hanging)
    assert (row.name, row.missing) == ("the rest of hanging", "memory gave no answer to info")
    assert asked == ["info"]
