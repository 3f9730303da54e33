# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML page: no script, no other file, light and dark, and fit to print."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from gpushare.history.reports.columns import PERCENT, TEXT, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.history.reports.columns import ReportColumn, ReportTable, Row

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
    period = f"{time_text(report.since)} to {time_text(report.until)}"
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
<p class="dim">{escape(period)}</p>
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
        cells = ["Total", *report.cells(report.total)[1:]]
        foot = f"<tfoot>{_line(report.columns, report.total, cells)}</tfoot>"
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
