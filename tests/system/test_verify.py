# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: the scenario as a user starts it."""

from __future__ import annotations

import json

import pytest

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
