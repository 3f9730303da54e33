# SPDX-License-Identifier: Apache-2.0
"""The machine's NVIDIA driver: where its libraries lie, and what it says of its first card."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gpushare.host.driver import CUDA, NVML
from gpushare.host.driver.files import library_paths

from .process import ask, child, environment
from .report import NotMeasured

LIBRARIES = (CUDA, NVML)
#: Where a driver's libraries are put and a loader may not look: providers that mount the driver in
#: one folder, WSL.
FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
MODULE_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


class NoWorkingDriver(RuntimeError):
    """This machine has no NVIDIA driver that works; the text says what was found instead."""


@dataclass(frozen=True)
class DriverPaths:
    """`places` maps a library's name to every file by which a program may reach it.

    `named` is the folder that the caller gave, None for the driver of this machine; `env` leads
    programs to it where the loader would not. `cdi` is a spec that the caller gave.
    """

    cuda: Path
    nvml: Path
    places: dict[str, list[Path]]
    model: str
    uuid: str
    version: str
    cuda_version: int
    total_bytes: int
    free_bytes: int
    multiprocessors: int
    named: Path | None = None
    env: dict[str, str] = field(default_factory=dict)
    cdi: Path | None = None

    @property
    def cuda_version_text(self) -> str:
        return f"{self.cuda_version // 1000}.{self.cuda_version % 1000 // 10}"


def find(named: Path | None = None, cdi: Path | None = None) -> DriverPaths:
    """Return the driver in folder `named`, or the loader's; NoWorkingDriver where there is none."""
    places = {name: ([(named / name).absolute()] if named else found(name)) for name in LIBRARIES}
    for name, files in places.items():
        if not files or not files[0].exists():
            raise NoWorkingDriver(f"no {name}{f' in {named}' if named else ''}")
    cuda, nvml = (_loaded(name, places[name], named) for name in LIBRARIES)
    env = {} if cuda and nvml else {"LD_LIBRARY_PATH": _search(places)}
    cuda, nvml = cuda or places[CUDA][0], nvml or places[NVML][0]
    try:
        facts = ask(child("facts", str(cuda)), environment(env))
    except NotMeasured as error:
        raise NoWorkingDriver(f"{cuda} does not work: {error}") from error
    if "error" in facts:
        raise NoWorkingDriver(f"{cuda} does not work: {facts['error']}")
    return DriverPaths(cuda, nvml, places, named=named, env=env, cdi=cdi, **facts)


def found(name: str) -> list[Path]:
    """Return each file of that name that a program may load, the loader's own order first."""
    known = library_paths(name, search=os.environ.get("LD_LIBRARY_PATH", ""))
    others = [(Path(folder) / name) for folder in FOLDERS]
    return list(dict.fromkeys([*known, *(path.resolve() for path in others if path.is_file())]))


def module_version() -> str:
    """Return the version of the loaded kernel module, "" if the kernel does not report it."""
    try:
        match = MODULE_VERSION.search(KERNEL_MODULE.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def _loaded(name: str, places: list[Path], named: Path | None) -> Path | None:
    """Return the file that a program gets by that name, None where it gets none or another."""
    mapped = ask(child("mapped", name), environment())["mapped"]
    found_by_loader = next((Path(path) for path in mapped), None)
    return found_by_loader if named is None or found_by_loader in places else None


def _search(places: dict[str, list[Path]]) -> str:
    """Return the LD_LIBRARY_PATH with which the first of each of `places` is found."""
    folders = dict.fromkeys(str(files[0].absolute().parent) for files in places.values())
    known = os.environ.get("LD_LIBRARY_PATH")
    return ":".join([*folders, *([known] if known else [])])
