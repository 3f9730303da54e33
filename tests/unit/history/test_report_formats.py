# SPDX-License-Identifier: Apache-2.0
"""Every format has the rows of a report, whatever users call their containers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from gpushare.history.reports import make_report
from gpushare.history.reports.columns import ReportTable
from gpushare.history.reports.formats import FORMATS
from gpushare.prices import Prices, Rate

from .world import HOUR, Actor, read, record

EVIL = '=1+1|<script>alert("x")</script>'


@pytest.fixture
def report(tmp_path: Path) -> ReportTable:
    actors = [
        Actor("train", lambda _at: (2, 25, 0)),
        Actor("serve", lambda _at: (1, 10, 1), cores=0, labels={"team": EVIL}),
    ]
    record(tmp_path, actors, HOUR)
    prices = Prices("EUR", "larger", Rate(2, 0.5))
    with read(tmp_path, 0, 2 * HOUR, prices=prices) as source:
        return make_report("chargeback", source, "label:team")


def test_csv_has_the_same_values_and_no_formula(report: ReportTable) -> None:
    found = list(csv.DictReader(io.StringIO(FORMATS["csv"](report), newline="")))
    assert {row["label:team"] for row in found} == {"", f"'{EVIL}"}
    for row, plain in zip(found, report.rows, strict=True):
        assert float(row["gpu_seconds"]) == pytest.approx(plain["gpu_seconds"], abs=1e-5)
