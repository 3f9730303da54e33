# SPDX-License-Identifier: Apache-2.0
"""A snapshot as lines of styled text. Pure: the screen depends only on the arguments.

Text that a container or process chooses (its name) passes `printable` before it is measured.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli.text import count, printable
from gpushare.cli.top.columns import COLUMNS, GAP, Column, bar, clip, layout, pad, to_ascii, width
from gpushare.cli.top.snapshot import CardRow, ContainerRow
from gpushare.cli.top.view import index, rows
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpushare.cli.top.snapshot import ProcessRow, TopSnapshot
    from gpushare.cli.top.view import TableView, ViewRow

#: Styles: "" plain, title, heading, card, selected, good, warn, bad, dim.
Span: TypeAlias = tuple[str, str]  # text, style
Line: TypeAlias = tuple[Span, ...]

_NEARLY_FULL: Final = 0.9  # fraction of a quota from which its figure is yellow
_DETAIL_LINES: Final = 10
_METER_COLUMNS: Final = 100  # width of the line of a card, without a terminal
_MOST_LINES: Final = 3  # of evicted containers, and of starts that wait, above the table
_BAR_COLUMNS: Final = (8, 30)  # least and greatest width of a bar


@dataclass(frozen=True)
class Size:
    """A terminal: its columns and lines, and whether it shows more than ASCII."""

    columns: int
    lines: int
    unicode: bool = True


@dataclass(frozen=True)
class Frame:
    """A full screen: `top` is the first visible row, `page` their number, `at` the selected one."""

    lines: tuple[Line, ...]
    top: int = 0
    page: int = 1
    at: int = 0


def frame(snapshot: TopSnapshot, view: TableView, size: Size, *, alarm: str, footer: Line) -> Frame:
    """Return the screen of `size`; `alarm`, if not empty, is shown above the table."""
    found = rows(snapshot, view)
    at = index(found, view)
    above = list(_above(snapshot, view, size, alarm))
    below: list[Line] = []
    if view.detail and found and size.lines >= 2 * _DETAIL_LINES:
        below = [((text, "dim"),) for text in details(found[at])[:_DETAIL_LINES]]
    page = max(0, size.lines - len(above) - len(below) - 2)
    top = _scrolled(view.top, at, page, len(found))
    heading, *body = table_lines(
        *(found, size.columns, size.unicode, view), selected=at, shown=slice(top, top + page)
    )
    body += [()] * (page - len(body))
    missing = [name for name in ("ISOLATION", "STATE") if name not in heading[0][0]]
    if missing and above:
        title, *rest = above[0]
        above[0] = (title, (f"  without {', '.join(missing)}", "warn"), *rest)
    elif missing and footer[0][1] != "title":  # no prompt
        footer = ((f"without {', '.join(missing)}  ", "warn"), *footer)
    lines = [*above, heading, *body, *below, footer]
    fitted = tuple(fit(line, size) for line in lines[: size.lines])
    return Frame(fitted, top, max(page, 1), at)


def header(snapshot: TopSnapshot, view: TableView | None) -> Line:
    """Return the first line: time, interval, and the numbers of cards and containers."""
    taken = dt.datetime.fromtimestamp(snapshot.taken, dt.timezone.utc).astimezone()
    containers = {one.key for one in snapshot.containers}
    total = f"{count(len(snapshot.cards), 'card')}, {count(len(containers), 'container')}"
    when = taken.strftime("%H:%M:%S")
    if view is None:
        return (("gpushare top", "title"), (f"  {taken.isoformat(' ', 'seconds')}  {total}", ""))
    shown = f'  filter "{printable(view.filter)}"' if view.filter else ""
    return (
        ("gpushare top", "title"),
        (f"  {when}  every {view.interval:g} s  {total}", ""),
        (shown, "warn"),
    )


def meters(cards: Sequence[CardRow], columns: int, *, unicode: bool) -> list[Line]:
    """Return a line for each card with its memory and utilization, as bars if there is room."""
    titles = [f"{card.index} {printable(card.model)}" for card in cards]
    used = [format_use(card.used_bytes, card.memory_bytes, card.memory_bytes) for card in cards]
    first, second = max(map(width, titles), default=0), max(map(len, used), default=0)
    return [
        _meter(card, pad(title, first), pad(use, second), columns, unicode)
        for card, title, use in zip(cards, titles, used, strict=True)
    ]


def _meter(card: CardRow, title: str, memory: str, columns: int, unicode: bool) -> Line:
    busy = "-" if card.utilization is None else f"{card.utilization} %"
    begin: list[Span] = [(title, "card")]
    if card.is_troubled:
        begin.append((f"  {printable(card.health)}", "bad"))
    words = [*begin, ("  MEM ", ""), (f" {memory}", ""), ("  GPU ", ""), (f" {busy:>5}", "")]
    mode: list[Span] = [(f"  {card.mode}", "")]
    if not card.is_troubled:
        mode.append((f"  {card.health}", "good"))
    sensors: list[Span] = [(f"  {sensor}", "") for sensor in _sensors(card)]
    evicted: list[Span] = []
    if card.evicted_bytes:
        evicted.append((f"  {format_size(card.evicted_bytes)} evicted", "warn"))
    least, most = _BAR_COLUMNS
    for more in (evicted + sensors + mode, evicted + (sensors or mode), evicted, sensors, []):
        room = (columns - sum(width(text) for text, _ in words + more)) // 2
        if room >= least:
            words += more
            break
    else:
        return tuple(words)
    long = min(room, most)
    whole = card.memory_bytes or 1
    used = card.used_bytes / whole
    taken = (card.allocated_bytes + card.non_tenant_bytes) / whole
    memory_bar = bar(long, used, taken, ascii_only=not unicode)
    busy_bar = bar(long, (card.utilization or 0) / 100, ascii_only=not unicode)
    words.insert(len(begin) + 1, (memory_bar, _level(used)))
    words.insert(len(begin) + 4, (busy_bar, "good"))
    return tuple(words)


def _sensors(card: CardRow) -> Iterator[str]:
    """Yield "54 C" and "310 W", as far as they are known."""
    if card.temperature_celsius is not None:
        yield f"{card.temperature_celsius} C"
    if card.power_milliwatts is not None:
        yield f"{card.power_milliwatts / 1000:.0f} W"


def table_lines(
    found: list[ViewRow],
    columns: int | None,
    unicode: bool,
    view: TableView,
    *,
    selected: int | None = None,
    shown: slice = slice(None),
) -> list[Line]:
    """Return the heading and the lines of the rows in `shown`.

    `selected` is the index of a row. The widths of the columns are those for all rows.
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


