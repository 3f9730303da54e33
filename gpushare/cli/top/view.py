# SPDX-License-Identifier: Apache-2.0
"""What of a picture is looked at: folded, filtered, sorted, and which row is selected.

Pure: a `View` is a value, and `rows` says what it makes of a picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from gpushare.cli.top.columns import COLUMNS, Column
from gpushare.cli.top.picture import Card, Container, Picture, Process

if TYPE_CHECKING:
    from collections.abc import Iterator

# ("card", index), ("container", key, card) or ("process", key, card, pid): the same row in the next
# picture, wherever it stands there.
Ident: TypeAlias = tuple[str | int, ...]

INTERVALS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds; what + and - go through


@dataclass(frozen=True)
class View:
    """How the pictures are shown. `selected` None: the first row."""

    selected: Ident | None = None
    at: int = 0  # where the selected row stood last
    top: int = 0  # the first row that is shown
    folded: frozenset[Ident] = frozenset()
    sort: str = COLUMNS[0].key
    reverse: bool = False
    filter: str = ""
    tree: bool = True
    detail: bool = False
    interval: float = 1.0


@dataclass(frozen=True)
class Row:
    """One line of the table; `folds` None: there is nothing beneath it."""

    ident: Ident
    depth: int
    shown: Card | Container | Process
    folds: bool | None = None
    owner: Container | None = None  # of a process


def rows(picture: Picture, view: View) -> list[Row]:
    """Return the rows of `picture` from the top down."""
    return list(_tree(picture, view) if view.tree else _flat(picture, view))


def index(found: list[Row], view: View) -> int:
    """Return where the selected row is; where it is gone, the one that stands in its place."""
    for number, row in enumerate(found):
        if row.ident == view.selected:
            return number
    return max(0, min(view.at, len(found) - 1))


def card_ident(card: Card) -> Ident:
    """Return what names the row of `card`."""
    return ("card", card.index)


def container_ident(container: Container) -> Ident:
    """Return what names the row of `container`."""
    return ("container", container.key, container.card)


def _tree(picture: Picture, view: View) -> Iterator[Row]:
    for card in picture.cards:
        containers = _sorted(list(_matching(picture.on(card.index), view)), view)
        folded = card_ident(card) in view.folded
        if view.filter and not containers:
            continue
        yield Row(card_ident(card), 0, card, folded if containers else None)
        if not folded:
            yield from _beneath(containers, view, depth=1)


def _flat(picture: Picture, view: View) -> Iterator[Row]:
    yield from _beneath(_sorted(list(_matching(picture.containers, view)), view), view, depth=0)


def _beneath(containers: list[Container], view: View, depth: int) -> Iterator[Row]:
    for container in containers:
        ident = container_ident(container)
        folded = ident in view.folded
        yield Row(ident, depth, container, folded if container.processes else None)
        if folded:
            continue
        for process in _processes(container, view):
            name = ("process", container.key, container.card, process.pid)
            yield Row(name, depth + 1, process, owner=container)


def _matching(containers: tuple[Container, ...], view: View) -> Iterator[Container]:
    for container in containers:
        if _matches(container, view.filter) or any(_processes(container, view)):
            yield container


def _processes(container: Container, view: View) -> list[Process]:
    """Return the processes to show: where the container itself does not match, those that do."""
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


def _matches(container: Container, wanted: str) -> bool:
    wanted = wanted.casefold()
    return (
        wanted in container.name.casefold()
        or wanted in container.policy
        or (bool(wanted) and container.id.startswith(wanted))
    )


def _sorted(containers: list[Container], view: View) -> list[Container]:
    column = _column(view)
    containers.sort(key=lambda one: (one.name, one.key, one.card))
    backwards = column.largest_first is not view.reverse
    return sorted(containers, key=column.of_container, reverse=backwards)


def _column(view: View) -> Column:
    return next(column for column in COLUMNS if column.key == view.sort)
