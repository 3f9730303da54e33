# SPDX-License-Identifier: Apache-2.0
"""`./dev gpu` on the simulated driver: what it measures there holds, and nothing is left out."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file
from tests import compiled
from tools.gpu import __main__ as gpu
from tools.gpu import programs
from tools.gpu.__main__ import CLEAR_UP_SECONDS, PARTS, Part
from tools.gpu.applications import CUDART
from tools.gpu.report import GpuReport, ReportRow

ROOT = Path(__file__).resolve().parents[2]
#: What measures times for many seconds, or takes more of the host than a machine of the tests has.
LEFT_OUT = {
    "waits",
    "shares",
    "training",
}
#: The name of the machine, which is in no report: reports are published.
HOST = "a-machine-of-somebody"
#: What a machine of the tests need not have, or a driver in a folder has not: PyTorch, nvidia-smi.
MAY_BE_MISSING = {"smi", "torch", "pytorch", "evict", "applications"}


PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
FREE = 3 << 30  # bytes: less than a quarter of a T4
#: What can take a card away from everybody: its settings, and managed memory for which it has no
#: room. Of sets of events a program has its own.
TRACE = "GPUSHARE_SIM_TRACE"
HARM = re.compile(
    r"nvml(?!EventSet)\w*(?:Set|Reset|Clear|Create|Destroy|Modify|Remove|Freeze)\w* is"
    r"|cuCtxResetPersistingL2Cache|asks for more than is free"
)


def harm(trace: Path) -> list[str]:
    """Return what a run asked of the simulated driver that may harm others."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return [line for line in lines if HARM.search(line)]


#: Leaves so many bytes of a card free, until the end of the input.
HOLDER = """
import sys
from tools.gpu.cuda import Cuda
cuda = Cuda(sys.argv[1])
cuda.use_context()
cuda.allocate(cuda.free_bytes - int(sys.argv[2]))
print("holds", flush=True)
sys.stdin.read()
"""
#: `python -m tools.gpu` with the paths of managed memory alone.
MANAGED = """
import sys
from tools.gpu import __main__, coverage
coverage.ALLOCATION_PATHS = [path for path in coverage.ALLOCATION_PATHS if "managed" in path]
assert coverage.ALLOCATION_PATHS
sys.exit(__main__.main())
"""
#: What is harmful, so that it is seen to be seen.
HARMFUL = """
import ctypes, sys
from tools.gpu.cuda import Cuda
cuda = Cuda(sys.argv[1] + "/libcuda.so.1")
cuda.use_context()
at, size = ctypes.c_uint64(), ctypes.c_size_t(cuda.total_bytes)
cuda.call("cuMemAllocManaged", ctypes.byref(at), size, 1)
ctypes.CDLL(sys.argv[1] + "/libnvidia-ml.so.1").nvmlDeviceSetPersistenceMode(None, 1)
"""


