# SPDX-License-Identifier: Apache-2.0
"""The verdict on a share, what a reader sees of a scenario, and the exit status."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gpushare.verify import Report
from gpushare.verify.compute import ChargedTime, ComputeScenario, ComputeTrial, Outcome, outcome
from gpushare.verify.runners import HostRunner


def spent(got: float | None, driver: float | None, **more: Any) -> ChargedTime:
    """Return what the daemon says of one tenant."""
    figures = {"1s": 99.0, "10s": got, "60s": 99.0}
    return {
        "cores_used": figures,
        "driver_utilization": driver,
        "cores_source": "gate",
        "is_hung": False,
        **more,
    }


def judged(found: Outcome) -> tuple[Report, str]:
    """Return the report of `found`, and what it printed."""
    said = io.StringIO()
    report = Report(said)
    engine = HostRunner(["gpushare"], Path("probe"))
    ComputeScenario(engine, ["gpushare"], report, trial=found.trial)._check(found)
    return report, said.getvalue()


def tried(
    share: ChargedTime, rest: ChargedTime, *, others: bool = False
) -> tuple[Report, str, Outcome]:
    found = outcome(ComputeTrial(0, 30, others), ["share", "rest"], [[share, rest]])
    return *judged(found), found


def test_a_share_that_is_met_by_both_counts_holds() -> None:
    report, said, found = tried(spent(29.5, 31.0), spent(69.9, 68.0))
    assert report.passed
    assert "requested 30 %, off by 0.5 points; together 99.4 %" in said
    assert "share 29.5 % (driver: 31.0 %)" in said
    assert found.figures == {
        "card": 0,
        "requested_percent": 30,
        "charged_percent": 29.5,
        "driver_percent": 31.0,
        "error_points": 0.5,
        "aggregate_percent": 29.5 + 69.9,
        "seconds": 10.0,
        "time_scale": 1.0,
    }
    assert report.checks[0].figures == found.figures


@pytest.mark.parametrize(
    ("share", "seen"),
    [
        (spent(33.0, 30.0), "share 33.0 % (driver: 30.0 %)"),
        (spent(30.0, 59.9), "share 30.0 % (driver: 59.9 %)"),
        (spent(27.9, 30.0), "share 27.9 %"),
        (spent(30.0, 30.0, cores_source="driver"), "gpushare doctor"),
        (spent(None, None, cores_source=""), "gpushare doctor"),
        (spent(30.0, 30.0, is_hung=True), "hung"),
    ],
)
def test_a_missed_share_is_reported_with_its_figures(share: ChargedTime, seen: str) -> None:
    report, _, _ = tried(share, spent(70.0, 70.0))
    assert not report.passed
    assert seen in report.checks[0].observed


def test_the_remainder_is_unattributed_with_other_processes() -> None:
    assert len(tried(spent(30.0, 30.0), spent(20.0, 20.0), others=True)[0].checks) == 1
    report, _, _ = tried(spent(20.0, 20.0), spent(20.0, 20.0), others=True)
    assert "others used the card" in report.checks[0].observed
