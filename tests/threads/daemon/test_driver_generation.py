# SPDX-License-Identifier: Apache-2.0
"""The driver, its cards or their parts change, and cards fail: no container is accused for that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.lifecycle.driver_loader import DriverLoader
from gpushare.daemon.observe.sampler import UsageSampler
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon, FakeDriver
from tests.unit.daemon.test_driver_generation import CARD, OTHER, events, health


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(CARD, OTHER)


@pytest.fixture
def node(tmp_path: Path, driver: FakeDriver) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, driver) as made:
        truth = made.sampler
        loader = DriverLoader(made)
        loader.sampler = truth
        truth.changed = lambda now: made.decide.submit(lambda: loader.take_over(now))
        truth.look()
        yield made


@pytest.fixture
def truth(node: FakeDaemon) -> UsageSampler:
    return node.sampler


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
