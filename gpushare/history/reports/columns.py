# SPDX-License-Identifier: Apache-2.0
"""The parts of a report: columns, rows, and how rows are grouped.

A column describes itself once: every format, the web page and the reference are made from it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpushare.quota.size import format_size

Row = dict[str, Any]

#: Units of a value. Sizes are bytes and times seconds; `time` is seconds since the epoch.
TEXT, COUNT, BYTES, SECONDS, TIME = "text", "count", "bytes", "seconds", "time"
GPU_SECONDS, GIB_HOURS, PERCENT, MONEY = "gpu_seconds", "gib_hours", "percent", "money"
MISSING: Final = "-"


@dataclass(frozen=True)
class ReportColumn:
    """`key` names the value in JSON and CSV, `heading` in tables; `meaning` is a sentence.

    `combine` makes one value of those of a group (sum, max); a column without it is not shown for
    groups. A `ratio` is computed from two other columns, also of a group. `grouped_only` columns
    are shown for groups only.
    """

    key: str
    heading: str
    unit: str
    meaning: str
    combine: Callable[[Iterable[Any]], Any] | None = None
    ratio: tuple[str, str] | None = None
    grouped_only: bool = False
    optional: bool = False  # left out first if the terminal is too narrow


@dataclass(frozen=True)
class ReportRecord:
    """One row before it is grouped; `labels` are what it can be grouped by."""

    labels: Mapping[str, str]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class ReportTable:
    """A report that was made. `total` is empty if its columns have no sum."""

    name: str
    title: str
    summary: str
    since: float
    until: float
    by: str
    columns: Sequence[ReportColumn]
    rows: Sequence[Row]
    total: Row = field(default_factory=dict)
    notes: Sequence[str] = ()
    currency: str = ""

    @property
    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "report": self.name,
            "since": self.since,
            "until": self.until,
            "by": self.by,
            "currency": self.currency,
            "rows": [self.plain(row) for row in self.rows],
            "total": self.plain(self.total),
            "notes": list(self.notes),
        }

    def plain(self, row: Row) -> Row:
        """Return a row's values by the keys of the columns."""
        return {one.key: _rounded(row[one.key]) for one in self.columns if one.key in row}

    def cells(self, row: Row) -> list[str]:
        """Return a row as text, one cell for each column."""
        return [
            cell_text(one, row[one.key], self.currency) if one.key in row else ""
            for one in self.columns
        ]


def cell_text(column: ReportColumn, value: Any, currency: str = "") -> str:
    """Return a value as people read it; an unknown one, or no name, is `-`."""
    if value is None or value == "":
        return MISSING
    if column.unit == TEXT:
        return str(value)
    return _TEXTS[column.unit](value, currency)


def combined(columns: Sequence[ReportColumn], rows: Sequence[Mapping[str, Any]]) -> Row:
    """Return one row of several: what each column makes of its values; None: no value."""
    made: Row = {}
    for column in columns:
        if column.combine is not None:
            values = [row[column.key] for row in rows if row.get(column.key) is not None]
            made[column.key] = column.combine(values) if values else None
    return with_ratios(columns, made)


def with_ratios(columns: Sequence[ReportColumn], row: Row) -> Row:
    """Return the row with the values of its ratios; None: nothing was requested."""
    for column in columns:
        if column.ratio is not None:
            part, whole = (row.get(key) for key in column.ratio)
            row[column.key] = part / whole if whole and part is not None else None
    return row


def grouped(columns: Sequence[ReportColumn], records: Iterable[ReportRecord], by: str) -> list[Row]:
    """Return a row for each value of the label `by`, which is its first column."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        groups.setdefault(record.labels.get(by, ""), []).append(record.values)
    return [{by: name, **combined(columns, rows)} for name, rows in groups.items()]


def group_columns(columns: Sequence[ReportColumn], by: str) -> list[ReportColumn]:
    """Return the columns of a report that is grouped by the label `by`."""
    first = ReportColumn(
        by, by.removeprefix("label:").capitalize(), TEXT, "What the rows are grouped by."
    )
    kept = [one for one in columns if one.combine is not None or one.ratio is not None]
    return [first, *(one for one in kept if one.key != by)]


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def duration_text(seconds: float) -> str:
    """Return `45 s`, `12 min`, `3 h 20 min` or `2 d 4 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        hours, left = divmod(minutes, 60)
        return f"{hours} h {left} min" if left else f"{hours} h"
    days, left = divmod(round(seconds / 3600), 24)
    return f"{days} d {left} h" if left else f"{days} d"


def time_text(seconds: float) -> str:
    """Return the local time with its offset, as ISO 8601 without the T."""
    at = dt.datetime.fromtimestamp(seconds, dt.timezone.utc).astimezone()
    return at.isoformat(" ", "seconds")


_TEXTS: Final[Mapping[str, Callable[[Any, str], str]]] = {
    COUNT: lambda value, _: f"{round(value, 2):g}",
    BYTES: lambda value, _: format_size(round(value)),
    SECONDS: lambda value, _: duration_text(value),
    TIME: lambda value, _: time_text(value)[:19],
    GPU_SECONDS: lambda value, _: f"{value / 3600:.2f}",
    GIB_HOURS: lambda value, _: f"{value:.2f}",
    PERCENT: lambda value, _: f"{100 * value:.0f} %",
    MONEY: lambda value, currency: f"{value:.2f} {currency}".rstrip(),
}
