# SPDX-License-Identifier: Apache-2.0
"""The page of the reports, from gpushare/history/reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.markdown import table
from gpushare.history.reports import LABEL_PREFIX, LABELS, REPORTS
from gpushare.history.reports.columns import ReportColumn

INTRO: Final = """\
`gpushare report` prints these reports ([how to use them](../how-to/reports.md)). All formats
have the same columns. CSV and JSON have the keys and exact values in base units; tables round, and
show GPU seconds as hours.

**Groups.** `--by` makes one row of all containers with the same value: {labels} or
`{prefix}KEY`. Columns that groups do not have are marked *single*, and those that only groups have
*groups*.

**Sums.** GPU seconds are the increase of gpushared's counters. GiB hours add up each sample for the
time until the next; a time without samples adds nothing. Figures of the last six hours are known
for every ten seconds, and earlier ones for every five minutes: their minimum, maximum and sum stay
exact. A container that is below a limit, or idle, is known to be so for all of these five minutes
or for none."""

UNITS: Final = {
    "text": "text",
    "count": "number",
    "bytes": "bytes",
    "seconds": "seconds",
    "time": "seconds since the epoch; ISO 8601 in CSV",
    "gpu_seconds": "seconds of a whole card",
    "gib_hours": "GiB hours",
    "percent": "ratio, 1 is all",
    "money": "`prices.currency`",
}


def reports() -> Iterator[str]:
    """Yield the columns of every report."""
    labels = ", ".join(f"`{one}`" for one in LABELS)
    yield INTRO.format(labels=labels, prefix=LABEL_PREFIX)
    yield ""
    for name, report in REPORTS.items():
        by = f"By default, it is grouped by `{report.by}`." if report.by else ""
        yield from (f"## {name}", "", f"{report.summary} {by}".strip(), "")
        rows = [
            (f"`{one.key}`", one.heading, UNITS[one.unit], _meaning(one, name))
            for one in report.columns
        ]
        yield from table(("key", "heading", "unit", "meaning"), rows)


def _meaning(column: ReportColumn, report: str) -> str:
    if column.grouped_only:
        return f"{column.meaning} *groups*"
    is_single = column.combine is None and column.ratio is None and report != "peak"
    return f"{column.meaning} *single*" if is_single else column.meaning
