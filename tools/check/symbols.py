# SPDX-License-Identifier: Apache-2.0
"""What the shipped binaries need of the machine they run on, and how they are hardened.

A library of ours is loaded into images of any age, so it may ask for no symbol version newer than
GLIBC_2.17 (CentOS 7); the launcher and the hook run before there is an image, so they ask for no
library at all.

Each is position-independent, with relocations that are read-only before the program runs, a stack
that is not executable and one that is protected. Libraries use glibc's checked functions; musl, of
which the static programs are made, has none.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from gpushare import abi

from .command import Failure, run

NEWEST_GLIBC = (2, 17)
#: By the folder that a filter is installed in: where it finds the driver.
DRIVERS = {"lib": f"{abi.CONTAINER_DIR}/driver/", "host": f"{abi.HOST_DIR}/driver/"}
PROGRAMS = ("gpushare-runtime", "gpushare-hook", "gpushare-scheduler")
FILTERS = ("libcuda.so.1", "libnvidia-ml.so.1")
CANARIES = 20  # reads of the canary: two of each protected function
VERSION = re.compile(r"\bGLIBC_(\d+(?:\.\d+)+)\)?\s+(\S+)")


def check() -> None:
    """Look at every ELF file that the package installs."""
    shipped = [Path(str(file.locate())) for file in distribution("gpushare-runtime").files or ()]
    binaries = [path for path in shipped if path.is_file() and is_elf(path)]
    wrong = []
    for path in binaries:
        wrong += [f"{path}: {flaw}" for flaw in flaws(path)]
    filters = {f"{folder}/{name}" for folder in DRIVERS for name in FILTERS}
    missing = filters - {f"{path.parent.name}/{path.name}" for path in binaries}
    missing |= {*PROGRAMS} - {path.name for path in binaries}
    wrong += [f"{name} is not among what is installed" for name in sorted(missing)]
    if wrong:
        raise Failure("\n".join(wrong))


def is_elf(path: Path) -> bool:
    """Return whether `path` is a program or a library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def flaws(path: Path) -> list[str]:
    """Return what is wrong with one program or library."""
    if path.parent.name != "bin":
        return [*flaws_of_dynamic(path), *hardening_flaws(path)]
    is_static = "program interpreter" not in run("readelf", "--program-headers", "--wide", path)
    return [*([] if is_static else ["is not static"]), *hardening_flaws(path)]


def hardening_flaws(path: Path) -> list[str]:
    """Return which protections a program or library was built without."""
    headers = run("readelf", "--file-header", "--program-headers", "--wide", path)
    dynamic = run("readelf", "--dynamic", "--wide", path)
    stack = re.search(r"^ *GNU_STACK .*$", headers, re.MULTILINE)
    is_library = path.name in FILTERS
    return [
        flaw
        for is_flawed, flaw in (
            ("DYN (" not in headers, "is not position-independent (-fPIE -pie)"),
            ("GNU_RELRO" not in headers, "has no -z relro"),
            ("BIND_NOW" not in dynamic and "Flags: NOW" not in dynamic, "has no -z now"),
            ("TEXTREL" in dynamic, "has relocations in its code"),
            (stack is None or "E" in stack[0].split()[-2], "has an executable stack"),
            (not _protects_stack(path), "has no -fstack-protector-strong"),
            (is_library and not _is_fortified(path), "has no -D_FORTIFY_SOURCE"),
        )
        if is_flawed
    ]


def _protects_stack(path: Path) -> bool:
    symbols = run("readelf", "--symbols", "--dyn-syms", "--wide", path)
    if "__stack_chk_fail" in symbols:
        return True
    # A static program that is stripped names no function: its code reads the canary (x86-64 only).
    return run("objdump", "--disassemble", "--no-show-raw-insn", path).count("%fs:0x28") >= CANARIES


def _is_fortified(path: Path) -> bool:
    return re.search(r" __\w+_chk@", run("readelf", "--dyn-syms", "--wide", path)) is not None


def flaws_of_dynamic(path: Path) -> list[str]:
    """Return what is wrong with one that is linked to libraries."""
    found = newer_than(NEWEST_GLIBC, run("objdump", "--dynamic-syms", path))
    dynamic = run("readelf", "--dynamic", "--wide", path)
    if path.name in FILTERS:
        if f"soname: [{path.name}]" not in dynamic:
            found.append("its SONAME is not its name")
        if "BIND_NOW" not in dynamic or "SYMBOLIC" not in dynamic:
            found.append("is not linked with -z now and -Bsymbolic")
        # The simulator takes the driver's place; the filters stand before the driver.
        driver = DRIVERS.get(path.parent.name)
        if driver and f"[{driver}{path.name}]" not in dynamic:
            found.append(f"does not load {driver}{path.name}")
    return found


def newer_than(limit: tuple[int, ...], symbols: str) -> list[str]:
    """Return a line for each symbol in objdump's output that needs a glibc newer than `limit`."""
    return [
        f"{name} needs GLIBC_{version}"
        for version, name in VERSION.findall(symbols)
        if tuple(map(int, version.split("."))) > limit
    ]
