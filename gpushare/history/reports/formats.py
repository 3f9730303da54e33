# SPDX-License-Identifier: Apache-2.0
"""A report as CSV or JSON, and what its texts share: made from the report's columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from gpushare.history.reports.columns import TEXT, TIME, ReportColumn, time_text

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
    return text_cell(str(value)) if column.unit == TEXT else str(value)


def text_cell(text: str) -> str:
    """Return a text for CSV, in which no spreadsheet sees a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def period_text(report: ReportTable) -> str:
    """Return the period of a report, in the local time."""
    return f"{time_text(report.since)} to {time_text(report.until)}"


def total_cells(report: ReportTable) -> list[str]:
    """Return the cells of the last line."""
    return ["Total", *report.cells(report.total)[1:]]


FORMATS: Final[Mapping[str, Callable[[ReportTable], str]]] = {
    "csv": csv_text,
    "json": json_text,
}
