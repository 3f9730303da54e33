# SPDX-License-Identifier: Apache-2.0
"""The reports: computed from the metrics history and gpushared's events, with or without gpushared.

`REPORTS` has one line for each. `make_report` returns the rows, of which `formats` makes CSV
or JSON. The command line and the dashboard show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.errors import ErrorCode, UserError
from gpushare.history.reports import compliance, oom, peak, usage
from gpushare.history.reports.columns import (
    ReportColumn,
    ReportRecord,
    ReportTable,
    combined,
    duration_text,
    group_columns,
    grouped,
    with_ratios,
)
from gpushare.history.reports.source import LABEL_PREFIX, LABELS, ReportSource

__all__ = ["LABELS", "LABEL_PREFIX", "REPORTS", "ReportKind", "ReportSource", "make_report"]

#: Shorter gaps, of a restart, are not mentioned.
_NOTED_SECONDS: Final = 300.0


@dataclass(frozen=True)
class ReportKind:
    """One report. `by` is what its rows are grouped by unless told otherwise; empty: nothing.

    `order` is the column whose largest values come first; of times, the earliest.
    """

    title: str
    summary: str
    columns: Sequence[ReportColumn]
    records: Callable[[ReportSource], Iterable[ReportRecord]] | None
    by: str
    order: str
    has_total: bool = False


REPORTS: Final = {
    "usage": ReportKind(
        "GPU usage",
        "What containers requested and used.",
        usage.USAGE,
        usage.usage,
        "container",
        "gpu_seconds",
        has_total=True,
    ),
    "waste": ReportKind(
        "Wasted GPU requests",
        "Containers that used little of what was requested for them, and for how long.",
        usage.WASTE,
        usage.waste,
        "",
        "wasted_gib_hours",
        has_total=True,
    ),
    "compliance": ReportKind(
        "Quota compliance",
        "When containers were over their allocation, and what gpushared did.",
        compliance.COMPLIANCE,
        compliance.compliance,
        "",
        "time",
    ),
    "oom": ReportKind(
        "Refused allocations and crashes",
        "Refused allocations and crashes, with the memory in use before them.",
        oom.OOM,
        oom.oom,
        "",
        "time",
    ),
    "peak": ReportKind(
        "Peak demand",
        "The most that was needed at one time, to plan capacity.",
        peak.PEAK,
        None,
        "card",
        "used_peak_bytes",
    ),
    "chargeback": ReportKind(
        "GPU costs",
        "What is charged for GPU time and memory, at the prices of gpushare.yaml.",
        usage.CHARGEBACK,
        usage.chargeback,
        "namespace",
        "cost",
        has_total=True,
    ),
    "idle": ReportKind(
        "Idle containers",
        "Containers that held memory of a card and did not use it.",
        usage.IDLE,
        usage.idle,
        "",
        "idle_gib_hours",
    ),
}


def make_report(name: str, source: ReportSource, by: str = "") -> ReportTable:
    """Return a report, grouped `by` a label of LABELS or `label:KEY`."""
    report = REPORTS[name]
    by = by or report.by
    if by and by not in LABELS and not by.startswith(LABEL_PREFIX):
        raise UserError(
            f"--by {by}: not one of {', '.join(LABELS)} and {LABEL_PREFIX}KEY",
            code=ErrorCode.USAGE,
            key="--by",
            value=by,
        )
    records = [] if report.records is None else list(report.records(source))
    total: dict[str, Any] = {}
    if report.records is None:
        columns = [*group_columns((), by), *report.columns]
        rows = peak.peak(source, by)
    elif by:
        columns = group_columns(report.columns, by)
        rows = grouped(columns, records, by)
    else:
        columns = [one for one in report.columns if not one.grouped_only]
        rows = [with_ratios(columns, dict(record.values)) for record in records]
    if report.has_total and len(rows) > 1:
        total = combined(columns, [record.values for record in records])
    rows.sort(key=lambda row: (_order(row.get(report.order), report.order), str(row.get(by, ""))))
    return ReportTable(
        name=name,
        title=report.title,
        summary=report.summary,
        since=source.since,
        until=source.until,
        by=by,
        columns=columns,
        rows=rows,
        total=total,
        notes=list(_notes(source, name, records)),
        currency=source.prices.currency if name == "chargeback" else "",
    )


def _order(value: float | None, column: str) -> float:
    if value is None:
        return 0.0
    return value if column == "time" else -value


def _notes(source: ReportSource, name: str, records: Sequence[ReportRecord]) -> Iterator[str]:
    """Yield what a reader of the report has to know about its figures."""
    missing = source.until - source.since - source.sampled_seconds
    if missing >= _NOTED_SECONDS:
        yield (
            f"There are no figures for {duration_text(missing)} of this time: gpushared, or the "
            "history, did not run."
        )
    if name == "waste":
        yield (
            f"Listed are containers that had less than {100 * source.below:g} % of their memory "
            f"quota in use, or received less of their compute, for {_least(source)}."
        )
    elif name == "idle":
        yield f"Listed are containers that were idle for {_least(source)} without a break."
    elif name == "chargeback":
        prices = source.prices
        rates = [("", prices.rate), *((f" of {words}", rate) for words, rate in prices.models)]
        for words, rate in rates:
            yield (
                f"Price of a GPU hour{words}: {rate.gpu_hour:g} {prices.currency}".rstrip()
                + f"; of a GiB hour: {rate.gib_hour:g} {prices.currency}".rstrip()
            )
        yield f"Charged is {_BASIS[prices.basis]} (prices in gpushare.yaml)."
    elif name == "compliance":
        over = {record.labels.get("container") for record in records}
        others = sum(one["container"] not in over for one in source.labels.values())
        yield f"{others} of {len(source.labels)} containers were never over their allocation."
    elif name == "oom":
        yield "Before the last six hours, memory is the most of five minutes."


_BASIS: Final = {
    "used": "what was used",
    "requested": "what was requested",
    "larger": "the larger of what was used and requested, for each container on each card",
}


def _least(source: ReportSource) -> str:
    return f"{duration_text(source.least_seconds)} or longer"
