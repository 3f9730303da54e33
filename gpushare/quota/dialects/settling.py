# SPDX-License-Identifier: Apache-2.0
"""From amounts as they were said to what each card gets.

Totals are divided by the number of cards, N x 100 percent become whole cards, amounts by card one
amount for each.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from gpushare.quota.dialects.amounts import Amounts
from gpushare.quota.dialects.row import Word
from gpushare.quota.dialects.spoken import shown
from gpushare.quota.errors import BadValue, quoted

_WHOLE: Final = Fraction(100)
_PERCENTS: Final = ("memory-percent", "cores")
_SHARES: Final = frozenset({"fixed-share", "burst-share"})  # policies: nothing without cores


def settle(amounts: Amounts) -> None:
    """Make each amount that of one card, put in what the vendor assumes, and hold his rules."""
    _settle_cards(amounts)
    _settle_percent(amounts)
    _settle_cores(amounts, amounts.cards())
    _settle_memory(amounts, amounts.cards())
    for key in _PERCENTS:
        _round(amounts, key)
    _assume(amounts)
    _drop_policy(amounts)
    _check(amounts)


def _settle_cards(amounts: Amounts) -> None:
    """Make amounts by card one amount for each, the least."""
    counted: dict[int, Word] = {}
    for key, by_card in amounts.by_card.items():
        counted = {card: word for card, (_, word) in by_card.items()} | counted
        least, word = min(by_card.values(), key=lambda one: one[0])
        if len({amount for amount, _ in by_card.values()}) > 1:
            rule = f"is not what other cards get, and gpushare gives each the same {key}"
            bad = BadValue(rule, "write the same for each")
            if not amounts.leaves(word, bad, strict_rule=True):
                continue
        amounts.put(word, least)
    if len(counted) > 1 and "count" not in amounts.found:
        amounts.found["count"] = Fraction(len(counted)), next(iter(counted.values()))


def _settle_percent(amounts: Amounts) -> None:
    """Make N x 100 percent of memory that of N whole cards, where nobody says how many."""
    if "memory-percent" not in amounts.found or "count" in amounts.found:
        return
    amount, word = amounts.found["memory-percent"]
    if not (isinstance(amount, Fraction) and word.row.total and amount > _WHOLE):
        return
    if amount % _WHOLE:
        fix = "write 100 or less, or a multiple of 100"
        bad = BadValue("is over one card and no number of whole cards", fix)
        amounts.refuse("memory-percent", bad)
        return
    amounts.found["count"] = amount / _WHOLE, word


def _settle_cores(amounts: Amounts, cards: int) -> None:
    """Divide a total of compute, and make N x 100 percent N whole cards."""
    if "cores" not in amounts.found:
        return
    amount, word = amounts.found["cores"]
    assert isinstance(amount, Fraction)
    shares = word.row.total and cards > 1 and amounts.has_memory()
    if shares:
        if amount % cards:
            rule = f"does not divide into {cards} cards"
            fix = f"write a multiple of {cards}"
            amounts.refuse("cores", BadValue(rule, fix))
            return
        amount /= cards
    if amount > _WHOLE and amount % _WHOLE:
        fix = "write 100 or less, or a multiple of 100"
        amounts.refuse("cores", BadValue("is over one card and no number of whole cards", fix))
        return
    if amount >= _WHOLE and not shares:
        whole = int(amount / _WHOLE)
        if "count" in amounts.found and cards != whole and (word.row.total or whole > 1):
            rule = f"is whole cards, {whole}, and {shown(amounts.found['count'][1])} says {cards}"
            amounts.refuse("cores", BadValue(rule, "write the same number in both"))
            return
        if whole > 1:
            amounts.found["count"] = Fraction(whole), word
        amount = _WHOLE
    amounts.found["cores"] = amount, word


def _settle_memory(amounts: Amounts, cards: int) -> None:
    """Divide totals of memory: evenly, in the vendor's own unit, or not at all."""
    for key in ("memory", "memory-limit", "memory-percent"):
        if key not in amounts.found or cards == 1 or not amounts.found[key][1].row.total:
            continue
        amount, word = amounts.found[key]
        assert isinstance(amount, Fraction)
        step = word.row.unit.step
        if amount % (step * cards):
            units = amount / step
            less = int(units // cards) * cards
            near = less or cards
            rule = f"does not divide into {cards} cards"
            amounts.refuse(key, BadValue(rule, f"write {near} or {near + cards}"))
            continue
        amounts.found[key] = amount / cards, word


def _round(amounts: Amounts, key: str) -> None:
    """Put percentages down to whole ones, which is what gpushare keeps."""
    if key not in amounts.found:
        return
    amount, word = amounts.found[key]
    assert isinstance(amount, Fraction)
    if amount.denominator == 1:
        return
    if amount < 1:
        amounts.refuse(key, BadValue("is below one percent of a card", "ask for more"))
        return
    amounts.found[key] = Fraction(int(amount)), word
    amounts.notes.append(
        f"{shown(word)} {quoted(word.text)} is {float(amount):.4g} % of a card, put down to "
        f"{int(amount)}"
    )


def _assume(amounts: Amounts) -> None:
    """Put in what the vendor gives where nothing is said."""
    if not amounts.asks or amounts.found.get("cores", (None,))[0] == _WHOLE:
        return
    for one in amounts.dialect.assumed:
        if one.beside and one.beside not in amounts.found:
            continue
        if not amounts.found.keys().isdisjoint((one.key, *one.without)):
            continue
        if one.like:
            if one.like in amounts.found:
                amounts.found[one.key] = amounts.found[one.like]
        else:
            word = next(iter(amounts.found.values()))[1] if amounts.found else amounts.words[0]
            number = Fraction(one.text) if one.key in _PERCENTS else one.text
            amounts.found[one.key] = number, word
            amounts.notes.append(f"{amounts.dialect.title}: {one.key} {one.text}, {one.why}")


def _drop_policy(amounts: Amounts) -> None:
    """Take out how cores are to be held where none are asked: there is nothing to hold."""
    policy = amounts.found.get("policy")
    if amounts.asks and policy and policy[0] in _SHARES and "cores" not in amounts.found:
        del amounts.found["policy"]
        amounts.meant[policy[1].name] = "nothing: it says how cores are held, and none are asked"


def _check(amounts: Amounts) -> None:
    """Hold the dialect's own rules against what is asked, where all of it could be read."""
    if amounts.problems:
        return  # a rule may only be broken for want of what could not
    found = {key: amount for key, (amount, _) in amounts.found.items()}
    for rule in amounts.dialect.rules:
        broken = rule.check(found, amounts.cards())
        if broken is not None and broken[0] in amounts.found:
            amounts.leaves(amounts.found[broken[0]][1], broken[1], strict_rule=rule.strict)
