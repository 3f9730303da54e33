# SPDX-License-Identifier: Apache-2.0
"""Markdown, as the generated pages need it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for cells in (headings, ("---",) * len(headings), *rows):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
    yield ""
