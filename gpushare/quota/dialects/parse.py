# SPDX-License-Identifier: Apache-2.0
"""From a container's texts to vendors' values, and from those to a request in each dialect.

Every create pays for the lookup: names are found in dictionaries that are built once, and a name
that is no vendor's costs one lookup. What cannot be given exactly as requested is made smaller,
never larger, and noted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from gpushare.quota.dialects.normalize import Amounts, DialectRequest, normalize
from gpushare.quota.dialects.units import ByCard, ByContainer
from gpushare.quota.dialects.vendor_key import (
    LOCATIONS,
    Dialect,
    KeyLocation,
    VendorKey,
    VendorValue,
)
from gpushare.quota.errors import BadValue, quoted
from gpushare.quota.keys import KEYS
from gpushare.quota.request import Layer, RequestedValue, SourceKind, ValueSource
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
            rows = [(one, row) for one in dialects for row in one.rows if row.where == where]
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
                for one in self.dialects
                for row in one.rows
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
        if any(value.is_request and len(owners[value.source]) == 1 for value in values)
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
        return value.row.unit.read(value.text) is not None
    except BadValue:
        return True


def values_for_other_containers(
    values: Sequence[VendorValue], container: str, position: int | None
) -> dict[str, str]:
    """Return which of the values of a dialect are for another container of the pod, and for which.

    `container` (empty) and `position` (None) of this one may not be known: then a value that may be
    for it is.
    """
    found = {value.name: _other(value, values, container, position) for value in values}
    return {name: other for name, other in found.items() if other}


def _other(
    value: VendorValue, beside: Sequence[VendorValue], container: str, position: int | None
) -> str:
    if value.container:
        here = container in ("", value.container)
        return "" if here else f"container {quoted(value.container)}"
    naming = any(row.names_container for row in value.dialect.rows)
    if not naming or value.row.names_container or value.row.where != "annotation":
        return ""
    named = next((one.text.strip() for one in beside if one.row.names_container), "")
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
        amount = row.unit.read(value.text)
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
                return other.row.unit.read(other.text) is not None
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
    elif not (found := amount.amounts[here or 0]) and any(
        other.is_request and other is not value for other in amounts.words
    ):
        bad = BadValue("is 0 for this container, which requests a GPU", "write 1 or more")
    else:
        return found or None
    amounts.problem(value, bad)
    return None


def _over(value: VendorValue, amount: Fraction | str, amounts: Amounts) -> Fraction | str | None:
    """Return what percentage a part is of the other value's amount; None where it is not."""
    if not value.row.fraction_of:
        return amount
    assert isinstance(amount, Fraction)
    other = next((one for one in amounts.words if one.row.name == value.row.fraction_of), None)
    try:
        whole = None if other is None else other.row.unit.read(other.text)
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
