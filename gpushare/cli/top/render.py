# SPDX-License-Identifier: Apache-2.0
"""A snapshot as lines of styled text. Pure: the screen depends only on the arguments.

Text that a container or process chooses (its name) passes `printable` before it is measured.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli import status
from gpushare.cli.text import count, printable
from gpushare.cli.top.columns import COLUMNS, GAP, Column, bar, clip, layout, pad, to_ascii, width
from gpushare.cli.top.snapshot import TopCard, TopContainer
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
        found, size.columns, size.unicode, view, selected=at, shown=slice(top, top + page)
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


def meters(cards: Sequence[TopCard], columns: int, *, unicode: bool) -> list[Line]:
    """Return a line for each card with its memory and utilization, as bars if there is room."""
    titles = [f"{card.index} {printable(card.row['model'])}" for card in cards]
    used = [format_use(card.used_bytes, *[card.row["memory_bytes"]] * 2) for card in cards]
    first, second = max(map(width, titles), default=0), max(map(len, used), default=0)
    return [
        _meter(card, pad(title, first), pad(use, second), columns, unicode)
        for card, title, use in zip(cards, titles, used, strict=True)
    ]


def _meter(card: TopCard, title: str, memory: str, columns: int, unicode: bool) -> Line:
    row = card.row
    busy = "-" if row["utilization"] is None else f"{row['utilization']} %"
    begin: list[Span] = [(title, "card")]
    if card.is_troubled:
        begin.append((f"  {printable(row['health'])}", "bad"))
    words = [*begin, ("  MEM ", ""), (f" {memory}", ""), ("  GPU ", ""), (f" {busy:>5}", "")]
    mode: list[Span] = [(f"  {status.mode(row)}", "")]
    if not card.is_troubled:
        mode.append((f"  {row['health']}", "good"))
    sensors: list[Span] = [(f"  {sensor}", "") for sensor in _sensors(card)]
    evicted: list[Span] = []
    if row["evicted_bytes"]:
        evicted.append((f"  {format_size(row['evicted_bytes'])} evicted", "warn"))
    least, most = _BAR_COLUMNS
    for more in (evicted + sensors + mode, evicted + (sensors or mode), evicted, sensors, []):
        room = (columns - sum(width(text) for text, _ in words + more)) // 2
        if room >= least:
            words += more
            break
    else:
        return tuple(words)
    long = min(room, most)
    whole = row["memory_bytes"] or 1
    used = card.used_bytes / whole
    taken = (row["allocated_bytes"] + row["non_tenant_bytes"]) / whole
    memory_bar = bar(long, used, taken, ascii_only=not unicode)
    busy_bar = bar(long, (row["utilization"] or 0) / 100, ascii_only=not unicode)
    words.insert(len(begin) + 1, (memory_bar, _level(used)))
    words.insert(len(begin) + 4, (busy_bar, "good"))
    return tuple(words)


def _sensors(card: TopCard) -> Iterator[str]:
    """Yield "54 C" and "310 W", as far as they are known."""
    celsius = card.row["sensors"].get("temperature_celsius")
    if celsius is not None:
        yield f"{celsius} C"
    if card.watts is not None:
        yield f"{card.watts:.0f} W"


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
    if isinstance(row.shown, TopCard):
        return column.card(row.shown)
    if isinstance(row.shown, TopContainer):
        return column.container(row.shown)
    return column.process(row.shown)


def _name_style(shown: TopCard | TopContainer | ProcessRow) -> str:
    if isinstance(shown, TopCard):
        return "bad" if shown.is_troubled else "card"
    if isinstance(shown, TopContainer):
        return "bad" if shown.is_troubled else "title"
    return "dim"


def _style(column: Column, row: ViewRow) -> str:
    shown = row.shown
    if column.key == "memory" and isinstance(shown, TopContainer):
        used, limit = shown.part["used_bytes"], shown.part["limit_bytes"]
        return _level(used / limit if limit else 0.0)
    if column.key == "state" and isinstance(shown, TopCard | TopContainer):
        return "bad" if shown.is_troubled else "warn" if _is_evicted(shown) else "good"
    if column.key == "throttled" and isinstance(shown, TopContainer):
        return "warn" if (shown.part["compute"]["throttled"]["1s"] or 0.0) >= 0.5 else ""
    return "" if isinstance(shown, TopCard | TopContainer) else "dim"


def _is_evicted(shown: TopCard | TopContainer) -> bool:
    return isinstance(shown, TopContainer) and bool(shown.evicted)


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
    if isinstance(shown, TopCard):
        lines = list(_card_details(shown))
    elif isinstance(shown, TopContainer):
        lines = list(_container_details(shown))
    else:
        lines = list(_process_details(shown, row.owner))
    return [printable(line) for line in lines]


def _card_details(card: TopCard) -> Iterator[str]:
    row = card.row
    yield f"card {row['index']}  {row['model']}  {row['uuid']}"
    yield (
        f"memory   {format_size(card.used_bytes)} used, {format_size(row['allocated_bytes'])} "
        f"allocated, {format_size(row['non_tenant_bytes'])} non-tenant, "
        f"{status.available(row)} available"
    )
    if row["evicted_bytes"]:
        yield f"evicted  {format_size(row['evicted_bytes'])} in host memory"
    yield f"compute  {_used(card)}, {100 - row['cores_available']} % allocated"
    policy = f"policy {row['policy']}" if row["policy"] else "policy per container"
    yield f"tenants  {row['tenants']}/{row['max_tenants']}, {status.mode(row)}, {policy}"
    yield f"health   {', '.join((row['health'], *_sensors(card)))}"


def _used(one: TopCard | TopContainer) -> str:
    last, lately, long = (one.cores(window).text for window in ("1s", "10s", "60s"))
    return f"used {last} % in 1 s, {lately} in 10 s, {long} in 60 s"


def _container_details(container: TopContainer) -> Iterator[str]:
    tenant, part = container.tenant, container.part
    compute = part["compute"]
    yield (
        f"{container.name}  {tenant['engine']}  {tenant['id'][:12]}  pid {tenant['pid'] or '-'}  "
        f"card {container.card}"
    )
    over = part["over_limit_bytes"]
    yield (
        f"memory   {format_size(part['used_bytes'])} of {format_size(part['quota_bytes'])}"
        f"{f', {format_size(over)} over quota' if over else ''}, "
        f"{tenant['denied_allocations']} denied"
    )
    if container.evicted:
        yield container.evicted
    quota = f"{part['cores']} %" if part["cores"] else "-"
    yield (
        f"compute  quota {quota}, {_used(container)}, throttled {status.throttled(part)} of the "
        "last second"
    )
    share = "a whole card" if part["share_percent"] is None else status.share(tenant, part)
    yield f"share    {share}"
    yield (
        f"gate     {compute['gate'] or '-'}, {compute['overruns']} overruns, "
        f"{compute['forced_launches']} forced launches, isolation {status.isolation(tenant) or '-'}"
    )
    if compute["is_hung"]:
        yield "hung     pending work appears never to complete"
    quota = "; ".join(f"{key} {value}" for key, value in sorted(tenant["quota"].items()))
    yield f"quota    {quota or '-'}"
    yield from tenant["warnings"]
    yield from tenant["notes"]


def _process_details(process: ProcessRow, owner: TopContainer | None) -> Iterator[str]:
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
    by_container = {one.key: one.tenant["warnings"] for one in snapshot.containers}
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
