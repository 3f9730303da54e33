# SPDX-License-Identifier: Apache-2.0
"""What NVML shows in a container: its slice of the granted cards, and its own processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpushare import abi

from .conftest import ProgramContainer, SimulatedContainer, program
from .tenant import MIB

# nvidia-ml-py, with what the tests say in one line of JSON.
NVML = """
import json, os, sys
from pynvml import *
nvmlInit()
def cards():
    return [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
def say(*values):
    print(json.dumps(values))
"""


def nvml(container: ProgramContainer, *lines: str) -> list[object]:
    done = container.run(sys.executable, "-c", "\n".join([NVML, *lines]))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert isinstance(said, list)
    return said


@contextmanager
def holding(container: ProgramContainer, *lines: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has run `lines`, and stays."""
    with container.start(
        sys.executable, "-c", program(*lines, "say('ready')", "input()")
    ) as process:
        assert process.stdout
        ready = process.stdout.readline()
        try:
            assert ready == '["ready"]\n', process.communicate("\n")[1]
            yield process
        finally:
            if process.poll() is None:
                process.communicate("\n")


def test_memory_is_the_slice(simulated: ProgramContainer) -> None:
    simulated.tenant.set_context_bytes(10 * MIB)
    with holding(simulated, "start()", "alloc(20 * MIB)"):
        said = nvml(
            simulated,
            "m = nvmlDeviceGetMemoryInfo(cards()[0])",
            "n = nvmlDeviceGetMemoryInfo(cards()[0], version=nvmlMemory_v2)",
            "say(m.total, m.used, m.free, n.total, n.used, n.free, n.reserved)",
        )
    slice_ = [100 * MIB, 30 * MIB, 70 * MIB]
    assert said == [*slice_, *slice_, 0]


def test_free_memory_never_underflows(simulated: ProgramContainer) -> None:
    with holding(simulated, "start()", "alloc(80 * MIB)"):
        simulated.tenant.set_memory(50 * MIB)
        said = nvml(
            simulated,
            "m = nvmlDeviceGetMemoryInfo(cards()[0])",
            "say(m.total, m.used, m.free)",
        )
    assert said == [50 * MIB, 80 * MIB, 0]


def test_processes_are_the_container_s_own(simulated: ProgramContainer) -> None:
    simulated.tenant.set_context_bytes(10 * MIB)
    # Another tenant's, and one that goes around the filter: on the card, not in the list.
    bare = ProgramContainer(simulated.libraries / "simulator", simulated.tenant, simulated.env)
    with (
        holding(simulated, "start()", "alloc(20 * MIB)") as first,
        holding(simulated, "start()") as second,
        holding(bare, "start()", "alloc(MIB)"),
    ):
        said = nvml(
            simulated,
            "card = cards()[0]",
            "say(sorted((p.pid, p.usedGpuMemory)"
            " for p in nvmlDeviceGetComputeRunningProcesses(card)),"
            " nvmlDeviceGetGraphicsRunningProcesses(card),"
            " nvmlDeviceGetMPSComputeRunningProcesses(card))",
        )
        everybody = nvml(bare, "say(len(nvmlDeviceGetComputeRunningProcesses(cards()[0])))")
    own = sorted([[first.pid, 30 * MIB], [second.pid, 10 * MIB]])
    assert said == [own, [], []]
    assert everybody == [3]


def test_a_killed_process_is_not_listed(simulated: ProgramContainer) -> None:
    with holding(simulated, "start()", "alloc(20 * MIB)") as process:
        process.kill()
        process.wait()
        said = nvml(simulated, "say(len(nvmlDeviceGetComputeRunningProcesses(cards()[0])))")
    assert said == [0]


def test_too_small_an_array_gets_the_required_size(simulated: ProgramContainer) -> None:
    with holding(simulated, "start()"):
        said = nvml(
            simulated,
            "from ctypes import *",
            "lib = CDLL('libnvidia-ml.so.1')",
            "count = c_uint(0)",
            "args = cards()[0], byref(count), None",
            "result = lib.nvmlDeviceGetComputeRunningProcesses_v3(*args)",
            "say(result, count.value)",
        )
    assert said == [7, 1]


def test_utilisation_is_the_slice_s(simulated: ProgramContainer) -> None:
    simulated.tenant.set_u32(0, abi.GRANT_CARD_UTILISATION_PERCENT, 37)
    said = nvml(simulated, "say(nvmlDeviceGetUtilizationRates(cards()[0]).gpu)")
    assert said == [37]


class TestCards:
    """Four cards, of which the container was granted the fourth and the second."""

    @pytest.fixture
    def container(self, simulated_container: SimulatedContainer) -> ProgramContainer:
        return simulated_container(4, [3, 1])

    def test_only_allocated_cards_are_visible(self, container: ProgramContainer) -> None:
        said = nvml(
            container,
            "say([nvmlDeviceGetUUID(card) for card in cards()],"
            " [nvmlDeviceGetIndex(card) for card in cards()])",
        )
        bare = ProgramContainer(container.libraries / "simulator", container.tenant, container.env)
        (all_uuids,) = nvml(bare, "say([nvmlDeviceGetUUID(card) for card in cards()])")
        assert isinstance(all_uuids, list)
        assert said == [[all_uuids[1], all_uuids[3]], [0, 1]]

    def test_an_index_above_the_last_card_is_invalid(self, container: ProgramContainer) -> None:
        said = nvml(
            container,
            "try: nvmlDeviceGetHandleByIndex(2)",
            "except NVMLError as error: say(error.value)",
        )
        assert said == [2]

    def test_no_other_card_is_found_by_its_names(self, container: ProgramContainer) -> None:
        bare = ProgramContainer(container.libraries / "simulator", container.tenant, container.env)
        names = nvml(
            bare,
            "card = cards()[0]",
            "say(nvmlDeviceGetUUID(card), nvmlDeviceGetPciInfo(card).busId,"
            " nvmlDeviceGetSerial(card))",
        )
        said = nvml(
            container,
            f"names = {names!r}",
            "finds = (nvmlDeviceGetHandleByUUID, nvmlDeviceGetHandleByPciBusId,"
            " nvmlDeviceGetHandleBySerial)",
            "found = []",
            "for find, name in zip(finds, names):",
            "    try: found.append(bool(find(name)))",
            "    except NVMLError as error: found.append(error.value)",
            "say(*found)",
        )
        assert said == [6, 6, 6]

    def test_each_shows_its_own_slice(self, container: ProgramContainer) -> None:
        container.tenant.set_memory(64 * MIB, card=1)
        said = nvml(
            container,
            "say(*[nvmlDeviceGetMemoryInfo(card).total // (1 << 20) for card in cards()])",
        )
        assert said == [64, 100]  # the second of the machine is the container's card 1


def test_without_pages_nvml_shows_nothing(simulated: ProgramContainer) -> None:
    simulated.env["GPUSHARE_TENANT_DIR"] = "/nonexistent"
    done = simulated.run(
        sys.executable, "-c",
        "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)",
    )  # fmt: skip
    assert done.stdout == "9\n"
    assert done.stderr.startswith("gpushare: no GPU: ")
    assert done.stderr.count("\n") == 1
