# SPDX-License-Identifier: Apache-2.0
"""A picture as lines of styled text. Pure: what is not told here is not on the screen.

Whatever a container or a process chose itself (its name) passes `printable` before it is measured.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli.summary import count
from gpushare.cli.table import printable
from gpushare.cli.top.columns import COLUMNS, GAP, Column, layout
from gpushare.cli.top.detail import detail
from gpushare.cli.top.picture import Card, Container
from gpushare.cli.top.text import bar, clip, pad, to_ascii, width
from gpushare.cli.top.view import index, rows
from gpushare.quota.size import format_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpushare.cli.top.picture import Picture, Process
    from gpushare.cli.top.view import Row, View

#: Styles: "" plain, title, heading, card, selected, good, warn, bad, dim.
Span: TypeAlias = tuple[str, str]  # text, style
Line: TypeAlias = tuple[Span, ...]

_NEARLY: Final = 0.9  # of a quota, from where on its figure is yellow
_DETAIL_LINES: Final = 10
_METER_COLUMNS: Final = (8, 30)  # the least and the most that a bar takes


@dataclass(frozen=True)
class Size:
    """A terminal: its columns and lines, and whether it shows more than ASCII."""

    columns: int
    lines: int
    unicode: bool = True


@dataclass(frozen=True)
class Frame:
    """A full screen; of the rows `top` is the first that is shown, `page` how many, `at` which."""

    lines: tuple[Line, ...]
    top: int = 0
    page: int = 1
    at: int = 0


def frame(picture: Picture, view: View, size: Size, *, alarm: str, footer: Line) -> Frame:
    """Return the screen of `size`; `alarm`, where there is one, stands above the table."""
    found = rows(picture, view)
    at = index(found, view)
    above = list(_above(picture, view, size, alarm))
    below: list[Line] = []
    if view.detail and found and size.lines >= 2 * _DETAIL_LINES:
        below = [((text, "dim"),) for text in detail(found[at])[:_DETAIL_LINES]]
    page = max(0, size.lines - len(above) - len(below) - 2)
    top = _scrolled(view.top, at, page, len(found))
    heading, *body = table_lines(
        *(found, size.columns, size.unicode, view), selected=at, shown=slice(top, top + page)
    )
    body += [()] * (page - len(body))
    lines = [*above, heading, *body, *below, footer]
    fitted = tuple(_fit(line, size) for line in lines[: size.lines])
    return Frame(fitted, top, max(page, 1), at)


def header(picture: Picture, view: View | None) -> Line:
    """Return the first line: what there is, and when it was so."""
    taken = dt.datetime.fromtimestamp(picture.taken, dt.timezone.utc).astimezone()
    containers = {one.key for one in picture.containers}
    there = f"{count(len(picture.cards), 'card')}, {count(len(containers), 'container')}"
    when = taken.strftime("%H:%M:%S")
    if view is None:
        return (("gpushare top", "title"), (f"  {taken.isoformat(' ', 'seconds')}  {there}", ""))
    shown = f'  filter "{printable(view.filter)}"' if view.filter else ""
    return (
        ("gpushare top", "title"),
        (f"  {when}  every {view.interval:g} s  {there}", ""),
        (shown, "warn"),
    )


def meters(cards: Sequence[Card], columns: int, *, unicode: bool) -> list[Line]:
    """Return a line of each card: its memory and how busy it is, as bars where there is room."""
    titles = [f"{card.index} {printable(card.model)}" for card in cards]
    held = [format_use(card.used_bytes, card.memory_bytes, card.memory_bytes) for card in cards]
    first, second = max(map(width, titles), default=0), max(map(len, held), default=0)
    return [
        _meter(card, pad(title, first), pad(use, second), columns, unicode)
        for card, title, use in zip(cards, titles, held, strict=True)
    ]


def _meter(card: Card, title: str, held: str, columns: int, unicode: bool) -> Line:
    busy = "-" if card.utilisation is None else f"{card.utilisation} %"
    begin: list[Span] = [(title, "card")]
    if card.is_troubled:
        begin.append((f"  {printable(card.health)}", "bad"))
    words = [*begin, ("  MEM ", ""), (f" {held}", ""), ("  GPU ", ""), (f" {busy:>5}", "")]
    mode: list[Span] = [(f"  {card.mode}", "")]
    if not card.is_troubled:
        mode.append((f"  {card.health}", "good"))
    least, most = _METER_COLUMNS
    room = (columns - sum(width(text) for text, _ in words + mode)) // 2
    if room >= least:
        words += mode
    else:
        room = (columns - sum(width(text) for text, _ in words)) // 2
    if room < least:
        return tuple(words)
    long = min(room, most)
    whole = card.memory_bytes or 1
    used, promised = card.used_bytes / whole, (card.promised_bytes + card.foreign_bytes) / whole
    held_bar = bar(long, used, promised, ascii_only=not unicode)
    busy_bar = bar(long, (card.utilisation or 0) / 100, ascii_only=not unicode)
    words.insert(len(begin) + 1, (held_bar, _level(used)))
    words.insert(len(begin) + 4, (busy_bar, "good"))
    return tuple(words)


def table_lines(
    found: list[Row],
    columns: int | None,
    unicode: bool,
    view: View,
    *,
    selected: int | None = None,
    shown: slice = slice(None),
) -> list[Line]:
    """Return the heading and the lines of those rows that are `shown`.

    `selected` is the number of one, from 0. The columns are as wide as all rows want them.
    """
    names = [_name(row, unicode) for row in found]
    longest = {
        column.key: max((width(_cell(column, row)) for row in found), default=0)
        for column in COLUMNS
        if column.fits
    }
    cells = layout(columns, names, tree=view.tree, longest=longest)
    lines = [_heading(cells, view, unicode, columns or 0)]
    for number in range(len(found))[shown]:
        line = tuple(_cells(found[number], names[number], cells))
        if number == selected:
            line = ((pad("".join(text for text, _ in line), columns or 0), "selected"),)
        lines.append(line)
    return lines


def _above(picture: Picture, view: View, size: Size, alarm: str) -> Iterable[Line]:
    if size.lines < 5:
        return
    yield header(picture, view)
    if alarm:
        yield ((printable(alarm), "bad"),)
    most = max(0, size.lines // 4 - 1)
    cards = picture.cards
    if len(cards) > most:
        # What is wrong is looked at first; the rest is in the table.
        cards = tuple(sorted(cards, key=lambda card: not card.is_troubled))[:most]
    yield from meters(cards, size.columns, unicode=size.unicode)


def _heading(cells: list[tuple[Column, int]], view: View, unicode: bool, columns: int) -> Line:
    words = []
    for column, room in cells:
        backwards = column.largest_first is not view.reverse
        mark = ("▼" if backwards else "▲") if unicode else ("v" if backwards else "^")
        text = column.heading
        if column.key == view.sort:
            text = f"{text.replace(' ', '') if width(text) >= room else text}{mark}"
        words.append(pad(clip(text, room), room, right=column.right))
    return ((pad((" " * GAP).join(words), columns), "heading"),)


def _name(row: Row, unicode: bool) -> str:
    mark = " "
    if row.folds is not None:
        mark = ("▸" if row.folds else "▾") if unicode else ("+" if row.folds else "-")
    return f"{'  ' * row.depth}{mark} {printable(_cell(COLUMNS[0], row))}"


def _cells(row: Row, name: str, cells: list[tuple[Column, int]]) -> Iterable[Span]:
    first = cells[0][1]
    yield pad(clip(name, first), first), _name_style(row.shown)
    for column, room in cells[1:]:
        text = printable(_cell(column, row))
        yield " " * GAP, ""
        yield pad(clip(text, room), room, right=column.right), _style(column, row)


def _cell(column: Column, row: Row) -> str:
    if isinstance(row.shown, Card):
        return column.card(row.shown)
    if isinstance(row.shown, Container):
        return column.container(row.shown)
    return column.process(row.shown)


def _name_style(shown: Card | Container | Process) -> str:
    if isinstance(shown, Card):
        return "bad" if shown.is_troubled else "card"
    if isinstance(shown, Container):
        return "bad" if shown.is_troubled else "title"
    return "dim"


def _style(column: Column, row: Row) -> str:
    shown = row.shown
    if column.key == "memory" and isinstance(shown, Container):
        return _level(shown.used_bytes / shown.limit_bytes if shown.limit_bytes else 0.0)
    if column.key == "state" and isinstance(shown, Card | Container):
        return "bad" if shown.is_troubled else "good"
    if column.key == "throttled" and isinstance(shown, Container) and shown.throttled:
        return "warn" if shown.throttled >= 0.5 else ""
    return "" if isinstance(shown, Card | Container) else "dim"


def _level(fraction: float) -> str:
    if fraction > 1:
        return "bad"
    return "warn" if fraction >= _NEARLY else "good"


def _scrolled(top: int, at: int, page: int, total: int) -> int:
    """Return the first row to show so that `at` is seen, as near to `top` as can be."""
    if at < top:
        top = at
    elif at >= top + page:
        top = at - page + 1
    return max(0, min(top, total - page))


def _fit(line: Line, size: Size) -> Line:
    """Return `line` cut to the terminal, in the letters that it has."""
    fitted = []
    room = size.columns
    for text, style in line:
        shown = clip(text, room)
        room -= width(shown)
        fitted.append((shown if size.unicode else to_ascii(shown), style))
        if shown != text:
            break
    return tuple(fitted)
