# SPDX-License-Identifier: Apache-2.0
"""The figures of graphs: from the metrics history if it can be read, else what top has seen.

All of it is the poller's thread's, but for `target`, which the screen sets.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from gpushare.cli.top.graphs import RANGES, Graph, GraphPage, GraphPoint, GraphTarget
from gpushare.errors import UserError
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from gpushare.cli.top.snapshot import TopCard, TopContainer, TopSnapshot
    from gpushare.history.reader import HistoryReader, Subject

_MOST_SEEN: Final = 1200  # samples of one container or card
_STEPS: Final = 240  # of a range, as it is read
_READ_SECONDS: Final = 5.0  # the history has a new sample every ten seconds
_RECENT_SECONDS: Final = 120.0


@dataclass(frozen=True)
class _Figure:
    """One graph: its figure in a row of top, and in the history by `name`."""

    title: str
    name: str
    value: Callable[[Any], float | None]
    text: Callable[[float], str]
    top: Callable[[Any], float] = lambda _: 100.0
    shows_peaks: bool = False
    style: str = "good"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _bytes(value: float) -> str:
    return format_size(int(value))


_CONTAINER: Final = (
    _Figure(
        "MEMORY",
        "used_bytes",
        lambda one: one.part["used_bytes"],
        _bytes,
        lambda one: max(one.part["limit_bytes"], one.part["quota_bytes"]),
        shows_peaks=True,
        style="card",
    ),
    _Figure("CORES", "utilization", lambda one: one.part["compute"]["cores_used"]["1s"], _percent),
)
_CARD: Final = (
    _Figure(
        "CARD MEMORY",
        "used_bytes",
        lambda one: one.used_bytes,
        _bytes,
        lambda one: one.row["memory_bytes"],
        shows_peaks=True,
        style="card",
    ),
    _Figure("CARD GPU", "utilization", lambda one: one.row["utilization"], _percent),
    _Figure(
        "TEMPERATURE",
        "temperature",
        lambda one: one.row["sensors"].get("temperature_celsius"),
        lambda value: f"{value:.0f} C",
        shows_peaks=True,
        style="warn",
    ),
    _Figure(
        "POWER",
        "power",
        lambda one: one.watts,
        lambda value: f"{value:.0f} W",
        lambda _: 0.0,  # as high as the highest
        shows_peaks=True,
        style="warn",
    ),
)
#: ("" and card, or key and card), and the row.
_Place = tuple[str, int]


class GraphSource:
    """Remembers what top has seen, and reads the history that `open_history` opens."""

    def __init__(self, open_history: Callable[[], HistoryReader]) -> None:
        self.target: GraphTarget | None = None
        self._open = open_history
        self._reader: HistoryReader | None = None
        self._fault = ""  # why it could not be read
        self._read_at = -math.inf
        self._read: tuple[GraphTarget | None, dict[str, list[GraphPoint]]] = (None, {})
        self._subjects: list[tuple[_Place, Sequence[_Figure], Subject]] = []
        self._seen: dict[_Place, array[float]] = {}
        self._since = time.time()
        self._before = 0.0

    def with_graphs(self, snapshot: TopSnapshot, interval: float) -> TopSnapshot:
        """Return `snapshot` with the graphs of the target, if there is one, and remember it."""
        length = min(snapshot.taken - self._before, 2 * interval) if self._before else interval
        self._before = snapshot.taken
        rows: dict[_Place, tuple[Sequence[_Figure], Any]] = {
            **{("", card.index): (_CARD, card) for card in snapshot.cards},
            **{(one.key, one.card): (_CONTAINER, one) for one in snapshot.containers},
        }
        self._seen = {
            place: self._noted(place, figures, row, snapshot.taken, max(length, 0.1))
            for place, (figures, row) in rows.items()
        }
        target = self.target
        if target is None:
            return snapshot
        return replace(snapshot, graphs=self._page(target, snapshot))

    def _noted(
        self, place: _Place, figures: Sequence[_Figure], row: Any, at: float, length: float
    ) -> array[float]:
        """Return what was seen of a row, with its figures now; not a number: not known."""
        seen = self._seen.get(place, array("d"))
        values = (figure.value(row) for figure in figures)
        now = [math.nan if value is None else float(value) for value in values]
        seen.extend((at, length, *now))
        if len(seen) > (width := 2 + len(figures)) * _MOST_SEEN:
            del seen[: width * (_MOST_SEEN // 8)]
        return seen

    def _page(self, target: GraphTarget, snapshot: TopSnapshot) -> GraphPage | None:
        card = next((one for one in snapshot.cards if one.index == target.card), None)
        row = next(
            (
                one
                for one in snapshot.containers
                if (one.key, one.card) == (target.key, target.card)
            ),
            None,
        )
        if card is None or (target.key and row is None):
            return None
        stored = self._stored(target, card, snapshot.taken)
        parts: list[tuple[_Place, Sequence[_Figure], int, Any]] = []
        if row is not None:
            parts.append(((row.key, row.card), _CONTAINER, len(_CONTAINER), row))
        parts.append((("", card.index), _CARD, len(_CARD) if row is None else 2, card))
        graphs = [
            self._graph(place, figures, number, shown, stored, target, snapshot.taken)
            for place, figures, count, shown in parts
            for number in range(count)
        ]
        return GraphPage(
            target, _title(card, row), self._note(target), snapshot.taken, tuple(graphs)
        )

    def _note(self, target: GraphTarget) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self._since))
        span = f"the last {dict(RANGES)[target.seconds]}"
        if not self._fault:
            return f"{span}, from the metrics history"
        return f"{span}, as far as top has seen it since {since}: {self._fault}"

    def _graph(
        self,
        place: _Place,
        figures: Sequence[_Figure],
        number: int,
        row: Any,
        stored: dict[str, list[GraphPoint]],
        target: GraphTarget,
        until: float,
    ) -> Graph:
        figure = figures[number]
        points = list(stored.get(_stored_name(place, figure), ()))
        last = points[-1].end if points else -math.inf
        seen = self._seen[place]
        width = 2 + len(figures)
        for at in range(0, len(seen), width):
            end, length, value = seen[at], seen[at + 1], seen[at + 2 + number]
            if end > last and not math.isnan(value):
                points.append(GraphPoint(max(last, end - length), end, value, value))
        points = [one for one in points if one.end > until - target.seconds]
        now = figure.value(row)
        most = max((one.most for one in points), default=None)
        top = figure.top(row)
        text = "-" if now is None else figure.text(now)
        if now is not None and figure.name == "used_bytes":
            text = format_use(int(now), int(top), int(top))
        return Graph(
            title=figure.title,
            now=text,
            most="-" if most is None else figure.text(most),
            top=max(top, most or 0.0),
            points=tuple(points),
            style=figure.style,
            shows_peaks=figure.shows_peaks,
        )

    # --- the metrics history ---

    def _stored(
        self, target: GraphTarget, card: TopCard, until: float
    ) -> dict[str, list[GraphPoint]]:
        """Return the points of the history by figure; none, and `_fault`, if it is unreadable."""
        now = time.monotonic()
        if self._read[0] == target and now - self._read_at < _READ_SECONDS:
            return self._read[1]
        self._read_at = now
        try:
            if self._reader is None:
                self._reader = self._open()
            if self._read[0] != target or len(self._subjects) < (2 if target.key else 1):
                self._subjects = self._found(self._reader, target, card, until)
            found = self._points(self._reader, target, card, until)
            self._fault = ""
        except (UserError, OSError) as error:
            self._close()
            self._fault, found = str(error), {}
        self._read = target, found
        return found

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    @staticmethod
    def _found(
        reader: HistoryReader, target: GraphTarget, card: TopCard, until: float
    ) -> list[tuple[_Place, Sequence[_Figure], Subject]]:
        """Return what the history has of the target: it is among what exists now."""
        recent = until - _RECENT_SECONDS
        subjects: list[tuple[_Place, Sequence[_Figure], Subject]] = [
            (("", card.index), _CARD, one)
            for one in reader.cards(recent, until)
            if one.uuid == card.row["uuid"]
        ]
        if target.key:
            subjects += [
                ((target.key, card.index), _CONTAINER, one)
                for one in reader.containers(recent, until)
                if one.key == target.key and card.row["uuid"] in one.cards
            ]
        return subjects

    def _points(
        self, reader: HistoryReader, target: GraphTarget, card: TopCard, until: float
    ) -> dict[str, list[GraphPoint]]:
        return {
            _stored_name(place, figure): [
                GraphPoint(one.start, one.start + one.seconds, one.mean, one.most)
                for one in reader.series(
                    replace(subject, last=until),
                    figure.name,
                    until - target.seconds,
                    until,
                    target.seconds / _STEPS,
                    card=card.row["uuid"] if place[0] else None,
                )
            ]
            for place, figures, subject in self._subjects
            for figure in figures
        }


def _stored_name(place: _Place, figure: _Figure) -> str:
    return f"{'container' if place[0] else 'card'} {figure.name}"


def _title(card: TopCard, row: TopContainer | None) -> str:
    shown = f"card {card.index} {card.row['model']}"
    return shown if row is None else f"{row.name} ({row.tenant['id'][:12]}) on {shown}"
