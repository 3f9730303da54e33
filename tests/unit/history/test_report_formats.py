# SPDX-License-Identifier: Apache-2.0
"""Every format has the rows of a report, whatever users call their containers."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from pathlib import Path

import pytest

from gpushare.history.reports import make_report
from gpushare.history.reports.columns import ReportTable
from gpushare.history.reports.formats import FORMATS
from gpushare.prices import Prices, Rate

from .world import HOUR, T0, Actor, read, record

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


def test_json_has_the_values_and_the_period(report: ReportTable) -> None:
    found = json.loads(FORMATS["json"](report))
    assert (found["report"], found["since"], found["by"]) == ("chargeback", T0, "label:team")
    assert {row["label:team"]: row["containers"] for row in found["rows"]} == {"": 1, EVIL: 1}
    assert found["total"]["cost"] == pytest.approx(sum(row["cost"] for row in found["rows"]))
    assert found["currency"] == "EUR"


def test_csv_has_the_same_values_and_no_formula(report: ReportTable) -> None:
    found = list(csv.DictReader(io.StringIO(FORMATS["csv"](report), newline="")))
    assert {row["label:team"] for row in found} == {"", f"'{EVIL}"}
    for row, plain in zip(found, report.rows, strict=True):
        assert float(row["gpu_seconds"]) == pytest.approx(plain["gpu_seconds"], abs=1e-5)


def test_markdown_is_one_table(report: ReportTable) -> None:
    lines = [one for one in FORMATS["markdown"](report).splitlines() if one.startswith("|")]
    bars = {line.replace("\\|", "").count("|") for line in lines}
    assert bars == {len(report.columns) + 1}
    assert lines[0].startswith("| Team | Containers | GPU hours")
    assert any("=1+1\\|\\<script\\>" in line for line in lines)
    assert lines[-1].startswith("| **Total** | **2** |")


def test_the_html_page_needs_no_other_file_and_runs_no_script(report: ReportTable) -> None:
    text = FORMATS["html"](report)
    heads = [one.heading for one in report.columns]
    cells = [cell for row in (*report.rows, report.total) for cell in report.cells(row)]
    shown = re.findall(r"<t[hd]\b[^>]*>(.*?)</t[hd]>", text, re.DOTALL)
    assert [html.unescape(one) for one in shown[: len(heads)]] == heads
    assert {html.unescape(one) for one in shown[len(heads) :]} == {*cells, "Total"} - {""}
    assert not re.search(
        r"<(script|link|img|iframe)|\b(src|href|action)=|url\(|@import|https?:", text
    )
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
