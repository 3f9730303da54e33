# SPDX-License-Identifier: Apache-2.0
"""From a container's texts to vendors' values, and from those to a request in each dialect.

Every create pays for the lookup: names are found in dictionaries that are built once, and a name
that is no vendor's costs one lookup. What cannot be given exactly as requested is made smaller,
never larger, and noted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

from gpushare.quota.dialects.units import ByCard, ByContainer
from gpushare.quota.dialects.vendor_key import (
    LOCATIONS,
    Dialect,
    KeyLocation,
    PerCard,
    VendorKey,
    VendorValue,
)
from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.request import Diagnostic, Layer, RequestedValue, SourceKind, ValueSource
from gpushare.quota.size import exact_size

KeyMatch = tuple[Dialect, VendorKey]


@dataclass(frozen=True)
class _Index:
    """The rows of one place: by name, and those with places in their names by their beginning."""

    exact: Mapping[str, tuple[KeyMatch, ...]]
    prefixes: tuple[str, ...]
    patterns: tuple[KeyMatch, ...]


class Tables:
    """All rows of some dialects, to be looked up by name."""

    def __init__(self, dialects: Collection[Dialect]) -> None:
        self.dialects = tuple(dialects)
        self._by_where: dict[KeyLocation, _Index] = {}
        for where in LOCATIONS:
            rows = [
                (dialect, row) for dialect in dialects for row in dialect.rows if row.where == where
            ]
            exact: dict[str, tuple[KeyMatch, ...]] = {}
            for one, row in rows:
                if row.pattern is None:
                    exact[row.name] = (*exact.get(row.name, ()), (one, row))
            patterns = tuple((one, row) for one, row in rows if row.pattern is not None)
            prefixes = tuple(dict.fromkeys(row.prefix for _, row in patterns))
            self._by_where[where] = _Index(exact, prefixes, patterns)

    def annotation_globs(self) -> list[str]:
        """Return what an engine has to hand on of a pod's annotations, as path.Match takes it."""
        return sorted(
            {
                f"{row.name.partition('/')[0]}/*" if "/" in row.name else row.name
                for dialect in self.dialects
                for row in dialect.rows
                if row.where == "annotation" and (row.key or row.names_container)
            }
        )

    def find(self, where: KeyLocation, texts: Mapping[str, str]) -> list[VendorValue]:
        """Return the values of vendors in `texts`, which are at `where` by name."""
        index = self._by_where[where]
        return [
            value
            for name in texts
            if name in index.exact or (index.prefixes and name.startswith(index.prefixes))
            for value in _found(index, name, texts[name], where)
        ]


def _found(index: _Index, name: str, text: str, kind: SourceKind) -> Iterator[VendorValue]:
    for dialect, row in index.exact.get(name, ()):
        yield VendorValue(dialect, row, ValueSource(kind, name), text)
    for dialect, row in index.patterns:
        match = row.pattern.fullmatch(name) if row.pattern is not None else None
        if match is not None:
            places = match.groupdict()
            card = int(places["card"]) if "card" in places else None
            yield VendorValue(
                dialect,
                row,
                ValueSource(kind, name),
                text,
                card,
                places.get("container", ""),
                places.get("model", ""),
                # In the name of a resource there can be no plus sign (device plugin, README).
                places.get("profile", "").replace("gb.", "gb+"),
            )


def leave_shared_names(by_dialect: dict[str, list[VendorValue]]) -> None:
    """Leave a name that several dialects know to those with another request, else to one of them.

    That is the first that requests something by it, else the first: `nvidia.com/gpu: 0.5` is
    Huawei's.
    """
    owners: dict[ValueSource, list[str]] = {}
    for name, values in by_dialect.items():
        for source in dict.fromkeys(value.source for value in values):
            owners.setdefault(source, []).append(name)
    if all(len(names) == 1 for names in owners.values()):
        return
    asking = {
        name
        for name, values in by_dialect.items()
        if any(
            value.is_request and len(owners[value.source]) == 1 and _says(value) for value in values
        )
    }
    kept = {
        source: {name for name in names if name in asking}
        or {next((name for name in names if _asks(by_dialect[name], source)), names[0])}
        for source, names in owners.items()
    }
    for name, values in by_dialect.items():
        by_dialect[name] = [value for value in values if name in kept[value.source]]


