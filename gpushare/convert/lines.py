# SPDX-License-Identifier: Apache-2.0
"""Lines of a text, and the comments on them."""

from __future__ import annotations

import re
from typing import Final

_BEHIND: Final = re.compile(r"[ \t]+(#[^\r\n]*)")
_OWN: Final = re.compile(r"[ \t]*(#[^\r\n]*)")


def line_start(text: str, index: int) -> int:
    """Return where the line of `index` begins."""
    return text.rfind("\n", 0, index) + 1


def line_end(text: str, index: int) -> int:
    """Return where the line of `index` ends, before its line break."""
    found = text.find("\n", index)
    if found < 0:
        return len(text)
    return found - 1 if text[found - 1 : found] == "\r" and found > index else found


def next_line(text: str, index: int) -> int:
    """Return where the line after that of `index` begins."""
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def column(text: str, index: int) -> int:
    """Return how far `index` is in its line."""
    return index - line_start(text, index)


def line_of(text: str, index: int) -> int:
    """Return the number of the line of `index`, from 1."""
    return text.count("\n", 0, index) + 1


def line_break(text: str) -> str:
    """Return how the lines of `text` end: as the first does."""
    end = text.find("\n")
    return "\r\n" if text[end - 1 : end] == "\r" else "\n"


def begins_line(text: str, index: int) -> bool:
    """Whether only spaces stand before `index` in its line."""
    return not text[line_start(text, index) : index].strip(" ")


def comment_behind(text: str, end: int) -> str:
    """Return the comment behind what ends at `end`; empty where there is none."""
    match = _BEHIND.match(text, end)
    return match.group(1) if match else ""


def comments_between(text: str, start: int, end: int) -> list[str]:
    """Return the comments that have a line of their own between `start` and `end`.

    What is between must be no node: a `#` in a text of several lines is no comment.
    """
    first = start if start == line_start(text, start) else next_line(text, start)
    found = (_OWN.fullmatch(line) for line in text[first:end].splitlines())
    return [match.group(1) for match in found if match]


def comments_above(text: str, index: int) -> tuple[int, list[str]]:
    """Return the comments right above the line of `index`, indented as it, and where they begin."""
    indent, start = column(text, index), line_start(text, index)
    found: list[str] = []
    while start:
        above = line_start(text, start - 1)
        match = _OWN.match(text, above)
        if match is None or match.start(1) - above != indent:
            break
        found.insert(0, match.group(1).rstrip())
        start = above
    return start, found


def skip(text: str, index: int) -> int:
    """Return where the next letter is that is neither a space nor of a comment."""
    while index < len(text):
        if text[index] == "#":
            index = line_end(text, index)
        elif not text[index].isspace():
            break
        index += 1
    return index
