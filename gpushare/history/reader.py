# SPDX-License-Identifier: Apache-2.0
"""Reads the metrics history, with or without gpushared running, and changes nothing of it.

Times are seconds since the epoch; a range begins with `since` and ends before `until`. The last six
hours are known in steps of ten seconds, and earlier ones in steps of five minutes: there, a step
belongs to the range in which it begins.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.errors import ErrorCode, UserError
from gpushare.history.figures import MetricFigure
from gpushare.history.packed import unpack
from gpushare.history.tables import (
    FILE,
    FORMAT,
    KINDS,
    PACKED,
    PACKED_SINCE,
    PERIOD_SECONDS,
    PERIODS,
    SAMPLES,
)

__all__ = [
    "TOO_LONG",
    "Bucket",
    "CardSubject",
    "ContainerSubject",
    "HistoryReader",
    "HistoryUnreadable",
]

_CACHE_KIB: Final = 4096
TOO_LONG: Final = "reading the history takes too long. Choose a shorter range"


class HistoryUnreadable(UserError):
    """There is no metrics history, or it cannot be read; the text says why."""


@dataclass(frozen=True)
class CardSubject:
    """A card; `first` and `last` are when it was seen.

    `name` is its index, or its UUID if another card was seen later with that index.
    """

    uuid: str
    index: int
    model: str
    memory_bytes: int
    first: float
    last: float
    subject: int  # its number in the history
    name: str


@dataclass(frozen=True)
class ContainerSubject:
    """A container or host process; `cards` has the UUID of each of its cards."""

    key: str
    id: str
    name: str
    namespace: str  # of Kubernetes, as `pod`; empty: of no pod
    pod: str
    user: str  # empty: not known
    labels: Mapping[str, str]  # those that gpushare.yaml names
    engine: str
    mode: str  # shared | exclusive
    policy: str
    first: float
    last: float
    cards: tuple[str, ...]
    subjects: tuple[int, ...]  # the number of each card of it in the history


Subject = CardSubject | ContainerSubject


class HistoryReader:
    """The history in `folder`, for one thread; HistoryUnreadable where there is none.

    Reading ends with HistoryUnreadable once `is_wanted` is false.
    """

    def __init__(self, folder: Path, is_wanted: Callable[[], bool] = lambda: True) -> None:
        self._path = folder / FILE
        self._is_wanted = is_wanted
        self._store = self._open()

    def __enter__(self) -> HistoryReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def cards(self, since: float, until: float) -> list[CardSubject]:
        """Return the cards that were seen in the range, by index."""
        rows = self.query(
            "SELECT subject.id, first / 1000.0, coalesce(seen.last, subject.last) / 1000.0 "
            "AS final, uuid, number, model, memory_bytes FROM subject "
            "LEFT JOIN seen ON seen.subject = subject.id "
            "JOIN card ON card.id = card WHERE container = 0 ORDER BY number, final, uuid"
        )
        latest = {index: uuid for _, _, _, uuid, index, *_ in rows}
        return [
            CardSubject(
                *(uuid, index, model, size, first, last, subject),
                name=str(index) if latest[index] == uuid else uuid,
            )
            for subject, first, last, uuid, index, model, size in rows
            if last >= since and first < until
        ]

    def containers(self, since: float, until: float) -> list[ContainerSubject]:
        """Return the containers that were seen in the range, the earliest first."""
        return [
            _container(row)
            for row in self.query(
                "SELECT key, identity, name, namespace, pod, user, labels, engine, mode, policy, "
                "min(first) AS begun, max(coalesce(seen.last, subject.last)) AS final, "
                "group_concat(uuid), group_concat(subject.id) "
                "FROM container JOIN subject ON subject.container = container.id "
                "JOIN card ON card.id = card "
                "LEFT JOIN seen ON seen.subject = subject.id "
                "GROUP BY container.id HAVING final >= ? AND begun < ? ORDER BY begun, name",
                1000 * since,
                1000 * until,
            )
        ]

    def series(  # noqa: PLR0913 - the last two are rare
        self,
        subject: Subject,
        figure: str,
        since: float,
        until: float,
        seconds: float | None = None,
        *,
        card: str | None = None,
    ) -> list[Bucket]:
        """Return a figure over time, in steps of `seconds` from `since`, or as it is stored.

        No bucket covers a time without samples. A container on several cards has the sum of the
        cards, of which `least` and `most` are bounds, or `card` alone.
        """
        found = [
            buckets(rows, since, seconds, is_counter=_figure(subject, figure).counter)
            for rows in self._rows(subject, figure, since, until, card)
        ]
        return found[0] if len(found) == 1 else added(found)

    # --- the file ---

    def _open(self) -> sqlite3.Connection:
        address = f"file:{urllib.parse.quote(str(self._path))}?mode=ro"
        try:
            if not self._path.exists():
                raise self._none_yet()
            try:
                return self._checked(address)
            except sqlite3.OperationalError:
                # Nothing writes, and the log, which a reader may not make, is not there. If there
                # is one now, something has begun to write.
                store = self._checked(f"{address}&immutable=1")
                if self._path.with_name(f"{FILE}-wal").exists():
                    store.close()
                    return self._checked(address)
                return store
        except PermissionError as error:
            raise HistoryUnreadable(
                f"{self._path} is not open to this user. Use sudo, or join the group that "
                "gpushare.yaml names as read_group.",
                code=ErrorCode.FORBIDDEN,
                fix="Use sudo.",
            ) from error
        except (sqlite3.Error, OSError) as error:
            raise HistoryUnreadable(f"{self._path} cannot be read now ({error})") from error

    def _none_yet(self) -> HistoryUnreadable:
        folder, code = self._path.parent, ErrorCode.NOT_FOUND
        return HistoryUnreadable(f"there is no metrics history in {folder} yet", code=code)

    def _checked(self, address: str) -> sqlite3.Connection:
        store = sqlite3.connect(address, uri=True, timeout=5.0, isolation_level=None)
        try:
            store.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            [version] = store.execute("PRAGMA user_version").fetchone()
            store.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except BaseException:
            store.close()
            raise
        if version != FORMAT:
            store.close()
            if not version:  # it has just been made
                raise self._none_yet()
            raise HistoryUnreadable(
                f"the metrics history has format {version}, and this version of gpushare reads "
                f"format {FORMAT}"
            )
        return store

    def query(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a query; it ends at once, for the writer's log waits for it."""
        if not self._is_wanted():
            raise HistoryUnreadable(TOO_LONG)
        try:
            return self._store.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise HistoryUnreadable(f"{self._path} cannot be read now ({error})") from error

    @contextlib.contextmanager
    def one_moment(self) -> Iterator[None]:
        """Have several queries see the same moment of the file."""
        if self._store.in_transaction:
            yield
            return
        self.query("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(HistoryUnreadable):  # it is closed
                self.query("COMMIT")

    def _rows(
        self, subject: Subject, figure: str, since: float, until: float, card: str | None
    ) -> list[list[Row]]:
        """Return the rows of each card of a subject, by time."""
        with self.one_moment():
            [[packed_since]] = self.query(f"SELECT {PACKED_SINCE}")
            return [
                self._rows_of(number, subject, figure, (since, until), packed_since / 1000)
                for number in _numbers(subject, card)
            ]

    def _rows_of(
        self,
        number: int,
        subject: Subject,
        name: str,
        span: tuple[float, float],
        packed_since: float,
    ) -> list[Row]:
        kind, figure = _kind(subject), _figure(subject, name)
        since, until = span
        # No row of a subject that was not there is looked for.
        first, end = max(since, subject.first), min(until, subject.last + 0.001)
        whole = _period_of(first)
        whole = whole if whole >= since else whole + PERIOD_SECONDS
        rows = self.query(PERIODS[kind, name], number, whole, min(end, packed_since))
        samples = self.query(SAMPLES[kind, name], number, 1000 * first, 1000 * end)
        column = 2 + list(KINDS[kind]).index(name)
        for start, packed in self.query(
            PACKED[kind], number, _period_of(max(first, packed_since)), end
        ):
            columns = unpack(packed)
            samples += [
                (1000 * start + at, ms, value)
                for at, ms, value in zip(columns[0], columns[1], columns[column], strict=True)
                if value is not None and 1000 * since <= 1000 * start + at < 1000 * until
            ]
        for at, ms, value in samples:
            total = value if figure.counter else value * ms
            rows.append((at - ms, ms, value, value, total, ms))
        return [scaled(row, figure) for row in sorted(rows)]


def _period_of(at: float) -> int:
    """Return the beginning of the period that `at` is in."""
    return int(at // PERIOD_SECONDS * PERIOD_SECONDS)


def _container(row: Sequence[Any]) -> ContainerSubject:
    key, identity, name, namespace, pod, user, labels, *rest = row
    engine, mode, policy, first, last, cards, numbers = rest
    return ContainerSubject(
        key=key,
        id=identity,
        name=name,
        namespace=namespace,
        pod=pod,
        user=user,
        labels=json.loads(labels),
        engine=engine,
        mode=mode,
        policy=policy,
        first=first / 1000,
        last=last / 1000,
        cards=tuple(cards.split(",")),
        subjects=tuple(map(int, numbers.split(","))),
    )


def _named(figures: Mapping[str, MetricFigure], name: str) -> MetricFigure:
    if name not in figures:
        raise ValueError(f"{name!r} is not one of {', '.join(figures)}")
    return figures[name]


def _kind(subject: Subject) -> str:
    return "card" if isinstance(subject, CardSubject) else "container"


def _figure(subject: Subject, name: str) -> MetricFigure:
    return _named(KINDS[_kind(subject)], name)


def _numbers(subject: Subject, card: str | None) -> Sequence[int]:
    if isinstance(subject, CardSubject):
        return (subject.subject,)
    return [
        number
        for uuid, number in zip(subject.cards, subject.subjects, strict=True)
        if card in {None, uuid}
    ]


# --- what a figure was over time, from rows of the metrics history. Pure ---

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
