# SPDX-License-Identifier: Apache-2.0
"""From the words of one dialect to amounts, a word at a time."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from gpushare.quota.dialects.amounts import Amounts
from gpushare.quota.dialects.row import Word
from gpushare.quota.dialects.units import ByCard, ByContainer
from gpushare.quota.dialects.whose import elsewhere
from gpushare.quota.errors import BadValue

#: How what became of a word for another container begins.
ELSEWHERE: Final = "nothing here: "


def read_words(amounts: Amounts, container: str, position: int | None) -> None:
    """Put what each word says into `amounts`, but for those that are for another container."""
    away = elsewhere(amounts.words, container, position)
    amounts.meant |= {name: f"{ELSEWHERE}for {other}" for name, other in away.items()}
    for word in amounts.words:
        if word.name not in away:
            _read(word, amounts, position)


def _read(word: Word, amounts: Amounts, position: int | None) -> None:
    row = word.row
    if not row.gives and not row.beside:
        amounts.meant[word.name] = row.instead or row.meaning
        return
    try:
        amount = row.unit.read(word.text)
    except BadValue as bad:
        amounts.problem(word, bad)
        return
    if isinstance(amount, ByContainer):
        amount = _of_container(word, amount, amounts, position)
    if amount is None:
        amounts.meant[word.name] = row.instead or "nothing: as if it were not there"
        return
    if row.beside and not _is_beside(word, amounts):
        alone = BadValue(f"asks for nothing without {row.beside}", f"write {row.beside} too")
        if not amounts.leaves(word, alone, strict_rule=bool(row.gives)):
            return
    if not row.gives:
        amounts.meant[word.name] = row.instead or row.meaning
        return
    if row.use == "asks":
        amounts.asks = True
    if isinstance(amount, ByCard):
        for card, of_card in amount.amounts.items():
            amounts.put_by_card(word, card, of_card)
    elif isinstance(amount, Fraction) and word.card is not None:
        amounts.put_by_card(word, word.card, amount)
    else:
        amounts.put(word, _over(word, amount, amounts))


def _is_beside(word: Word, amounts: Amounts) -> bool:
    """Whether the word that must be beside this one is there, and is not switched off."""
    for other in amounts.words:
        if other.row.name == word.row.beside:
            try:
                return other.row.unit.read(other.text) is not None
            except BadValue:
                return True  # said where that word is read
    return False


def _of_container(
    word: Word, amount: ByContainer, amounts: Amounts, position: int | None
) -> Fraction | None:
    """Return the amount that is for this container, None where it has a place and no cards."""
    places, here = len(amount.amounts), position
    if here is None and places > 1:
        bad = BadValue(
            f"has {places} places, and which is this container's is not known here",
            "annotate the container by its name: gpushare.io/container.NAME.count",
        )
    elif here is not None and here >= places:
        rule = f"has {places} places, and this is container {here + 1} of its pod"
        bad = BadValue(rule, "write one for each container of the pod, 0 where it has no GPU")
    elif not (found := amount.amounts[here or 0]) and any(
        other.row.use == "asks" and other is not word for other in amounts.words
    ):
        bad = BadValue("is 0 for this container, which asks for a GPU", "write 1 or more")
    else:
        return found or None
    amounts.problem(word, bad)
    return None


def _over(word: Word, amount: Fraction | str, amounts: Amounts) -> Fraction | str | None:
    """Return what percentage a part is of the other word's amount; None where it is not."""
    if not word.row.over:
        return amount
    assert isinstance(amount, Fraction)
    other = next((one for one in amounts.words if one.row.name == word.row.over), None)
    try:
        whole = None if other is None else other.row.unit.read(other.text)
    except BadValue:
        whole = None  # said where that word is read
    if not isinstance(whole, Fraction):
        fix = f"write {word.row.over} too"
        amounts.problem(word, BadValue(f"is a part of {word.row.over}, which is not said", fix))
        return None
    if amount > whole:
        rule = f"is more than {word.row.over}, {whole}"
        amounts.problem(word, BadValue(rule, f"write {whole} or less"))
        return None
    return amount * 100 / whole
