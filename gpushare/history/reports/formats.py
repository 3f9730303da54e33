# SPDX-License-Identifier: Apache-2.0
"""A report as CSV, JSON, Markdown or text of a table: each is made from the report's columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from gpushare.history.reports.columns import PERCENT, TEXT, TIME, ReportColumn, time_text

if TYPE_CHECKING:
    from gpushare.history.reports.columns import ReportTable, Row

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a1c1f; --paper: #fff; --line: #d5d9de; --dim: #5b6470;
  --bar: #9cc3f0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ea; --paper: #16181b; --line: #3a3f46;
  --dim: #a0a8b2; --bar: #2f5f93; } }
body { margin: 2rem auto; max-width: 78rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper); font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .3rem; }
p { margin: .2rem 0; }
.dim { color: var(--dim); }
.wide { overflow-x: auto; margin: 1.2rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { font-size: .8rem; color: var(--dim); }
td { overflow-wrap: anywhere; }
td:first-child { min-width: 11rem; }
.number { text-align: right; white-space: nowrap; }
.bar { background: linear-gradient(90deg, var(--bar) var(--part), transparent var(--part)); }
tfoot td { font-weight: 600; border-bottom: 0; }
@page { size: A4 landscape; margin: 12mm; }
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; --line: #999; --dim: #333;
  --bar: #ccc; } body { margin: 0; max-width: none; font-size: 9pt; } .wide { overflow: visible; }
  thead { display: table-header-group; } tr { break-inside: avoid; }
  .bar { print-color-adjust: exact; } }
"""


def html_page(report: ReportTable) -> str:
    """Return the page."""
    notes = "".join(f"<p class=dim>{escape(note)}</p>\n" for note in report.notes)
    title = escape(report.title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p>{escape(report.summary)}</p>
<p class="dim">{escape(period_text(report))}</p>
{html_table(report)}
{notes}</body>
</html>
"""


def html_table(report: ReportTable) -> str:
    """Return the table alone, for a page that has its own style."""
    head = "".join(
        f'<th scope="col"{_class(one)} title="{escape(one.meaning)}">{escape(one.heading)}</th>'
        for one in report.columns
    )
    rows = "".join(_line(report.columns, row, report.cells(row)) for row in report.rows)
    if not report.rows:
        rows = f'<tr><td colspan="{len(report.columns)}">Nothing to report.</td></tr>\n'
    foot = ""
    if report.total:
        foot = f"<tfoot>{_line(report.columns, report.total, total_cells(report))}</tfoot>"
    return (
        f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n'
        f"{foot}</table></div>"
    )


def _line(columns: Sequence[ReportColumn], row: Row, cells: Sequence[str]) -> str:
    made = []
    for column, cell in zip(columns, cells, strict=True):
        value = row.get(column.key)
        if column.unit == PERCENT and value is not None:
            part = f"{100 * min(1.0, max(0.0, value)):.0f}%"
            made.append(f'<td class="number bar" style="--part:{part}">{escape(cell)}</td>')
        else:
            made.append(f"<td{_class(column)}>{escape(cell)}</td>")
    return f"<tr>{''.join(made)}</tr>\n"


def _class(column: ReportColumn) -> str:
    return "" if column.unit == TEXT else ' class="number"'


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
