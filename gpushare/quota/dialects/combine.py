# SPDX-License-Identifier: Apache-2.0
"""What all words of one dialect come to: a layer of canonical keys, and what is wrong with them.

Totals are divided by the number of cards, N x 100 percent become whole cards, amounts by card one
amount for each. What gpushare cannot give exactly as it was asked is made smaller, never larger,
and said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Final

from gpushare.quota.dialects.row import Word
from gpushare.quota.dialects.shared import leave_to_others
from gpushare.quota.dialects.spoken import Problem, Spoken, shown
from gpushare.quota.dialects.twice import Held, settled
from gpushare.quota.dialects.units import ByCard, ByContainer
from gpushare.quota.dialects.whose import elsewhere
from gpushare.quota.errors import BadValue, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.quota import Asked, Layer
from gpushare.quota.size import exact_size

_WHOLE: Final = Fraction(100)
_MEMORY: Final = frozenset({"memory", "memory-limit"})
_PERCENTS: Final = frozenset({"memory-percent", "cores"})
_SHARES: Final = frozenset({"fixed-share", "burst-share"})  # policies: nothing without cores


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
        _Combined(said, strict, position, container).spoken()
        for said in by_dialect.values()
        if said
    ]


class _Combined:
    """The words of one dialect on their way to a layer."""

    def __init__(
        self, words: Sequence[Word], strict: bool, position: int | None, container: str
    ) -> None:
        self._words = tuple(words)
        self._dialect = words[0].dialect
        self._strict = strict
        self._position = position
        self._found: dict[str, Held] = {}
        self._by_card: dict[str, dict[int, tuple[Fraction, Word]]] = {}
        self._problems: list[Problem] = []
        self._notes: list[str] = []
        self._away = elsewhere(self._words, container, position)
        self._meant = {name: f"nothing here: for {other}" for name, other in self._away.items()}
        self._asks = False

    def spoken(self) -> Spoken:
        for word in self._words:
            if word.name not in self._away:
                self._read(word)
        self._settle_cards()
        self._settle_percent()
        self._settle_cores(self._cards())
        cards = self._cards()
        self._settle_memory(cards)
        for key in _PERCENTS:
            self._round(key)
        self._assume()
        self._drop_policy()
        self._check(cards)
        layer = self._layer()
        if not self._asks:
            return self._says_nothing()
        return Spoken(
            self._dialect,
            self._words,
            layer,
            tuple(self._problems),
            tuple(self._notes),
            self._meant,
        )

    def _says_nothing(self) -> Spoken:
        """Nothing asks: what is wrong with an image's log level refuses nobody's container."""
        for word in self._words:
            if word.row.gives and word.name not in self._away:
                self._meant[word.name] = "nothing: it only says how, and nothing beside it asks"
        notes = tuple(f"{one.error()}" for one in self._problems if one.word.row.use == "asks")
        if notes:  # what was to ask is no value: that is a refusal
            return Spoken(self._dialect, self._words, {}, tuple(self._problems))
        return Spoken(self._dialect, self._words, {}, meant=self._meant)

    # --- a word ---

    def _read(self, word: Word) -> None:
        row = word.row
        if not row.gives and not row.beside:
            self._meant[word.name] = row.instead or row.meaning
            return
        try:
            amount = row.unit.read(word.text)
        except BadValue as bad:
            self._problem(word, bad)
            return
        if isinstance(amount, ByContainer):
            amount = self._of_container(word, amount)
        if amount is None:
            self._meant[word.name] = row.instead or "nothing: as if it were not there"
            return
        if row.beside and not self._is_beside(word):
            alone = BadValue(f"asks for nothing without {row.beside}", f"write {row.beside} too")
            if not self._leaves(word, alone, strict_rule=bool(row.gives)):
                return
        if not row.gives:
            self._meant[word.name] = row.instead or row.meaning
            return
        if row.use == "asks":
            self._asks = True
        if isinstance(amount, ByCard):
            for card, of_card in amount.amounts.items():
                self._put_by_card(word, card, of_card)
        elif isinstance(amount, Fraction) and word.card is not None:
            self._put_by_card(word, word.card, amount)
        else:
            self._put(word, self._over(word, amount))

    def _is_beside(self, word: Word) -> bool:
        """Whether the word that must be beside this one is there, and is not switched off."""
        for other in self._words:
            if other.row.name == word.row.beside:
                try:
                    return other.row.unit.read(other.text) is not None
                except BadValue:
                    return True  # said where that word is read
        return False

    def _of_container(self, word: Word, amount: ByContainer) -> Fraction | None:
        """Return the amount that is for this container, None where it has a place and no cards."""
        places, here = len(amount.amounts), self._position
        if here is None and places > 1:
            bad = BadValue(
                f"has {places} places, and which is this container's is not known here",
                "annotate the container by its name: gpushare.io/container.NAME.count",
            )
        elif here is not None and here >= places:
            rule = f"has {places} places, and this is container {here + 1} of its pod"
            bad = BadValue(rule, "write one for each container of the pod, 0 where it has no GPU")
        elif not (found := amount.amounts[here or 0]) and any(
            other.row.use == "asks" and other is not word for other in self._words
        ):
            bad = BadValue("is 0 for this container, which asks for a GPU", "write 1 or more")
        else:
            return found or None
        self._problem(word, bad)
        return None

    def _over(self, word: Word, amount: Fraction | str) -> Fraction | str | None:
        """Return what percentage a part is of the other word's amount; None where it is not."""
        if not word.row.over:
            return amount
        assert isinstance(amount, Fraction)
        other = next((one for one in self._words if one.row.name == word.row.over), None)
        try:
            whole = None if other is None else other.row.unit.read(other.text)
        except BadValue:
            whole = None  # said where that word is read
        if not isinstance(whole, Fraction):
            fix = f"write {word.row.over} too"
            self._problem(word, BadValue(f"is a part of {word.row.over}, which is not said", fix))
            return None
        if amount > whole:
            rule = f"is more than {word.row.over}, {whole}"
            self._problem(word, BadValue(rule, f"write {whole} or less"))
            return None
        return amount * 100 / whole

    def _put(self, word: Word, amount: Fraction | str | None) -> None:
        if amount is None or not self._holds(word, amount):
            return
        key = word.row.gives
        before = self._found.get(key)
        if before is None or before[0] == amount:
            self._found.setdefault(key, (amount, word))
            return
        self._found[key], left = settled(key, before, (amount, word))
        if left is None:
            self._meant[word.name] = f"{key}, with {before[1].name}"
            return
        taken = self._found[key][1]
        self._meant[left.name] = f"nothing: {taken.name} says {key} too"
        self._notes.append(
            f"{shown(left)} {quoted(left.text)} was not taken: {shown(taken)} "
            f"{quoted(taken.text)} says {key} too"
        )

    def _put_by_card(self, word: Word, card: int, amount: Fraction) -> None:
        if self._holds(word, amount):
            self._by_card.setdefault(word.row.gives, {})[card] = amount, word

    def _holds(self, word: Word, amount: Fraction | str) -> bool:
        """Whether the row's rules hold of an amount, or may be left here."""
        for rule in word.row.rules:
            try:
                if isinstance(amount, Fraction):
                    rule.check(amount)
            except BadValue as bad:
                if not self._leaves(word, bad, strict_rule=rule.strict):
                    return False
        return True

    def _leaves(self, word: Word, bad: BadValue, *, strict_rule: bool) -> bool:
        """Whether what breaks a rule is given all the same; says so, or keeps the problem."""
        if strict_rule and not self._strict:
            title = self._dialect.title
            self._notes.append(f"{shown(word)} {quoted(word.text)} {bad.rule}, as {title} asks")
            return True
        self._problem(word, bad)
        return False

    def _problem(self, word: Word, bad: BadValue) -> None:
        self._problems.append(Problem(word, bad.rule, bad.fix))

    # --- all of them ---

    def _settle_cards(self) -> None:
        """Make amounts by card one amount for each, the least."""
        counted: set[int] = set()
        for key, amounts in self._by_card.items():
            counted |= amounts.keys()
            least, word = min(amounts.values(), key=lambda one: one[0])
            if len({amount for amount, _ in amounts.values()}) > 1:
                rule = f"is not what other cards get, and gpushare gives each the same {key}"
                bad = BadValue(rule, "write the same for each")
                if not self._leaves(word, bad, strict_rule=True):
                    continue
            self._put(word, least)
        if len(counted) > 1 and "count" not in self._found:
            key = next(iter(self._by_card))
            self._found["count"] = (
                Fraction(len(counted)),
                next(iter(self._by_card[key].values()))[1],
            )

    def _cards(self) -> int:
        """Return the cards that are asked for, 1 where nobody says."""
        if "count" in self._found:
            return int(Fraction(self._found["count"][0]))
        if "devices" in self._found:
            return len(str(self._found["devices"][0]).split(","))
        return 1

    def _settle_cores(self, cards: int) -> None:
        """Divide a total of compute, and make N x 100 percent N whole cards."""
        if "cores" not in self._found:
            return
        amount, word = self._found["cores"]
        assert isinstance(amount, Fraction)
        shares = word.row.total and cards > 1 and self._has_memory()
        if shares:
            if amount % cards:
                rule = f"does not divide into {cards} cards"
                fix = f"write a multiple of {cards}"
                self._refuse("cores", BadValue(rule, fix))
                return
            amount /= cards
        if amount > _WHOLE and amount % _WHOLE:
            fix = "write 100 or less, or a multiple of 100"
            self._refuse("cores", BadValue("is over one card and no number of whole cards", fix))
            return
        if amount >= _WHOLE and not shares:
            whole = int(amount / _WHOLE)
            if "count" in self._found and cards != whole and (word.row.total or whole > 1):
                rule = f"is whole cards, {whole}, and {shown(self._found['count'][1])} says {cards}"
                self._refuse("cores", BadValue(rule, "write the same number in both"))
                return
            if whole > 1:
                self._found["count"] = Fraction(whole), word
            amount = _WHOLE
        self._found["cores"] = amount, word

    def _settle_percent(self) -> None:
        """Make N x 100 percent of memory that of N whole cards, where nobody says how many."""
        if "memory-percent" not in self._found or "count" in self._found:
            return
        amount, word = self._found["memory-percent"]
        if not (isinstance(amount, Fraction) and word.row.total and amount > _WHOLE):
            return
        if amount % _WHOLE:
            fix = "write 100 or less, or a multiple of 100"
            bad = BadValue("is over one card and no number of whole cards", fix)
            self._refuse("memory-percent", bad)
            return
        self._found["count"] = amount / _WHOLE, word

    def _settle_memory(self, cards: int) -> None:
        """Divide totals of memory: evenly, in the vendor's own unit, or not at all."""
        for key in ("memory", "memory-limit", "memory-percent"):
            if key not in self._found or cards == 1 or not self._found[key][1].row.total:
                continue
            amount, word = self._found[key]
            assert isinstance(amount, Fraction)
            step = word.row.unit.step
            if amount % (step * cards):
                units = amount / step
                less = int(units // cards) * cards
                near = less or cards
                rule = f"does not divide into {cards} cards"
                self._refuse(key, BadValue(rule, f"write {near} or {near + cards}"))
                continue
            self._found[key] = amount / cards, word

    def _round(self, key: str) -> None:
        """Put percentages down to whole ones, which is what gpushare keeps."""
        if key not in self._found:
            return
        amount, word = self._found[key]
        assert isinstance(amount, Fraction)
        if amount.denominator == 1:
            return
        if amount < 1:
            self._refuse(key, BadValue("is below one percent of a card", "ask for more"))
            return
        self._found[key] = Fraction(int(amount)), word
        self._notes.append(
            f"{shown(word)} {quoted(word.text)} is {float(amount):.4g} % of a card, put down to "
            f"{int(amount)}"
        )

    def _refuse(self, key: str, bad: BadValue) -> None:
        self._problem(self._found.pop(key)[1], bad)

    def _has_memory(self) -> bool:
        return not self._found.keys().isdisjoint(("memory", "memory-percent"))

    def _assume(self) -> None:
        """Put in what the vendor gives where nothing is said."""
        if not self._asks or self._found.get("cores", (None,))[0] == _WHOLE:
            return
        for one in self._dialect.assumed:
            if one.beside and one.beside not in self._found:
                continue
            if not self._found.keys().isdisjoint((one.key, *one.without)):
                continue
            if one.like:
                if one.like in self._found:
                    self._found[one.key] = self._found[one.like]
            else:
                word = next(iter(self._found.values()))[1] if self._found else self._words[0]
                number = Fraction(one.text) if one.key in _PERCENTS else one.text
                self._found[one.key] = number, word
                self._notes.append(f"{self._dialect.title}: {one.key} {one.text}, {one.why}")

    def _drop_policy(self) -> None:
        """Take out how cores are to be held where none are asked: there is nothing to hold."""
        policy = self._found.get("policy")
        if self._asks and policy and policy[0] in _SHARES and "cores" not in self._found:
            del self._found["policy"]
            self._meant[policy[1].name] = "nothing: it says how cores are held, and none are asked"

    def _check(self, cards: int) -> None:
        """Hold the dialect's own rules against what is asked, where all of it could be read."""
        if self._problems:
            return  # a rule may only be broken for want of what could not
        amounts = {key: amount for key, (amount, _) in self._found.items()}
        if "count" in self._found:
            cards = int(Fraction(amounts["count"]))
        for rule in self._dialect.rules:
            broken = rule.check(amounts, cards)
            if broken is not None and broken[0] in self._found:
                self._leaves(self._found[broken[0]][1], broken[1], strict_rule=rule.strict)

    # --- the layer ---

    def _layer(self) -> Layer:
        layer: Layer = {}
        for key, (amount, word) in self._found.items():
            text = _canonical(key, amount)
            try:
                value = KEYS[key].parse(text)
            except BadValue as bad:
                self._problem(word, bad)
                continue
            layer[key] = Asked(text, value, word.source, written=f"{word.text}")
            self._mean(word, f"{key}={text}")
        return layer

    def _mean(self, word: Word, meaning: str) -> None:
        before = self._meant.get(word.name)
        self._meant[word.name] = f"{before}, {meaning}" if before else meaning


def _canonical(key: str, amount: Fraction | str) -> str:
    """Return the text of an amount that the canonical key is read from."""
    if isinstance(amount, str):
        return amount
    return exact_size(int(amount)) if key in _MEMORY else str(int(amount))
