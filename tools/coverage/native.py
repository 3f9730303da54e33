# SPDX-License-Identifier: Apache-2.0
"""Builds the C parts with gcc --coverage, runs the tests that execute them, and counts the lines.

A process in a container cannot write its counters to the path of the host, and one that is killed
or ends by _exit(2) writes none: their lines are lost.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tools.coverage.start import ROOT

_FOLDERS: Final = ("hooks/", "libhook/", "runtime/", "scheduler/")
_BUILD: Final = ROOT / "build/coverage/c"
# Unoptimized, gcc puts what follows an assembler statement of the libraries into its section.
_FLAGS: Final = "-O1 --coverage -fprofile-update=atomic"
_DEFINITIONS: Final = {
    "CMAKE_C_COMPILER": "gcc",
    "CMAKE_C_FLAGS": _FLAGS,
    "GPUSHARE_ZIG": "OFF",
}
# In front of gcc in PATH: tests compile sources of the product, too.
_COMPILER: Final = """#!/bin/sh
case " $* " in
*/runtime/*.c\\ * | */hooks/*.c\\ * | */scheduler/*.c\\ * | */libhook/*.c\\ *)
	set -- {flags} -dumpdir {folder}/$$- "$@" ;;
esac
exec {gcc} "$@"
"""


def run(arguments: Sequence[str]) -> int:
    """Run the C unit tests, and pytest with `arguments` on programs that count their lines."""
    shutil.rmtree(_BUILD, ignore_errors=True)
    _BUILD.mkdir(parents=True)
    _unit_tests(_BUILD / "unit")
    with _installed(_BUILD / "installed"):
        compiler = _compiler(_BUILD / "compiled")
        subprocess.run(["chmod", "--recursive", "a+rwX", _BUILD], check=True)
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=ROOT,
            env=os.environ | {"PATH": f"{compiler}:{os.environ['PATH']}"},
            check=False,
        ).returncode


def executed() -> dict[str, dict[int, bool]]:
    """Return the lines of each source, and whether each was executed."""
    found: dict[str, dict[int, bool]] = defaultdict(dict)
    # Of every object: one that has no counters never ran.
    for notes in sorted(_BUILD.rglob("*.gcno")):
        command = ("gcov", "--json-format", "--stdout", notes)
        done = subprocess.run(command, capture_output=True, check=True)
        for file in json.loads(done.stdout)["files"]:
            name = os.path.relpath(ROOT / file["file"], ROOT)
            if name.startswith(_FOLDERS) and name.endswith((".c", ".h")):  # no generated table
                for line in file["lines"]:
                    number = line["line_number"]
                    found[name][number] = found[name].get(number, False) or line["count"] > 0
    return found


def _unit_tests(folder: Path) -> None:
    definitions = _DEFINITIONS | {
        "CMAKE_BUILD_TYPE": "Debug",
        "GPUSHARE_TESTS": "ON",
        "GPUSHARE_DRIVER_DIR": f"{folder}/lib/simulator",
    }
    words = [f"-D{name}={value}" for name, value in definitions.items()]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *words], check=True)
    subprocess.run(["cmake", "--build", folder, "--target", "gpushare-tests"], check=True)
    subprocess.run(["ctest", "--test-dir", folder, "--output-on-failure"], check=False)


@contextmanager
def _installed(folder: Path) -> Iterator[None]:
    """Have programs and libraries in .venv that count, for a while."""
    install = (sys.executable, "-m", "pip", "install", "--no-build-isolation", "--editable", ROOT)
    settings = [f"--config-settings=cmake.define.{key}={_DEFINITIONS[key]}" for key in _DEFINITIONS]
    settings += [f"--config-settings=build-dir={folder}"]
    settings += ["--config-settings=cmake.build-type=Debug"]
    subprocess.run([*install, *settings], check=True)
    try:
        yield
    finally:
        subprocess.run(install, check=True)


def _compiler(folder: Path) -> Path:
    """Return a folder with a gcc that has the product's sources counted."""
    folder.mkdir()
    text = _COMPILER.format(flags=_FLAGS, folder=folder, gcc=shutil.which("gcc"))
    programs = _BUILD / "bin"
    programs.mkdir()
    for name in ("gcc", "cc"):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return programs
