# SPDX-License-Identifier: Apache-2.0
"""Programs that probe what the driver has find under gpushare what they find without it.

Of releases that tests/c/real_driver has no real driver of, by the same probe.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from libhook.table import coverage
from tests.c.real_driver.conftest import PROBE
from tools.gpu.symbols import cuda_lines

from .conftest import SimulatedContainer
from .container import ProgramContainer

LINES = cuda_lines()
SYMBOLS = [line.symbol for line in LINES]


@pytest.fixture(params=["11.8", "13.0", "13.5"])
def older(
    request: pytest.FixtureRequest, simulated_container: SimulatedContainer
) -> ProgramContainer:
    """A container on a machine whose driver is of that CUDA version."""
    return simulated_container(1, [0], cuda_version=request.param)


def probe(container: ProgramContainer, *question: object) -> Any:
    process = container.start(sys.executable, PROBE)
    answer, error = process.communicate(json.dumps(question))
    assert process.returncode == 0, error
    return json.loads(answer)


def test_the_driver_has_only_symbols_of_its_version(older: ProgramContainer) -> None:
    there, _ = probe(older.bare(), "symbols", "libcuda.so.1", SYMBOLS)
    version = probe(older.bare(), "calls")["before"]["version"]
    assert set(there) == {line.symbol for line in LINES if line.version <= version}


@pytest.mark.parametrize("library", ["libcuda.so.1", "libnvidia-ml.so.1"])
def test_the_same_symbols_with_and_without_gpushare(library: str, older: ProgramContainer) -> None:
    question = "symbols", library, [*coverage.exported()]
    assert probe(older, *question) == probe(older.bare(), *question)


def test_the_same_answers_with_and_without_gpushare(older: ProgramContainer) -> None:
    """And what the library mediates is its own function."""
    entries = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    own = [symbol for symbol, entry in entries.items() if not entry.passes]
    versions = sorted({line.version for line in LINES})
    names = sorted({line.name for line in LINES})
    question = "lookups", names, [*versions[::6], versions[-1]], SYMBOLS
    assert probe(older, *question, own) == probe(older.bare(), *question, [])
