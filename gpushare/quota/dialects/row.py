# SPDX-License-Identifier: Apache-2.0
"""What a vendor's table is made of: a row for each key, and the rules of the vendor's product.

Tables hold data and no logic. How a text is read is the row's unit (units.py), what else must hold
is in its rules (rules.py), and what comes of all words together is combine.py's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpushare.quota.quota import Source, SourceKind

if TYPE_CHECKING:
    from gpushare.quota.dialects.rules import DialectRule, RowRule
    from gpushare.quota.dialects.units import Unit

Where: TypeAlias = Literal[
    "env",
    "annotation",
    "limit",  # resources.limits of a pod's container: for the kubelet and schedulers alone
    "label",  # of a pod
    "node label",
    "node annotation",
    "node file",
    "plugin",  # the configuration of a device plugin
    "claim",  # of dynamic resource allocation
    "task",  # an ECS task definition
]
#: Who may find a key there: of all others no OCI runtime hears.
REACHES: Final = frozenset({"env", "annotation"})

# asks: alone a request for a GPU, so a strong marker of the launcher where it reaches one.
# says: how, or how many; counts beside what the same dialect asks.
# kept: the bookkeeping of the vendor's own parts.
# node: an operator's setting; `instead` says what of gpushare does it.
Use: TypeAlias = Literal["asks", "says", "kept", "node"]

_PLACES: Final = {
    "{card}": r"(?P<card>[0-9]{1,3})",
    "{container}": r"(?P<container>[a-z0-9][a-z0-9-]{0,62})",
    "{model}": r"(?P<model>[a-z0-9][a-z0-9_.-]{0,62})",
    "{any}": r"(?P<any>.+)",
}


@dataclass(frozen=True)
class Row:
    """One key of a vendor.

    `name` is the key as it is written; `{card}`, `{container}`, `{model}` and `{any}` stand for
    what differs. `gives` is the canonical key that it fills, empty where none does. `total`: the
    value is of all cards of the container together. `over` names a row of the same table of which
    this one is a part: it becomes a percentage. `beside` names one that the vendor wants to be
    written as well; what fills no key itself asks for nothing without it. `names_container`: the
    text is the container of the pod that the dialect's annotations are for; without that word they
    are for the first. `meaning` is for people, and so is `instead`, what of gpushare does the same
    where `gives` is empty or the text says nothing. `source` says where the fact is from.
    """

    name: str
    where: Where
    use: Use
    meaning: str
    unit: Unit
    gives: str = ""
    total: bool = False
    over: str = ""
    beside: str = ""
    names_container: bool = False
    rules: tuple[RowRule, ...] = ()
    instead: str = ""
    source: str = ""

    @property
    def reaches(self) -> bool:
        """Whether an OCI runtime may see it."""
        return self.where in REACHES

    @property
    def prefix(self) -> str:
        """What every name of a row with a place for something begins with; else all of it."""
        return self.name.partition("{")[0]

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """What the names of a row with a place for something are like; None for a plain name."""
        if "{" not in self.name:
            return None
        text = re.escape(self.name)
        for place, expression in _PLACES.items():
            text = text.replace(re.escape(place), expression)
        return re.compile(text)


@dataclass(frozen=True)
class Assumed:
    """What a vendor gives where `key` and all of `without` are not asked, and something is.

    It is `text`, or the amount of the key `like` where that is asked; with `beside` only where that
    key is asked.
    """

    key: str
    text: str = ""
    without: tuple[str, ...] = ()
    why: str = ""
    beside: str = ""
    like: str = ""


@dataclass(frozen=True)
class Dialect:
    """A vendor's table.

    `name` is what configurations and people call it; `translated_by` says which part of its own
    brings its limits and labels to a runtime, empty where none does. `equal_requests`: requests
    must be the limits, or be left out. `domains` are the beginnings of keys that are this vendor's
    own, so that an unknown key with one of them may be called misspelt.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    rules: tuple[DialectRule, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    translated_by: str = ""
    equal_requests: bool = False
    domains: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # traps of this dialect, for people

    @property
    def translation(self) -> str:
        """What brings its limits and labels to a runtime, for people."""
        ours = "`gpushare convert`, to keys of gpushare"
        return f"{self.translated_by}; or {ours}" if self.translated_by else ours


@dataclass(frozen=True)
class Word:
    """A row that was found: the text, where it was, and what stood in the places of its name."""

    dialect: Dialect = field(repr=False)
    row: Row
    source: Source
    text: str
    card: int | None = None
    container: str = ""
    model: str = ""

    @property
    def name(self) -> str:
        """The key as it was found."""
        return self.source.name


#: What a word's source is called, by where its row is; an annotation may be a pod's.
KIND: Final[dict[Where, SourceKind]] = {
    "env": "env",
    "annotation": "annotation",
    "limit": "limit",
    "label": "label",
    "node label": "node label",
    "node annotation": "node annotation",
    "node file": "node file",
    "plugin": "plugin",
    "claim": "claim",
    "task": "task",
}
