# SPDX-License-Identifier: Apache-2.0
"""The simulated driver keeps the contract, and so does the interposer library over it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.simulator import device_file
from tests.c.interposer.conftest import filters_over
from tests.c.interposer.container import ProgramContainer
from tests.c.interposer.tenant import InterposedTenant
from tests.compiled import ROOT, STRICT, compile_c

from .cases import FOLDER, NOT_FOR_TENANTS, UNSEEN, cases, sources

CASES = [case.name for case in cases()]
PROFILE = device_file.load_profile("h200")


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program, linked as it is for other drivers."""
    files = [FOLDER / name for name in sources()]
    words = (*STRICT, "-Wl,-z,lazy", "-pthread", f"-I{ROOT}/libhook")
    library = device_file.libraries() / "libcuda.so.1"
    return str(compile_c(tmp_path_factory.mktemp("contract") / "contract", *words, *files, library))


@pytest.fixture(scope="session")
def filters() -> Iterator[Path]:
    with filters_over(device_file.libraries()) as folder:
        yield folder


def run(program: str, case: str, env: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit status of a case, and what it says."""
    done = subprocess.run([program, case], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_the_table_has_every_case() -> None:
    text = (FOLDER / "cases.inc").read_text()
    assert len(CASES) == len(set(CASES)) == len(re.findall(r"^CASE\(", text, re.MULTILINE))
    assert set(CASES) >= NOT_FOR_TENANTS.keys() | UNSEEN


@pytest.mark.parametrize("case", CASES)
def test_the_simulator(case: str, program: str, tmp_path: Path) -> None:
    env = dict(simulator.create(tmp_path, "h200", 2).env)
    env["LD_LIBRARY_PATH"] = str(device_file.libraries())
    assert run(program, case, env) == (0, "")


@pytest.mark.parametrize("case", CASES)
def test_the_interposer_library(case: str, program: str, filters: Path, tmp_path: Path) -> None:
    """A tenant with a quota of the whole card has the same driver, but for what is listed."""
    machine = simulator.create(tmp_path / "machine", "h200", 2)
    quota = PROFILE["memory_bytes"] - PROFILE["reserved_bytes"]
    tenant = InterposedTenant(tmp_path / "tenant", machine.uuids, quota)
    for card in range(2):
        tenant.set_context_bytes(PROFILE["context_bytes"], card)
    container = ProgramContainer(filters, tenant, dict(machine.env))
    status, said = run(program, case, container.environment())
    if case in NOT_FOR_TENANTS:
        assert status == 1, "it holds"
    else:
        assert (status, said) == (0, "")