def _asks(values: Sequence[VendorValue], source: ValueSource) -> bool:
    """Whether one of `values` that is from `source` requests something, be it nonsense."""
    return any(value.is_request and _says(value) for value in values if value.source == source)


def _says(value: VendorValue) -> bool:
    try:
        return value.row.read(value.text) is not None
    except BadValue:
        return True


def values_for_other_containers(
    values: Sequence[VendorValue], container: str, position: int | None
) -> dict[str, str]:
    """Return which of the values of a dialect are for another container of the pod, and for which.

    `container` (empty) and `position` (None) of this one may not be known: then a value that may be
    for it is.
    """
    others = {value.name: _other(value, values, container, position) for value in values}
    return {name: other for name, other in others.items() if other}


def _other(
    value: VendorValue, beside: Sequence[VendorValue], container: str, position: int | None
) -> str:
    if value.container:
        here = container in ("", value.container)
        return "" if here else f"container {quoted(value.container)}"
    naming = any(row.names_container for row in value.dialect.rows)
    if not naming or value.row.names_container or value.row.where != "annotation":
        return ""
    named = next((neighbor.text.strip() for neighbor in beside if neighbor.row.names_container), "")
    if named:
        return "" if container in ("", named) else f"container {quoted(named)}"
    return "the first container of the pod" if position else ""


#: How what became of a value for another container begins.
ELSEWHERE: Final = "nothing here: "


def read_values(amounts: Amounts, container: str, position: int | None) -> None:
    """Put what each value says into `amounts`, but for those that are for another container."""
    away = values_for_other_containers(amounts.words, container, position)
    amounts.meant |= {name: f"{ELSEWHERE}for {other}" for name, other in away.items()}
    for value in amounts.words:
        if value.name not in away:
            _read(value, amounts, position)


def _read(value: VendorValue, amounts: Amounts, position: int | None) -> None:
    row = value.row
    if not row.key and not row.requires:
        amounts.meant[value.name] = row.instead or row.meaning
        return
    try:
        amount = row.read(value.text)
    except BadValue as bad:
        amounts.problem(value, bad)
        return
    if isinstance(amount, ByContainer):
        amount = _of_container(value, amount, amounts, position)
    if amount is None:
        amounts.meant[value.name] = row.instead or "nothing: equivalent to leaving it out"
        return
    if row.requires and not _is_beside(value, amounts):
        alone = BadValue(f"has no effect without {row.requires}", f"write {row.requires} too")
        if not amounts.leaves(value, alone, strict_rule=bool(row.key)):
            return
    if not row.key:
        amounts.meant[value.name] = row.instead or row.meaning
        return
    if row.role == "request":
        amounts.asks = True
    if isinstance(amount, ByCard):
        for card, of_card in amount.amounts.items():
            amounts.put_by_card(value, card, of_card)
    elif isinstance(amount, Fraction) and value.card is not None:
        amounts.put_by_card(value, value.card, amount)
    else:
        amounts.put(value, _over(value, amount, amounts))
    _put_beside(value, amounts)


def _put_beside(value: VendorValue, amounts: Amounts) -> None:
    """Put what a value sets beside its own key; refuse it beside another request."""
    if not value.row.beside:
        return
    here = amounts.words.index(value)
    # Of two such values the second is refused.
    others = (
        one
        for place, one in enumerate(amounts.words)
        if one.row.key == "count" and (place < here or not one.row.beside) and place != here
    )
    other = next((one for one in others if _says(one)), None)
    if other is not None:
        rule = f"is beside {other.name}, but a program that has a MIG instance can use nothing else"
        amounts.problem(value, BadValue(rule, "keep one of them"))
        return
    for key, text in value.row.beside:
        amounts.found.setdefault(key, (text.replace("{profile}", value.profile), value))


def _is_beside(value: VendorValue, amounts: Amounts) -> bool:
    """Whether the value that must be beside this one is there, and is not switched off."""
    for other in amounts.words:
        if other.row.name == value.row.requires:
            try:
                return other.row.read(other.text) is not None
            except BadValue:
                return True  # reported where that value is read
    return False


