# SPDX-License-Identifier: Apache-2.0
"""What all words of one dialect come to: a layer of canonical keys, and what is wrong with them.

What gpushare cannot give exactly as it was asked is made smaller, never larger, and said.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Final

from gpushare.quota.dialects.amounts import Amounts
from gpushare.quota.dialects.reading import ELSEWHERE, read_words
from gpushare.quota.dialects.row import Word
from gpushare.quota.dialects.settling import settle
from gpushare.quota.dialects.shared import leave_to_others
from gpushare.quota.dialects.spoken import Spoken
from gpushare.quota.errors import BadValue
from gpushare.quota.keys import KEYS
from gpushare.quota.quota import Asked, Layer
from gpushare.quota.size import exact_size

_MEMORY: Final = frozenset({"memory", "memory-limit"})


def combine(
    words: Iterable[Word], *, strict: bool, position: int | None = None, container: str = ""
) -> list[Spoken]:
    """Return what `words` say, one Spoken for each dialect that has any.

    `position` is the container's place among those of its pod, None where it is not known, and
    `container` its name, empty where it has none: what is for another one is not this one's. Where
    a name is known to several dialects it is the word of those that ask by another word as well.
    """
    by_dialect: dict[str, list[Word]] = {}
    for word in words:
        by_dialect.setdefault(word.dialect.name, []).append(word)
    leave_to_others(by_dialect)
    return [
        _spoken(Amounts(said, strict=strict), container, position)
        for said in by_dialect.values()
        if said
    ]


def _spoken(amounts: Amounts, container: str, position: int | None) -> Spoken:
    read_words(amounts, container, position)
    settle(amounts)
    layer = _layer(amounts)
    if not amounts.asks:
        return _says_nothing(amounts)
    return Spoken(
        amounts.dialect,
        amounts.words,
        layer,
        tuple(amounts.problems),
        tuple(amounts.notes),
        amounts.meant,
    )


def _says_nothing(amounts: Amounts) -> Spoken:
    """Nothing asks: what is wrong with an image's log level refuses nobody's container."""
    if any(one.word.row.use == "asks" for one in amounts.problems):
        # What was to ask is no value: that is a refusal.
        return Spoken(amounts.dialect, amounts.words, {}, tuple(amounts.problems))
    for word in amounts.words:
        if word.row.gives and not amounts.meant.get(word.name, "").startswith(ELSEWHERE):
            amounts.meant[word.name] = "nothing: it only says how, and nothing beside it asks"
    return Spoken(amounts.dialect, amounts.words, {}, meant=amounts.meant)


def _layer(amounts: Amounts) -> Layer:
    layer: Layer = {}
    for key, (amount, word) in amounts.found.items():
        text = _canonical(key, amount)
        try:
            value = KEYS[key].parse(text)
        except BadValue as bad:
            amounts.problem(word, bad)
            continue
        layer[key] = Asked(text, value, word.source, written=word.text)
        before = amounts.meant.get(word.name)
        amounts.meant[word.name] = f"{before}, {key}={text}" if before else f"{key}={text}"
    return layer


def _canonical(key: str, amount: Fraction | str) -> str:
    """Return the text of an amount that the canonical key is read from."""
    if isinstance(amount, str):
        return amount
    return exact_size(int(amount)) if key in _MEMORY else str(int(amount))
