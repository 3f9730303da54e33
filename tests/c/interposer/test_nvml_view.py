# SPDX-License-Identifier: Apache-2.0
"""NVML over a library that reports everything: a tenant sees its slice, and changes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpushare import abi
from libhook.table import coverage

from .conftest import FAKE_UUIDS, FakeContainer, ProgramContainer, program
from .tenant import MIB
from .test_nvml import nvml

OTHERS = 1  # the pid of another tenant's process, as fake_nvml.c says
INVALID, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
CALL = (
    "from ctypes import *",
    "lib = CDLL('libnvidia-ml.so.1')",
    "card = cards()[0]",
    "count = c_uint(8)",
)


@pytest.fixture
def container(fake_container: FakeContainer) -> ProgramContainer:
    """The second of two cards, 100 MiB of it."""
    made = fake_container(FAKE_UUIDS[1:], 100 * MIB)
    made.env["FAKE_CUDA_DEVICES"] = "1"
    return made


@pytest.fixture
def process(container: ProgramContainer) -> Iterator[subprocess.Popen[str]]:
    """A process of the tenant, with 30 MiB."""
    with container.start(
        sys.executable, "-c", program("start()", "alloc(30 * MIB)", "say('ready')", "input()")
    ) as started:
        assert started.stdout
        assert started.stdout.readline() == '["ready"]\n'
        container.env["FAKE_NVML_OWN_PID"] = str(started.pid)
        yield started
        started.communicate("\n")


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetTopologyNearestGpus(card, 10, byref(count), found)",
        "nvmlSystemGetTopologyGpuSet(0, byref(count), found)",
        "nvmlUnitGetDevices(None, byref(count), found)",
    ],
)
def test_a_list_of_cards_has_the_allocated_ones(container: ProgramContainer, call: str) -> None:
    said = nvml(
        container,
        *CALL,
        "found = (c_void_p * 8)()",
        f"result = lib.{call}",
        "same = found[0] == cast(card, c_void_p).value",
        "say(len(cards()), result, count.value, same)",
    )
    assert said == [1, 0, 1, True]


def test_a_list_that_is_too_small_gets_the_required_size(container: ProgramContainer) -> None:
    said = nvml(
        container,
        *CALL,
        "count = c_uint(0)",
        "result = lib.nvmlDeviceGetTopologyNearestGpus(card, 10, byref(count), None)",
        "say(result, count.value)",
    )
    assert said == [0, 2]


def test_a_partition_that_was_not_allocated_is_not_found(container: ProgramContainer) -> None:
    said = nvml(
        container,
        *CALL,
        "found = c_void_p()",
        "say(*[lib.nvmlDeviceGetMigDeviceHandleByIndex(card, i, byref(found)) for i in (0, 1)])",
    )
    assert said == [NOT_FOUND, NOT_FOUND]


def test_accounting_lists_own_processes(
    container: ProgramContainer, process: subprocess.Popen[str]
) -> None:
    assert nvml(container, "say(*nvmlDeviceGetAccountingPids(cards()[0]))") == [process.pid]


def test_accounting_has_statistics_of_own_processes(
    container: ProgramContainer, process: subprocess.Popen[str]
) -> None:
    said = nvml(
        container,
        *CALL,
        "def stats(pid):",
        "    first, second = (c_ulonglong * 8)(), (c_uint * 16)(pid)",
        "    results = (lib.nvmlDeviceGetAccountingStats(card, pid, first),"
        " lib.nvmlDeviceGetAccountingStats_v2(card, second))",
        "    return [*results, first[1], second[4]]",
        f"say(stats({process.pid}), stats({OTHERS}))",
    )
    assert said == [[0, 0, 4096, 4096], [NOT_FOUND, NOT_FOUND, 0, 0]]


def test_an_exited_process_has_no_owner(
    container: ProgramContainer, process: subprocess.Popen[str]
) -> None:
    process.kill()
    process.wait()
    assert nvml(container, "say(nvmlDeviceGetAccountingPids(cards()[0]))") == [[]]


def test_codec_sessions_of_others_are_hidden(container: ProgramContainer) -> None:
    said = nvml(
        container,
        *CALL,
        "say(lib.nvmlDeviceGetEncoderSessions(card, byref(count), None), count.value)",
    )
    assert said == [0, 0]


def test_utilisation_in_every_form_is_the_slice_s(container: ProgramContainer) -> None:
    """The card is at 80 % with 40 % of its memory's bus; the slice's busy time is a half of it."""
    container.tenant.set_u32(0, abi.GRANT_CARD_UTILISATION_PERCENT, 40)
    said = nvml(
        container,
        *CALL,
        "rates = nvmlDeviceGetUtilizationRates(card)",
        "states = nvmlDeviceGetDynamicPstatesInfo(card, c_nvmlGpuDynamicPstatesInfo_t())",
        "def samples(kind):",
        "    _, found = nvmlDeviceGetSamples(card, kind, 0)",
        "    return [(one.timeStamp, one.sampleValue.uiVal) for one in found]",
        "say([rates.gpu, rates.memory], [states.utilization[i].percentage for i in range(3)],"
        " samples(NVML_GPU_UTILIZATION_SAMPLES), samples(NVML_MEMORY_UTILIZATION_SAMPLES),"
        " len(samples(NVML_TOTAL_POWER_SAMPLES)))",
    )
    assert said == [[40, 20], [40, 20, 80], [[102, 40]], [[102, 20]], 3]


def test_memory_in_every_form_is_the_slice_s(
    container: ProgramContainer, process: subprocess.Popen[str]
) -> None:
    said = nvml(
        container,
        "memory = nvmlDeviceGetConfComputeProtectedMemoryUsage(cards()[0])",
        "attributes = nvmlDeviceGetAttributes_v2(cards()[0])",
        "say(memory.total, memory.used, memory.free, attributes.memorySizeMB,"
        " attributes.multiprocessorCount)",
    )
    assert process.poll() is None
    assert said == [100 * MIB, 30 * MIB, 70 * MIB, 100, 7]


@pytest.mark.parametrize(
    ("symbol", "error"),
    [
        ("nvmlDeviceSetPowerManagementLimit", NO_PERMISSION),
        ("nvmlDeviceSetPowerManagementLimit_v2", NO_PERMISSION),
        ("nvmlDeviceSetComputeMode", NO_PERMISSION),
        ("nvmlDeviceResetGpuLockedClocks", NO_PERMISSION),
        ("nvmlDeviceClearAccountingPids", NO_PERMISSION),
        ("nvmlDeviceSetMemoryLimits_v1", NO_PERMISSION),
        ("nvmlGpuInstanceDestroy", NO_PERMISSION),
        ("nvmlDeviceGetActiveVgpus", NOT_SUPPORTED),
        ("nvmlVgpuInstanceGetVmID", NOT_SUPPORTED),
    ],
)
def test_refused_calls_never_reach_the_library(
    container: ProgramContainer, symbol: str, error: int
) -> None:
    done = container.run(
        sys.executable, "-c",
        f"import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').{symbol}(None, None, None))",
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"{error}\n", "")


def test_everything_that_is_refused_answers_so(newest: ProgramContainer) -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    refused = {
        symbol: NO_PERMISSION if "NO_PERMISSION" in entry.reason else NOT_SUPPORTED
        for symbol, entry in lines.items()
        if entry.kind == "refused" and symbol.startswith("nvml")
    }
    said = nvml(
        newest,
        "import ctypes",
        "lib = ctypes.CDLL('libnvidia-ml.so.1')",
        f"say({{name: getattr(lib, name)(None, None, None, None) for name in {list(refused)!r}}})",
    )
    assert len(refused) > 100
    assert said == [refused]


def test_a_refusal_reaches_every_caller(container: ProgramContainer) -> None:
    container.env["GPUSHARE_LOG"] = "debug"
    done = container.run(
        sys.executable, "-c",
        "import ctypes; ctypes.CDLL('libnvidia-ml.so.1').nvmlDeviceSetComputeMode(None, 3)",
    )  # fmt: skip
    assert done.stderr == (
        "gpushare: nvmlDeviceSetComputeMode is refused: changes the card for all tenants\n"
    )


def test_a_thread_may_bind_itself(container: ProgramContainer) -> None:
    done = container.run(
        sys.executable, "-c",
        "import ctypes; print(ctypes.CDLL('libnvidia-ml.so.1').nvmlDeviceSetCpuAffinity(None))",
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("0\n", "nvmlDeviceSetCpuAffinity\n")


def test_nothing_is_answered_before_the_pages_are_open(container: ProgramContainer) -> None:
    done = container.run(
        sys.executable, "-c",
        "import ctypes, os; lib = ctypes.CDLL('libnvidia-ml.so.1');"
        "stats = (ctypes.c_ulonglong * 8)();"
        f"print(lib.nvmlDeviceGetAccountingStats(None, {os.getpid()}, stats), stats[1])",
    )  # fmt: skip
    assert done.stdout == f"{NOT_FOUND} 0\n"