def _of_container(
    value: VendorValue, amount: ByContainer, amounts: Amounts, position: int | None
) -> Fraction | None:
    """Return the amount that is for this container, None where it has a place and no cards."""
    places, here = len(amount.amounts), position
    if here is None and places > 1:
        bad = BadValue(
            f"has {places} items, but the position of this container is unknown",
            "annotate the container by its name: gpushare.io/container.NAME.count",
        )
    elif here is not None and here >= places:
        rule = f"has {places} items, but this is container {here + 1} of its pod"
        bad = BadValue(rule, "write one for each container of the pod, 0 where it has no GPU")
    elif not (own := amount.amounts[here or 0]) and any(
        other.is_request and other is not value for other in amounts.words
    ):
        bad = BadValue("is 0 for this container, which requests a GPU", "write 1 or more")
    else:
        return own or None
    amounts.problem(value, bad)
    return None


def _over(value: VendorValue, amount: Fraction | str, amounts: Amounts) -> Fraction | str | None:
    """Return what percentage a part is of the other value's amount; None where it is not."""
    if not value.row.fraction_of:
        return amount
    assert isinstance(amount, Fraction)
    other = next((word for word in amounts.words if word.row.name == value.row.fraction_of), None)
    try:
        whole = None if other is None else other.row.read(other.text)
    except BadValue:
        whole = None  # reported where that value is read
    if not isinstance(whole, Fraction):
        fix = f"write {value.row.fraction_of} too"
        amounts.problem(
            value, BadValue(f"is a fraction of {value.row.fraction_of}, which is not set", fix)
        )
        return None
    if amount > whole:
        rule = f"exceeds {value.row.fraction_of}, {whole}"
        amounts.problem(value, BadValue(rule, f"write {whole} or less"))
        return None
    return amount * 100 / whole


_MEMORY: Final = frozenset({"memory", "memory-limit"})


def combine(
    values: Iterable[VendorValue], *, strict: bool, position: int | None = None, container: str = ""
) -> list[DialectRequest]:
    """Return what `values` request, an entry for each dialect that has any.

    `position` is the container's place among those of its pod, None where it is not known, and
    `container` its name, empty where it has none: what is for another one is not this one's. Where
    a name is known to several dialects it is the value of those that ask by another value as well.
    """
    by_dialect: dict[str, list[VendorValue]] = {}
    for value in values:
        by_dialect.setdefault(value.dialect.name, []).append(value)
    leave_shared_names(by_dialect)
    return [
        _request(Amounts(values, strict=strict), container, position)
        for values in by_dialect.values()
        if values
    ]


def _request(amounts: Amounts, container: str, position: int | None) -> DialectRequest:
    read_values(amounts, container, position)
    normalize(amounts)
    layer = _layer(amounts)
    if not amounts.asks:
        return _says_nothing(amounts)
    return DialectRequest(
        amounts.dialect,
        amounts.words,
        layer,
        tuple(amounts.problems),
        tuple(amounts.notes),
        amounts.meant,
    )


def _says_nothing(amounts: Amounts) -> DialectRequest:
    """No value is a request: what is wrong with an image's log level refuses no container."""
    if amounts.refuses_request:
        # The request itself is no value: that is a refusal.
        return DialectRequest(amounts.dialect, amounts.words, {}, tuple(amounts.problems))
    for value in amounts.words:
        if value.row.key and not amounts.meant.get(value.name, "").startswith(ELSEWHERE):
            amounts.meant[value.name] = (
                "nothing: it is only an option, and no other key requests a GPU"
            )
    return DialectRequest(amounts.dialect, amounts.words, {}, meant=amounts.meant)


def _layer(amounts: Amounts) -> Layer:
    layer: Layer = {}
    for key, (amount, value) in amounts.found.items():
        text = _canonical(key, amount)
        try:
            parsed = KEYS[key].parse(text)
        except BadValue as bad:
            amounts.problem(value, bad)
            continue
        layer[key] = RequestedValue(text, parsed, value.source, written=value.text)
        before = amounts.meant.get(value.name)
        amounts.meant[value.name] = f"{before}, {key}={text}" if before else f"{key}={text}"
    return layer


def _canonical(key: str, amount: Fraction | str) -> str:
    """Return the text of an amount that the canonical key is read from."""
    if isinstance(amount, str):
        return amount
    if key in _MEMORY:
        return exact_size(int(amount))
    return str(amount if key == "memory-percent" else int(amount))


