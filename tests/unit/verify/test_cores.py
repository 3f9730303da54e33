# SPDX-License-Identifier: Apache-2.0
"""What is said of a share, by what gpushare counted and what the driver did."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from gpushare.verify import Cores, Host, Report, Trial
from gpushare.verify.cores import Outcome, Spent, outcome


def spent(got: float | None, driver: float | None, **more: Any) -> Spent:
    """Return what the daemon says of one tenant."""
    figures = {"1s": 99.0, "10s": got, "60s": 99.0}
    return {"got": figures, "driver_percent": driver, "source": "gate", "hung": False, **more}


def judged(found: Outcome) -> tuple[Report, str]:
    """Return the report of `found`, and what it printed."""
    said = io.StringIO()
    report = Report(said)
    engine = Host(["gpushare"], Path("probe"))
    Cores(engine, ["gpushare"], report, trial=found.trial)._judged(found)
    return report, said.getvalue()


def tried(
    share: Spent, rest: Spent | None = None, *, others: bool = False
) -> tuple[Report, str, Outcome]:
    alone = rest is None
    names = ["share"] if alone else ["share", "rest"]
    look = [share] if rest is None else [share, rest]
    found = outcome(Trial(0, 30, alone, others), names, [look])
    return *judged(found), found


def test_a_share_that_is_met_by_both_counts_holds() -> None:
    report, said, found = tried(spent(29.5, 31.0), spent(69.9, 68.0))
    assert report.held
    assert "asked 30 %, off by 1.0 points; together 99.4 %" in said
    assert "share 29.5 % (the driver says 31.0 %)" in said
    assert found.figures == {
        "card": 0,
        "asked_percent": 30,
        "got_percent": 29.5,
        "driver_percent": 31.0,
        "error_points": 1.0,
        "aggregate_percent": 29.5 + 69.9,
        "seconds": 10.0,
        "slow_motion": 1.0,
    }
    assert report.checks[0].figures == found.figures


@pytest.mark.parametrize(
    ("share", "seen"),
    [
        (spent(33.0, 30.0), "share 33.0 % (the driver says 30.0 %)"),
        (spent(30.0, 45.9), "share 30.0 % (the driver says 45.9 %)"),
        (spent(27.9, 30.0), "share 27.9 %"),
        (spent(30.0, 30.0, source="driver"), "gpushare doctor"),
        (spent(None, None, source=""), "gpushare doctor"),
        (spent(30.0, 30.0, hung=True), "hung"),
    ],
)
def test_a_share_that_is_not_met_says_what_was_seen(share: Spent, seen: str) -> None:
    report, _, _ = tried(share, spent(70.0, 70.0))
    assert not report.held
    assert seen in report.checks[0].seen


def test_without_the_driver_s_figure_the_count_alone_is_judged() -> None:
    report, _, _ = tried(spent(30.1, None), spent(69.0, None))
    assert report.held
    assert "driver" not in report.checks[0].claim


def test_a_card_s_time_that_nobody_had_is_lost() -> None:
    report, _, _ = tried(spent(30.0, 30.0), spent(40.0, 40.0))
    assert [check.held for check in report.checks] == [True, False]


def test_what_is_left_is_nobody_s_where_there_is_one_tenant_or_strangers() -> None:
    assert len(tried(spent(30.0, 30.0))[0].checks) == 1
    assert len(tried(spent(30.0, 30.0), spent(20.0, 20.0), others=True)[0].checks) == 1
    report, _, _ = tried(spent(20.0, 20.0), spent(20.0, 20.0), others=True)
    assert "others were at work" in report.checks[0].seen


def test_a_card_in_slow_motion_is_looked_at_for_longer() -> None:
    assert [Trial(0, 30, slow_motion=slow).windows for slow in (1.0, 3.2, 1000.0)] == [1, 3, 6]
    looks = [[spent(got, None)] for got in (20.0, 40.0)]
    found = outcome(Trial(0, 30, alone=True, slow_motion=2.0), ["share"], looks)
    assert found.got[0].counted == 30.0
    unknown = outcome(found.trial, ["share"], [*looks, [spent(None, None)]])
    assert unknown.error is None