def _above(snapshot: TopSnapshot, view: TableView, size: Size, alarm: str) -> Iterable[Line]:
    if size.lines < 5:
        return
    yield header(snapshot, view)
    if alarm:
        yield ((printable(alarm), "bad"),)
    most = max(0, size.lines // 4 - 1)
    cards = snapshot.cards
    if len(cards) > most:
        # Unhealthy cards come first; the others are in the table.
        cards = tuple(sorted(cards, key=lambda card: not card.is_troubled))[:most]
    yield from meters(cards, size.columns, unicode=size.unicode)
    if size.lines >= 4 * _MOST_LINES:
        evicted = "more containers are evicted (gpushare ps)"
        yield from _notices(snapshot.evicted, evicted)
        yield from _notices(snapshot.waiting, "more starts wait for room (gpushare queue)")


def _notices(texts: Sequence[str], more: str) -> Iterator[Line]:
    for text in texts[:_MOST_LINES]:
        yield ((printable(text), "warn"),)
    if (left := len(texts) - _MOST_LINES) > 0:
        yield ((f"{left} {more}", "warn"),)


def _heading(cells: list[tuple[Column, int]], view: TableView, unicode: bool, columns: int) -> Line:
    words = []
    for column, room in cells:
        backwards = column.largest_first is not view.reverse
        mark = ("▼" if backwards else "▲") if unicode else ("v" if backwards else "^")
        text = column.heading
        if column.key == view.sort:
            text = f"{text.removesuffix('%')}{mark}"
        words.append(pad(clip(text, room), room, right=column.right))
    return ((pad((" " * GAP).join(words), columns), "heading"),)


def _name(row: ViewRow, unicode: bool) -> str:
    mark = " "
    if row.folds is not None:
        mark = ("▸" if row.folds else "▾") if unicode else ("+" if row.folds else "-")
    return f"{'  ' * row.depth}{mark} {printable(_cell(COLUMNS[0], row))}"


def _cells(row: ViewRow, name: str, cells: list[tuple[Column, int]]) -> Iterable[Span]:
    first = cells[0][1]
    yield pad(clip(name, first), first), _name_style(row.shown)
    for column, room in cells[1:]:
        text = printable(_cell(column, row))
        yield " " * GAP, ""
        yield pad(clip(text, room), room, right=column.right), _style(column, row)


def _cell(column: Column, row: ViewRow) -> str:
    if isinstance(row.shown, CardRow):
        return column.card(row.shown)
    if isinstance(row.shown, ContainerRow):
        return column.container(row.shown)
    return column.process(row.shown)


def _name_style(shown: CardRow | ContainerRow | ProcessRow) -> str:
    if isinstance(shown, CardRow):
        return "bad" if shown.is_troubled else "card"
    if isinstance(shown, ContainerRow):
        return "bad" if shown.is_troubled else "title"
    return "dim"


def _style(column: Column, row: ViewRow) -> str:
    shown = row.shown
    if column.key == "memory" and isinstance(shown, ContainerRow):
        return _level(shown.used_bytes / shown.limit_bytes if shown.limit_bytes else 0.0)
    if column.key == "state" and isinstance(shown, CardRow | ContainerRow):
        return "bad" if shown.is_troubled else "warn" if _is_evicted(shown) else "good"
    if column.key == "throttled" and isinstance(shown, ContainerRow) and shown.throttled:
        return "warn" if shown.throttled >= 0.5 else ""
    return "" if isinstance(shown, CardRow | ContainerRow) else "dim"


def _is_evicted(shown: CardRow | ContainerRow) -> bool:
    return isinstance(shown, ContainerRow) and bool(shown.eviction)


def _level(fraction: float) -> str:
    if fraction > 1:
        return "bad"
    return "warn" if fraction >= _NEARLY_FULL else "good"


def _scrolled(top: int, at: int, page: int, total: int) -> int:
    """Return the first visible row, as near to `top` as possible, so that `at` is visible."""
    if at < top:
        top = at
    elif at >= top + page:
        top = at - page + 1
    return max(0, min(top, total - page))


def fit(line: Line, size: Size) -> Line:
    """Return `line` cut to the terminal, in its character set."""
    fitted = []
    room = size.columns
    for text, style in line:
        shown = clip(text, room)
        room -= width(shown)
        fitted.append((shown if size.unicode else to_ascii(shown), style))
        if shown != text:
            break
    return tuple(fitted)


def details(row: ViewRow) -> list[str]:
    """Return the lines of the pane."""
    shown = row.shown
    if isinstance(shown, CardRow):
        lines = list(_card_details(shown))
    elif isinstance(shown, ContainerRow):
        lines = list(_container_details(shown))
    else:
        lines = list(_process_details(shown, row.owner))
    return [printable(line) for line in lines]


def _card_details(card: CardRow) -> Iterator[str]:
    yield f"card {card.index}  {card.model}  {card.uuid}"
    yield (
        f"memory   {format_size(card.used_bytes)} used, {format_size(card.allocated_bytes)} "
        f"allocated, {format_size(card.non_tenant_bytes)} non-tenant, "
        f"{card.available} available"
    )
    if card.evicted_bytes:
        yield f"evicted  {format_size(card.evicted_bytes)} in host memory"
    yield (
        f"compute  used {card.cores_used.text} % in 1 s, {card.cores_10s.text} in 10 s, "
        f"{card.cores_60s.text} in 60 s, {card.cores_allocated} % allocated"
    )
    policy = f"policy {card.policy}" if card.policy else "policy per container"
    yield f"tenants  {card.tenants}/{card.tenants_max}, {card.mode}, {policy}"
    yield f"health   {', '.join((card.health, *_sensors(card)))}"


def _container_details(container: ContainerRow) -> Iterator[str]:
    yield (
        f"{container.name}  {container.engine}  {container.id[:12]}  pid {container.pid or '-'}  "
        f"card {container.card}"
    )
    over = f", {format_size(container.over_bytes)} over quota" if container.over_bytes else ""
    yield (
        f"memory   {format_size(container.used_bytes)} of {format_size(container.memory_bytes)}"
        f"{over}, {container.denied} denied"
    )
    if container.evicted:
        yield container.evicted
    quota = f"{container.cores} %" if container.cores else "-"
    throttled = "-" if container.throttled is None else f"{container.throttled * 100:.0f} %"
    yield (
        f"compute  quota {quota}, used {container.cores_used.text} % in 1 s, "
        f"{container.cores_10s.text} in 10 s, {container.cores_60s.text} in 60 s, "
        f"throttled {throttled} of the last second"
    )
    yield f"share    {container.share or 'a whole card'}"
    yield (
        f"gate     {container.gate or '-'}, {container.overruns} overruns, {container.forced} "
        f"forced launches, isolation {container.isolation or '-'}"
    )
    if container.hung:
        yield "hung     pending work appears never to complete"
    yield f"quota    {'; '.join(f'{key} {value}' for key, value in container.quota) or '-'}"
    yield from container.warnings
    yield from container.notes


def _process_details(process: ProcessRow, owner: ContainerRow | None) -> Iterator[str]:
    used = "-" if process.bytes is None else format_size(process.bytes)
    utilization = "-" if process.utilization is None else f"{process.utilization} %"
    container = "" if owner is None else f"  of {owner.name}, card {owner.card}"
    yield f"process {process.pid} {process.name}{container}"
    yield f"container PID  {process.container_pid}"
    yield f"memory         {used}"
    yield f"utilization    {utilization}"
    yield f"user           {process.user or '-'}"
    yield f"command        {process.command or '-'}"


def plain_text(snapshot: TopSnapshot, view: TableView, *, unicode: bool) -> str:
    """Return the content of the screen as text, with all columns and rows."""
    lines = [_plain(line) for line in _plain_lines(snapshot, view, unicode)]
    by_container = {one.key: one.warnings for one in snapshot.containers}
    warnings = [printable(warning) for each in by_container.values() for warning in each]
    warnings += map(printable, (*snapshot.evicted, *snapshot.waiting))
    lines += ["", *warnings] if warnings else []
    return "\n".join(line if unicode else to_ascii(line) for line in lines)


def _plain_lines(snapshot: TopSnapshot, view: TableView, unicode: bool) -> Iterator[Line]:
    yield header(snapshot, None)
    yield from meters(snapshot.cards, _METER_COLUMNS, unicode=unicode)
    yield ()
    yield from table_lines(rows(snapshot, view), None, unicode, view)


def _plain(line: Line) -> str:
    return "".join(text for text, _ in line).rstrip()
