# SPDX-License-Identifier: Apache-2.0
"""The whole scenario (the demo's) through each way in."""

from __future__ import annotations

from gpushare.verify import Containerd, Docker, MemoryScenario, Report
from tests.stack import Stack


def failures(report: Report) -> list[str]:
    return [f"{check.claim}: {check.observed}" for check in report.checks if not check.passed]


def test_two_containers_share_a_card_under_docker(
    docker: Docker, stack: Stack, report: Report
) -> None:
    held = MemoryScenario(docker, stack.cli, report).run()
    assert not failures(report)
    assert held


def test_two_containers_share_a_card_under_containerd(
    containerd: Containerd, stack: Stack, report: Report
) -> None:
    held = MemoryScenario(containerd, stack.cli, report).run()
    assert not failures(report)
    assert held


def test_two_host_processes_share_a_card(stack: Stack, report: Report) -> None:
    held = MemoryScenario(stack.host(), stack.cli, report).run()
    assert not failures(report)
    assert held
