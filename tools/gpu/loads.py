# SPDX-License-Identifier: Apache-2.0
"""What contexts, modules and limits take of the card: libhook/image reads a module's size, and
cuCtxSetLimit is charged by the growth; both are held to what is measured here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from gpushare.host.driver import files
from gpushare.verify.runners import ProbeFailed

from .driver import DriverPaths
from .report import NotMeasured, ReportRow
from .scale import Weighed, measured, taken

MIB = 1 << 20
MODES = ("LAZY", "EAGER")
RAISED = {"heap": 256 * MIB, "fifo": 64 * MIB}
STACK = 16 << 10
RUNTIMES = ("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so")
ARGUMENTS = {"flag": "1 result 1", "heap": "64 result", "print": "0", "deep": "8 result"}


def contexts(driver: DriverPaths) -> Iterator[ReportRow]:
    """What a context takes by how modules are loaded, a second one, and the runtime library's."""
    for mode in MODES:
        yield from _context(driver, mode)
    name = "a second context"
    second = partial(Weighed.step, name=f"{name} of the same process", command="second_context")
    yield from measured(driver, name, second)
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
            yield from process.step(f"{name}: launched", f"launch {ARGUMENTS['flag']}")
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


def modules(driver: DriverPaths) -> Iterator[ReportRow]:
    """What a module with 64 MiB of variables and 16 MiB of values takes, as text and linked."""
    for form in ("ptx", "cubin"):
        for mode in MODES:
            part = partial(_modules, form=form, name=f"{form}, {mode}")
            yield from measured(driver, f"{form}, {mode}", part, CUDA_MODULE_LOADING=mode)


def _modules(process: Weighed, form: str, name: str) -> Iterator[ReportRow]:
    process.process.ask("scratch")
    yield from _loaded(process, "print", form, f"{name}: the first module")
    yield from _loaded(process, "room", form, f"{name}: 80 MiB of variables")


def _loaded(process: Weighed, kernel: str, form: str, name: str) -> Iterator[ReportRow]:
    yield from process.steps(
        (
            (f"{name}: loaded", f"load {kernel} {form}"),
            (f"{name}: its kernel found", "find"),
            (f"{name}: launched", "launch 0"),
            (f"{name}: unloaded", "unload"),
        )
    )


def limits(driver: DriverPaths) -> Iterator[ReportRow]:
    """When a raised limit takes memory, and how much."""
    for limit in RAISED:
        yield from measured(driver, f"the limit {limit}", partial(_raised, limit=limit))
    yield from measured(driver, "the limit stack", _stack)
    yield from measured(driver, "local memory", _deep)


def _raised(process: Weighed, limit: str) -> Iterator[ReportRow]:
    process.process.ask("scratch")
    using = {"heap": "heap", "fifo": "print"}[limit]
    default = process.process.ask(f"limit {limit}")["value"]
    yield ReportRow(f"{limit}: by default", default, "bytes")
    raised = default + RAISED[limit]
    yield from process.steps(
        (
            (f"{limit}: raised by {RAISED[limit] // MIB} MiB", f"set_limit {limit} {raised}"),
            (f"{limit}: a module that does not use it, loaded", "load flag"),
            (f"{limit}: its kernel found", "find"),
            (f"{limit}: its kernel launched", f"launch {ARGUMENTS['flag']}"),
            (f"{limit}: a module that uses it, loaded", f"load {using}"),
            (f"{limit}: its kernel found", "find"),
            (f"{limit}: its kernel launched", f"launch {ARGUMENTS[using]}"),
            (f"{limit}: set back", f"set_limit {limit} {default}"),
        )
    )


def _stack(process: Weighed) -> Iterator[ReportRow]:
    process.process.ask("scratch")
    default = process.process.ask("limit stack")["value"]
    threads = process.process.ask("threads")["threads"]
    note = f"for each of {threads} threads at once"
    yield ReportRow("stack: by default", default, "bytes", note)
    more = (STACK - default) * threads
    yield from process.step(
        f"stack: raised to {STACK >> 10} KiB",
        f"set_limit stack {STACK}",
        f"{more} bytes more for all threads",
    )
    yield from process.steps(
        (
            ("stack: a module loaded", "load flag"),
            ("stack: its kernel found", "find"),
            ("stack: its kernel launched", f"launch {ARGUMENTS['flag']}"),
            ("stack: set back", f"set_limit stack {default}"),
        )
    )


def _deep(process: Weighed) -> Iterator[ReportRow]:
    """What no call asks for: a kernel that is launched with more local memory than there is."""
    process.process.ask("scratch")
    threads = process.process.ask("threads")["threads"]
    note = f"4 KiB for all threads are {4096 * threads} bytes"
    yield from process.steps(
        (
            ("a kernel of 4 KiB a thread: loaded", "load deep"),
            ("a kernel of 4 KiB a thread: found", "find"),
        )
    )
    command = f"launch {ARGUMENTS['deep']}"
    yield from process.step("a kernel of 4 KiB a thread: launched", command, note)
    yield from process.step("a kernel of 4 KiB a thread: unloaded", "unload")
