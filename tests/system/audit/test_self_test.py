# SPDX-License-Identifier: Apache-2.0
"""`gpushare audit --self-test`: what it reports is what the daemon did to its tenant."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpushare.verify import Docker
from tests.stack import Stack
from tests.system.waiting import wait_until

from .conftest import MEASURED, ready


def self_test(stack: Stack, way: str = "host") -> subprocess.CompletedProcess[str]:
    return stack.gpushare("audit", "--self-test", "--json", "--runtime", way, check=False)


def checks(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@contextmanager
def configured(action: str) -> Iterator[Stack]:
    """A daemon of its own with `audit.over_quota`."""
    with Stack() as made:
        made.configure(audit={"over_quota": action})
        yield ready(made)


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


@pytest.mark.parametrize(
    ("action", "claim", "logged"),
    [
        ("observe", "nothing was done about it: audit.over_quota is observe", ["detected"]),
        ("warn", "gpushared warned of it, and did no more, as audit.over_quota", ["warned"]),
        ("kill", "gpushared killed it after ", ["warned", "frozen", "killed"]),
    ],
)
def test_the_self_test_reports_the_configured_action(
    action: str, claim: str, logged: list[str]
) -> None:
    with configured(action) as stack:
        done = self_test(stack)
        found = checks(done)
        assert done.returncode == 0, found
        assert found[-1]["claim"].startswith(claim)
        wait_until(lambda: events(stack) == logged)


@pytest.mark.usefixtures("docker")
def test_in_a_container(stack: Stack) -> None:
    wait_until(lambda: MEASURED in (stack.root / "gpushared.log").read_text())
    done = self_test(stack, Docker.name)
    assert done.returncode == 0, checks(done)
