# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: the scenario as a user starts it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.verify import Docker
from tests.stack import Stack


def verify(stack: Stack, way: str) -> None:
    done = subprocess.run(
        [*stack.cli, "verify", "--memory", "--runtime", way, "--json"],
        check=False,
        capture_output=True,
        text=True,
        env=stack.environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    checks = json.loads(done.stdout)
    assert [check["claim"] for check in checks if not check["passed"]] == []
    assert any("CUDA_ERROR_OUT_OF_MEMORY" in check["claim"] for check in checks)


def test_it_proves_the_limits_on_this_host(stack: Stack) -> None:
    verify(stack, "host")


@pytest.mark.usefixtures("docker")
def test_it_proves_the_limits_in_containers(stack: Stack) -> None:
    verify(stack, Docker.name)
    left = subprocess.run(
        ["docker", "ps", "--all", "--quiet"],
        check=True,
        capture_output=True,
        text=True,
        env=stack.environment,
    )
    assert left.stdout == ""


def test_it_proves_them_whatever_a_context_takes(tmp_path: Path) -> None:
    """What is left of the quota is then an odd number of granules: an array takes two."""
    profile = simulator.load_profile("h200")
    profile["context_bytes"] += 2 << 20
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(profile))
    with Stack(profile=str(file)) as odd:
        odd.start_daemon()
        verify(odd, "host")
