# SPDX-License-Identifier: Apache-2.0
"""The values of keys: how a text is read, and what is left of a value that a lower source narrows.

A reader raises BadValue. A narrowing function takes the value of the higher source and that of the
lower one; what it returns never requests more than the higher one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from gpushare.quota.errors import BadValue
from gpushare.quota.request import Percent, Value
from gpushare.quota.size import parse_size

#: The units of a duration, in seconds.
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class WholeNumber:
    """Reads a whole number from `low` to `high`; `what` it is, for people."""

    low: int
    high: int
    what: str

    @property
    def error(self) -> BadValue:
        """The error for any other text."""
        return BadValue(
            f"is not {self.what}", f"write a whole number from {self.low} to {self.high}"
        )

    def __call__(self, text: str) -> Value:
        """Return the number in `text`; BadValue if there is none."""
        stripped = text.strip()
        if not re.fullmatch(r"[0-9]{1,9}", stripped, re.ASCII):
            raise self.error
        value = int(stripped)
        if not self.low <= value <= self.high:
            raise self.error
        return value


class PatternReader:
    """Reads a text that matches `pattern`."""

    pattern: ClassVar[str]
    wrong: ClassVar[tuple[str, str]]  # the rule that any other text violates, and the fix

    @property
    def error(self) -> BadValue:
        """The error for any other text."""
        return BadValue(*self.wrong)

    def matched(self, text: str) -> str:
        """Return `text` without spaces around it; BadValue if it does not match."""
        stripped = text.strip()
        if not re.fullmatch(self.pattern, stripped, re.ASCII):
            raise self.error
        return stripped


class PercentOfMemory(PatternReader):
    """Reads a percentage of a card's memory, exactly: `25`, `12.5`, or the ratio `100/3`."""

    pattern = r"[0-9]{1,16}([.][0-9]{1,16}|/[0-9]{1,16})?"
    wrong = (
        "is not a percentage of a card's memory",
        "write a number up to 100, e.g. 25, 12.5 or 100/3",
    )

    def __call__(self, text: str) -> Percent:
        """Return the percentage, above 0 and at most 100; BadValue if there is none."""
        stripped = self.matched(text)
        if stripped.isdigit():
            percent: Percent = int(stripped)
        else:
            from fractions import Fraction  # noqa: PLC0415 - whole numbers need none

            try:
                exact = Fraction(stripped)
            except ZeroDivisionError:
                raise self.error from None
            percent = int(exact) if exact.denominator == 1 else exact
        if not 0 < percent <= 100:
            raise self.error
        return percent


def format_percent(percent: Percent) -> str:
    """Return a percentage for people: `25 %`, `26.67 %`."""
    return f"{float(percent):.4g} %"


@dataclass(frozen=True)
class Choice:
    """Reads one of some words, or a short name of one."""

    words: tuple[str, ...]
    short: Mapping[str, str] = field(default_factory=dict)

    @property
    def error(self) -> BadValue:
        """The error for any other text."""
        return BadValue("is not a valid value", "write " + either(self.words))

    def __call__(self, text: str) -> Value:
        """Return the word in `text`; BadValue if it is none of them."""
        value = self.short.get(text.strip(), text.strip())
        if value not in self.words:
            raise self.error
        return value


class Name(PatternReader):
    """Reads a name."""

    pattern = "[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?"
    wrong = "is not a name", "write lower-case letters, digits, - and ., e.g. small"

    def __call__(self, text: str) -> Value:
        """Return the name; BadValue if it is none."""
        return self.matched(text)


parse_name: Final = Name()


class Duration(PatternReader):
    """Reads a time with its unit, as seconds."""

    pattern = "[1-9][0-9]{0,5}[smhd]"
    wrong = "is not a duration", "write a whole number with the unit s, m, h or d, e.g. 30m"

    def __call__(self, text: str) -> int:
        """Return the seconds of `30m`; BadValue if it is no duration."""
        stripped = self.matched(text)
        return int(stripped[:-1]) * _UNITS[stripped[-1]]


parse_duration: Final = Duration()


class Oversubscription(PatternReader):
    """Reads where memory beyond the quota may be: `none`, `host`, or a bound as in `host:8GiB`."""

    pattern = r"none|host(:[1-9][0-9]{0,15}([KMGT]iB?|[kmgt]))?"
    wrong = "is not a valid value", "write none, host, or a size as in host:8GiB"

    def __call__(self, text: str) -> str:
        """Return the text; BadValue if it is none of them."""
        stripped = self.matched(text)
        oversubscribed_bytes(stripped)
        return stripped


parse_oversubscription: Final = Oversubscription()


def oversubscribed_bytes(text: str) -> int | None:
    """Return the bytes of `host:8GiB`, 0 of `none`, and None of `host`: what the node gives."""
    where, _, size = text.partition(":")
    if where != "host":
        return 0
    return parse_size(size) if size else None


def less_oversubscribed(higher: Value, lower: Value) -> Value:
    """Return the value with less host memory."""
    sizes = [oversubscribed_bytes(str(text)) for text in (higher, lower)]
    if sizes[1] is None:
        return higher
    return lower if sizes[0] is None or sizes[1] < sizes[0] else higher


def either(choices: tuple[str, ...]) -> str:
    """Return `a, b or c`."""
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"


def exact_duration(seconds: int) -> str:
    """Return the shortest text of `seconds` for `parse_duration`."""
    unit = next(unit for unit in reversed(_UNITS) if seconds % _UNITS[unit] == 0)
    return f"{seconds // _UNITS[unit]}{unit}"


def smaller(higher: Value, lower: Value) -> Value:
    """Return the smaller number."""
    assert not isinstance(higher, (str, tuple))
    assert not isinstance(lower, (str, tuple))
    return min(higher, lower)


def larger(higher: Value, lower: Value) -> Value:
    """Return the larger number."""
    assert isinstance(higher, int)
    assert isinstance(lower, int)
    return max(higher, lower)


def unchanged(higher: Value, _lower: Value) -> Value:
    """Return the higher source's value."""
    return higher


def prefer(modest: str) -> Callable[[Value, Value], Value]:
    """Return the function that takes `modest` from either source."""
    return lambda higher, lower: lower if lower == modest else higher


def subset(higher: Value, lower: Value) -> Value:
    """Return the lower source's list if it is part of the higher one's."""
    assert isinstance(higher, tuple)
    assert isinstance(lower, tuple)
    return lower if set(lower) <= set(higher) else higher


def union(higher: Value, lower: Value) -> Value:
    """Return both lists."""
    assert isinstance(higher, tuple)
    assert isinstance(lower, tuple)
    return higher + tuple(item for item in lower if item not in higher)
