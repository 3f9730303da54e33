# SPDX-License-Identifier: Apache-2.0
"""`gpushare audit --self-test`: which card it uses, and how it judges what the daemon did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from gpushare.verify import AuditScenario, AuditTrial, HostRunner, Report
from gpushare.verify import audit as scenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

    from gpushare.client import Client

    Cli = Callable[..., Result]
from tests.unit.cli.test_audit import NOTHING, PROBE, AuditedTenantClient

SEEN = {"over": "seen"}
WARNED = {**SEEN, "warnings": ["it bypasses the interposer library"]}
FROZEN = {**WARNED, "over": "frozen", "interventions": [{"by": "audit"}]}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]]:
    """Run the scenario with a probe that is a script, and a daemon that is a list of states."""
    monkeypatch.setattr(scenario, "DETECT_SECONDS", 0.3)
    monkeypatch.setattr(scenario, "ACT_SECONDS", dict.fromkeys(scenario.ACT_SECONDS, 0.3))

    def made(
        action: str, *states: dict[str, Any], code: int = 0, isolation: str = "interposer"
    ) -> tuple[list[tuple[str, bool]], AuditedTenantClient]:
        probe = tmp_path / "probe"
        probe.write_text(PROBE % code)
        probe.chmod(0o755)
        daemon = AuditedTenantClient(action, [NOTHING, *states], isolation)
        report = Report()
        runner = HostRunner([], probe)
        monkeypatch.setattr(runner, "run", lambda *_: [str(probe)])
        trial = AuditTrial(0, cast("Client", daemon))
        AuditScenario(runner, [], report, trial=trial).run()
        claims = [(one.claim.partition(" after ")[0], one.passed) for one in report.checks]
        return claims, daemon

    return made


@pytest.mark.parametrize(
    ("action", "states", "expected"),
    [
        ("freeze", [SEEN, FROZEN], [("the audit detected it", True), ("gpushared froze it", True)]),
        ("freeze", [NOTHING], [("the audit detected it", False)]),
        ("freeze", [SEEN], [("the audit detected it", True), ("gpushared froze it", False)]),
        ("kill", [FROZEN], [("the audit detected it", True), ("gpushared killed it", False)]),
        (
            "observe",
            [SEEN],
            [
                ("the audit detected it", True),
                ("nothing was done about it: audit.over_quota is observe", True),
            ],
        ),
        (
            "observe",
            [SEEN, FROZEN],
            [
                ("the audit detected it", True),
                ("nothing was done about it: audit.over_quota is observe", False),
            ],
        ),
    ],
)
def test_each_outcome_is_judged_by_the_configured_action(
    run: Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]],
    action: str,
    states: list[dict[str, Any]],
    expected: list[tuple[str, bool]],
) -> None:
    found, daemon = run(action, *states)
    assert found == [("it allocates 2 GiB past the library, of a quota of 1 GiB", True), *expected]
    assert daemon.stopped == ["k"]


def test_a_driver_with_limits_of_its_own_refuses_it(
    run: Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]],
) -> None:
    found, daemon = run("freeze", code=2, isolation="driver")
    assert found == [("the driver itself refuses more than the quota", True)]
    assert daemon.stopped == ["k"]


def test_an_allocation_that_fails_is_no_success(
    run: Callable[..., tuple[list[tuple[str, bool]], AuditedTenantClient]],
) -> None:
    found, _ = run("freeze", code=2)
    assert found == [("it allocates 2 GiB past the library, of a quota of 1 GiB", False)]
