# SPDX-License-Identifier: Apache-2.0
"""Builds LUPINE, an engine for a GPU of another machine, which tests/system/remote runs.

Its archive is not in this repository: the variable GPUSHARE_TEST_ENGINE names the file. The
headers, and what FindCUDAToolkit of CMake looks for, come from wheels (group `engine` of
pyproject.toml). Only the three files that the tests use stay, and of libraries they need no more
than the C library, as an image has it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import apply

VARIABLE = "GPUSHARE_TEST_ENGINE"
SHA256 = "b74ca5d2b42fddee3647022f056a002c0ae002e1a53838d2809c1d8070bbe5d3"
CLIENT = ("libcuda.so.1", "libnvidia-ml.so.1")
SERVER = "lupine_driver_server"
#: What keeps Debian's libnghttp2.a out of a shared library is one function that prints to stderr.
#: None calls it: the symbol gets another name there, and any value.
UNUSED = "nghttp2_stderr"
FLAGS = f"-static-libgcc -static-libstdc++ -Wl,--defsym={UNUSED}=_end"
MISSING = f"no remote engine is tested: {VARIABLE} names no archive for ./dev setup --all"
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def place(build: Path) -> Path:
    """Return the folder of what was built."""
    return build / f"engine-{SHA256[:12]}"


def make(build: Path, log: Path) -> None:
    """Build it, unless that is done, or no archive is named; StepError if that fails."""
    if place(build).exists():
        return
    if not (name := os.environ.get(VARIABLE)):
        apply.say(MISSING)
        return
    archive = Path(name)
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise apply.StepError(f"{VARIABLE}={name}: its SHA-256 is not {SHA256}")
    apply.say(f"a remote engine for tests, from {archive.name} (takes some minutes, once)")
    with tempfile.TemporaryDirectory(prefix=".engine-", dir=build) as folder:
        source, made, kept = (Path(folder, part) for part in ("source", "made", "kept"))
        with tarfile.open(archive) as files:
            files.extractall(source)  # noqa: S202 - its digest is pinned
        toolkit = Path(folder, "wheels/nvidia/cu13")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")
        group = ("--group", f"{PROJECT}:engine", "--target", f"{folder}/wheels")
        apply.run((*pip, *group), log)
        (toolkit / "include/cccl").mkdir(exist_ok=True)  # of another wheel, and not used
        nghttp2 = Path(folder, "libnghttp2.a")
        rename = ("objcopy", "--redefine-sym", f"stderr={UNUSED}")
        apply.run((*rename, _static_nghttp2(), str(nghttp2)), log)
        options = {
            "BUILD_TESTING": "OFF",
            "LUPINE_BUILD_HIP": "OFF",
            "CMAKE_SKIP_RPATH": "ON",  # of the folder of the simulator, past the interposer
            "CUDAToolkit_ROOT": toolkit,
            "CUDA_CUDART": toolkit / "lib/libcudart.so.13",
            "CUDA_cuda_driver_LIBRARY": build / "cmake/lib/simulator/libcuda.so.1",
            "CMAKE_DISABLE_FIND_PACKAGE_OpenSSL": "ON",
            "NGHTTP2_LIBRARY": nghttp2,
            "CMAKE_SHARED_LINKER_FLAGS": f"-Wl,-Bstatic {FLAGS}",
            "CMAKE_EXE_LINKER_FLAGS": FLAGS,
            "CMAKE_CXX_STANDARD_LIBRARIES": "-Wl,-Bdynamic",
        }
        words = [f"-D{key}={value}" for key, value in options.items()]
        apply.run(("cmake", "-G", "Ninja", "-S", str(source), "-B", str(made), *words), log)
        apply.run(("ninja", "-C", str(made)), log)
        kept.mkdir()
        for file in (*CLIENT, SERVER):
            (made / file).resolve().rename(kept / file)
        kept.rename(place(build))


def _static_nghttp2() -> str:
    asked = ("gcc", "-print-file-name=libnghttp2.a")
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