# --- from the amounts that a dialect's values state to what each card gets ---
#
# Totals are divided by the number of cards, N x 100 percent become whole cards, amounts by card one
# amount for each.


@dataclass(frozen=True)
class DialectRequest:
    """The request of a container in one dialect; `layer` is empty if no value is a request.

    `meant` has for the name of a value what became of it: canonical `key=text`, or why nothing.
    """

    dialect: Dialect
    words: tuple[VendorValue, ...]
    layer: Layer
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[str, ...] = ()
    meant: Mapping[str, str] = field(default_factory=dict)


def described(value: VendorValue) -> str:
    """Return `env CUDA_DEVICE_MEMORY_LIMIT (HAMi) "4096m"`."""
    return f"{value_title(value)} {quoted(value.text)}"


def value_title(value: VendorValue) -> str:
    """Return `env CUDA_DEVICE_MEMORY_LIMIT (HAMi)`."""
    return f"{value.source} ({value.dialect.title})"


#: An amount, and the value that states it.
SourcedAmount: TypeAlias = "tuple[Fraction | str, VendorValue]"

_LATER: Final = frozenset({"priority"})
_UUIDS: Final = ("GPU-", "MIG-")


def preferred_amount(
    key: str, before: SourcedAmount, now: SourcedAmount
) -> tuple[SourcedAmount, VendorValue | None]:
    """Return which of two amounts holds, and the value that does not; None if both do.

    The smaller amount, of a priority the later. All that is denied; of what is allowed the cards
    by UUID, which are fewer than those of a model. Else a request, rather than what says how.
    """
    if key == "deny":
        names = [*str(before[0]).split(","), *str(now[0]).split(",")]
        return (",".join(dict.fromkeys(names)), before[1]), None
    return (before, now[1]) if _holds(key, before, now) else (now, before[1])


def _holds(key: str, before: SourcedAmount, now: SourcedAmount) -> bool:
    """Whether the first of the two does."""
    if isinstance(before[0], Fraction) and isinstance(now[0], Fraction):
        return (before[0] < now[0]) != (key in _LATER)
    if key == "allow":
        return _by_uuid(before) or not _by_uuid(now)
    return before[1].is_request or not now[1].is_request


def _by_uuid(amount: SourcedAmount) -> bool:
    return all(name.startswith(_UUIDS) for name in str(amount[0]).split(","))


class Amounts:
    """Each key's amount with the value that states it, and what was found on the way.

    `found` has percent of a card, bytes of memory, cards, or canonical texts; `by_card` what is
    written for single cards. `problems` are refusals, `notes` what was taken otherwise than it was
    written, `meant` what became of each value, by its name. `asks`: one of them is a request.
    """

    def __init__(self, values: Sequence[VendorValue], *, strict: bool) -> None:
        self.words = tuple(values)
        self.strict = strict
        self.found: dict[str, SourcedAmount] = {}
        self.by_card: dict[str, dict[int, tuple[Fraction, VendorValue]]] = {}
        self.problems: list[Diagnostic] = []
        self.refuses_request = False
        self.notes: list[str] = []
        self.meant: dict[str, str] = {}
        self.asks = False

    @property
    def dialect(self) -> Dialect:
        """The dialect of all the values."""
        return self.words[0].dialect

    def cards(self) -> int:
        """Return how many cards are requested, 1 if no value says."""
        if "count" in self.found:
            return int(Fraction(self.found["count"][0]))
        if "devices" in self.found:
            return len(str(self.found["devices"][0]).split(","))
        return 1

    def has_memory(self) -> bool:
        """Whether memory is requested, in either form."""
        return not self.found.keys().isdisjoint(("memory", "memory-percent"))

    def put(self, value: VendorValue, amount: Fraction | str | None) -> None:
        """Take an amount of all cards; of two for one key what holds."""
        if amount is None or not self._holds(value, amount):
            return
        key = value.row.key
        before = self.found.get(key)
        if before is None or before[0] == amount:
            self.found.setdefault(key, (amount, value))
            return
        self.found[key], left = preferred_amount(key, before, (amount, value))
        if left is None:
            self.meant[value.name] = f"{key}, with {before[1].name}"
            return
        taken = self.found[key][1]
        self.meant[left.name] = f"nothing: {taken.name} sets {key} too"
        self.notes.append(f"{described(left)} was not applied: {described(taken)} sets {key} too")

    def put_by_card(self, value: VendorValue, card: int, amount: Fraction) -> None:
        """Take the amount of one card."""
        if self._holds(value, amount):
            self.by_card.setdefault(value.row.key, {})[card] = amount, value

    def _holds(self, value: VendorValue, amount: Fraction | str) -> bool:
        """Whether the row's rules hold of an amount, or may be left here."""
        for rule in value.row.rules:
            try:
                if isinstance(amount, Fraction):
                    rule.check(amount)
            except BadValue as bad:
                if not self.leaves(value, bad, strict_rule=rule.strict):
                    return False
        return True

    def leaves(self, value: VendorValue, bad: BadValue, *, strict_rule: bool) -> bool:
        """Whether what breaks a rule is given all the same; says so, or keeps the problem."""
        if strict_rule and not self.strict:
            title = self.dialect.title
            self.notes.append(f"{described(value)} {bad.rule}, as {title} requires")
            return True
        self.problem(value, bad)
        return False

    def problem(self, value: VendorValue, bad: BadValue) -> None:
        """Keep that a value is refused."""
        error = QuotaError(value_title(value), value.text, bad.rule, bad.fix)
        self.problems.append(Diagnostic(error, value.source))
        self.refuses_request |= value.is_request

    def refuse(self, key: str, bad: BadValue) -> None:
        """Refuse what is requested under `key`."""
        self.problem(self.found.pop(key)[1], bad)


