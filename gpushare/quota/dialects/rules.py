# SPDX-License-Identifier: Apache-2.0
"""The rules that tables name: what a vendor's own product would refuse.

A rule with `strict` is the vendor's and not ours: what breaks it can be given here, so a lenient
node gives it and says so, and a strict one refuses it. Its `str` is the rule, for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from gpushare.quota.errors import BadValue
from gpushare.quota.size import exact_size


class RowRule(Protocol):
    """Holds of one value, in the canonical key's unit."""

    @property
    def strict(self) -> bool:
        """Whether only a strict node holds it."""

    def check(self, amount: Fraction) -> None:
        """Raise BadValue where `amount` breaks it."""


class DialectRule(Protocol):
    """Holds of all that a container asks in a dialect."""

    @property
    def strict(self) -> bool:
        """Whether only a strict node holds it."""

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """Return the canonical key whose word breaks it, and how; None where nothing does.

        `found` is what each card gets, by canonical key; cores of 100 are a whole card.
        """


@dataclass(frozen=True)
class Step:
    """A multiple of `step`, in percent."""

    step: int
    strict: bool = True

    def __str__(self) -> str:
        return f"a multiple of {self.step}"

    def check(self, amount: Fraction) -> None:
        """As RowRule."""
        if amount % self.step:
            low = max(self.step, int(amount // self.step) * self.step)
            raise BadValue(f"is not a multiple of {self.step}", f"write e.g. {low}")


@dataclass(frozen=True)
class PartOrCards:
    """1 to 100 percent of one card, or N x 100 for whole cards."""

    least: int = 1
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.least} to 100, or N x 100 for whole cards"

    def check(self, amount: Fraction) -> None:
        """As RowRule."""
        if amount > 100 and amount % 100:
            low = int(amount // 100) * 100
            rule = "is over one card and not N x 100: several cards are whole ones"
            cards = f"{low + 100}" if low == 100 else f"{low} or {low + 100}"
            raise BadValue(rule, f"write 100 or less, or {cards}")
        if amount < self.least:
            raise BadValue(f"is below {self.least}", f"write {self.least} or more")


@dataclass(frozen=True)
class LeastBytes:
    """Memory of at least `size` bytes, or of `more` than that."""

    size: int
    more: bool = False
    strict: bool = True

    def __str__(self) -> str:
        return self._enough() if self.more else f"{exact_size(self.size)} or more"

    def check(self, amount: Fraction) -> None:
        """As RowRule."""
        if amount < self.size:
            raise BadValue(f"is below {exact_size(self.size)}", f"ask for {self._enough()}")
        if self.more and amount == self.size:
            raise BadValue(f"is no more than {exact_size(self.size)}", f"ask for {self._enough()}")

    def _enough(self) -> str:
        return ("more than " if self.more else "") + exact_size(self.size)


@dataclass(frozen=True)
class Needs:
    """A part of a card by `key` needs `other` too: memory in either form.

    Not where one of `unless` is asked, a key or `key=value`.
    """

    key: str
    other: str
    fix: str
    strict: bool = True
    unless: tuple[str, ...] = ()

    def __str__(self) -> str:
        but = f", but for {' or '.join(self.unless)}" if self.unless else ""
        return f"a part of a card by {self.key} needs {self.other}{but}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        del cards
        if self.key not in found or found.get("cores") == 100 or self._has(found):
            return None
        if any(_is_asked(found, one) for one in self.unless):
            return None
        return self.key, BadValue(f"asks for no {self.other} beside it", self.fix)

    def _has(self, found: Mapping[str, Fraction | str]) -> bool:
        forms = ("memory", "memory-percent") if self.other == "memory" else (self.other,)
        return any(form in found for form in forms)


def _is_asked(found: Mapping[str, Fraction | str], what: str) -> bool:
    """Whether `what`, a key or `key=value`, is asked."""
    key, _, value = what.partition("=")
    return key in found and (not value or found[key] == value)


@dataclass(frozen=True)
class Excludes:
    """`key` is not asked beside `what`, a key or `key=value`."""

    key: str
    what: str
    rule: str
    fix: str
    strict: bool = True

    def __str__(self) -> str:
        return f"{self.key} not beside {self.what}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        del cards
        if self.key not in found or not _is_asked(found, self.what):
            return None
        return self.key, BadValue(self.rule, self.fix)


@dataclass(frozen=True)
class WholeWithout:
    """Whole cards are asked for without `key`: they have all of it."""

    key: str
    strict: bool = True

    def __str__(self) -> str:
        return f"whole cards without {self.key}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        del cards
        if found.get("cores") == 100 and self.key in found:
            return self.key, BadValue(
                "comes with whole cards, which have all of it", "leave it out"
            )
        return None


@dataclass(frozen=True)
class LeastEach:
    """Memory of at least `size` bytes, or of `more`, on each card where there are several."""

    size: int
    more: bool = False
    strict: bool = True

    def __str__(self) -> str:
        size = exact_size(self.size)
        return f"of several cards each {f'more than {size}' if self.more else f'{size} or more'}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        memory = found.get("memory")
        if cards < 2 or not isinstance(memory, Fraction):
            return None
        if memory > self.size or (memory == self.size and not self.more):
            return None
        low, more = exact_size(self.size), "more than " if self.more else ""
        rule = f"is {exact_size(int(memory))} on each of {cards} cards, and {more}{low} is needed"
        return "memory", BadValue(rule, f"ask for {more}{exact_size(self.size * cards)}")


@dataclass(frozen=True)
class MostCards:
    """Parts of at most `most` cards."""

    most: int
    strict: bool = True

    def __str__(self) -> str:
        return f"parts of {self.most} cards at most"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        if cards <= self.most or "count" not in found or found.get("cores") == 100:
            return None
        return "count", BadValue(
            f"is parts of more than {self.most} cards", f"write {self.most} or less"
        )


@dataclass(frozen=True)
class SeveralOnly:
    """Parts of several cards are asked for under this value of `key` only."""

    key: str
    value: str
    strict: bool = True

    def __str__(self) -> str:
        return f"parts of several cards only with {self.key}={self.value}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        if cards < 2 or found.get("cores") == 100 or found.get(self.key, self.value) == self.value:
            return None
        rule = f"is for one card, and parts of {cards} are asked for"
        return self.key, BadValue(rule, f"write {self.value}")


@dataclass(frozen=True)
class OneCard:
    """With `key` there is one card only (and with `value`, only where it says that)."""

    key: str
    value: str = ""
    strict: bool = True

    def __str__(self) -> str:
        what = f"{self.key}={self.value}" if self.value else self.key
        return f"one card only with {what}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        if cards < 2 or self.key not in found or (self.value and found[self.key] != self.value):
            return None
        return self.key, BadValue(f"is for one card, and {cards} are asked for", "ask for one card")


@dataclass(frozen=True)
class StepEach:
    """A multiple of `step` on each card, once a total is divided."""

    key: str
    step: int
    strict: bool = True

    def __str__(self) -> str:
        return f"{self.key} of each card a multiple of {self.step}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        amount = found.get(self.key)
        if not isinstance(amount, Fraction) or not amount % self.step:
            return None
        rule = f"is {amount} on each card, which is not a multiple of {self.step}"
        if cards < 2:
            rule = f"is not a multiple of {self.step}"
        low = max(self.step, int(amount // self.step) * self.step)
        return self.key, BadValue(rule, f"write e.g. {low * cards}")


@dataclass(frozen=True)
class NotAbove:
    """`key` is not above `other`."""

    key: str
    other: str
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.key} not above {self.other}"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        del cards
        amount, most = found.get(self.key), found.get(self.other)
        if not (isinstance(amount, Fraction) and isinstance(most, Fraction)) or amount <= most:
            return None
        limit = exact_size(int(most))
        return self.key, BadValue(f"is above the limit, {limit}", f"ask for {limit} or less")


@dataclass(frozen=True)
class NotBoth:
    """One of two keys that say the same in two forms."""

    key: str
    other: str
    fix: str
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.key} or {self.other}, not both"

    def check(self, found: Mapping[str, Fraction | str], cards: int) -> tuple[str, BadValue] | None:
        """As DialectRule."""
        del cards
        if self.key in found and self.other in found and found.get("cores") != 100:
            return self.key, BadValue("is the same in a second form", self.fix)
        return None
