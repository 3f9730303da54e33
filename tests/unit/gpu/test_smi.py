# SPDX-License-Identifier: Apache-2.0
"""nvidia-smi as a tenant: what is read from its output and from the loader's log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.gpu import filtered, programs, smi
from tools.gpu.driver import DriverPaths
from tools.gpu.report import NotMeasured

#: Does what is measured of nvidia-smi, with NVIDIA's own Python bindings.
STAND_IN = """#!{python}
import sys
import pynvml
LISTED = []
LISTINGS = ("-q", "pmon", "--query-compute-apps=pid,used_memory")
pynvml.nvmlInit()
cards = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
if len(sys.argv) == 1:
    print("| NVIDIA-SMI  Driver Version:", pynvml.nvmlSystemGetDriverVersion(), "|")
for card in cards:
    memory = pynvml.nvmlDeviceGetMemoryInfo(card)
    total, used, free = (size >> 20 for size in (memory.total, memory.used, memory.free))
    if any(word in sys.argv[1:2] for word in LISTINGS):
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card) + LISTED:
            print(getattr(process, "pid", process), f"{{used}}MiB")
    else:
        queried = f"{{total}}, {{used}}, {{free}}"
        print(queried if len(sys.argv) > 1 else f"| {{used}}MiB / {{total}}MiB |")
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(smi, "find", lambda _: str(program))
    return program


def test_its_memory_is_read_in_bytes() -> None:
    assert smi.memory("4096, 525, 3571\n143771, 0, 143771\n") == [
        (4096 << 20, 525 << 20, 3571 << 20),
        (143771 << 20, 0, 143771 << 20),
    ]


def test_a_name_is_where_the_loader_looked_last() -> None:
    log = (
        "  71: symbol=nvmlInit_v2;  lookup in file=/opt/gpushare/lib/libnvidia-ml.so.1 [0]\n"
        "  71: symbol=nvmlNew;  lookup in file=/opt/gpushare/lib/libnvidia-ml.so.1 [0]\n"
        "  71: symbol=malloc;  lookup in file=/lib/libc.so.6 [0]\n"
        "  71: symbol=nvmlNew;  lookup in file=/opt/gpushare/driver/libnvidia-ml.so.1 [0]\n"
    )
    assert smi.names(log) == {
        "nvmlInit_v2": "/opt/gpushare/lib/libnvidia-ml.so.1",
        "nvmlNew": "/opt/gpushare/driver/libnvidia-ml.so.1",
    }


def test_a_driver_in_a_folder_has_no_nvidia_smi(driver: DriverPaths) -> None:
    with pytest.raises(NotMeasured, match="belongs to the loader's driver"):
        smi.find(driver)


@pytest.mark.usefixtures("stand_in", "namespaces")
def test_a_program_like_it_sees_the_slice_and_is_followed_by_name(driver: DriverPaths) -> None:
    rows = [*smi.rows(driver)]
    assert [row for row in rows if row.held is False or row.missing] == []
    by_name = {row.name: row for row in rows}
    assert "nvmlInitWithFlags" in by_name["NVML names it looks up"].detail
    assert by_name["of them not in our table"].value == 0
    assert by_name["tables of undocumented functions asked for"].value == 0
    assert by_name["exported lists of processes asked for"].value == 0
    assert by_name["nvidia-smi -q: shows the tenant's process"].value == "yes"


@pytest.mark.usefixtures("namespaces")
def test_a_visible_process_of_others_fails_the_claim(driver: DriverPaths, stand_in: Path) -> None:
    """A driver whose lists bypass the interposer, for example by a table of its own."""
    with filtered.tenancy(driver) as tenant:
        text = stand_in.read_text()
        every = "[*map(int, filter(str.isdigit, __import__('os').listdir('/proc')))]"
        stand_in.write_text(text.replace("LISTED = []", f"LISTED = {every}"))
        rows = [*smi.processes(driver, str(stand_in), tenant, own=os.getpid())]
    lost = [row.name for row in rows if row.held is False]
    assert "nvidia-smi -q: shows no process of others" in lost
    shown = next(row for row in rows if row.name == "nvidia-smi -q: shows the tenant's process")
    assert shown.value == "yes"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("|    0   N/A  N/A      4711      C   python      525MiB |", {0, 4711}),
        ("4711, 525 MiB", {4711}),
        ("Driver Version: 580.159.04", set()),
        ("|  12.5 / 3C-4711 |", set()),
    ],
)
def test_a_pid_is_a_number_on_its_own(text: str, expected: set[int]) -> None:
    assert smi.pids(text) == expected


ASKING = r"""
#include <dlfcn.h>
#define LIST "nvmlDeviceGetComputeRunningProcesses_v3"
int main(int argc, char **argv)
{
    int (*ask)(const void **, const void *);
    const void *table;
    *(void **)&ask = dlsym(dlopen(argv[argc - 1], RTLD_NOW), "nvmlInternalGetExportTable");
    ask(&table, 0);
    int (*list)(void *, unsigned *, void *);
    unsigned count = 0;
    *(void **)&list = dlsym(dlopen(argv[argc - 1], RTLD_NOW), LIST);
    list(0, &count, 0);
    return ask(&table, "0123456789abcdef") - 42;
}
"""
ANSWERING = """
int nvmlInternalGetExportTable(const void **table, const void *id)
{
    *table = id;
    return id ? 42 : 1;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes)
{
    *count = 3;
    return device || processes;
}
"""


def test_the_recorder_records_each_requested_table_and_changes_nothing(tmp_path: Path) -> None:
    asking, answering = (tmp_path / name for name in ("asking", "answering"))
    for made, source, *flags in (
        (asking, ASKING, "-ldl"),
        (answering, ANSWERING, "-shared", "-fPIC"),
    ):
        file = made.with_suffix(".c")
        file.write_text(source)
        subprocess.run(["gcc", "-o", made, file, *flags], check=True)
    log = tmp_path / "log"
    env = {"LD_AUDIT": str(programs.program("recorder")), "GPU_RECORDER_LOG": str(log)}
    subprocess.run([asking, answering], env=env, check=True)
    assert log.read_text().splitlines() == [
        "nvmlInternalGetExportTable unreadable",
        "nvmlDeviceGetComputeRunningProcesses_v3 count 3",
        f"nvmlInternalGetExportTable {b'0123456789abcdef'.hex()}",
    ]
