# SPDX-License-Identifier: Apache-2.0
"""Text by the columns that it takes on a terminal.

A letter of East Asian width W or F takes two (Unicode Standard Annex #11), a mark that combines
takes none. Terminals differ about the rest by a column at most, and a line is never longer for it.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_COMBINING: Final = frozenset({"Mn", "Me"})
_EIGHTHS: Final = " ▏▎▍▌▋▊▉"


def width(text: str) -> int:
    """Return how many columns `text` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def clip(text: str, most: int, ellipsis: str = "…") -> str:
    """Return `text`, or what of it fits into `most` columns and an ellipsis after it."""
    if width(text) <= most:
        return text
    room = most - width(ellipsis)
    if room < 0:
        return "" if most <= 0 else ellipsis[:most]
    kept = []
    for letter in text:
        room -= _columns(letter)
        if room < 0:
            break
        kept.append(letter)
    return "".join(kept) + ellipsis


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """Return `text` with spaces up to `columns`, before it where it stands on the `right`."""
    space = " " * (columns - width(text))
    return space + text if right else text + space


def bar(columns: int, full: float, half: float = 0.0, *, ascii_only: bool = False) -> str:
    """Return a bar of `columns`: of it the fraction `full` filled, up to `half` shaded."""
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
    """Return `text` for a terminal that shows ASCII alone."""
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
