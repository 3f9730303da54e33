# SPDX-License-Identifier: Apache-2.0
"""A driver with limits of its own enforces them, and a tenant that it cannot limit gets a note."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpushare.daemon.cards.driver_client import DriverLimits
from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from gpushare.daemon.observe.sampler import UsageSampler
from tests.unit.daemon.fakes import GIB, FakeDaemon, FakeDriver
from tests.unit.daemon.operations import entry_of
from tests.unit.daemon.test_driver_limits import (
    UUID,
    bound,
    cgroup,
    changing,
    changing_driver,
    events,
    health,
    limits_driver,
    limits_node,
    truth,
)

__all__ = ["cgroup", "changing", "changing_driver", "limits_driver", "limits_node", "truth"]


def test_a_new_driver_gets_all_limits_again(
    limits_node: FakeDaemon,
    limits_driver: FakeDriver,
    program: subprocess.Popen[bytes],
    cgroup: Path,
) -> None:
    tenant = bound(limits_node, program, memory="10GiB", devices="0")
    limits_driver.held.clear()
    limits_driver.driver_version = "620.10"
    loader = DriverLoader(limits_node)
    loader.sampler = limits_node.sampler
    limits_node.decide.run(lambda: loader.take_over(limits_driver.generation))
    assert limits_driver.held[UUID, cgroup] == DriverLimits(10 * GIB, 10 * GIB)
    assert entry_of(limits_node, tenant).isolation == "driver"
    limits_driver.has_limits, limits_driver.driver_version = False, "580.1"
    limits_node.decide.run(lambda: loader.take_over(limits_driver.generation))
    assert entry_of(limits_node, tenant).isolation == "interposer"


def test_a_sample_of_another_driver_accuses_no_container(
    changing: FakeDaemon,
    changing_driver: FakeDriver,
    truth: UsageSampler,
    capfd: pytest.CaptureFixture[str],
) -> None:
    changing_driver.driver_version = "590.10.01"
    truth.look()
    assert "has changed since the last sample" in truth.observed.usage.stale
    assert health(changing) != "ok"
    changing.decide.run(lambda: None)
    truth.look()
    assert truth.observed.usage.stale == ""
    assert health(changing) == "ok"
    [said] = events(capfd, "driver-cards-changed")
    assert (said["before"], said["driver"]) == ("580.65.06", "590.10.01")
