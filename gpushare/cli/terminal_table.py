# SPDX-License-Identifier: Apache-2.0
"""Tables that fit the terminal, with colors."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli.text import GAP, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_LEAST: Final = 12  # no cell is shortened to fewer columns
_CUT: Final = "..."


def terminal_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    dropped: Sequence[str] | None,
    colour: Callable[[str, str], str],
) -> str:
    """Return a table that fits the terminal.

    It has all columns if stdout is not a terminal, or if `dropped` is None.

    If the terminal is too narrow, the columns `dropped` are left out one after the other, and a
    last line names them. If that does not suffice, the longest cells are shortened. `colour`
    returns the color of a cell under a heading, or "". click.echo removes the colors where
    nobody sees them.
    """
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    columns = dict(zip(headings, map(list, zip(*lines, strict=True)), strict=True))
    missing = []
    if dropped is not None and sys.stdout.isatty():
        room = shutil.get_terminal_size().columns
        for name in dropped:
            if name in columns and _width(columns) > room:
                del columns[name]
                missing.append(name)
        _shorten(columns, room)
    padded = [_padded(name, cells, colour) for name, cells in columns.items()]
    shown = [(" " * GAP).join(line).rstrip() for line in zip(*padded, strict=True)]
    if missing:
        shown.append(f"not shown: {', '.join(missing)} (the terminal is too narrow)")
    return "\n".join(shown)


def _padded(name: str, cells: Sequence[str], colour: Callable[[str, str], str]) -> list[str]:
    """Return the cells of a column, styled and equally wide."""
    styled = [click.style(name, bold=True)]
    for cell in cells[1:]:
        found = colour(name, cell)
        styled.append(click.style(cell, fg=found) if found else cell)
    wide = _widest(cells)
    return [text + " " * (wide - len(cell)) for text, cell in zip(styled, cells, strict=True)]


def _widest(cells: Sequence[str]) -> int:
    return max(map(len, cells))


def _width(columns: dict[str, list[str]]) -> int:
    return sum(map(_widest, columns.values())) + GAP * (len(columns) - 1)


def _shorten(columns: dict[str, list[str]], room: int) -> None:
    """Shorten the longest cells until the table is `room` wide, if it can be."""
    while (excess := _width(columns) - room) > 0:
        name, cells = max(columns.items(), key=lambda column: _widest(column[1]) - len(column[0]))
        widest = _widest(cells)
        most = max(widest - excess, len(name), _LEAST)
        if most >= widest:
            return
        columns[name] = [
            cell if len(cell) <= most else cell[: most - len(_CUT)] + _CUT for cell in cells
        ]
