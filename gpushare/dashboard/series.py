# SPDX-License-Identifier: Apache-2.0
"""Figures over time for graphs, as JSON and as CSV.

All lines of a graph have the same times. A time without a sample is a gap: it has no value.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare.dashboard.problems import mode_of
from gpushare.history.figures import CARD_FIGURES, CONTAINER_FIGURES, MetricFigure
from gpushare.history.reader import Bucket, CardSubject, ContainerSubject, HistoryReader
from gpushare.history.reports.columns import time_text
from gpushare.history.reports.formats import text_cell

#: Steps that a graph may have, in seconds; the history has no finer ones than the first.
STEPS: Final = (10, 30, 60, 300, 600, 1800, 3600, 7200, 21600, 86400)
MOST_POINTS: Final = 400
MOST_LINES: Final = 64
LONGEST_SECONDS: Final = 92 * 86400.0
_FINE_SECONDS: Final = 6 * 3600.0  # what is older is known in steps of five minutes
_COARSE_STEP: Final = 300
_TOLERANCE_SECONDS: Final = 1.0


class BadGraph(ValueError):
    """The request for a graph is invalid; the text says why."""


@dataclass(frozen=True)
class TimeRange:
    """From `since` to before `until`, in seconds since the epoch, in steps of `step`."""

    since: float
    until: float
    step: int


@dataclass(frozen=True)
class GraphLine:
    """One figure of one subject; without a value where there is no sample."""

    subject: str
    name: str
    figure: MetricFigure
    values: list[float | None]
    least: list[float | None]
    most: list[float | None]


@dataclass(frozen=True)
class MetricGraph:
    """Lines with the same times."""

    range: TimeRange
    times: list[float]
    lines: list[GraphLine]

    def document(self) -> dict[str, Any]:
        """Return the graph as JSON."""
        return {
            **vars(self.range),
            "times": self.times,
            "lines": [
                {
                    "subject": line.subject,
                    "name": line.name,
                    "figure": line.figure.name,
                    "unit": line.figure.unit,
                    "text": line.figure.text,
                    "counter": line.figure.counter,
                    "values": line.values,
                    "least": line.least,
                    "most": line.most,
                }
                for line in self.lines
            ],
        }

    def csv(self) -> str:
        """Return the graph as CSV (RFC 4180), in base units; a gap is an empty cell."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        headings = ["time"]
        for line in self.lines:
            name = f"{line.name} {line.figure.name} ({line.figure.unit})"
            ends = [] if line.figure.counter else [f"{name} minimum", f"{name} maximum"]
            headings += [name, *ends]
        writer.writerow(map(text_cell, headings))
        for place, at in enumerate(self.times):
            row: list[float | None] = []
            for line in self.lines:
                row.append(line.values[place])
                if not line.figure.counter:
                    row += [line.least[place], line.most[place]]
            writer.writerow([time_text(at).replace(" ", "T"), *row])
        return text.getvalue()


def check_range(since: float, until: float) -> None:
    """Raise BadGraph for a range that is longer than any history, or that has no time in it."""
    if not 0 <= since < until or until - since > LONGEST_SECONDS:
        raise BadGraph("since must be before until, and the range at most 92 days")


