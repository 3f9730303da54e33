# SPDX-License-Identifier: Apache-2.0
"""The parts of a vendor's table: its keys, and the rules of the vendor's product.

Tables hold data and no logic. How a text is read is the key's unit (units.py), and what all values
of a dialect come to is decided in parse.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from gpushare.quota.dialects.units import TEXT, Amount, Unit, without_suffix
from gpushare.quota.errors import BadValue
from gpushare.quota.request import ValueSource
from gpushare.quota.size import exact_size

KeyLocation: TypeAlias = Literal[
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
LOCATIONS: Final[tuple[KeyLocation, ...]] = get_args(KeyLocation)
#: Locations that an OCI runtime sees.
VISIBLE: Final = frozenset({"env", "annotation"})

# request: requests a GPU by itself, so it is a strong marker of the launcher if a runtime sees it.
# option: modifies the other requests of its dialect.
# record: bookkeeping of the vendor's own components.
# setting: an operator's setting; `instead` names what of gpushare does the same.
KeyRole: TypeAlias = Literal["request", "option", "record", "setting"]

_PLACES: Final = {
    "{card}": r"(?P<card>[0-9]{1,3})",
    "{container}": r"(?P<container>[a-z0-9][a-z0-9-]{0,62})",
    "{model}": r"(?P<model>[a-z0-9][a-z0-9_.-]{0,62})",
    "{profile}": r"(?P<profile>[1-9]g\.[1-9][0-9]{0,3}gb(\.[a-z]+)?)",  # of MIG, 1g.10gb.me
    "{compute}": r"(?P<compute>[1-9]c\..+)",  # of a part of a MIG instance, 1c.3g.40gb
    "{any}": r"(?P<any>.+)",
}


@dataclass(frozen=True)
class VendorKey:
    """One key of a vendor.

    `name` is the key as it is written; `{card}`, `{container}`, `{model}`, `{profile}` and `{any}`
    stand for what differs. `key` is the canonical key that it sets, empty if none. With the value
    it also sets `beside`, texts by canonical key in which `{profile}` is that of the name: then no
    other request of the dialect may stand beside it. `summed`: the value is the
    sum over all cards of the container. `fraction_of` names a row of the same table of which this
    value is a part: it becomes a percentage. `requires` names one that the vendor requires as well;
    a row that sets no key requests nothing without it. `names_container`: the
    text is the container of the pod that the dialect's annotations are for; without that word they
    are for the first. `setting` is the one of NODE_SETTINGS that gpushare-node sets by the value.
    `backend` is the backend that a share of it has, unless a key of the dialect requests another.
    `meaning` is for people, and so is `instead`, what of gpushare does the same where `gives` is
    empty or the text says nothing. `source` says where the fact is from.
    """

    name: str
    meaning: str
    unit: Unit = TEXT
    key: str = ""
    where: KeyLocation = field(kw_only=True)
    role: KeyRole = field(kw_only=True)
    summed: bool = False
    fraction_of: str = ""
    requires: str = ""
    names_container: bool = False
    beside: tuple[tuple[str, str], ...] = ()
    setting: str = ""
    backend: str = ""
    rules: tuple[KeyRule, ...] = ()
    instead: str = ""
    source: str = ""

    def read(self, text: str) -> Amount:
        """Return the amount that the text means; BadValue.

        In limits it is a quantity, as the API server writes it: 3000 is `3k`.
        """
        return self.unit.read(without_suffix(text) if self.where == "limit" else text)

    @property
    def is_visible(self) -> bool:
        """Whether an OCI runtime may see it."""
        return self.where in VISIBLE

    @property
    def prefix(self) -> str:
        """The beginning of every name of a row with a place for something; else all of it."""
        return self.name.partition("{")[0]

    @cached_property
    def pattern(self) -> re.Pattern[str] | None:
        """The pattern of the names of a row with a place for something; None for a plain name."""
        if "{" not in self.name:
            return None
        text = re.escape(self.name)
        for place, expression in _PLACES.items():
            text = text.replace(re.escape(place), expression)
        return re.compile(text)


class KeysAt:
    """Makes the keys of one location, by their role: `limit.request("nvidia.com/gpu", ...)`."""

    def __init__(self, where: KeyLocation) -> None:
        self.request = partial(VendorKey, where=where, role="request")
        self.option = partial(VendorKey, where=where, role="option")
        self.record = partial(VendorKey, where=where, role="record")
        self.setting = partial(VendorKey, where=where, role="setting")


env, annotation, limit = KeysAt("env"), KeysAt("annotation"), KeysAt("limit")
label, claim, task, plugin = KeysAt("label"), KeysAt("claim"), KeysAt("task"), KeysAt("plugin")
node_label, node_annotation = KeysAt("node label"), KeysAt("node annotation")
node_file = KeysAt("node file")


@dataclass(frozen=True)
class ImpliedValue:
    """A vendor's default for `key`, if neither it nor any of `without` is requested.

    It is `text`, or the amount of the key `like` if that is requested; with `requires` it applies
    only if that key is requested.
    """

    key: str
    text: str = ""
    without: tuple[str, ...] = ()
    why: str = ""
    requires: str = ""
    like: str = ""


@dataclass(frozen=True)
class Dialect:
    """A vendor's table.

    `name` is what configurations and people call it; `translated_by` says which part of its own
    brings its limits and labels to a runtime, empty where none does. `equal_requests`: requests
    must be the limits, or be left out. `domains` are the beginnings of keys that are this vendor's
    own, so that an unknown key with one of them may be called misspelt. `claims_by` says which part
    translates its claims, if another one does. `other_cards` are those that its keys are for, if
    they are not NVIDIA's.
    """

    name: str
    title: str
    rows: tuple[VendorKey, ...]
    rules: tuple[DialectRule, ...] = ()
    assumed: tuple[ImpliedValue, ...] = ()
    translated_by: str = ""
    claims_by: str = ""
    other_cards: str = ""
    equal_requests: bool = False
    domains: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # traps of this dialect, for people

    @property
    def translation(self) -> str:
        """The component that brings its limits and labels to a runtime, for people."""
        if self.other_cards:
            return f"nothing: only nodes with {self.other_cards} serve it"
        places = {row.where for row in self.rows if row.role in {"request", "option"}}
        parts = [self.translated_by] if self.translated_by else []
        if places & {"limit", "label"}:
            parts.append("an admission policy of gpushare's chart, to an annotation")
        if places != {"claim"}:
            parts.append("`gpushare convert`, to keys of gpushare")
        *first, last = parts
        return f"{'; '.join(first)}; or {last}" if first else last


@dataclass(frozen=True)
class VendorValue:
    """A row that was found: the text, where it was, and what stood in the places of its name."""

    dialect: Dialect = field(repr=False)
    row: VendorKey
    source: ValueSource
    text: str
    card: int | None = None
    container: str = ""
    model: str = ""
    profile: str = ""  # of MIG, as NVIDIA's tools write it: 1g.10gb+me

    @property
    def name(self) -> str:
        """The key as it was found."""
        return self.source.name

    @property
    def is_request(self) -> bool:
        """Whether it alone requests a GPU; else it says how, or is for others."""
        return self.row.role == "request"


class PerCard(NamedTuple):
    """The part of each card, by canonical key (cores of 100 are a whole card), and the count."""

    amounts: Mapping[str, Fraction | str]
    cards: int

    @property
    def whole(self) -> bool:
        """Whether whole cards are requested."""
        return self.amounts.get("cores") == 100

    def has(self, what: str) -> bool:
        """Whether `what`, a key or `key=value`, is requested."""
        key, _, value = what.partition("=")
        return key in self.amounts and (not value or self.amounts[key] == value)


#: The canonical key whose value breaks a rule, and how.
Violation: TypeAlias = "tuple[str, BadValue]"


@dataclass(frozen=True)
class KeyRule:
    """A rule for one value: `check` raises BadValue for an amount in the canonical key's unit.

    `text` is for people. `strict`: the rule is the vendor's and not ours. What breaks it can be
    given here, so a lenient node gives it and says so, and a strict one refuses it.
    """

    text: str
    check: Callable[[Fraction], None]
    strict: bool = True


@dataclass(frozen=True)
class DialectRule:
    """A rule for everything that a container requests in a dialect; otherwise as KeyRule."""

    text: str
    check: Callable[[PerCard], Violation | None]
    strict: bool = True


def multiple_of(step: int) -> KeyRule:
    """A multiple of `step`, in percent."""

    def check(amount: Fraction) -> None:
        if amount % step:
            low = max(step, int(amount // step) * step)
            raise BadValue(f"is not a multiple of {step}", f"write e.g. {low}")

    return KeyRule(f"a multiple of {step}", check)


def part_or_cards(least: int = 1, *, strict: bool = False) -> KeyRule:
    """`least` to 100 percent of one card, or N x 100 for whole cards."""

    def check(amount: Fraction) -> None:
        if amount > 100 and amount % 100:
            low = int(amount // 100) * 100
            rule = "is more than one card but not N x 100: several cards must be whole"
            cards = f"{low + 100}" if low == 100 else f"{low} or {low + 100}"
            raise BadValue(rule, f"write 100 or less, or {cards}")
        if amount < least:
            raise BadValue(f"is below {least}", f"write {least} or more")

    return KeyRule(f"{least} to 100, or N x 100 for whole cards", check, strict)


def least_bytes(size: int, *, more: bool = False) -> KeyRule:
    """Memory of at least `size` bytes, or of `more` than that."""
    enough = ("more than " if more else "") + exact_size(size)

    def check(amount: Fraction) -> None:
        if amount < size:
            raise BadValue(f"is below {exact_size(size)}", f"request {enough}")
        if more and amount == size:
            raise BadValue(f"must be more than {exact_size(size)}", f"request {enough}")

    return KeyRule(enough if more else f"{enough} or more", check)


def needs(
    key: str, other: str, fix: str, *, unless: tuple[str, ...] = (), strict: bool = True
) -> DialectRule:
    """A part of a card by `key` needs `other` too: memory in either form.

    Not where one of `unless` is requested, a key or `key=value`.
    """
    forms = ("memory", "memory-percent") if other == "memory" else (other,)

    def check(per_card: PerCard) -> Violation | None:
        if not per_card.has(key) or per_card.whole or any(map(per_card.has, (*forms, *unless))):
            return None
        return key, BadValue(f"requires {other}", fix)

    but = f", but for {' or '.join(unless)}" if unless else ""
    return DialectRule(f"a part of a card by {key} needs {other}{but}", check, strict)


def excludes(key: str, what: str, rule: str, fix: str) -> DialectRule:
    """`key` is not requested beside `what`, a key or `key=value`."""

    def check(per_card: PerCard) -> Violation | None:
        return (key, BadValue(rule, fix)) if per_card.has(key) and per_card.has(what) else None

    return DialectRule(f"{key} not beside {what}", check)


def whole_without(key: str) -> DialectRule:
    """Whole cards are requested without `key`: they have all of it."""
    bad = BadValue("must not be set for whole cards, which include all of it", "omit it")

    def check(per_card: PerCard) -> Violation | None:
        return (key, bad) if per_card.whole and per_card.has(key) else None

    return DialectRule(f"whole cards without {key}", check)


def least_each(size: int, *, more: bool = False) -> DialectRule:
    """Memory of at least `size` bytes, or of `more`, on each card where there are several."""
    low, than = exact_size(size), "more than " if more else ""

    def check(per_card: PerCard) -> Violation | None:
        memory, cards = per_card.amounts.get("memory"), per_card.cards
        if cards < 2 or not isinstance(memory, Fraction):
            return None
        if memory > size or (memory == size and not more):
            return None
        rule = f"is {exact_size(int(memory))} on each of {cards} cards, but must be {than}{low}"
        return "memory", BadValue(rule, f"request {than}{exact_size(size * cards)}")

    text = f"more than {low}" if more else f"{low} or more"
    return DialectRule(f"of several cards each {text}", check)


def most_cards(most: int) -> DialectRule:
    """Parts of at most `most` cards."""
    bad = BadValue(f"requests shares of more than {most} cards", f"write {most} or less")

    def check(per_card: PerCard) -> Violation | None:
        above = per_card.cards > most and per_card.has("count") and not per_card.whole
        return ("count", bad) if above else None

    return DialectRule(f"parts of {most} cards at most", check)


def several_only(key: str, value: str) -> DialectRule:
    """Parts of several cards are requested under this value of `key` only."""

    def check(per_card: PerCard) -> Violation | None:
        if per_card.cards < 2 or per_card.whole or per_card.amounts.get(key, value) == value:
            return None
        rule = f"requires a single card, but shares of {per_card.cards} are requested"
        return key, BadValue(rule, f"write {value}")

    return DialectRule(f"parts of several cards only with {key}={value}", check)


def one_card(key: str, value: str = "") -> DialectRule:
    """With `key` there is one card only (and with `value`, only where it says that)."""
    what = f"{key}={value}" if value else key

    def check(per_card: PerCard) -> Violation | None:
        if per_card.cards < 2 or not per_card.has(what):
            return None
        return key, BadValue(
            f"requires a single card, but {per_card.cards} are requested", "request one card"
        )

    return DialectRule(f"one card only with {what}", check)


def step_each(key: str, step: int) -> DialectRule:
    """A multiple of `step` on each card, once a total is divided."""

    def check(per_card: PerCard) -> Violation | None:
        amount = per_card.amounts.get(key)
        if not isinstance(amount, Fraction) or not amount % step:
            return None
        each = f" {amount} on each card, which is" if per_card.cards > 1 else ""
        low = max(step, int(amount // step) * step)
        rule = f"is{each} not a multiple of {step}"
        return key, BadValue(rule, f"write e.g. {low * per_card.cards}")

    return DialectRule(f"{key} of each card a multiple of {step}", check)


def not_above(key: str, other: str) -> DialectRule:
    """`key` is not above `other`."""

    def check(per_card: PerCard) -> Violation | None:
        amount, most = per_card.amounts.get(key), per_card.amounts.get(other)
        if not (isinstance(amount, Fraction) and isinstance(most, Fraction)) or amount <= most:
            return None
        limit = exact_size(int(most))
        return key, BadValue(f"exceeds the limit, {limit}", f"request {limit} or less")

    return DialectRule(f"{key} not above {other}", check, strict=False)


def not_both(key: str, other: str, fix: str) -> DialectRule:
    """One of two keys that say the same in two forms."""

    def check(per_card: PerCard) -> Violation | None:
        both = per_card.has(key) and per_card.has(other) and not per_card.whole
        return (key, BadValue("sets the same value in another form", fix)) if both else None

    return DialectRule(f"{key} or {other}, not both", check, strict=False)
