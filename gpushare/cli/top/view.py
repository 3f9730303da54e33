# SPDX-License-Identifier: Apache-2.0
"""The view of a snapshot: folded, filtered and sorted rows, and the selected one.

Pure: a `TableView` is a value, and `rows` applies it to a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli.top.columns import COLUMNS, Column
from gpushare.cli.top.snapshot import ProcessRow, TopCard, TopContainer, TopSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

# ("card", index), ("container", key, card) or ("process", key, card, pid): identifies the same row
# in the next snapshot.
Ident: TypeAlias = tuple[str | int, ...]

INTERVALS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds; the steps of + and -


@dataclass(frozen=True)
class TableView:
    """How a snapshot is shown. `selected` None: the first row."""

    selected: Ident | None = None
    at: int = 0  # last position of the selected row
    top: int = 0  # the first visible row
    folded: frozenset[Ident] = frozenset()
    sort: str = COLUMNS[0].key
    reverse: bool = False
    filter: str = ""
    tree: bool = True
    detail: bool = False
    interval: float = 1.0


@dataclass(frozen=True)
class ViewRow:
    """One row of the table; `folds` None: it has no rows beneath it."""

    ident: Ident
    depth: int
    shown: TopCard | TopContainer | ProcessRow
    folds: bool | None = None
    owner: TopContainer | None = None  # of a process


def rows(snapshot: TopSnapshot, view: TableView) -> list[ViewRow]:
    """Return the rows of `snapshot` in order."""
    return list(_tree(snapshot, view) if view.tree else _flat(snapshot, view))


def index(found: list[ViewRow], view: TableView) -> int:
    """Return the position of the selected row; if it is gone, its last position."""
    for number, row in enumerate(found):
        if row.ident == view.selected:
            return number
    return max(0, min(view.at, len(found) - 1))


def card_ident(card: TopCard) -> Ident:
    """Return the identity of the row of `card`."""
    return ("card", card.index)


def container_ident(container: TopContainer) -> Ident:
    """Return the identity of the row of `container`."""
    return ("container", container.key, container.card)


def _tree(snapshot: TopSnapshot, view: TableView) -> Iterator[ViewRow]:
    for card in snapshot.cards:
        containers = _sorted(list(_matching(snapshot.on(card.index), view)), view)
        folded = card_ident(card) in view.folded
        if view.filter and not containers:
            continue
        yield ViewRow(card_ident(card), 0, card, folded if containers else None)
        if not folded:
            yield from _beneath(containers, view, depth=1)


def _flat(snapshot: TopSnapshot, view: TableView) -> Iterator[ViewRow]:
    yield from _beneath(_sorted(list(_matching(snapshot.containers, view)), view), view, depth=0)


def _beneath(containers: list[TopContainer], view: TableView, depth: int) -> Iterator[ViewRow]:
    for container in containers:
        ident = container_ident(container)
        folded = ident in view.folded
        yield ViewRow(ident, depth, container, folded if container.processes else None)
        if folded:
            continue
        for process in _processes(container, view):
            name = ("process", container.key, container.card, process.pid)
            yield ViewRow(name, depth + 1, process, owner=container)


def _matching(containers: tuple[TopContainer, ...], view: TableView) -> Iterator[TopContainer]:
    for container in containers:
        if _matches(container, view.filter) or any(_processes(container, view)):
            yield container


def _processes(container: TopContainer, view: TableView) -> list[ProcessRow]:
    """Return the processes to show: all if the container matches, otherwise those that match."""
    wanted = view.filter.casefold()
    every = _matches(container, view.filter)
    found = [
        process
        for process in container.processes
        if every or wanted in process.name.casefold() or wanted == str(process.pid)
    ]
    column = _column(view)
    if column.of_process is None:
        return found
    value = column.of_process
    backwards = column.largest_first is not view.reverse
    return sorted(found, key=lambda process: (value(process), process.pid), reverse=backwards)


def _matches(container: TopContainer, wanted: str) -> bool:
    wanted = wanted.casefold()
    return (
        wanted in container.name.casefold()
        or wanted in container.part["policy"]
        or (bool(wanted) and container.tenant["id"].startswith(wanted))
    )


def _sorted(containers: list[TopContainer], view: TableView) -> list[TopContainer]:
    column = _column(view)
    containers.sort(key=lambda one: (one.name, one.key, one.card))
    backwards = column.largest_first is not view.reverse
    return sorted(containers, key=column.of_container, reverse=backwards)


def _column(view: TableView) -> Column:
    return next(column for column in COLUMNS if column.key == view.sort)