def time_range(since: float, until: float, now: float) -> TimeRange:
    """Return the range with a step for about MOST_POINTS points; BadGraph if it is invalid."""
    check_range(since, until)
    finest = _COARSE_STEP if since < now - _FINE_SECONDS - _COARSE_STEP else STEPS[0]
    fitting = (step for step in STEPS if (until - since) / step <= MOST_POINTS)
    step = max(finest, next(fitting, STEPS[-1]))
    return TimeRange(since // step * step, until, step)


def subjects(reader: HistoryReader, since: float, until: float) -> dict[str, Any]:
    """Return the cards and containers that the history has in a range."""
    return {
        "cards": [
            {**vars(card), "subject": f"card:{card.uuid}"} for card in reader.cards(since, until)
        ],
        "containers": [
            {
                **vars(one),
                "subject": f"container:{one.key}",
                "name": _name(one),
                "sharing": mode_of(mode=one.mode, uuid=one.cards[0] if one.cards else ""),
            }
            for one in reader.containers(since, until)
        ],
    }


def graph(
    reader: HistoryReader, wanted: Sequence[str], figures: Sequence[str], asked: TimeRange
) -> MetricGraph:
    """Return the lines of all `figures` of the subjects `wanted`; BadGraph for unknown ones."""
    if not wanted or not figures or len(wanted) * len(figures) > MOST_LINES:
        raise BadGraph(f"a graph has 1 to {MOST_LINES} lines")
    known: dict[str, CardSubject | ContainerSubject] = {
        **{f"card:{card.uuid}": card for card in reader.cards(asked.since, asked.until)},
        **{f"container:{one.key}": one for one in reader.containers(asked.since, asked.until)},
    }
    found: list[tuple[str, str, MetricFigure, list[Bucket]]] = []
    for subject in wanted:
        for name in figures:
            figure = _figure(subject, name)
            one = known.get(subject)
            if one is None:  # the range has nothing of it
                found.append((subject, "", figure, []))
                continue
            buckets = reader.series(one, name, asked.since, asked.until, asked.step)
            found.append((subject, _name(one), figure, buckets))
    times = _times([buckets for *_, buckets in found])
    lines = [
        _line(subject, name, figure, _at(buckets, times))
        for subject, name, figure, buckets in found
    ]
    return MetricGraph(asked, times, lines)


def _figure(subject: str, name: str) -> MetricFigure:
    figures = CARD_FIGURES if subject.startswith("card:") else CONTAINER_FIGURES
    if name not in figures or not subject.startswith(("card:", "container:")):
        raise BadGraph(f"{subject} has no figure {name}")
    return figures[name]


def _name(subject: CardSubject | ContainerSubject) -> str:
    if isinstance(subject, CardSubject):
        return f"card {subject.name}"
    return subject.name or subject.id[:12]


def _times(lines: Iterable[list[Bucket]]) -> list[float]:
    """Return the times at which a line has a value, or a gap begins."""
    found: set[float] = set()
    for buckets in lines:
        end: float | None = None
        for bucket in buckets:
            if end is not None and bucket.start - end > _TOLERANCE_SECONDS:
                found.add(end)
            found.add(bucket.start)
            end = bucket.start + max(bucket.seconds, _TOLERANCE_SECONDS)
    return sorted(found)


def _at(buckets: list[Bucket], times: list[float]) -> list[tuple[Bucket, bool] | None]:
    """Return the bucket that covers each of `times`, and whether it begins there."""
    found: list[tuple[Bucket, bool] | None] = []
    place = 0
    for at in times:
        while place + 1 < len(buckets) and buckets[place + 1].start <= at:
            place += 1
        bucket = buckets[place] if buckets else None
        if bucket is None or not (
            bucket.start == at
            or bucket.start < at < bucket.start + bucket.seconds - _TOLERANCE_SECONDS
        ):
            found.append(None)
        else:
            found.append((bucket, bucket.start == at))
    return found


def _line(
    subject: str, name: str, figure: MetricFigure, found: list[tuple[Bucket, bool] | None]
) -> GraphLine:
    return GraphLine(
        subject,
        name,
        figure,
        values=[one and _value(figure, *one) for one in found],
        least=[one and round(one[0].least, 3) for one in found],
        most=[one and round(one[0].most, 3) for one in found],
    )


def _value(figure: MetricFigure, bucket: Bucket, begins: bool) -> float:
    """Return the mean of a gauge; the increase of a counter once, where its bucket begins."""
    if figure.counter:
        return round(bucket.sum, 3) if begins else 0.0
    return round(bucket.mean, 3)
