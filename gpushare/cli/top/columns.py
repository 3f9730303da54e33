# SPDX-License-Identifier: Apache-2.0
"""The columns of the table: what each says of a card, a container and a process, and its order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gpushare.cli.top.text import width
from gpushare.quota.size import format_size, format_use

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gpushare.cli.top.picture import Card, Container, Process

GAP: Final = 2  # columns between two cells
_NAME: Final = 20  # what the name has at least where another column would have to go for it
_NARROW: Final = 10  # and where there is no room for any
_LONG: Final = 40  # what is long for a name
_USUAL: Final = 6  # the highest rank of what a terminal of 80 columns shows


def _nothing(_: object) -> str:
    return ""


@dataclass(frozen=True)
class Column:
    """One column. Those of the highest `rank` go first where the terminal is too narrow.

    One that `fits` is as wide as its longest cell, at most `width`; the others stay, for their
    figures change each second.

    `of_container` and `of_process` are what it is sorted by; processes stay as they are under None.
    """

    key: str
    heading: str
    width: int
    rank: int
    of_container: Callable[[Container], Any]
    container: Callable[[Container], str]
    card: Callable[[Card], str] = _nothing
    process: Callable[[Process], str] = _nothing
    of_process: Callable[[Process], Any] | None = None
    right: bool = False
    largest_first: bool = False
    flat_only: bool = False
    fits: bool = False


def _percent(value: int | None) -> str:
    return "-" if value is None else str(value)


def _memory(container: Container) -> str:
    limit = max(container.limit_bytes, container.memory_bytes)
    return format_use(container.used_bytes, container.memory_bytes, limit)


def _known(value: float | None) -> float:
    return -1.0 if value is None else value


def _marked(one: Card | Container, name: str) -> str:
    return f"! {name}" if one.is_troubled else name


def _process(process: Process) -> str:
    inside = "" if process.container_pid == process.pid else f" ({process.container_pid})"
    return f"{process.pid}{inside} {process.name}"


def state(container: Container) -> str:
    """Return in a word how a container is."""
    if container.stopped:
        return container.stopped
    if container.hung:
        return "hung"
    if container.over_bytes:
        return "over"
    return "see i" if container.warnings else "ok"


COLUMNS: Final[tuple[Column, ...]] = (
    Column(
        key="name",
        heading="NAME",
        width=_NAME,
        rank=0,
        of_container=lambda one: (one.name.casefold(), one.key, one.card),
        container=lambda one: _marked(one, one.name),
        card=lambda one: _marked(one, f"{one.index} {one.model}"),
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
        of_container=lambda one: one.used_bytes,
        container=_memory,
        card=lambda one: format_use(one.used_bytes, one.memory_bytes, one.memory_bytes),
        process=lambda one: "-" if one.bytes is None else format_size(one.bytes),
        of_process=lambda one: _known(one.bytes),
        largest_first=True,
    ),
    Column(
        key="got",
        heading="GOT %",
        width=5,
        rank=2,
        of_container=lambda one: _known(one.got.value),
        container=lambda one: one.got.text,
        card=lambda one: one.got.text,
        process=lambda one: _percent(one.utilisation),
        of_process=lambda one: _known(one.utilisation),
        right=True,
        largest_first=True,
    ),
    Column(
        key="asked",
        heading="ASK %",
        width=5,
        rank=4,
        of_container=lambda one: one.cores,
        container=lambda one: str(one.cores) if one.cores else "-",
        card=lambda one: str(one.cores_promised),
        right=True,
        largest_first=True,
    ),
    Column(
        key="10s",
        heading="10 S",
        width=5,
        rank=7,
        of_container=lambda one: _known(one.got_10s.value),
        container=lambda one: one.got_10s.text,
        card=lambda one: one.got_10s.text,
        right=True,
        largest_first=True,
    ),
    Column(
        key="60s",
        heading="60 S",
        width=5,
        rank=8,
        of_container=lambda one: _known(one.got_60s.value),
        container=lambda one: one.got_60s.text,
        card=lambda one: one.got_60s.text,
        right=True,
        largest_first=True,
    ),
    Column(
        key="throttled",
        heading="THR %",
        width=5,
        rank=5,
        of_container=lambda one: _known(one.throttled),
        container=lambda one: "-" if one.throttled is None else f"{one.throttled * 100:.0f}",
        right=True,
        largest_first=True,
    ),
    Column(
        key="policy",
        heading="POLICY",
        width=18,
        rank=6,
        of_container=lambda one: one.policy,
        container=lambda one: one.policy or "-",
        card=lambda one: one.policy,
        fits=True,
    ),
    Column(
        key="class",
        heading="CLASS",
        width=9,
        rank=10,
        of_container=lambda one: one.level,
        container=lambda one: one.level,
        fits=True,
    ),
    Column(
        key="isolation",
        heading="ISOLATION",
        width=10,
        rank=9,
        of_container=lambda one: one.isolation,
        container=lambda one: one.isolation,
        card=lambda one: one.mode,
        fits=True,
    ),
    Column(
        key="state",
        heading="STATE",
        width=6,
        rank=11,
        of_container=lambda one: (one.is_troubled, state(one)),
        container=state,
        card=lambda one: one.health,
        largest_first=True,
    ),
)


def layout(
    total: int | None, names: Sequence[str], *, tree: bool, longest: Mapping[str, int]
) -> list[tuple[Column, int]]:
    """Return the columns that `total` columns of a terminal have room for, each with its width.

    `names` are the cells of the first as they are to be shown, `longest` the widths of the longest
    cells of those that `fit`, by key; None is room for everything.
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
        # The wider terminal's columns come after names that are shown whole.
        kept_back = max(0, min(wanted, _LONG) - least) if column.rank > _USUAL else 0
        if widths[column.key] + GAP > room - kept_back:
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
    # One more for the mark of the column that it is sorted by.
    return min(column.width, max(len(column.heading) + 1, longest.get(column.key, 0)))
