# SPDX-License-Identifier: Apache-2.0
"""Burst limits: available memory is granted, and reserved memory never is."""

from __future__ import annotations

from gpushare.daemon.lifecycle.release import release_tenant
from gpushare.daemon.limits.burst import BurstUpdater
from tests.unit.daemon.fakes import FakeDaemon
from tests.unit.daemon.operations import opened
from tests.unit.daemon.test_burst import burst, limit


def test_burst_limits_are_updated_after_each_sample_and_never_concurrently(
    node: FakeDaemon,
) -> None:
    first, tenant = opened(node, memory="100GiB", devices="0"), burst(node)
    node.decide.finish(5)  # what is submitted now waits
    release_tenant(first["key"], node, "it has ended")
    lending = BurstUpdater(node)
    for _ in range(3):
        lending.again()
    assert node.decide._jobs.qsize() == 1
    job = node.decide._jobs.get()
    assert job is not None
    job()
    assert limit(node, tenant) == 140
    lending.again()
    assert node.decide._jobs.qsize() == 1
