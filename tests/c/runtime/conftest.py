# SPDX-License-Identifier: Apache-2.0
"""The launcher and the hook as sanitized programs, and their parsers behind a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compiled import ROOT, SANITIZED, compile_c

from .driver import Driver

RUNTIME = ROOT / "runtime"
HOOKS = ROOT / "hooks"


def _compile(output: Path, *sources: Path) -> Path:
    return compile_c(output, *SANITIZED, f"-I{RUNTIME}", f"-I{HOOKS}", *sources)


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
