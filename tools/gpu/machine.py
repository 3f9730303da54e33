# SPDX-License-Identifier: Apache-2.0
"""What kind of machine this is, as far as it decides how gpushare finds the driver and a tenant."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from gpushare.host.driver import files

from .driver import DriverPaths, module_version
from .process import ask, child, environment
from .report import ReportRow

CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
CAP_SYS_ADMIN = 21
PROGRAMS = ("nvidia-smi", "nvidia-ctk", "runc", "crun", "docker", "containerd", "cc", "ptxas")


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    yield ReportRow(
        "driver", driver.version, note=f"kernel module {module_version() or 'does not tell'}"
    )
    yield ReportRow("CUDA", driver.cuda_version_text)
    yield ReportRow("card", driver.model, note=f"{driver.multiprocessors} multiprocessors")
    yield ReportRow("cuDeviceTotalMem", driver.total_bytes, "bytes")
    for name, library in (("libcuda.so.1", driver.cuda), ("libnvidia-ml.so.1", driver.nvml)):
        yield ReportRow(f"{name} is", str(library), note=_others(library, driver.places[name]))
        known = ", ".join(map(str, files.library_paths(name)))
        yield ReportRow(f"{name} without LD_LIBRARY_PATH", known or "not found")
    yield ReportRow("/usr/local/nvidia", "yes" if Path("/usr/local/nvidia").is_dir() else "no")
    yield from kernel()


def kernel() -> Iterator[ReportRow]:
    release = re.match(r"[\d.]+", platform.release())
    yield ReportRow(
        "kernel", release[0].rstrip(".") if release else "unknown", note=platform.machine()
    )
    yield ReportRow("in a container", container() or "no sign of one")
    yield ReportRow(
        "root", "yes" if os.geteuid() == 0 else "no", note=f"CAP_SYS_ADMIN {_sys_admin()}"
    )
    yield ReportRow(
        "cgroup v2", "yes" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "no"
    )
    nodes = sorted(path.name for path in Path("/dev").glob("nvidia*"))
    yield ReportRow("device nodes", len(nodes), detail=tuple(nodes))
    present = [name for name in PROGRAMS if shutil.which(name)]
    absent = [name for name in PROGRAMS if name not in present]
    yield ReportRow(
        "programs", ", ".join(present) or "none", note=f"not there: {', '.join(absent)}"
    )


def container() -> str:
    """Return what says that this is a container, "" where nothing does."""
    marks = [mark for mark in CONTAINER_MARKS if Path(mark).exists()]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[4] == "/" and rest.split()[0] in {"overlay", "9p", "fuse"}:
            marks.append(f"/ is {rest.split()[0]}")
    return ", ".join(marks)


def _others(library: Path, places: list[Path]) -> str:
    others = [str(path) for path in places if path != library]
    return f"also {', '.join(others)}" if others else ""


def _sys_admin() -> str:
    match = re.search(
        r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return "yes" if match and int(match[1], 16) >> CAP_SYS_ADMIN & 1 else "no"


def features(driver: DriverPaths) -> Iterator[ReportRow]:
    """What the driver can do that decides how a quota is held: its limits, MIG, its lists."""
    cards = ask(child("features"), environment(driver.env))["cards"]
    yield ReportRow("NVML: cards", len(cards))
    for number, card in enumerate(cards):
        for name, said in card.items():
            yield ReportRow(f"card {number}: {name}", said)
