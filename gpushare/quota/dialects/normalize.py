# SPDX-License-Identifier: Apache-2.0
"""From the amounts that a dialect's values state to what each card gets.

Totals are divided by the number of cards, N x 100 percent become whole cards, amounts by card one
amount for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, TypeAlias

from gpushare.quota.dialects.vendor_key import Dialect, PerCard, VendorValue
from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.request import Diagnostic, Layer


@dataclass(frozen=True)
class DialectRequest:
    """What a container requests in one dialect; `layer` is empty if no value is a request.

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


def _by_uuid(held: SourcedAmount) -> bool:
    return all(name.startswith(_UUIDS) for name in str(held[0]).split(","))


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
    for one in amounts.dialect.assumed:
        if one.requires and one.requires not in amounts.found:
            continue
        if not amounts.found.keys().isdisjoint((one.key, *one.without)):
            continue
        if one.like:
            if one.like in amounts.found:
                amounts.found[one.key] = amounts.found[one.like]
        else:
            value = next(iter(amounts.found.values()))[1] if amounts.found else amounts.words[0]
            number = Fraction(one.text) if one.key in _PERCENTS else one.text
            amounts.found[one.key] = number, value
            amounts.notes.append(f"{amounts.dialect.title}: {one.key} {one.text}, {one.why}")


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
    per_card = PerCard({key: one for key, (one, _) in amounts.found.items()}, amounts.cards())
    for rule in amounts.dialect.rules:
        broken = rule.check(per_card)
        if broken is not None and broken[0] in amounts.found:
            amounts.leaves(amounts.found[broken[0]][1], broken[1], strict_rule=rule.strict)
