# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: the scenario as a user starts it."""

from __future__ import annotations

import json
import subprocess

import pytest

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
    assert [check["claim"] for check in checks if not check["held"]] == []
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
