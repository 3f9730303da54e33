# SPDX-License-Identifier: Apache-2.0
"""What a figure was over time, from rows of the metrics history. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpushare.history.figures import MetricFigure
from gpushare.history.tables import PERIOD_SECONDS

#: Steps below this are given as they were sampled: a step without a sample would look like a gap.
_FINEST_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Bucket:
    """The samples of some time. `sum` is the integral of a gauge over time, in unit-seconds.

    Of a counter, it is the increase, and the others are the increase in a second.
    """

    start: float
    seconds: float
    least: float
    most: float
    mean: float
    sum: float
    sampled: float  # for how many of the seconds there are samples


#: When it begins, how long it is, the minimum, maximum and integral, and the time that has samples;
#: times in milliseconds.
Row = tuple[int, int, float, float, float, int]


def scaled(row: Row, figure: MetricFigure) -> Row:
    """Return a row of the file in the figure's unit, of a counter with its rate."""
    start, length, least, most, total, ms = row
    total /= figure.scale
    if figure.counter:
        rate = _rate(total, ms)
        return start, length, rate, rate, total, ms
    return start, length, least / figure.scale, most / figure.scale, total, ms


def _rate(increase: float, ms: int) -> float:
    return 1000 * increase / ms if ms else 0.0


def buckets(
    rows: list[Row], since: float, seconds: float | None, *, is_counter: bool
) -> list[Bucket]:
    """Return `rows` in steps of `seconds` from `since`, None: each by itself."""
    if not seconds:
        return [_bucket([row], row[0] / 1000, row[1] / 1000, is_counter) for row in rows]
    steps: dict[tuple[float, float], list[Row]] = {}
    for row in rows:
        step = max(seconds, row[1] / 1000) if row[1] == 1000 * PERIOD_SECONDS else seconds
        if step < _FINEST_SECONDS:
            place = row[0] / 1000, row[1] / 1000
        else:
            # A sample stands for the time before it.
            at = row[0] if row[1] == 1000 * PERIOD_SECONDS else row[0] + row[1]
            place = since + (at / 1000 - since) // step * step, step
        steps.setdefault(place, []).append(row)
    return [_bucket(steps[place], *place, is_counter) for place in sorted(steps)]


def _bucket(rows: list[Row], start: float, seconds: float, is_counter: bool) -> Bucket:
    least, most = min(row[2] for row in rows), max(row[3] for row in rows)
    total, ms = sum(row[4] for row in rows), sum(row[5] for row in rows)
    if is_counter:
        mean = _rate(total, ms)
    else:
        mean, total = total / ms if ms else most, total / 1000
    return Bucket(start, seconds, least, most, mean, total, ms / 1000)


def added(found: list[list[Bucket]]) -> list[Bucket]:
    """Return the sum of several series, where a bucket of any is."""
    steps: dict[tuple[float, float], list[Bucket]] = {}
    for bucket in (bucket for buckets in found for bucket in buckets):
        steps.setdefault((bucket.start, bucket.seconds), []).append(bucket)
    return [
        Bucket(
            *place,
            least=sum(one.least for one in steps[place]),
            most=sum(one.most for one in steps[place]),
            mean=sum(one.mean for one in steps[place]),
            sum=sum(one.sum for one in steps[place]),
            sampled=max(one.sampled for one in steps[place]),
        )
        for place in sorted(steps)
    ]
