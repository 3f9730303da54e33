# SPDX-License-Identifier: Apache-2.0
"""A report as CSV, JSON, Markdown or text of a table: each is made from the report's columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpushare.history.reports.columns import TEXT, TIME, ReportColumn, time_text
from gpushare.history.reports.html import html_page

if TYPE_CHECKING:
    from gpushare.history.reports.columns import ReportTable

#: A spreadsheet takes a cell that begins with one of these for a formula; users choose names.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")


def json_text(report: ReportTable) -> str:
    """Return the report as JSON, with all values in base units."""
    return json.dumps(report.document, indent=2, ensure_ascii=False) + "\n"


def csv_text(report: ReportTable) -> str:
    """Return the rows as CSV (RFC 4180), in base units; times are ISO 8601. It has no total."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(one.key for one in report.columns)
    for row in report.rows:
        plain = report.plain(row)
        writer.writerow(_csv_cell(one, plain.get(one.key)) for one in report.columns)
    return text.getvalue()


def _csv_cell(column: ReportColumn, value: Any) -> str:
    if value is None:
        return ""
    if column.unit == TIME:
        return time_text(value).replace(" ", "T")
    if column.unit == TEXT and str(value).startswith(_FORMULA):
        return f"'{value}"
    return str(value)


def markdown_text(report: ReportTable) -> str:
    """Return the report as a table of GitHub's Markdown, with its title and period."""
    ends = ["---" if one.unit == TEXT else "---:" for one in report.columns]
    lines = [[_markdown_cell(one.heading) for one in report.columns], ends]
    lines += [[_markdown_cell(cell) for cell in report.cells(row)] for row in report.rows]
    if report.total:
        lines.append(
            [f"**{_markdown_cell(cell)}**" if cell else "" for cell in total_cells(report)]
        )
    table = [f"| {' | '.join(line)} |" for line in lines]
    notes = ["", *(f"- {_markdown_cell(note)}" for note in report.notes)] if report.notes else []
    return "\n".join([f"# {report.title}", "", period_text(report), "", *table, *notes, ""])


def _markdown_cell(text: str) -> str:
    for letter in "\\|`*_<>[]":
        text = text.replace(letter, f"\\{letter}")
    return " ".join(text.split())


def period_text(report: ReportTable) -> str:
    """Return the period of a report, in the local time."""
    return f"{time_text(report.since)} to {time_text(report.until)}"


def total_cells(report: ReportTable) -> list[str]:
    """Return the cells of the last line."""
    return ["Total", *report.cells(report.total)[1:]]


FORMATS: Final[Mapping[str, Callable[[ReportTable], str]]] = {
    "csv": csv_text,
    "json": json_text,
    "markdown": markdown_text,
    "html": html_page,
}
