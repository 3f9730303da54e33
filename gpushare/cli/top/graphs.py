# SPDX-License-Identifier: Apache-2.0
"""The graphs of a container or card, as lines of styled text. Pure, as `render` is."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gpushare.cli.text import printable
from gpushare.cli.top.columns import clip, pad

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare.cli.top.render import Line, Size

#: The ranges that the arrows choose from: seconds, and what they are called.
RANGES: Final = (
    (600, "10 minutes"),
    (3600, "hour"),
    (6 * 3600, "6 hours"),
    (24 * 3600, "24 hours"),
    (7 * 24 * 3600, "7 days"),
)
_LEAST_LINES: Final = 3  # of a graph, with its heading
_LEAST_COLUMNS: Final = 30
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_HINT: Final = "Esc back  up down another row  left right the range  h help"


@dataclass(frozen=True)
class GraphTarget:
    """The subject of the graphs: a container (`key`, empty: none) on a card; over which time."""

    key: str
    card: int
    seconds: int


@dataclass(frozen=True)
class GraphPoint:
    """A figure from `start` until `end`, seconds since the epoch: its mean and its maximum."""

    start: float
    end: float
    mean: float
    most: float


@dataclass(frozen=True)
class Graph:
    """One figure over time; `top` is the value of a full column, `shows_peaks` what is drawn."""

    title: str
    now: str
    most: str
    top: float
    points: tuple[GraphPoint, ...]
    style: str
    shows_peaks: bool


@dataclass(frozen=True)
class GraphPage:
    """The graphs of `target` until `until`; `note`: where the figures are from."""

    target: GraphTarget
    title: str
    note: str
    until: float
    graphs: tuple[Graph, ...]


def graph_lines(page: GraphPage | None, size: Size, alarm: str = "") -> list[Line]:
    """Return the screen of `page`: as many graphs as fit, side by side if there is room.

    The lines may be wider than the terminal.
    """
    footer: Line = ((_HINT, "dim"),)
    if page is None:
        return [(("reading the figures", ""),)]
    head: list[Line] = [
        ((printable(page.title), "title"),),
        ((printable(alarm or page.note), "bad" if alarm else "dim"),),
    ]
    across = 2 if size.columns >= 2 * _LEAST_COLUMNS else 1
    room = size.lines - len(head) - 2  # the axis and the footer
    down = max(1, min(-(-len(page.graphs) // across), room // _LEAST_LINES))
    if room < _LEAST_LINES:
        return [*head, footer][: size.lines]
    wide = (size.columns - (across - 1) * 2) // across
    drawn = [
        _drawn(graph, page, wide, room // down, unicode=size.unicode)
        for graph in page.graphs[: across * down]
    ]
    body = [
        _beside(drawn[first : first + across], line, wide)
        for first in range(0, len(drawn), across)
        for line in range(room // down)
    ]
    axis = pad(_axis(page, wide), wide)
    return [*head, *body, (((axis + "  ") * (across - 1) + axis, "dim"),), footer]


def _beside(graphs: Sequence[list[Line]], line: int, wide: int) -> Line:
    spans = list(graphs[0][line])
    for graph in graphs[1:]:
        used = sum(len(text) for text, _ in spans)
        spans += [(" " * (wide + 2 - used), ""), *graph[line]]
    return tuple(spans)


def _drawn(graph: Graph, page: GraphPage, wide: int, lines: int, *, unicode: bool) -> list[Line]:
    heading = clip(f"{graph.title}  {graph.now}  max {graph.most}", wide)
    values = column_values(graph, page.until - page.target.seconds, page.until, wide)
    plotted = plot(values, graph.top, lines - 1, unicode=unicode)
    return [((heading, "title"),), *(((line, graph.style),) for line in plotted)]


def column_values(graph: Graph, since: float, until: float, columns: int) -> list[float | None]:
    """Return a value for each column of the time; None: there are no figures of it."""
    step = (until - since) / columns
    found: list[list[tuple[float, float]]] = [[] for _ in range(columns)]
    for point in graph.points:
        first = math.floor((point.start - since) / step)
        last = math.ceil((point.end - since) / step)
        for at in range(max(0, first), min(columns, max(last, first + 1))):
            start, end = since + at * step, since + (at + 1) * step
            part = min(point.end, end) - max(point.start, start)
            if part > 0:
                found[at].append((part, point.most if graph.shows_peaks else point.mean))
    if graph.shows_peaks:
        return [max((value for _, value in each), default=None) for each in found]
    return [
        sum(part * value for part, value in each) / sum(part for part, _ in each) if each else None
        for each in found
    ]


def plot(values: Sequence[float | None], top: float, lines: int, *, unicode: bool) -> list[str]:
    """Return columns as high as `values`, of which `top` fills `lines`. A gap stays empty."""
    drawn = []
    for line in range(lines - 1, -1, -1):
        cells = []
        for value in values:
            if value is None:
                cells.append(" ")
                continue
            eighths = round(8 * lines * min(1.0, value / (top or 1.0))) - 8 * line
            cells.append(_cell(max(eighths, 1) if line == 0 else eighths, unicode=unicode))
        drawn.append("".join(cells))
    return drawn


def _cell(eighths: int, *, unicode: bool) -> str:
    if eighths <= 0:
        return " "
    if unicode:
        return _LEVELS[min(eighths, 8) - 1]
    return "#" if eighths >= 6 else ":" if eighths >= 3 else "_"


def _axis(page: GraphPage, wide: int) -> str:
    """Return the times at the left, in the middle and at the right."""
    form = "%H:%M" if page.target.seconds <= 24 * 3600 else "%m-%d %H:%M"
    times = [
        time.strftime(form, time.localtime(page.until - page.target.seconds * part))
        for part in (1.0, 0.5, 0.0)
    ]
    space = wide - sum(map(len, times))
    return times[0] + " " * (space // 2) + times[1] + " " * (space - space // 2) + times[2]
