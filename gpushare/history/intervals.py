# SPDX-License-Identifier: Apache-2.0
"""Reads all figures of all cards, or of all containers, in the order of time: once for a report.

`HistoryReader.series` reads one figure of one subject.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from gpushare.history.figures import counters, gauges
from gpushare.history.packed import unpack
from gpushare.history.tables import KINDS, PACKED_SINCE, PERIOD_SECONDS

if TYPE_CHECKING:
    from gpushare.history.reader import HistoryReader

#: How much is read at once: a reader that takes long keeps the writer's log from being emptied.
_PERIODS_MS: Final = 6 * 3600 * 1000
_PERIOD_MS: Final = 1000 * PERIOD_SECONDS


class Extent(NamedTuple):
    """The least and the most of a gauge in an interval, and its integral over `seconds`."""

    least: float
    most: float
    integral: float
    seconds: float

    @property
    def mean(self) -> float:
        """Its average."""
        return self.integral / self.seconds if self.seconds else self.most


class Interval(NamedTuple):
    """The figures of a subject: gauges that are known, and the increases of counters.

    `seconds` is how long there are samples. Intervals with the same `step` are of the same time.
    """

    step: float
    start: float
    seconds: float
    gauges: Mapping[str, Extent]
    increases: Mapping[str, float]

    @property
    def end(self) -> float:
        """The end of the interval."""
        return self.start + self.seconds


def intervals(
    reader: HistoryReader, kind: str, since: float, until: float
) -> Iterator[tuple[int, Interval]]:
    """Yield the number of a subject and an interval of it, by time; `kind`: card, container."""
    first, last = 1000 * since, 1000 * until
    with reader.one_moment():
        # What is read is what there is, whatever range is asked for.
        [[packed_since, oldest, begun, end]] = reader.query(
            f"SELECT {PACKED_SINCE}, (SELECT 1000 * min(start) FROM {kind}_period), "  # noqa: S608
            f"1000 * min(start), 1000 * max(start) FROM {kind}_packed"
        )
        if oldest is not None:
            yield from _periods(reader, kind, max(first, oldest), min(last, packed_since))
        if begun is not None:
            begun = max(first, packed_since, begun) // _PERIOD_MS * _PERIOD_MS
            end = min(last, end + 1)
        for start in range(int(begun or 0), math.ceil(end or 0), _PERIOD_MS):
            yield from _samples(kind, first, last, _packed(reader, kind, start))
        yield from _samples(
            kind,
            first,
            last,
            reader.query(
                f"SELECT at, subject, ms, {', '.join(KINDS[kind])} "  # noqa: S608 - names are ours
                f"FROM moment CROSS JOIN {kind}_sample ON moment.id = moment ORDER BY at"
            ),
        )


def _periods(
    reader: HistoryReader, kind: str, first: float, last: float
) -> Iterator[tuple[int, Interval]]:
    names = [figure.name for figure in gauges(KINDS[kind])]
    counts = [figure.name for figure in counters(KINDS[kind])]
    scales = {name: figure.scale for name, figure in KINDS[kind].items()}
    columns = [f"{name}_{part}" for name in names for part in ("least", "most", "sum", "ms")]
    for begin, end in _parts(first, last, _PERIODS_MS):
        for start, subject, ms, *values in reader.query(
            f"SELECT start, subject, ms, {', '.join(columns + counts)} "  # noqa: S608 - ours
            f"FROM {kind}_period WHERE 1000 * start >= ? AND 1000 * start < ? ORDER BY start",
            begin,
            end,
        ):
            found = {
                name: Extent(
                    least / scales[name],
                    most / scales[name],
                    total / scales[name] / 1000,
                    covered / 1000,
                )
                for name, least, most, total, covered in _quarters(names, values)
                if covered
            }
            grown = {
                name: value / scales[name]
                for name, value in zip(counts, values[4 * len(names) :], strict=True)
            }
            yield subject, Interval(start, start, ms / 1000, found, grown)


def _packed(reader: HistoryReader, kind: str, start: int) -> list[tuple[Any, ...]]:
    """Return the samples of a period, by time."""
    packed = reader.query(
        f"SELECT subject, samples FROM {kind}_packed WHERE start = ?",  # noqa: S608
        start // 1000,
    )
    return sorted(
        (
            (start + at, subject, *rest)
            for subject, samples in packed
            for at, *rest in zip(*unpack(samples), strict=True)
            if at is not None
        ),
        key=itemgetter(0),
    )


def _samples(
    kind: str, first: float, last: float, rows: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[int, Interval]]:
    """Yield the samples in the range; a row has time, subject, milliseconds and the figures."""
    figures = list(KINDS[kind].values())
    for at, subject, ms, *values in rows:
        if not first <= at < last:
            continue
        seconds, gauged, grown = ms / 1000, {}, {}
        for figure, stored in zip(figures, values, strict=True):
            if stored is None:
                continue
            value = stored / figure.scale
            if figure.counter:
                grown[figure.name] = value
            else:
                gauged[figure.name] = Extent(value, value, value * seconds, seconds)
        yield subject, Interval(at / 1000, (at - ms) / 1000, seconds, gauged, grown)


def _quarters(names: list[str], values: list[Any]) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    for place, name in enumerate(names):
        least, most, total, covered = values[4 * place : 4 * place + 4]
        yield name, least, most, total, covered


def _parts(begin: float, end: float, length: float) -> Iterator[tuple[float, float]]:
    """Yield parts of a range, of at most `length`, that begin where a period can."""
    length -= length % (1000 * PERIOD_SECONDS)
    while begin < end:
        upto = min(end, (begin // length + 1) * length)
        yield begin, upto
        begin = upto
