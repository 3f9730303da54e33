# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: the scenario as a user starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.verify import Containerd, Docker, MemoryScenario, Report
from tests.stack import Stack


def verify(stack: Stack, way: str, test: str = "--memory") -> list[str]:
    """Run a test, and return what it claims."""
    done = stack.gpushare("verify", test, "--runtime", way, "--json", check=False)
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)
    assert [check["claim"] for check in checks if not check["passed"]] == []
    return [check["claim"] for check in checks]


@pytest.mark.gate
def test_it_proves_the_limits_on_this_host(stack: Stack) -> None:
    assert any("CUDA_ERROR_OUT_OF_MEMORY" in claim for claim in verify(stack, "host"))


def test_it_proves_that_evicted_memory_comes_back(stack: Stack) -> None:
    assert any("finds its data as it left it" in one for one in verify(stack, "host", "--evict"))


@pytest.mark.usefixtures("docker")
def test_it_proves_the_limits_in_containers_of_docker(stack: Stack) -> None:
    verify(stack, Docker.name)


def test_it_proves_the_limits_in_containers_of_containerd(
    containerd: Containerd, stack: Stack
) -> None:
    report = Report(sys.stdout)
    MemoryScenario(containerd, stack.cli, report).run()
    assert [check.claim for check in report.checks if not check.passed] == []
    assert report.checks


def test_it_proves_them_whatever_a_context_takes(tmp_path: Path) -> None:
    """What is left of the quota is then an odd number of granules: an array takes two."""
    profile = simulator.load_profile("h200")
    profile["context_bytes"] += 2 << 20
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(profile))
    with Stack(profile=str(file)) as odd:
        odd.start_daemon()
        verify(odd, "host")
