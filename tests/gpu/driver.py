# SPDX-License-Identifier: Apache-2.0
"""The machine's NVIDIA driver: where its libraries lie, and what it says of its first card."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from gpushare import loader
from gpushare.driver import CUDA, NVML

from .process import ask, child, environment
from .report import NotMeasured

LIBRARIES = (CUDA, NVML)
#: Where a driver's libraries are put and a loader may not look: providers that mount the driver in
#: one folder, WSL.
FOLDERS = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib")
KERNEL_MODULE = Path("/proc/driver/nvidia/version")
MODULE_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


class NoDriver(RuntimeError):
    """This machine has no NVIDIA driver that works; the text says what was found instead."""


@dataclass(frozen=True)
class Driver:
    """`places` maps a library's name to every file by which a program may reach it.

    `named` is the folder that the caller gave (then `env` leads programs to it), None for the one
    that the loader finds by itself.
    """

    cuda: Path
    nvml: Path
    places: dict[str, list[Path]]
    model: str
    uuid: str
    version: str
    cuda_version: int
    total_bytes: int
    multiprocessors: int
    named: Path | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def cuda_version_text(self) -> str:
        return f"{self.cuda_version // 1000}.{self.cuda_version % 1000 // 10}"


def find(named: Path | None = None) -> Driver:
    """Return the driver in folder `named`, or the loader's; NoDriver where there is none."""
    places = {name: ([named / name] if named else found(name)) for name in LIBRARIES}
    for name, files in places.items():
        if not files or not files[0].exists():
            raise NoDriver(f"no {name}{f' in {named}' if named else ''}")
    env = {"LD_LIBRARY_PATH": str(named)} if named else {}
    cuda, nvml = (_loaded(name, places, named) for name in LIBRARIES)
    try:
        facts = ask(child("facts", str(cuda), str(nvml)), environment(env))
    except NotMeasured as error:
        raise NoDriver(f"{cuda} does not work: {error}") from error
    if "error" in facts:
        raise NoDriver(f"{cuda} does not work: {facts['error']}")
    return Driver(
        cuda=cuda,
        nvml=nvml,
        places=places,
        model=facts["model"],
        uuid=facts["uuid"],
        version=facts["driver_version"],
        cuda_version=facts["cuda_version"],
        total_bytes=facts["total_bytes"],
        multiprocessors=facts["multiprocessors"],
        named=named,
        env=env,
    )


def found(name: str) -> list[Path]:
    """Return each file of that name that a program may load, the loader's own order first."""
    known = loader.paths(name, search=os.environ.get("LD_LIBRARY_PATH", ""))
    others = [(Path(folder) / name) for folder in FOLDERS]
    return list(dict.fromkeys([*known, *(path.resolve() for path in others if path.is_file())]))


def module_version() -> str:
    """Return the version of the loaded kernel module, "" where the kernel does not tell."""
    try:
        match = MODULE_VERSION.search(KERNEL_MODULE.read_text())
    except OSError:
        return ""
    return match[1] if match else ""


def _loaded(name: str, places: dict[str, list[Path]], named: Path | None) -> Path:
    """Return the file that a program gets by that name: the loader's word beats our list."""
    if named:
        return places[name][0]
    mapped = ask(child("mapped", name), environment())["mapped"]
    return Path(next(iter(mapped))) if mapped else places[name][0]
