# SPDX-License-Identifier: Apache-2.0
"""How the shares that tenants had are worked out of what they were served, and judged."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime, timezone
from statistics import fmean

import pytest

from tools.bench.native import HERE
from tools.bench.shares.card_time import Served, errors, percentile, windows
from tools.bench.shares.catalogue import SCENARIOS
from tools.bench.shares.figure import Figure, table
from tools.bench.shares.judges import aggregate, latency, loss, share_errors
from tools.bench.shares.load import Load, training
from tools.bench.shares.machine import parse_readings
from tools.bench.shares.page import HostFacts, page
from tools.bench.shares.scenario import Run, Scenario, ScenarioRuns, TenantSpec

SECOND = 1e9


def served(*rates: float, from_: float = 0) -> Served:
    """Return what is had at so much of the card in one second after the other."""
    found = Served()
    found.add(from_, 0)
    for number, rate in enumerate(rates, 1):
        found.add(from_ + number * SECOND, found.served[-1] + rate * SECOND)
    return found


def test_between_two_readings_time_is_had_evenly() -> None:
    found = served(0.5, 1.0)
    assert found.by(0.5 * SECOND) == 0.25 * SECOND
    assert found.by(1.5 * SECOND) == 1.0 * SECOND
    assert found.share(0.5 * SECOND, 1.5 * SECOND) == 0.75


def test_before_the_first_reading_nothing_was_had_and_after_the_last_nothing_more() -> None:
    found = served(0.5, from_=SECOND)
    assert found.by(0) == 0
    assert found.by(9 * SECOND) == 0.5 * SECOND


def test_a_reading_that_is_not_later_says_nothing() -> None:
    found = served(0.5)
    found.add(SECOND, 7 * SECOND)
    assert found.by(SECOND) == 0.5 * SECOND


def test_a_machine_that_reads_late_shows_it() -> None:
    found = served(0.5, 0.5)
    found.add(5 * SECOND, 2 * SECOND)
    assert found.longest_gap(0, 5 * SECOND) == 3 * SECOND
    assert found.longest_gap(0, 4 * SECOND) == SECOND


def test_windows_begin_a_quarter_of_their_width_apart_and_lie_within() -> None:
    assert windows(10, 12, 1) == [(10 + n / 4, 11 + n / 4) for n in range(5)]
    assert windows(10, 11, 1) == [(10, 11)]
    assert windows(10, 10.9, 1) == []


def test_an_error_is_how_far_the_share_of_a_window_is_from_the_target() -> None:
    found = errors(served(0.3, 0.5), 0.3, windows(0, 2 * SECOND, SECOND))
    assert found == pytest.approx([0, 5, 10, 15, 20])


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (90, 9), (99, 10), (100, 10), (0, 1)])
def test_a_percentile_is_a_value_that_was_seen(percent: float, expected: float) -> None:
    assert percentile([float(n) for n in range(10, 0, -1)], percent) == expected


def test_readings_are_of_whole_lines() -> None:
    text = "0 100 7 40 8 50 7 1\n1 101\n0 200 7 4"
    assert list(parse_readings(text)) == [(0, 100, [(7, 40), (8, 50), (7, 1)]), (1, 101, [])]


def test_a_load_has_the_options_of_the_program() -> None:
    source = (HERE / "shares" / "work.c").read_text(encoding="utf-8")
    known = set(re.findall(r'^\t\{"--([a-z-]+)", &plan\.', source, re.MULTILINE))
    named = {field.name.replace("_", "-") for field in fields(Load)}
    of_attacks = {
        "copies",
        "reload",
        "stops",
        "within-bytes",
    }  # system/shares/test_charges.py
    assert named == known - {"slow", "seed", "jitter"} - of_attacks
    assert training(20).arguments(slow=2, seed=7)[-4:] == ["--slow", "2", "--seed", "7"]


def run(slow: float = 1, latencies_ms: tuple[float, ...] = (), **tenants: Served) -> Run:
    ends = [had.moments[-1] for had in tenants.values()]
    return Run(
        start=0,
        end=min(ends),
        slow=slow,
        served={(name, 0): had for name, had in tenants.items()},
        latencies_ms={name: list(latencies_ms) for name in tenants},
        resumed_ms={},
    )


PAIR = Scenario(
    "pair",
    "two",
    (TenantSpec("a", training(100), 30), TenantSpec("b", training(100), 70)),
    judges=(),
    alone="a",
)


def measured(native: Run, gpushare: Run, alone: Run | None = None) -> ScenarioRuns:
    return ScenarioRuns(PAIR, native, gpushare, alone)


def test_the_error_of_a_row_is_that_of_the_tenant_that_has_it_worst() -> None:
    native = run(a=served(0.5, 0.5), b=served(0.5, 0.5))
    ours = run(a=served(0.29, 0.29), b=served(0.68, 0.68))
    mean, most = share_errors(mean=1.2, most=2.0)(measured(native, ours))
    assert (mean.native, mean.value) == pytest.approx((20, 2))
    assert mean.met is False
    assert most.value == pytest.approx(2)


def test_the_worst_of_a_mean_is_a_tenants_mean() -> None:
    ours = run(a=served(0.3, 0.34), b=served(0.7, 0.7))
    mean, most = share_errors()(measured(ours, ours))
    assert mean.value == pytest.approx(fmean([0, 1, 2, 3, 4]))
    assert most.value == pytest.approx(4)


def test_in_slow_motion_a_second_of_card_time_takes_longer() -> None:
    """A tenant that is wrong for one second of ten is wrong for a tenth of a slow second."""
    wrong_for_a_moment = (*[0.3] * 9, 0.8, *[0.3] * 10)
    ours = run(slow=10, a=served(*wrong_for_a_moment), b=served(*[0.7] * 20))
    _, most = share_errors()(measured(ours, ours))
    assert most.value == pytest.approx(5)


def test_the_aggregate_is_relative_to_one_tenant_alone() -> None:
    native = run(a=served(0.45), b=served(0.45))
    ours = run(a=served(0.28), b=served(0.68))
    of_solo, above = aggregate(least=97.5)(measured(native, ours, run(a=served(0.96))))
    assert (of_solo.native, of_solo.value) == pytest.approx((93.75, 100))
    assert of_solo.met is True
    assert above.value == pytest.approx(6.25)


def test_a_loss_is_relative_to_the_bare_driver() -> None:
    (figure,) = loss(most=0.5)(measured(run(a=served(0.8)), run(a=served(0.796))))
    assert figure.value == pytest.approx(0.5)


def test_latency_is_judged_by_that_of_a_card_to_oneself() -> None:
    alone = run(a=served(0.1), latencies_ms=(1, 2, 10))
    ours = run(a=served(0.1), latencies_ms=(1, 2, 15))
    p50, p99, times = latency("a", times_alone=1.2)(measured(ours, ours, alone))
    assert (p50.value, p99.value, times.value) == (2, 15, 1.5)
    assert times.met is False


def figure(value: float, limit: float | None, *, at_least: bool = False) -> Figure:
    return Figure("A", "30/70", "error", "points", 23.6, value, limit, at_least)


def test_a_target_is_met_at_its_limit_and_a_figure_without_one_is_neither() -> None:
    assert figure(2.0, 2.0).met is True
    assert figure(2.1, 2.0).met is False
    assert figure(97.4, 97.5, at_least=True).met is False
    assert figure(9.9, None).met is None


def test_the_table_has_each_missed_budget_and_the_excess() -> None:
    _, title, row = table([figure(2.1, 2.0)]).splitlines()
    assert title == "A: 30/70"
    assert row.split() == ["error", "23.60", "2.10", "points", "<=", "2", "MISSED"]
    assert figure(97.6, 97.5, at_least=True).as_json() == {
        "name": "A: error",
        "title": "30/70",
        "value": 97.6,
        "unit": "points",
        "baseline": 23.6,
        "target": ">= 97.5",
        "met": True,
    }


def test_the_page_begins_with_the_missed_budgets() -> None:
    host = HostFacts("A processor", 2, "6.1", 0.5, datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc))
    written = page([figure(2.1, 2.0), figure(97.6, 97.5, at_least=True)], host)
    assert "2026-01-02 03:04 UTC, 2 cores (A processor), Linux 6.1, load 0.5" in written
    assert "1 of 2 targets are met. Missed:\n\n- A: error: 2.10, not <= 2\n" in written
    assert written.index("Missed:") < written.index("## A\n\n30/70.\n")
    assert "| error | 23.60 | 2.10 points | <= 2 | **missed** |" in written


def test_each_scenario_has_a_name_of_its_own_and_asks_no_more_than_its_cards_have() -> None:
    names = [scenario.name for scenario in SCENARIOS]
    assert len(set(names)) == len(names)
    for scenario in SCENARIOS:
        for card in range(scenario.cards):
            asked = [tenant.cores for tenant in scenario.tenants if card in tenant.cards]
            assert 0 < sum(asked) <= 100
