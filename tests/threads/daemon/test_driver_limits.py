# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own enforces them, and a tenant that it cannot limit gets a note."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpushare.daemon.cards.driver_client import DriverLimits
from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from tests.unit.daemon.fakes import GIB, FakeDaemon, FakeDriver
from tests.unit.daemon.operations import entry_of
from tests.unit.daemon.test_driver_limits import CARD, bound, cgroup, driver, node

__all__ = ["cgroup", "driver", "node"]


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