def test_no_more_managed_memory_is_asked_for_than_others_leave(tmp_path: Path) -> None:
    cards, libraries = simulator.create(tmp_path / "cards", "t4"), str(device_file.libraries())
    trace, out = tmp_path / "trace", str(tmp_path / "report.md")
    env = {"PATH": PATH, **cards.env, TRACE: str(trace)}
    hold = [sys.executable, "-c", HOLDER, f"{libraries}/libcuda.so.1", str(FREE)]
    measure = [sys.executable, "-c", MANAGED, "coverage", "--driver", libraries, "--out", out]
    with subprocess.Popen(
        hold, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"holds\n"
        done = subprocess.run(
            measure, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        holder.communicate()
    assert done.returncode == 0, done.stdout
    assert not harm(trace)
    subprocess.run([sys.executable, "-c", HARMFUL, libraries], cwd=ROOT, env=env, check=True)
    assert [line.split()[2] for line in harm(trace)] == [
        "cuMemAllocManaged", "nvmlDeviceSetPersistenceMode",
    ]  # fmt: skip


def test_nvidia_smi_is_asked_and_sets_nothing(tmp_path: Path) -> None:
    cards, asked, smi = (
        simulator.create(tmp_path / "cards"),
        tmp_path / "asked",
        tmp_path / "nvidia-smi",
    )
    smi.write_text(f'#!/bin/sh\necho "$*" >>{asked}\necho 4096, 300, 3796\n')
    smi.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{PATH}", "LD_LIBRARY_PATH": str(device_file.libraries())}
    measure = [sys.executable, "-m", "tools.gpu", "smi", "--out", str(tmp_path / "report.md")]
    subprocess.run(measure, cwd=ROOT, env={**path, **cards.env}, capture_output=True, check=False)
    lines = asked.read_text().splitlines()
    assert "" in lines
    assert all(not line or line.startswith(("--query-", "-q ", "pmon ")) for line in lines), lines


#: As much of CuPy as the section uses, on the driver.
CUPY = """
import ctypes, types
_driver = ctypes.CDLL("libcuda.so.1")
_context = ctypes.c_void_p()
assert _driver.cuInit(0) == 0 and _driver.cuDevicePrimaryCtxRetain(ctypes.byref(_context), 0) == 0
_driver.cuCtxSetCurrent(_context)
def memGetInfo():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value
def empty(size, dtype):
    at = ctypes.c_void_p()
    if code := _driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size)):
        raise MemoryError(f"Out of memory: {code}")
def arange(count, dtype):
    class Ramp:
        def __mul__(self, factor):
            return types.SimpleNamespace(sum=lambda: factor * (count - 1) * count / 2)
    return Ramp()
cuda = types.SimpleNamespace(runtime=types.SimpleNamespace(memGetInfo=memGetInfo))
"""


#: As much of llama.cpp, and of ComfyUI by another name, as the section uses, on the same driver.
PROGRAM = """#!{python}
import sys
sys.path.insert(0, {folder!r})
from cupy import empty, memGetInfo
free, total = (size >> 20 for size in memGetInfo())
if "--list-devices" in sys.argv:
    print("Available devices:")
    print(f"  CUDA0: NVIDIA H200 ({{total}} MiB, {{free}} MiB free)")
elif "-c" in sys.argv:
    try:
        empty(1 << 60, "uint8")
    except MemoryError:
        sys.exit("llama_kv_cache: cudaMalloc failed: out of memory")
elif "--quick-test-for-ci" in sys.argv:
    print(f"Total VRAM {{total}} MB, total RAM 1 MB", "Device: cuda:0 NVIDIA H200", sep=chr(10))
else:
    print("abcd")
"""


def claims(name: str) -> tuple[str, ...]:
    same, refused = "the result is that without gpushare", "out of memory at the quota"
    return f"{name} starts", f"{name}: {same}", f"{name} sees its quota", f"{name}: {refused}"


Rows = dict[str, dict[str, Any]]


def measured(tmp_path: Path, *python: str, parts: Iterable[str]) -> dict[str, Rows]:
    """Measure `parts` where the programs in a folder are found; return their rows by name."""
    cards, out = simulator.create(tmp_path / "cards", cards=2), tmp_path / "report.md"
    driver = ["--driver", str(device_file.libraries()), "--cdi", str(cards.cdi)]
    trace = tmp_path / "trace"
    named = f'echo {HOST} >/proc/sys/kernel/hostname && exec "$@"'
    done = subprocess.run(
        [
            *("unshare", "--uts", "sh", "-c", named, "sh"),
            *(sys.executable, *python, *parts, *driver, "--out", str(out)),
        ],
        cwd=ROOT,
        env={
            "PATH": f"{tmp_path}:{PATH}",
            "PYTHONPATH": str(tmp_path),
            TRACE: str(trace),
            "LLAMA_MODEL": "a.gguf",
            "COMFYUI": str(tmp_path),
            **cards.env,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not harm(trace)
    assert HOST not in out.read_text() + out.with_suffix(".json").read_text()
    sections = json.loads(out.with_suffix(".json").read_text())["sections"]
    assert [section["title"] for section in sections] == [PARTS[part].title for part in parts]
    return {
        part: {row["name"]: row for row in section["rows"]}
        for part, section in zip(parts, sections, strict=True)
    }


def test_it_runs_through_on_the_simulated_driver(tmp_path: Path) -> None:
    """All that is claimed holds there; applications are judged by their quota."""
    (tmp_path / "cupy.py").write_text(CUPY)
    for program in ("llama-cli", "main.py"):
        text = PROGRAM.format(python=sys.executable, folder=str(tmp_path))
        (tmp_path / program).write_text(text)
        (tmp_path / program).chmod(0o755)
    parts = [part for part in PARTS if part not in LEFT_OUT]
    found = measured(tmp_path, "-m", "tools.gpu", parts=parts)
    for part, rows in found.items():
        missing = [name for name, row in rows.items() if row["missing"]]
        # The simulated MPS server has no limits.
        known = "the rest of containers"
        assert part in MAY_BE_MISSING or all(name.startswith(known) for name in missing), missing
    assert [name for name, row in found["evict"].items() if row["missing"]] == ["PyTorch"]
    rows = found["applications"]
    expected = (*claims("CuPy"), *claims("llama.cpp"), *claims("ComfyUI")[:3])
    assert {name for name, row in rows.items() if row["held"]} == {*expected}
    whys = {name: row["missing"] for name, row in rows.items() if row["missing"]}
    assert {"vLLM", "SGLang", "NCCL"} <= whys.keys()
    del whys[CUDART]
    assert all(why.startswith("not installed: ") for why in whys.values()), whys


#: `python -m tools.gpu` with the programs in the folder of the first argument.
MEASURE = """
import pathlib, sys
from tools.gpu import __main__, programs
programs.MADE = pathlib.Path(sys.argv.pop(1))
sys.exit(__main__.main())
"""


def test_a_program_with_its_own_runtime_library_is_judged_by_its_quota(tmp_path: Path) -> None:
    runtime = Path(__file__).with_name("runtime_library.c")
    driver = device_file.libraries() / "libcuda.so.1"
    program = tmp_path / programs.file_name("cudart")
    compiled.compile_c(program, ROOT / "tools/gpu/cudart.c", runtime, driver)
    found = measured(tmp_path, "-c", MEASURE, str(tmp_path), parts=["applications"])
    assert {name for name, row in found["applications"].items() if row["held"]} == {*claims(CUDART)}


def test_a_section_that_goes_on_for_ever_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured before is written by then, and would be there if all of it was killed."""
    report, out = GpuReport({"model": "x", "date": "y"}, io.StringIO()), tmp_path / "cut.md"

    def sections() -> list[Any]:
        return list(json.loads(out.with_suffix(".json").read_text())["sections"])

    def endless(_driver: object) -> Iterator[ReportRow]:
        yield ReportRow("written", len(sections()))
        while True:
            signal.pause()

    parts = {"none": Part("None", lambda _: []), "a": Part("A", endless), "b": Part("B", endless)}
    monkeypatch.setattr(gpu, "PARTS", parts)
    driver: Any = None
    gpu.measure(driver, [*parts], report, out, CLEAR_UP_SECONDS + 0.2)
    _, a, b = sections()
    assert [(row["value"], bool(row["missing"])) for row in a["rows"]] == [(1, False), (None, True)]
    assert [row["missing"] for row in b["rows"]] == [
        f"{CLEAR_UP_SECONDS + 0.2:g} seconds had passed"
    ]
