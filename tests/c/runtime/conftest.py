# SPDX-License-Identifier: Apache-2.0
"""The launcher and the hook as sanitized programs, and their parsers behind a pipe."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import Driver

ROOT = Path(__file__).resolve().parents[3]
RUNTIME = ROOT / "runtime"
HOOKS = ROOT / "hooks"
_FLAGS = (
    *("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Wmissing-prototypes"),
    *("-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    *("-I", str(RUNTIME), "-I", str(HOOKS)),
)


def _compile(output: Path, *sources: Path) -> Path:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.fail("gcc is not installed: run ./dev setup")
    subprocess.run([compiler, *_FLAGS, *map(str, sources), "-o", str(output)], check=True)
    return output


def _sources(folder: Path, *names: str) -> list[Path]:
    return [folder / f"{name}.c" for name in names]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the programs of one session."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="session")
def launcher(built: Path) -> Path:
    return _compile(built / "gpushare-runtime", *sorted(RUNTIME.glob("*.c")))


@pytest.fixture(scope="session")
def hook(built: Path) -> Path:
    shared = _sources(RUNTIME, "args", "bundle", "client", "json", "lock", "log", "marker", "spec")
    return _compile(built / "gpushare-hook", *sorted(HOOKS.glob("*.c")), *shared)


@pytest.fixture(scope="session")
def witness(built: Path) -> Path:
    return _compile(built / "witness", Path(__file__).with_name("witness.c"))


@pytest.fixture(scope="session")
def driver(built: Path) -> Iterator[Driver]:
    program = _compile(
        built / "driver",
        Path(__file__).with_name("driver.c"),
        *_sources(RUNTIME, "args", "json", "marker", "spec"),
    )
    with Driver(program) as made:
        yield made
