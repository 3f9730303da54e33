# SPDX-License-Identifier: Apache-2.0
"""What the words of one dialect have come to so far: an amount for each canonical key."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from gpushare.quota.dialects.row import Dialect, Word
from gpushare.quota.dialects.spoken import Problem, shown
from gpushare.quota.dialects.twice import Held, settled
from gpushare.quota.errors import BadValue, quoted


class Amounts:
    """Each key's amount with the word that says it, and what was found on the way.

    `found` has percent of a card, bytes of memory, cards, or canonical texts; `by_card` what was
    said of single cards. `problems` are refusals, `notes` what was taken otherwise than it was
    written, `meant` what became of each word, by its name. `asks`: a word that asks was a value.
    """

    def __init__(self, words: Sequence[Word], *, strict: bool) -> None:
        self.words = tuple(words)
        self.strict = strict
        self.found: dict[str, Held] = {}
        self.by_card: dict[str, dict[int, tuple[Fraction, Word]]] = {}
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.meant: dict[str, str] = {}
        self.asks = False

    @property
    def dialect(self) -> Dialect:
        """The one that they are all words of."""
        return self.words[0].dialect

    def cards(self) -> int:
        """Return the cards that are asked for, 1 where nobody says."""
        if "count" in self.found:
            return int(Fraction(self.found["count"][0]))
        if "devices" in self.found:
            return len(str(self.found["devices"][0]).split(","))
        return 1

    def has_memory(self) -> bool:
        """Whether memory is asked for, in either form."""
        return not self.found.keys().isdisjoint(("memory", "memory-percent"))

    def put(self, word: Word, amount: Fraction | str | None) -> None:
        """Take an amount of all cards; of two for one key what holds."""
        if amount is None or not self._holds(word, amount):
            return
        key = word.row.gives
        before = self.found.get(key)
        if before is None or before[0] == amount:
            self.found.setdefault(key, (amount, word))
            return
        self.found[key], left = settled(key, before, (amount, word))
        if left is None:
            self.meant[word.name] = f"{key}, with {before[1].name}"
            return
        taken = self.found[key][1]
        self.meant[left.name] = f"nothing: {taken.name} says {key} too"
        self.notes.append(
            f"{shown(left)} {quoted(left.text)} was not taken: {shown(taken)} "
            f"{quoted(taken.text)} says {key} too"
        )

    def put_by_card(self, word: Word, card: int, amount: Fraction) -> None:
        """Take the amount of one card."""
        if self._holds(word, amount):
            self.by_card.setdefault(word.row.gives, {})[card] = amount, word

    def _holds(self, word: Word, amount: Fraction | str) -> bool:
        """Whether the row's rules hold of an amount, or may be left here."""
        for rule in word.row.rules:
            try:
                if isinstance(amount, Fraction):
                    rule.check(amount)
            except BadValue as bad:
                if not self.leaves(word, bad, strict_rule=rule.strict):
                    return False
        return True

    def leaves(self, word: Word, bad: BadValue, *, strict_rule: bool) -> bool:
        """Whether what breaks a rule is given all the same; says so, or keeps the problem."""
        if strict_rule and not self.strict:
            title = self.dialect.title
            self.notes.append(f"{shown(word)} {quoted(word.text)} {bad.rule}, as {title} asks")
            return True
        self.problem(word, bad)
        return False

    def problem(self, word: Word, bad: BadValue) -> None:
        """Keep that a word is refused."""
        self.problems.append(Problem(word, bad.rule, bad.fix))

    def refuse(self, key: str, bad: BadValue) -> None:
        """Refuse what is asked for under `key`."""
        self.problem(self.found.pop(key)[1], bad)
