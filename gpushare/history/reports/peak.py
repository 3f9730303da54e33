# SPDX-License-Identifier: Apache-2.0
"""The report peak: the most that cards, or groups of containers, needed at one time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpushare.history.reports.columns import BYTES, COUNT, PERCENT, TIME, ReportColumn, Row

if TYPE_CHECKING:
    from gpushare.history.intervals import Interval
    from gpushare.history.reports.source import ReportSource

#: Of the time; the rest is not looked at for `p95`.
_MOST_OF: Final = 0.95
_CARDS: Final = frozenset({"card", "node"})

PEAK: Final = (
    ReportColumn("used_peak_bytes", "Used", BYTES, "The most memory in use at one time."),
    ReportColumn("used_peak_time", "When", TIME, "When that was."),
    ReportColumn(
        "used_p95_bytes", "Used 95 %", BYTES, "Memory that sufficed for 95 % of the time."
    ),
    ReportColumn(
        "requested_peak_bytes", "Requested", BYTES, "The most memory that quotas added up to."
    ),
    ReportColumn("capacity_bytes", "Capacity", BYTES, "Memory of the cards."),
    ReportColumn(
        "peak_ratio",
        "Used part",
        PERCENT,
        "The most memory in use, of the capacity; of containers, of the most that was requested.",
    ),
    ReportColumn(
        "compute_peak_cards",
        "Compute",
        COUNT,
        "The most compute at one time, in cards: 1.5 is one and a half cards.",
    ),
    ReportColumn(
        "compute_p95_cards", "Compute 95 %", COUNT, "Compute that sufficed for 95 % of the time."
    ),
    ReportColumn("tenants_peak", "Tenants", COUNT, "The most containers and host processes."),
)


@dataclass
class _Moment:
    """The need of a group in intervals of the same time."""

    used: float = 0.0
    requested: float = 0.0
    compute: float = 0.0
    tenants: float = 0.0
    seconds: float = 0.0


@dataclass
class _Peaks:
    used: list[tuple[float, float]] = field(default_factory=list)  # and for how long
    compute: list[tuple[float, float]] = field(default_factory=list)
    used_peak: float = 0.0
    used_peak_time: float | None = None
    requested: float = 0.0
    tenants: float = 0.0

    def add(self, step: float, moment: _Moment) -> None:
        self.used.append((moment.used, moment.seconds))
        self.compute.append((moment.compute, moment.seconds))
        if self.used_peak_time is None or moment.used > self.used_peak:
            self.used_peak, self.used_peak_time = moment.used, step
        self.requested = max(self.requested, moment.requested)
        self.tenants = max(self.tenants, moment.tenants)


def peak(source: ReportSource, by: str) -> list[Row]:
    """Return the peaks of each group."""
    peaks: dict[str, _Peaks] = {}
    for step, moments in _steps(source, by):
        for group, moment in moments.items():
            peaks.setdefault(group, _Peaks()).add(step, moment)
    return [_row(source, by, group, found) for group, found in peaks.items()]


def _steps(source: ReportSource, by: str) -> Iterator[tuple[float, dict[str, _Moment]]]:
    """Yield each time with what the groups needed: where needs are of five minutes, a bound."""
    step: float | None = None
    moments: dict[str, _Moment] = {}
    for group, interval in _grouped(source, by):
        if interval.step != step:
            if step is not None:
                yield step, moments
            step, moments = interval.step, {}
        _add(moments.setdefault(group, _Moment()), interval, is_card=by in _CARDS)
    if step is not None:
        yield step, moments


def _grouped(source: ReportSource, by: str) -> Iterator[tuple[str, Interval]]:
    if by in _CARDS:
        for card, interval in source.card_intervals():
            yield card.name if by == "card" else "all", interval
        return
    for number, interval in source.container_intervals():
        container, _ = source.subjects[number]
        yield source.labels[container.key].get(by, ""), interval


def _add(moment: _Moment, interval: Interval, *, is_card: bool) -> None:
    requested, tenants = ("allocated_bytes", "tenants") if is_card else ("quota_bytes", "")
    for name, share in (("used_bytes", "used"), (requested, "requested"), (tenants, "tenants")):
        if (extent := interval.gauges.get(name)) is not None:
            setattr(moment, share, getattr(moment, share) + extent.most)
    if not is_card:
        moment.tenants += 1
    if (busy := interval.gauges.get("utilization")) is not None:
        moment.compute += busy.most / 100
    moment.seconds = max(moment.seconds, interval.seconds)


def _row(source: ReportSource, by: str, group: str, found: _Peaks) -> Row:
    cards = [
        card.memory_bytes
        for card in source.cards.values()
        if by in _CARDS and group in {card.name, "all" if card.name == str(card.index) else ""}
    ]
    capacity = sum(cards) if cards else None
    whole = capacity or found.requested
    return {
        by: group,
        "used_peak_bytes": found.used_peak,
        "used_peak_time": found.used_peak_time,
        "used_p95_bytes": _quantile(found.used),
        "requested_peak_bytes": found.requested,
        "capacity_bytes": capacity,
        "peak_ratio": found.used_peak / whole if whole else None,
        "compute_peak_cards": max((value for value, _ in found.compute), default=None),
        "compute_p95_cards": _quantile(found.compute),
        "tenants_peak": found.tenants,
    }


def _quantile(values: list[tuple[float, float]]) -> float | None:
    """Return the value that was not exceeded for `_MOST_OF` of the time."""
    left = _MOST_OF * sum(seconds for _, seconds in values)
    for value, seconds in sorted(values):
        left -= seconds
        if left <= 0:
            return value
    return None
