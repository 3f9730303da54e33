# SPDX-License-Identifier: Apache-2.0
"""What contexts take of the card, by how modules are loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gpushare.host.driver import files
from gpushare.verify.runners import ProbeFailed

from .driver import DriverPaths
from .report import NotMeasured, ReportRow
from .scale import Weighed, taken

MODES = ("LAZY", "EAGER")
RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")


def contexts(driver: DriverPaths) -> Iterator[ReportRow]:
    """What a context takes by how modules are loaded, a second one, and the runtime library's."""
    for mode in MODES:
        yield from _context(driver, mode)
    name = "a second context"
    try:
        with Weighed(driver) as process:
            process.context()
            yield from process.step(f"{name} of the same process", "second_context")
    except (NotMeasured, ProbeFailed) as error:
        yield ReportRow(name, missing=str(error))
    yield from _runtime(driver)


def _context(driver: DriverPaths, mode: str) -> Iterator[ReportRow]:
    name = f"CUDA_MODULE_LOADING={mode}"
    try:
        with Weighed(driver, CUDA_MODULE_LOADING=mode) as process:
            grown = process.context()
            yield taken(f"{name}: a context", grown, _mode(process))
            yield from process.step(f"{name}: 8 bytes allocated and zeroed", "scratch")
            yield from process.step(f"{name}: a kernel's module loaded", "load flag")
            yield from process.step(f"{name}: its kernel found", "find")
            yield from process.step(f"{name}: launched", "launch 1 result 1")
            yield from process.step(f"{name}: unloaded", "unload")
    except (NotMeasured, ProbeFailed) as error:
        yield ReportRow(name, missing=str(error))


def _mode(process: Weighed) -> str:
    try:
        return f"the driver says {process.process.ask('loading')['mode']}"
    except NotMeasured:
        return "the driver does not say which it is"


def _runtime(driver: DriverPaths) -> Iterator[ReportRow]:
    """Whether cudart's context is the primary one, and takes what the driver's own takes."""
    name = "cudart's first call"
    library = runtime()
    if not library:
        yield ReportRow(name, missing="no libcudart is on this machine")
        return
    try:
        with Weighed(driver, library) as process:
            yield from process.step(name, "runtime", library)
            yield from process.step("then the driver's primary context", "context")
    except (NotMeasured, ProbeFailed) as error:
        yield ReportRow(name, missing=str(error))


def runtime() -> str:
    """Return a libcudart's path, the loader's or a Python package's; "" where there is none."""
    for name in RUNTIMES:
        for path in files.library_paths(name):
            return str(path)
    for folder in map(Path, sys.path):
        for pattern in ("nvidia/*/lib/libcudart.so.1[1-9]*", "torch/lib/libcudart*.so*"):
            for path in sorted(folder.glob(pattern)) if folder.is_dir() else ():
                return str(path)
    return ""
