# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own enforces them, and a tenant that it cannot limit gets a note."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.cards.driver_client import DriverLimits
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import bind as binding
from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import GIB, FakeDaemon, FakeDriver
from tests.unit.daemon.operations import entry_of
from tests.unit.daemon.test_driver_limits import CARD, CGROUP, bound


@pytest.fixture
def driver() -> FakeDriver:
    made = FakeDriver(fakes.card(0), fakes.card(1))
    made.has_limits = True
    return made


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the cgroup in which every tenant of a test is."""
    line = f"30 1 0:30 / {tmp_path} rw - cgroup2 cgroup2 rw"
    cgroups = processes.Cgroups(line)
    monkeypatch.setattr(processes.Cgroups, "mounted", lambda: cgroups)
    monkeypatch.setattr(binding, "_cgroup", lambda *_: CGROUP)
    directory = tmp_path / "tenant"
    directory.mkdir()
    return directory


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver, cgroup: Path) -> Iterator[FakeDaemon]:
    del cgroup
    with fakes.node(tmp_path, driver) as made:
        yield made


def test_a_new_driver_gets_all_limits_again(
    node: FakeDaemon, driver: FakeDriver, program: subprocess.Popen[bytes], cgroup: Path
) -> None:
    tenant = bound(node, program, memory="10GiB", devices="0")
    driver.held.clear()
    driver.driver_version = "620.10"
    loader = DriverLoader(node)
    loader.sampler = node.sampler
    node.decide.run(lambda: loader.take_over(driver.generation))
    assert driver.held[CARD, cgroup] == DriverLimits(10 * GIB, 10 * GIB)
    assert entry_of(node, tenant).isolation == "driver"
    driver.has_limits, driver.driver_version = False, "580.1"
    node.decide.run(lambda: loader.take_over(driver.generation))
    assert entry_of(node, tenant).isolation == "interposer"
