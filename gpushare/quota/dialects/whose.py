# SPDX-License-Identifier: Apache-2.0
"""Which container of a pod a word is for: an engine hands each the annotations of all."""

from __future__ import annotations

from collections.abc import Sequence

from gpushare.quota.dialects.row import Word
from gpushare.quota.errors import quoted


def elsewhere(said: Sequence[Word], container: str, position: int | None) -> dict[str, str]:
    """Return which of the words of a dialect are for another container of the pod, and for which.

    `container` (empty) and `position` (None) of this one may not be known: then a word that may be
    for it is.
    """
    found = {word.name: _other(word, said, container, position) for word in said}
    return {name: other for name, other in found.items() if other}


def _other(word: Word, beside: Sequence[Word], container: str, position: int | None) -> str:
    if word.container:
        here = container in ("", word.container)
        return "" if here else f"container {quoted(word.container)}"
    naming = any(row.names_container for row in word.dialect.rows)
    if not naming or word.row.names_container or word.row.where != "annotation":
        return ""
    named = next((one.text.strip() for one in beside if one.row.names_container), "")
    if named:
        return "" if container in ("", named) else f"container {quoted(named)}"
    return "the first container of the pod" if position else ""
