# SPDX-License-Identifier: Apache-2.0
"""What the shipped binaries need of the machine they run on.

A library of ours is loaded into images of any age, so it may ask for no symbol version newer than
GLIBC_2.17 (CentOS 7); the launcher and the hook run before there is an image, so they ask for no
library at all.
"""

from __future__ import annotations

import re
from importlib.metadata import distribution
from pathlib import Path

from .command import Failure, run

NEWEST_GLIBC = (2, 17)
DRIVER = "/opt/gpushare/driver/"
PROGRAMS = ("gpushare-runtime", "gpushare-hook", "gpushare-scheduler")
FILTERS = ("libcuda.so.1", "libnvidia-ml.so.1")
VERSION = re.compile(r"\bGLIBC_(\d+(?:\.\d+)+)\)?\s+(\S+)")


def check() -> None:
    """Look at every ELF file that the package installs."""
    shipped = [Path(str(file.locate())) for file in distribution("gpushare-runtime").files or ()]
    binaries = [path for path in shipped if path.is_file() and is_elf(path)]
    wrong = []
    for path in binaries:
        wrong += [f"{path}: {flaw}" for flaw in flaws(path)]
    missing = {*FILTERS, *PROGRAMS} - {path.name for path in binaries}
    wrong += [f"{name} is not among what is installed" for name in sorted(missing)]
    if wrong:
        raise Failure("\n".join(wrong))


def is_elf(path: Path) -> bool:
    """Return whether `path` is a program or a library."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def flaws(path: Path) -> list[str]:
    """Return what is wrong with one program or library."""
    if path.parent.name == "bin":
        return _flaws_of_program(path)
    found = newer_than(NEWEST_GLIBC, run("objdump", "--dynamic-syms", path))
    dynamic = run("readelf", "--dynamic", "--wide", path)
    if path.name in FILTERS:
        if f"soname: [{path.name}]" not in dynamic:
            found.append("its SONAME is not its name")
        if "BIND_NOW" not in dynamic or "SYMBOLIC" not in dynamic:
            found.append("is not linked with -z now and -Bsymbolic")
        # The simulator takes the driver's place; the filters stand before the driver.
        if path.parent.name == "lib" and f"[{DRIVER}{path.name}]" not in dynamic:
            found.append(f"does not load {DRIVER}{path.name}")
    return found


def newer_than(limit: tuple[int, ...], symbols: str) -> list[str]:
    """Return a line for each symbol in objdump's output that needs a glibc newer than `limit`."""
    return [
        f"{name} needs GLIBC_{version}"
        for version, name in VERSION.findall(symbols)
        if tuple(map(int, version.split("."))) > limit
    ]


def _flaws_of_program(path: Path) -> list[str]:
    if "program interpreter" in run("readelf", "--program-headers", "--wide", path):
        return ["is not static"]
    return []
