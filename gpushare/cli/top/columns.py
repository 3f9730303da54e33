# SPDX-License-Identifier: Apache-2.0
"""The columns of the table: their cells for cards, containers and processes, and sort keys."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpushare.cli import status
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpushare.cli.top.snapshot import ProcessRow, TopCard, TopContainer
    from gpushare.protocol.rows import TenantEviction

GAP: Final = 2  # columns between two cells
_NAME: Final = 18  # least width of the name while there are other columns
_NARROW: Final = 10  # least width of the name without other columns
_LONG: Final = 40  # names longer than this are shortened in favor of columns above rank _USUAL
_USUAL: Final = 6  # the highest rank that a terminal of 80 columns shows


def _empty(_: object) -> str:
    return ""


@dataclass(frozen=True)
class Column:
    """One column. If the terminal is too narrow, columns with the highest `rank` are dropped first.

    A column that `fits` is as wide as its longest cell, at most `width`. The others have a fixed
    width because their figures change every second.

    `of_container` and `of_process` are the sort keys; with None, processes are not sorted.
    """

    key: str
    heading: str
    width: int
    rank: int
    of_container: Callable[[TopContainer], Any]
    container: Callable[[TopContainer], str]
    card: Callable[[TopCard], str] = _empty
    process: Callable[[ProcessRow], str] = _empty
    of_process: Callable[[ProcessRow], Any] | None = None
    right: bool = False
    largest_first: bool = False
    flat_only: bool = False
    fits: bool = False


def _percent(value: int | None) -> str:
    return "-" if value is None else str(value)


def _memory(container: TopContainer) -> str:
    part = container.part
    limit = max(part["limit_bytes"], part["quota_bytes"])
    return format_use(part["used_bytes"], part["quota_bytes"], limit)


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def _throttled(container: TopContainer) -> float | None:
    return container.part["compute"]["throttled"]["1s"]


def _marked(one: TopCard | TopContainer, name: str) -> str:
    return f"! {name}" if one.is_troubled else name


def _process(process: ProcessRow) -> str:
    inner = "" if process.container_pid == process.pid else f" ({process.container_pid})"
    return f"{process.pid}{inner} {process.name}"


def state(container: TopContainer) -> str:
    """Return the state of a container."""
    stopped = status.run_state(container.tenant) or _eviction(container.tenant["eviction"])
    if stopped:
        return stopped
    if container.part["compute"]["is_hung"]:
        return "hung"
    if container.part["over_limit_bytes"]:
        return "over quota"
    return "warning" if container.tenant["warnings"] else "ok"


def _eviction(eviction: TenantEviction | None) -> str:
    if eviction is None:
        return ""
    waits = ", waits" if eviction["waits_since"] is not None else ""
    return "eviction failed" if eviction["state"] == "failed" else f"{eviction['state']}{waits}"


def _cores_over(span: str, rank: int) -> Column:
    return Column(
        key=span,
        heading=span,
        width=5,
        rank=rank,
        of_container=lambda one: _known(one.cores(span).value),
        container=lambda one: one.cores(span).text,
        card=lambda one: one.cores(span).text,
        right=True,
        largest_first=True,
    )


COLUMNS: Final[tuple[Column, ...]] = (
    Column(
        key="name",
        heading="NAME",
        width=_NAME,
        rank=0,
        of_container=lambda one: (one.name.casefold(), one.key, one.card),
        container=lambda one: _marked(one, one.name),
        card=lambda one: _marked(one, f"{one.index} {one.row['model']}"),
        process=_process,
        of_process=lambda one: (one.name.casefold(), one.pid),
    ),
    Column(
        key="card",
        heading="CARD",
        width=4,
        rank=3,
        of_container=lambda one: one.card,
        container=lambda one: str(one.card),
        flat_only=True,
    ),
    Column(
        key="memory",
        heading="MEMORY",
        width=16,
        rank=1,
        of_container=lambda one: one.part["used_bytes"],
        container=_memory,
        card=lambda one: format_use(one.used_bytes, *[one.row["memory_bytes"]] * 2),
        process=lambda one: "-" if one.bytes is None else format_size(one.bytes),
        of_process=lambda one: _known(one.bytes),
        largest_first=True,
    ),
    Column(
        key="cores",
        heading="CORES%",
        width=6,
        rank=2,
        of_container=lambda one: _known(one.cores("1s").value),
        container=lambda one: one.cores("1s").text,
        card=lambda one: one.cores("1s").text,
        process=lambda one: _percent(one.utilization),
        of_process=lambda one: _known(one.utilization),
        right=True,
        largest_first=True,
    ),
    Column(
        key="quota",
        heading="QUOTA%",
        width=6,
        rank=6,
        of_container=lambda one: one.part["cores"],
        container=lambda one: str(one.part["cores"] or "-"),
        card=lambda one: str(100 - one.row["cores_available"]),
        right=True,
        largest_first=True,
    ),
    _cores_over("10s", rank=9),
    _cores_over("60s", rank=10),
    Column(
        key="throttled",
        heading="THROT%",
        width=6,
        rank=7,
        of_container=lambda one: _known(_throttled(one)),
        container=lambda one: status.throttled(one.part).removesuffix(" %"),
        right=True,
        largest_first=True,
    ),
    Column(
        key="policy",
        heading="POLICY",
        width=18,
        rank=8,
        of_container=lambda one: one.part["policy"],
        container=lambda one: one.part["policy"] or "-",
        card=lambda one: one.row["policy"],
        fits=True,
    ),
    Column(
        key="class",
        heading="CLASS",
        width=9,
        rank=11,
        of_container=lambda one: status.latency_class(one.tenant),
        container=lambda one: status.latency_class(one.tenant),
        fits=True,
    ),
    Column(
        key="isolation",
        heading="ISOLATION",
        width=16,
        rank=5,
        of_container=lambda one: status.isolation(one.tenant),
        container=lambda one: status.isolation(one.tenant),
        card=lambda one: status.mode(one.row),
        fits=True,
    ),
    Column(
        key="state",
        heading="STATE",
        width=15,
        rank=4,
        of_container=lambda one: (one.is_troubled, state(one)),
        container=state,
        card=lambda one: one.row["health"],
        largest_first=True,
        fits=True,
    ),
    Column(
        key="user",
        heading="USER",
        width=12,
        rank=12,
        of_container=lambda one: (one.name.casefold(), one.key, one.card),
        container=_empty,
        process=lambda one: one.user,
        of_process=lambda one: (one.user, one.pid),
        fits=True,
    ),
    Column(
        key="command",
        heading="COMMAND",
        width=40,
        rank=13,
        of_container=lambda one: (one.name.casefold(), one.key, one.card),
        container=_empty,
        process=lambda one: one.command,
        of_process=lambda one: (one.command, one.pid),
        fits=True,
    ),
)


def layout(
    total: int | None, names: Sequence[str], *, tree: bool, longest: Mapping[str, int]
) -> list[tuple[Column, int]]:
    """Return the columns for a terminal of `total` columns, each with its width.

    `names` are the cells of the first column. `longest` has the width of the longest cell for each
    column that `fits`, by key. With `total` None, the width is unlimited.
    """
    name, *others = (column for column in COLUMNS if not (tree and column.flat_only))
    widths = {column.key: _width(column, longest) for column in others}
    wanted = max([len(name.heading), *map(width, names)])
    if total is None:
        return [(name, wanted), *((column, widths[column.key]) for column in others)]
    least = min(_NAME, max(_NARROW, total))
    room = total - least
    kept = set()
    for column in sorted(others, key=lambda one: one.rank):
        # Names are shown in full before the columns of wider terminals are added.
        reserved = max(0, min(wanted, _LONG) - least) if column.rank > _USUAL else 0
        if widths[column.key] + GAP > room - reserved:
            break
        room -= widths[column.key] + GAP
        kept.add(column.key)
    first = min(least + room, max(wanted, least), total)
    return [
        (name, first),
        *((column, widths[column.key]) for column in others if column.key in kept),
    ]


def _width(column: Column, longest: Mapping[str, int]) -> int:
    if not column.fits:
        return column.width
    # One more column for the mark of the sort order.
    return min(column.width, max(len(column.heading) + 1, longest.get(column.key, 0)))


_COMBINING: Final = frozenset({"Mn", "Me"})
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def width(text: str) -> int:
    """Return the number of columns of `text`."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


