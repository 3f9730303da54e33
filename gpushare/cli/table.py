# SPDX-License-Identifier: Apache-2.0
"""Tables with stable columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; two spaces between columns, nothing after the last."""
    lines = [list(headings), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def printable(text: str) -> str:
    """Return `text` without what a terminal would obey: a process chooses its own name."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
