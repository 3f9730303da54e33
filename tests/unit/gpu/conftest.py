# SPDX-License-Identifier: Apache-2.0
"""A simulated driver in a folder: what the measurements are pointed at where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import simulator
from tests.gpu import built
from tests.gpu.driver import DriverPaths, find
from tests.gpu.process import child, environment, run


@pytest.fixture(scope="session")
def libraries() -> Path:
    """The folder of the simulated driver's libraries."""
    return built.libraries() / "simulator"


@pytest.fixture
def driver(libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverPaths:
    created = simulator.create(tmp_path / "card", "h200")
    monkeypatch.setenv("GPUSHARE_SIM_DEVICE", str(created.device))
    return find(libraries)


@pytest.fixture
def namespaces() -> None:
    done = run(child("enter", "[]", "true"), environment())
    if done.returncode:
        pytest.skip(f"needs root or user namespaces: {done.stderr.strip()}")
