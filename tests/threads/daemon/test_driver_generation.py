# SPDX-License-Identifier: Apache-2.0
"""The driver, its cards or their parts change, and cards fail: no container is accused for that."""

from __future__ import annotations

import pytest

from gpushare.daemon.observe.sampler import UsageSampler
from tests.unit.daemon.fakes import FakeDaemon, FakeDriver
from tests.unit.daemon.test_driver_generation import driver, events, health, node, truth

__all__ = ["driver", "node", "truth"]


def test_a_sample_of_another_driver_accuses_no_container(
    node: FakeDaemon, driver: FakeDriver, truth: UsageSampler, capfd: pytest.CaptureFixture[str]
) -> None:
    driver.driver_version = "590.10.01"
    truth.look()
    assert "has changed since the last sample" in truth.observed.usage.stale
    assert health(node) != "ok"
    node.decide.run(lambda: None)
    truth.look()
    assert truth.observed.usage.stale == ""
    assert health(node) == "ok"
    [said] = events(capfd, "driver-cards-changed")
    assert (said["before"], said["driver"]) == ("580.65.06", "590.10.01")
