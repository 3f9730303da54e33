# SPDX-License-Identifier: Apache-2.0
"""`gpushare audit --self-test`: what it reports is what the daemon did to its tenant."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.stack import Stack


def self_test(stack: Stack, way: str = "host") -> subprocess.CompletedProcess[str]:
    return stack.gpushare("audit", "--self-test", "--json", "--runtime", way, check=False)


def checks(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def events(stack: Stack) -> list[str]:
    lines = map(json.loads, (stack.root / "gpushared.log").read_text().splitlines())
    names = [line["event"] for line in lines if line["event"].startswith("over-quota-")]
    return [name.removeprefix("over-quota-") for name in names]


def test_the_tenant_is_detected_and_frozen_and_gone_afterwards(audited: Stack) -> None:
    before = len(events(audited))
    done = self_test(audited)
    found = checks(done)
    assert done.returncode == 0, found
    assert [one["passed"] for one in found] == [True] * 3
    assert found[1]["claim"].startswith("the audit detected it after ")
    assert found[1]["figures"]["detected_seconds"] > 0
    assert found[2]["claim"].startswith("gpushared froze it after ")
    assert events(audited)[before:][:2] == ["warned", "frozen"]