_ELLIPSIS: Final = "…"


def clip(text: str, most: int) -> str:
    """Return `text`, shortened to `most` columns with an ellipsis if it is longer."""
    if width(text) <= most:
        return text
    if most <= 0:
        return ""
    room = most - width(_ELLIPSIS)
    kept = []
    for letter in text:
        room -= _columns(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + _ELLIPSIS


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` padded to `columns`, aligned to the left or `right`."""
    space = " " * (columns - width(text))
    return space + text if right else text + space


def bar(columns: int, full: float, half: float = 0.0, *, ascii_only: bool = False) -> str:
    """Return a bar of `columns`, filled up to the fraction `full` and shaded up to `half`."""
    full, half = min(max(full, 0.0), 1.0), min(max(half, 0.0), 1.0)
    if ascii_only:
        solid = round(full * columns)
        shaded = max(0, round(half * columns) - solid)
        return "#" * solid + ":" * shaded + "." * (columns - solid - shaded)
    eighths = round(full * columns * 8)
    solid, part = divmod(eighths, 8)
    filled = "█" * solid + (_EIGHTHS[part] if part else "")
    shaded = max(0, round(half * columns) - len(filled))
    return filled + "▒" * shaded + "░" * (columns - len(filled) - shaded)


def to_ascii(text: str) -> str:
    """Return `text` for a terminal that shows only ASCII."""
    return "".join(letter if letter.isascii() else _ASCII.get(letter, "?") for letter in text)


_ASCII: Final = {
    "…": "~",
    "▾": "-",
    "▸": "+",
    "▲": "^",
    "▼": "v",
    "·": "|",
    "↑": "^",
    "↓": "v",
}


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in _COMBINING:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
