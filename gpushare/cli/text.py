# SPDX-License-Identifier: Apache-2.0
"""Text for a terminal: tables, and paragraphs wrapped at 80 columns."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WIDTH: Final = 80
_GLUE: Final = "\0"
#: Commands stay on one line, unless they are too long.
_TYPED: Final = re.compile(r"`[^`]{1,60}`|gpushare set \S+ --memory \S+")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with two spaces between columns and no trailing spaces."""
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
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
