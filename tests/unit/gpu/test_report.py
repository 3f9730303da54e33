# SPDX-License-Identifier: Apache-2.0
"""What was measured, as readers and programs get it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.gpu.report import GpuReport, NotMeasured, ReportRow, default_path, quantity, slug

FACTS = {"model": "NVIDIA H200", "date": "2026-01-02", "driver": "580.159.04"}


@pytest.fixture
def report() -> GpuReport:
    return GpuReport(FACTS, io.StringIO())


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (1536, "bytes", "1.5 KiB"),
        (0, "bytes", "0 bytes"),
        (-3 << 20, "bytes", "-3 MiB"),
        (4 << 30, "bytes", "4 GiB"),
        (999, "ns", "999 ns"),
        (2_043_000, "ns", "2.043 ms"),
        (1_500_000_000, "ns", "1.5 s"),
        (91.23456, "%", "91.23 %"),
        (7, "", "7"),
        ("580.159.04", "", "580.159.04"),
        ("", "", "-"),
        (None, "", "-"),
    ],
)
def test_a_quantity_is_shown_in_the_unit_that_a_person_would_use(
    value: str | float | None, unit: str, shown: str
) -> None:
    assert quantity(value, unit) == shown


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"),
        ("Tesla T4", "tesla-t4"),
        ("../../etc", "etc"),
        ("", "unknown"),
    ],
)
def test_a_model_becomes_a_safe_part_of_a_file_name(model: str, expected: str) -> None:
    assert slug(model) == expected


def test_the_report_is_named_by_date_and_model() -> None:
    path = default_path(FACTS)
    assert path.parts[-3:] == ("docs", "measurements", "2026-01-02-h200.md")


def failing(error: Exception) -> Iterator[ReportRow]:
    yield ReportRow("first", 1)
    raise error


def test_an_exception_ends_its_section_with_the_reason_and_no_other_section(
    report: GpuReport,
) -> None:
    report.measure("broken", failing(OSError(5, "Input/output error", "/dev/nvidia0")))
    report.measure("whole", [ReportRow("second", 2)])
    first, rest = report.sections[0].rows
    assert (first.name, first.shown) == ("first", "1")
    assert rest.shown == "not measured: OSError: [Errno 5] Input/output error: '/dev/nvidia0'"
    assert report.sections[1].rows == [ReportRow("second", 2)]


def test_a_missing_part_is_reported_in_its_own_terms(report: GpuReport) -> None:
    report.measure("absent", failing(NotMeasured("no PyTorch")))
    assert report.rows[1:] == [ReportRow("the rest of this", missing="no PyTorch")]


def test_a_traceback_as_a_reason_is_one_line_with_both_its_ends(report: GpuReport) -> None:
    report.measure("broken", failing(RuntimeError("gpushared ended:\n" + "frame\n" * 400 + "why")))
    reason = report.rows[1].missing
    assert reason.startswith("RuntimeError: gpushared ended: frame")
    assert reason.endswith("frame why")
    assert len(reason) < 420
    assert "\n" not in reason


def test_only_a_claim_that_did_not_hold_is_lost(report: GpuReport) -> None:
    report.measure(
        "claims",
        [
            ReportRow.claim("the quota holds", held=True, seen="never shown"),
            ReportRow.claim("free again", held=False, seen={"free": 3}),
            ReportRow("slice", 2_000_000, "ns"),
            ReportRow("switch", missing="one context only"),
        ],
    )
    assert [row.name for row in report.lost] == ["free again"]
    assert report.lost[0].note == "{'free': 3}"
    assert report.summary == "1 of 2 claims held, 1 figures, 1 not measured"


def test_markdown_keeps_a_row_on_its_line_whatever_is_in_it(report: GpuReport) -> None:
    report.measure("odd", [ReportRow("a|b", "one\ntwo | three", note="x\n\ny")])
    table = [line for line in report.markdown().splitlines() if line.startswith("| a")]
    assert table == ["| a\\|b | one two \\| three | x y |"]


def test_a_long_list_of_names_is_cut_in_markdown_and_whole_in_json(
    report: GpuReport, tmp_path: Path
) -> None:
    names = tuple(f"cuName{number}" for number in range(70))
    report.measure("symbols", [ReportRow("missing", len(names), detail=names)])
    report.write(tmp_path / "new" / "report.md")
    text = (tmp_path / "new" / "report.md").read_text()
    assert "`cuName59` and 10 more" in text
    assert "cuName60" not in text
    found = json.loads((tmp_path / "new" / "report.json").read_text())
    assert found["sections"][0]["rows"][0]["detail"] == list(names)
    assert found["facts"]["model"] == "NVIDIA H200"


def test_json_has_the_figure_itself_not_its_scaled_form(report: GpuReport) -> None:
    report.measure("slices", [ReportRow("slice", 2_043_000, "ns")])
    assert "2.043 ms" in report.markdown()
    assert json.loads(report.json())["sections"][0]["rows"][0]["value"] == 2_043_000


def test_a_reader_sees_each_row_as_it_comes(report: GpuReport) -> None:
    report.measure("slices", [ReportRow("slice", 2_000_000, "ns", "of 40 seen")])
    assert isinstance(report.stream, io.StringIO)
    assert report.stream.getvalue() == "\nslices\n  slice: 2 ms  (of 40 seen)\n"
