# SPDX-License-Identifier: Apache-2.0
"""A program on NVIDIA's driver: bare, through the interposer library, and on the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.simulator import device_file
from tests.c.interposer.conftest import FAKE_UUIDS, filters_over
from tests.c.interposer.tenant import MIB, InterposedTenant
from tests.real_driver import RealDriver, isolated

PROBE = Path(__file__).with_name("probe.py")


@dataclass(frozen=True)
class Place:
    """What a program has around it."""

    libraries: Path
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(self.libraries), **self.env}
        return subprocess.run(
            isolated(*command), input=text, env=env, capture_output=True, text=True, check=False
        )

    def ask(self, question: str, *arguments: object) -> Any:
        """Return what probe.py answers."""
        done = self.run(sys.executable, PROBE, text=json.dumps([question, *arguments]))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what asks for the MPS of a release that has none."""
    without = [
        item
        for item in items
        if item.path == PROBE.with_name("test_mps.py")
        and isinstance(item, pytest.Function)
        and item.callspec.params["real_driver"] in RealDriver.WITHOUT_MPS
    ]
    if without:
        config.hook.pytest_deselected(items=without)
        items[:] = [item for item in items if item not in without]


@pytest.fixture
def bare(real_driver: RealDriver) -> Place:
    return Place(real_driver.libraries)


@pytest.fixture(scope="session")
def filters(real_driver: RealDriver) -> Iterator[Path]:
    with filters_over(real_driver.libraries) as folder:
        yield folder


@pytest.fixture
def share(filters: Path, tmp_path: Path) -> Place:
    """A container with a share of one card, which the driver does not find."""
    tenant = InterposedTenant(tmp_path / "tenant", FAKE_UUIDS[:1], 100 * MIB)
    return Place(filters, {"GPUSHARE_TENANT_DIR": str(tenant.directory)})


@pytest.fixture
def simulated(real_driver: RealDriver, bare: Place, tmp_path: Path) -> Place:
    """The simulator of the same CUDA version."""
    version = bare.ask("calls")["before"]["version"]
    release = f"{version // 1000}.{version % 1000 // 10}"
    driver = f"{real_driver.release}.10"
    machine = simulator.create(
        tmp_path / "machine", "h200", driver_version=driver, cuda_version=release
    )
    return Place(device_file.libraries(), dict(machine.env))
