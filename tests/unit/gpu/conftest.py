# SPDX-License-Identifier: Apache-2.0
"""A simulated driver in a folder: what the measurements are pointed at where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from tools.gpu import built
from tools.gpu.driver import DriverPaths, find
from tools.gpu.process import child, environment, run


@pytest.fixture(scope="session")
def libraries() -> Path:
    """The folder of the simulated driver's libraries."""
    return built.libraries() / "simulator"


@pytest.fixture
def driver_of(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., DriverPaths]:
    """A maker of simulated drivers of a version, or with several cards."""

    def make(**options: Any) -> DriverPaths:
        created = simulator.create(tmp_path / "card", "h200", **options)
        monkeypatch.setenv("GPUSHARE_SIM_DEVICE", str(created.device))
        return find(libraries)

    return make


@pytest.fixture
def driver(driver_of: Callable[..., DriverPaths]) -> DriverPaths:
    return driver_of()


@pytest.fixture
def namespaces() -> None:
    done = run(child("enter", "[]", "true"), environment())
    if done.returncode:
        pytest.skip(f"needs root or user namespaces: {done.stderr.strip()}")
