# SPDX-License-Identifier: Apache-2.0
"""Plain text for a terminal: paragraphs and items in lines of 80, commands in one piece."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Final

from gpushare.cli.table import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH: Final = 80
_GLUE: Final = "\0"
_TYPED: Final = re.compile(r"`[^`]{1,60}`")  # a longer one is broken where it must be


def prose(text: str, before: str = "") -> Iterator[str]:
    """Yield the lines of `text`, none wider than WIDTH; `before` stands before each.

    A line of it is a paragraph; one that begins with `- ` is an item, one with `| ` stays as it is.
    """
    for line in text.splitlines():
        if line.startswith("| "):
            yield f"{before}  {printable(line[2:])}"
        elif line.startswith("- "):
            yield from wrapped(line[2:], f"{before}- ", f"{before}  ")
        else:
            yield from wrapped(line, before, before) if line else [""]


def wrapped(text: str, first: str = "", rest: str = "") -> Iterator[str]:
    """Yield `text` in lines; `first` stands before the first of them, `rest` before the others."""
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
