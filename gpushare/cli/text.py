# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: tables, and paragraphs wrapped at 80 columns.

rich has these too, but is four packages on every node, and takes as long to import as `ls` takes
altogether.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


WIDTH: Final = 80
GAP: Final = 2  # spaces between two columns of a table
_GLUE: Final = "\0"
#: Commands stay on one line, unless they are too long.
_TYPED: Final = re.compile(r"`[^`]{1,60}`|gpushare set \S+ --memory \S+")


def local_time(seconds: float) -> str:
    """Return `2026-01-31 09:05` of seconds since the epoch, in the local time zone."""
    at = dt.datetime.fromtimestamp(seconds, dt.timezone.utc).astimezone()
    return at.strftime("%Y-%m-%d %H:%M")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with two spaces between columns and no trailing spaces."""
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        (" " * GAP)
        .join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        .rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return `text` without control characters: a process chooses its own name."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def count(number: int, noun: str, plural: str = "s") -> str:
    """Return "1 card", "2 cards", "2 launches" with the ending `plural`."""
    return f"{number} {noun}{'' if number == 1 else plural}"


def prose(text: str, before: str = "") -> Iterator[str]:
    """Yield the lines of `text`, at most WIDTH wide, each with the prefix `before`.

    A line of `text` is a paragraph. A line that begins with `- ` is a list item, and one that
    begins with `| ` is not wrapped.
    """
    for line in text.splitlines():
        if line.startswith("| "):
            yield f"{before}  {printable(line[2:])}"
        elif line.startswith("- "):
            yield from wrapped(line[2:], f"{before}- ", f"{before}  ")
        else:
            yield from wrapped(line, before, before) if line else [""]


def wrapped(text: str, first: str = "", rest: str = "") -> Iterator[str]:
    """Yield `text` wrapped; `first` is the prefix of the first line, `rest` that of the others."""
    glued = _TYPED.sub(lambda typed: typed[0].replace(" ", _GLUE), printable(text))
    for line in textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ):
        yield line.replace(_GLUE, " ").rstrip()


# --- tables that fit the terminal, with colors ---

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
        color = colour(name, cell)
        styled.append(click.style(cell, fg=color) if color else cell)
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
