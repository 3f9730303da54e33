# SPDX-License-Identifier: Apache-2.0
"""What NVML shows in a container: its slice of the granted cards, and its own processes."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import byref, c_uint, c_ulonglong, c_void_p, cast
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare import abi, simulator
from libhook.table import coverage

from .client import MIB
from .conftest import FAKE_UUIDS, FakeContainer, SimulatedContainer
from .container import ProgramContainer
from .rank import Rank

NO_DRIVER_HAS = {
    *("nvmlDeviceCcuGetStreamState", "nvmlDeviceCcuSetStreamState"),
    *("nvmlDeviceGetPowerMode", "nvmlDeviceGetSupportedPowerModes", "nvmlDeviceSetPowerMode"),
}
SAMPLED_NS = 250_000_000  # more than a sample of how busy a process is
OTHERS = 1  # the pid of another tenant's process, as fake_nvml.c says
UNINITIALIZED, INVALID, NOT_SUPPORTED, NO_PERMISSION = 1, 2, 3, 4
NOT_FOUND, INSUFFICIENT_SIZE = 6, 7


def nvml(name: str, *arguments: object) -> int:
    """Call a function of the library in the container, and return the result."""
    path = Path(os.environ["LIBCUDA"]).with_name("libnvidia-ml.so.1")
    return int(getattr(ctypes.CDLL(str(path)), name)(*arguments))


def cards() -> list[Any]:
    nvml("nvmlShutdown")  # and the library is there under its name
    pynvml.nvmlInit()
    count = pynvml.nvmlDeviceGetCount()
    return [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]


def error_of(function: Callable[..., object], *arguments: object) -> int:
    """What NVML answered; 0: no error."""
    try:
        function(*arguments)
    except pynvml.NVMLError as error:
        return int(error.value)
    return 0


def memory_of(card: object) -> list[int]:
    """[total, used, free] in MiB, which both forms say."""
    first = pynvml.nvmlDeviceGetMemoryInfo(card)
    second = pynvml.nvmlDeviceGetMemoryInfo(card, version=pynvml.nvmlMemory_v2)
    figures = [first.total, first.used, first.free]
    assert figures == [second.total, second.used, second.free]
    assert second.reserved == 0
    return [figure // MIB for figure in figures]


def processes(card: object) -> dict[int, int]:
    """The PIDs that are listed, with the memory of each in MiB."""
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(card)
    return {each.pid: each.usedGpuMemory // MIB for each in listed}


@contextmanager
def viewer(
    container: ProgramContainer, first: Callable[[], object] = cards
) -> Iterator[Callable[[str], Any]]:
    """Return what evaluates an expression in a process that has NVML."""
    rank = Rank(container, first, globals())
    try:
        yield rank.ask
    finally:
        rank.end()


def test_a_card_is_the_slice_with_its_own_processes(simulated: ProgramContainer) -> None:
    simulated.tenant.set_context_bytes(10 * MIB)
    simulated.tenant.set_u32(0, abi.GRANT_CARD_UTILIZATION_PERCENT, 37)
    holders = [Rank(simulated), Rank(simulated)]
    # Another tenant's, and one that goes around the filter: on the card, not in the list.
    stranger = Rank(simulated.bare())
    own, other = (holder.process.pid for holder in holders)
    holders[0].ask("alloc(20 * MIB)")
    for rank in (*holders, stranger):  # a sample of 0.2 s is of one process
        rank.ask(f"[launch(kernel(), {SAMPLED_NS}), synchronize()]")
    with viewer(simulated) as ask, viewer(simulated.bare()) as bare:
        assert ask("memory_of(cards()[0])") == [100, 40, 60]
        simulated.tenant.set_u64(0, abi.GRANT_CARD_LIMIT_BYTES, 150 * MIB)
        assert ask("memory_of(cards()[0])") == [150, 40, 110]  # with what it may burst to
        simulated.tenant.set_memory(25 * MIB)
        assert ask("memory_of(cards()[0])") == [25, 40, 0]
        assert ask("pynvml.nvmlDeviceGetUtilizationRates(cards()[0]).gpu") == 37
        assert ask("processes(cards()[0])") == {str(own): 30, str(other): 10}
        busy = "[each.pid for each in pynvml.nvmlDeviceGetProcessUtilization(cards()[0], 0)]"
        assert (sorted(ask(busy)), len(bare(busy))) == (sorted((own, other)), 3)
        codecs = busy.replace("each.pid", "[each.encUtil, each.decUtil]")
        simulator.fail(simulated.device, encoder_percent=40, decoder_percent=5)
        assert ask(codecs) == [[40, 5], [0, 0]]
        for kind in ("Graphics", "MPSCompute"):
            assert ask(f"pynvml.nvmlDeviceGet{kind}RunningProcesses(cards()[0])") == []
        assert len(bare("processes(cards()[0])")) == 3
        count = "[n := c_uint(0), nvml('nvmlDeviceGetComputeRunningProcesses_v3', cards()[0], {})]"
        assert ask(f"{count.format('byref(n), None')} + [n.value]")[1:] == [INSUFFICIENT_SIZE, 2]
        holders[0].kill()
        assert ask("processes(cards()[0])") == {str(other): 10}
        assert ask("memory_of(cards()[0])") == [25, 10, 15]
    for rank in (*holders, stranger):
        rank.end()


def test_only_allocated_cards_are_visible(simulated_container: SimulatedContainer) -> None:
    """Four cards, of which the container was granted the fourth and the second."""
    container = simulated_container(4, [3, 1])
    container.tenant.set_memory(64 * MIB, card=1)
    with viewer(container) as ask, viewer(container.bare()) as bare:
        every = bare("[pynvml.nvmlDeviceGetUUID(card) for card in cards()]")
        assert ask("[pynvml.nvmlDeviceGetUUID(card) for card in cards()]") == [every[1], every[3]]
        assert ask("[pynvml.nvmlDeviceGetIndex(card) for card in cards()]") == [0, 1]
        # The second of the machine is the container's card 1.
        assert ask("[memory_of(card)[0] for card in cards()]") == [64, 100]
        assert ask("error_of(pynvml.nvmlDeviceGetHandleByIndex, 2)") == INVALID
        names = bare(
            "[c := cards()[0], pynvml.nvmlDeviceGetUUID(c), pynvml.nvmlDeviceGetPciInfo(c).busId,"
            " pynvml.nvmlDeviceGetSerial(c)][1:]"
        )
        for way, name in zip(("UUID", "PciBusId", "Serial"), names, strict=True):
            find = f"error_of(pynvml.nvmlDeviceGetHandleBy{way}, {name!r})"
            assert (ask(find), bare(find)) == (NOT_FOUND, 0)


def test_without_pages_nvml_shows_nothing(simulated: ProgramContainer) -> None:
    simulated.env["GPUSHARE_TENANT_DIR"] = "/nonexistent"
    done = simulated.run(
        sys.executable, "-c",
        "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as e: print(e.value)",
    )  # fmt: skip
    assert done.stdout == "9\n"
    assert done.stderr.startswith("gpushare: no GPU: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture
def holder(fake_container: FakeContainer) -> Iterator[Rank]:
    """A process with 30 of 100 MiB of the second of two cards, whose NVML reports everything."""
    container = fake_container(FAKE_UUIDS[1:], 100 * MIB)
    container.env["FAKE_CUDA_DEVICES"] = "1"
    # The card is at 80 % with 40 % of its memory's bus; the slice's busy time is a half of it.
    container.tenant.set_u32(0, abi.GRANT_CARD_UTILIZATION_PERCENT, 40)
    made = Rank(container)
    made.ask("alloc(30 * MIB)")
    container.env["FAKE_NVML_OWN_PID"] = str(made.process.pid)
    yield made
    made.end()


def in_list(name: str, *where: object) -> list[object]:
    """[how many cards there are where none is asked for, in the list, whether it is ours]"""
    (card,) = cards()
    most, count, found = c_uint(0), c_uint(8), (c_void_p * 8)()
    before = (card, *where) if name.startswith("nvmlDevice") else where
    assert nvml(name, *before, byref(most), None) == nvml(name, *before, byref(count), found) == 0
    return [most.value, count.value, found[0] == cast(card, c_void_p).value]


def accounting(pid: int) -> list[int]:
    """The result and the most memory, by both forms."""
    first, second = (c_ulonglong * 8)(), (c_uint * 16)(pid)
    return [
        nvml("nvmlDeviceGetAccountingStats", cards()[0], pid, first),
        nvml("nvmlDeviceGetAccountingStats_v2", cards()[0], second),
        first[1],
        second[4],
    ]


def samples(kind: int) -> list[list[int]]:
    _, found = pynvml.nvmlDeviceGetSamples(cards()[0], kind, 0)
    return [[one.timeStamp, one.sampleValue.uiVal] for one in found]


def pstates() -> list[int]:
    states = pynvml.c_nvmlGpuDynamicPstatesInfo_t()
    states = pynvml.nvmlDeviceGetDynamicPstatesInfo(cards()[0], states)
    return [states.utilization[i].percentage for i in range(3)]


def protected() -> list[int]:
    found = pynvml.nvmlDeviceGetConfComputeProtectedMemoryUsage(cards()[0])
    return [found.total // MIB, found.used // MIB, found.free // MIB]


def attributes() -> list[int]:
    found = pynvml.nvmlDeviceGetAttributes_v2(cards()[0])
    return [found.memorySizeMB, found.multiprocessorCount]


#: Figures of the slice, over a library that reports the card's: an expression, and its value. {own}
#: is the process.
FIGURES = {
    "in_list('nvmlDeviceGetTopologyNearestGpus', 10)": [2, 1, True],
    "in_list('nvmlSystemGetTopologyGpuSet', 0)": [2, 1, True],
    "in_list('nvmlUnitGetDevices', None)": [2, 1, True],
    "[error_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, cards()[0], n) for n in (0, 1)]": (
        [NOT_FOUND, NOT_FOUND]
    ),
    "accounting({own})": [0, 0, 4096, 4096],
    f"accounting({OTHERS})": [NOT_FOUND, NOT_FOUND, 0, 0],
    "pynvml.nvmlDeviceGetEncoderSessions(cards()[0])": [],
    "[pynvml.nvmlDeviceGetUtilizationRates(cards()[0]).memory, pstates()]": [20, [40, 20, 80]],
    "[samples(pynvml.NVML_GPU_UTILIZATION_SAMPLES)]": [[[102, 40]]],
    "[samples(pynvml.NVML_MEMORY_UTILIZATION_SAMPLES)]": [[[102, 20]]],
    "len(samples(pynvml.NVML_TOTAL_POWER_SAMPLES))": 3,
    "protected()": [100, 30, 70],
    "attributes()": [100, 7],
}


def test_every_figure_is_the_slice_s(holder: Rank) -> None:
    with viewer(holder.container) as ask:
        for expression, value in FIGURES.items():
            assert ask(expression.format(own=holder.process.pid)) == value, expression
        accounted = "pynvml.nvmlDeviceGetAccountingPids(cards()[0])"
        assert ask(accounted) == [holder.process.pid]
        holder.kill()
        assert ask(accounted) == []


def test_nothing_is_answered_before_the_pages_are_open(holder: Rank) -> None:
    with viewer(holder.container, lambda: None) as ask:
        stats = f"nvml('nvmlDeviceGetAccountingStats', None, {holder.process.pid}, (c_int * 16)())"
        assert ask(stats) == NOT_FOUND


def test_everything_that_is_refused_answers_so(newest: ProgramContainer) -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    refused = {
        symbol: NO_PERMISSION if "NO_PERMISSION" in entry.reason else NOT_SUPPORTED
        for symbol, entry in lines.items()
        if entry.kind == "refused" and symbol.startswith("nvml") and symbol not in NO_DRIVER_HAS
    }
    assert len(refused) > 100
    asked = f"{{name: nvml(name, *[None] * 4) for name in {list(refused)!r}}}"
    with viewer(newest) as ask:
        assert ask(asked) == refused
    with viewer(newest, lambda: None) as ask:
        assert ask(asked) == dict.fromkeys(refused, UNINITIALIZED)


def test_a_process_has_the_pid_of_the_container_s_namespace(simulated: ProgramContainer) -> None:
    """In a namespace of its own the first processes have the first numbers."""
    tenant = Path(__file__).with_name("client.py")
    inside = f"""
        mkfifo "$1/ready"
        {{ cat "{tenant}"; echo 'start(); alloc(20 * MIB); open(sys.argv[1] + "/ready", "w")'
           echo 'sys.stdin.read()'; }} > "$1/tenant.py"
        sleep infinity | "$0" "$1/tenant.py" "$1" &
        echo "[$!]"
        cat "$1/ready"
        "$0" -c 'from pynvml import *; nvmlInit(); card = nvmlDeviceGetHandleByIndex(0)
print([one.pid for one in nvmlDeviceGetComputeRunningProcesses(card)])'
    """
    done = simulated.run(
        "unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc",
        "sh", "-c", inside, sys.executable, simulated.tenant.directory,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    own, listed = done.stdout.splitlines()
    assert own == listed, done.stderr
    assert int(own[1:-1]) < 20
