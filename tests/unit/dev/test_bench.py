# SPDX-License-Identifier: Apache-2.0
"""How a benchmark's figures become a verdict, and what a program reads of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.bench.result import Result, table, write
from tools.bench.turns import BenchError, Series, spawn, take


def result(delta: float, budget: float | None = 3.0, *, absolute: bool = False) -> Result:
    return Result("launch", "ns", 20.0 + delta, 20.0, delta, budget, absolute)


def test_the_added_time_is_compared_with_the_budget() -> None:
    assert result(3.0).met is True
    assert result(3.1).met is False


def test_a_budget_for_the_whole_ignores_the_time_of_the_bare_call() -> None:
    assert result(1.0, budget=20.5, absolute=True).met is False
    assert result(-15.0, budget=5.0, absolute=True).met is True


def test_a_figure_without_a_budget_is_neither_met_nor_over() -> None:
    assert result(100.0, budget=None).met is None


def test_the_table_marks_rows_over_budget() -> None:
    header, fine, over = table([result(1.0), result(4.0)]).splitlines()
    assert header.startswith("WHAT")
    assert fine.endswith("ok")
    assert over.endswith("OVER")
    assert "x 1.200" in over


def test_the_file_has_one_object_a_figure(tmp_path: Path) -> None:
    write([result(4.0)], tmp_path / "build" / "bench.json")
    assert json.loads((tmp_path / "build" / "bench.json").read_text()) == [
        {
            "name": "launch",
            "value": 24.0,
            "unit": "ns",
            "baseline": 20.0,
            "delta": 4.0,
            "ratio": 1.2,
            "budget": 3.0,
            "met": False,
        }
    ]


def test_the_difference_is_that_of_rounds_not_of_medians() -> None:
    series = Series()
    for bare, ours in ((10.0, 11.0), (50.0, 51.0), (20.0, 40.0)):
        series.add("bare", {"call": bare})
        series.add("ours", {"call": ours})
    compared = series.compare("call", "ours", "bare", name="call", budget=None)
    assert compared.baseline == 20.0
    assert compared.value == 40.0
    assert compared.delta == 1.0


def test_nine_rounds_of_ten_stay_under_the_p90() -> None:
    series = Series()
    for number in range(10):
        series.add("bare", {"call": float(number)})
        series.add("ours", {"call": float(number + 2)})
        series.add("least", {"call": float(number + 1)})
    compared = series.compare("call", "ours", "bare", name="call", budget=None, floor="least")
    assert compared.p90 == (10.0, 8.0)
    assert compared.floor == 1.0
    assert compared.as_json()["p90"] == 10.0


def test_every_variant_goes_once_a_round_and_the_first_round_is_not_counted() -> None:
    gone: list[str] = []

    def go(name: str) -> dict[str, float]:
        gone.append(name)
        return {"call": float(len(gone))}

    series = take({"bare": lambda: go("bare"), "ours": lambda: go("ours")}, rounds=3)
    assert all(set(gone[turn : turn + 2]) == {"bare", "ours"} for turn in range(0, 8, 2))
    assert series.compare("call", "ours", "bare", name="call", budget=None).baseline > 2


def test_a_program_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"exit status 3: no such container"):
        spawn(
            ["/bin/sh", "-c", "echo no such container; exit 3"], {"PATH": "/bin"}, tmp_path / "log"
        )