_WHOLE: Final = Fraction(100)
_PERCENTS: Final = ("memory-percent", "cores")
_SHARES: Final = frozenset({"fixed-share", "burst-share"})  # policies: nothing without cores


def normalize(amounts: Amounts) -> None:
    """Make each amount that of one card, add what the vendor implies, and apply its rules."""
    _settle_cards(amounts)
    _settle_percent(amounts)
    _settle_cores(amounts, amounts.cards())
    _settle_memory(amounts, amounts.cards())
    _round_cores(amounts)
    _assume(amounts)
    _drop_policy(amounts)
    _check(amounts)


def _settle_cards(amounts: Amounts) -> None:
    """Make amounts by card one amount for each, the least."""
    counted: dict[int, VendorValue] = {}
    for key, by_card in amounts.by_card.items():
        counted = {card: value for card, (_, value) in by_card.items()} | counted
        least, value = min(by_card.values(), key=lambda one: one[0])
        if len({amount for amount, _ in by_card.values()}) > 1:
            rule = f"differs between cards, but gpushare gives each card the same {key}"
            bad = BadValue(rule, "write the same for each")
            if not amounts.leaves(value, bad, strict_rule=True):
                continue
        amounts.put(value, least)
    if len(counted) > 1 and "count" not in amounts.found:
        amounts.found["count"] = Fraction(len(counted)), next(iter(counted.values()))


def _settle_percent(amounts: Amounts) -> None:
    """Make N x 100 percent of memory that of N whole cards, if no value says how many."""
    if "memory-percent" not in amounts.found or "count" in amounts.found:
        return
    amount, value = amounts.found["memory-percent"]
    if not (isinstance(amount, Fraction) and value.row.summed and amount > _WHOLE):
        return
    if amount % _WHOLE:
        fix = "write 100 or less, or a multiple of 100"
        bad = BadValue("is more than one card but not a number of whole cards", fix)
        amounts.refuse("memory-percent", bad)
        return
    amounts.found["count"] = amount / _WHOLE, value


def _settle_cores(amounts: Amounts, cards: int) -> None:
    """Divide a total of compute, and make N x 100 percent N whole cards."""
    if "cores" not in amounts.found:
        return
    amount, value = amounts.found["cores"]
    assert isinstance(amount, Fraction)
    shares = value.row.summed and cards > 1 and amounts.has_memory()
    if shares:
        if amount % cards:
            rule = f"does not divide into {cards} cards"
            fix = f"write a multiple of {cards}"
            amounts.refuse("cores", BadValue(rule, fix))
            return
        amount /= cards
    if amount > _WHOLE and amount % _WHOLE:
        fix = "write 100 or less, or a multiple of 100"
        amounts.refuse(
            "cores", BadValue("is more than one card but not a number of whole cards", fix)
        )
        return
    if amount >= _WHOLE and not shares:
        whole = int(amount / _WHOLE)
        if "count" in amounts.found and cards != whole and (value.row.summed or whole > 1):
            count = value_title(amounts.found["count"][1])
            rule = f"requests {whole} whole cards, but {count} is {cards}"
            amounts.refuse("cores", BadValue(rule, "write the same number in both keys"))
            return
        if whole > 1:
            amounts.found["count"] = Fraction(whole), value
        amount = _WHOLE
    amounts.found["cores"] = amount, value


def _settle_memory(amounts: Amounts, cards: int) -> None:
    """Divide totals of memory: evenly, in the vendor's own unit, or not at all."""
    for key in ("memory", "memory-limit", "memory-percent"):
        if key not in amounts.found or cards == 1 or not amounts.found[key][1].row.summed:
            continue
        amount, value = amounts.found[key]
        assert isinstance(amount, Fraction)
        step = value.row.unit.step
        if amount % (step * cards):
            units = amount / step
            less = int(units // cards) * cards
            near = less or cards
            rule = f"does not divide into {cards} cards"
            amounts.refuse(key, BadValue(rule, f"write {near} or {near + cards}"))
            continue
        amounts.found[key] = amount / cards, value


def _round_cores(amounts: Amounts) -> None:
    """Put compute down to whole percent, the scheduler's unit. Memory stays exact."""
    if "cores" not in amounts.found:
        return
    amount, value = amounts.found["cores"]
    assert isinstance(amount, Fraction)
    if amount.denominator == 1:
        return
    if amount < 1:
        bad = BadValue("is less than one percent of a card's compute", "request more")
        amounts.refuse("cores", bad)
        return
    amounts.found["cores"] = Fraction(int(amount)), value
    shown = f"{float(amount):.4g} % of a card's compute, rounded down to {int(amount)}"
    amounts.notes.append(f"{described(value)} is {shown}")


def _assume(amounts: Amounts) -> None:
    """Add what the vendor implies where nothing is written."""
    if not amounts.asks or amounts.found.get("cores", (None,))[0] == _WHOLE:
        return
    _request_backend(amounts)
    for assumption in amounts.dialect.assumed:
        if assumption.requires and assumption.requires not in amounts.found:
            continue
        if not amounts.found.keys().isdisjoint((assumption.key, *assumption.without)):
            continue
        if assumption.like:
            if assumption.like in amounts.found:
                amounts.found[assumption.key] = amounts.found[assumption.like]
        else:
            value = next(iter(amounts.found.values()))[1] if amounts.found else amounts.words[0]
            number = Fraction(assumption.text) if assumption.key in _PERCENTS else assumption.text
            amounts.found[assumption.key] = number, value
            amounts.notes.append(
                f"{amounts.dialect.title}: {assumption.key} {assumption.text}, {assumption.why}"
            )


def _request_backend(amounts: Amounts) -> None:
    """Add the backend of a key that requests its part of a card through that backend."""
    if "backend" in amounts.found:
        return
    for _, value in list(amounts.found.values()):
        if value.row.backend:
            amounts.found["backend"] = value.row.backend, value
            amounts.notes.append(f"{described(value)} requests backend {value.row.backend}")
            return


def _drop_policy(amounts: Amounts) -> None:
    """Remove a policy for cores if no cores are requested."""
    policy = amounts.found.get("policy")
    if amounts.asks and policy and policy[0] in _SHARES and "cores" not in amounts.found:
        del amounts.found["policy"]
        amounts.meant[policy[1].name] = "nothing: it is a policy for cores, and none are requested"


def _check(amounts: Amounts) -> None:
    """Apply the dialect's rules to the request, if all of it could be read."""
    if amounts.problems:
        return  # a rule may only be broken for want of what could not
    per_card = PerCard({key: amount for key, (amount, _) in amounts.found.items()}, amounts.cards())
    for rule in amounts.dialect.rules:
        broken = rule.check(per_card)
        if broken is not None and broken[0] in amounts.found:
            amounts.leaves(amounts.found[broken[0]][1], broken[1], strict_rule=rule.strict)
