# SPDX-License-Identifier: Apache-2.0
"""What the node's policy leaves of each card, and of all together, to one request: pure.

A ceiling in the form in which memory is asked is held before (gpushare/quota/ceilings.py); here is
what takes a card to know: percent against bytes, and what others of the same namespace or user have
of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpushare.daemon.cards.card import Card
from gpushare.daemon.placement.model import matches
from gpushare.daemon.placement.obstacle import LESS, Obstacle
from gpushare.quota import Ceilings, Together, Total, format_size

_SHOWN = 8  # tenants that a refusal names


@dataclass(frozen=True)
class Part:
    """What a tenant of the same namespace, or user, has of one card already."""

    key: str
    tenant: str
    card: Card
    memory_bytes: int = 0
    cores: int = 0


@dataclass(frozen=True)
class Wanted:
    """What a request would have of one card; `most_bytes` with its burst."""

    memory_bytes: int
    most_bytes: int
    cores: int
    whole: bool = False


@dataclass(frozen=True)
class Bounds:
    """What holds for one request.

    `whose` says for whom `together` (of each card) and `total` (of all of them) do, and `parts`
    what they have by now.
    """

    ceilings: Ceilings = field(default_factory=Ceilings)
    together: Together = field(default_factory=Together)
    total: Total = field(default_factory=Total)
    whose: str = ""
    parts: tuple[Part, ...] = ()
    memory_is_set: bool = False  # by the operator, who stands above all of it
    cores_are_set: bool = False

    def why_not(self, wanted: Wanted, card: Card) -> Obstacle | None:
        """Return why `wanted` is more than may be had of `card`; None: it may."""
        over = None if wanted.whole else self._over_ceiling(wanted, card)
        return over or self._over_together(wanted, card)

    def why_not_all(self, wanted: Sequence[tuple[Card, Wanted]]) -> Obstacle | None:
        """Return why `wanted` is more than may be had of all cards; None: it may."""
        for model, most in (("", self.total), *self.total.models.items()):
            over = next(self._over_total(model, most, wanted), None)
            if over is not None:
                return over
        return None

    def _over_ceiling(self, wanted: Wanted, card: Card) -> Obstacle | None:
        if self.memory_is_set:
            return None
        most = self.ceilings
        # A burst has a ceiling of its own, or those of the memory.
        burst = wanted.most_bytes if most.memory_limit_bytes is None else wanted.memory_bytes
        for size, bound, key in (
            (burst, most.memory_bytes, "memory"),
            (burst, _part(most.memory_percent, card), "memory_percent"),
            (wanted.most_bytes, most.memory_limit_bytes, "memory_limit"),
        ):
            if bound is not None and size > bound:
                shown = f"{format_size(size)}, above the ceiling {format_size(bound)}"
                return Obstacle(f"would give {shown}{most.said(key)}", LESS, "memory")
        return None

    def _over_together(self, wanted: Wanted, card: Card) -> Obstacle | None:
        most = self.together
        held = [part for part in self.parts if part.card.uuid == card.uuid]
        cores = sum(part.cores for part in held) + wanted.cores
        if most.cores is not None and cores > most.cores and not self.cores_are_set:
            who = [f"{part.tenant} {part.cores}" for part in held if part.cores]
            what = f"{cores} % of its compute"
            return self._too_much(what, f"{most.cores} %", "cores", who)
        if most.tenants is not None and len(held) + 1 > most.tenants:
            who = [part.tenant for part in held]
            return self._too_much(f"{len(held) + 1} parts", str(most.tenants), "tenants", who)
        if self.memory_is_set:
            return None
        size = sum(part.memory_bytes for part in held) + wanted.most_bytes
        who = [f"{part.tenant} {format_size(part.memory_bytes)}" for part in held]
        for bound, key in (
            (most.memory_bytes, "memory"),
            (_part(most.memory_percent, card), "memory_percent"),
        ):
            if bound is not None and size > bound:
                return self._too_much(format_size(size), format_size(bound), key, who)
        return None

    def _too_much(self, all_of_it: str, most: str, key: str, who: list[str]) -> Obstacle:
        text = f"would give {self.whose} {all_of_it} in all, above {most}{self.together.said(key)}"
        if key == "tenants":
            return Obstacle(text + _having(who))
        return Obstacle(text + _having(who), LESS, "cores" if key == "cores" else "memory")

    def _over_total(
        self, model: str, most: Total, wanted: Sequence[tuple[Card, Wanted]]
    ) -> Iterator[Obstacle]:
        """Yield each bound of `most` that is passed on the cards of `model`, "": on all."""
        parts = [part for part in self.parts if matches(model, part.card)]
        more = [(card, one) for card, one in wanted if matches(model, card)]
        if not more:
            return
        names = {part.key: part.tenant for part in parts}
        cards = {part.card.uuid for part in parts} | {card.uuid for card, _ in more}
        cores = sum(part.cores for part in parts) + sum(one.cores for _, one in more)
        size = sum(part.memory_bytes for part in parts) + sum(one.most_bytes for _, one in more)
        bounds = (
            ("cards", len(cards), most.cards, _count_of_cards(parts)),
            ("tenants", len(names) + 1, most.tenants, list(names.values())),
            ("cores", cores, None if self.cores_are_set else most.cores, _sums(parts, "cores")),
            ("memory", size, None if self.memory_is_set else most.memory_bytes, _sums(parts, "")),
        )
        of = f" of {model}" if model else ""
        for key, value, bound, who in bounds:
            if bound is not None and value > bound:
                all_of = " of all cards together" if key in {"memory", "cores"} else ""
                shown = f"{_shown(key, value)}{of or all_of}"
                limit = f"{_shown(key, bound)}{most.said(key)}"
                text = f"{self.whose} would have {shown}, above {limit}{_having(who)}"
                yield Obstacle(text, LESS if key in {"memory", "cores"} else "", key)


def _shown(key: str, value: int) -> str:
    if key == "memory":
        return format_size(value)
    if key == "cores":
        return f"{value} % of the compute"
    return f"{value} {key if value != 1 else key.removesuffix('s')}"


def _sums(parts: Sequence[Part], what: str) -> list[str]:
    sums: dict[str, int] = {}
    for part in parts:
        more = part.cores if what == "cores" else part.memory_bytes
        sums[part.tenant] = sums.get(part.tenant, 0) + more
    return [
        f"{tenant} {size if what == 'cores' else format_size(size)}"
        for tenant, size in sums.items()
        if size
    ]


def _count_of_cards(parts: Sequence[Part]) -> list[str]:
    on: dict[str, list[str]] = {}
    for part in parts:
        on.setdefault(part.tenant, []).append(str(part.card.index))
    return [f"{tenant} on {' '.join(cards)}" for tenant, cards in on.items()]


def _having(who: list[str]) -> str:
    """Return `: train 8 GiB, serve 4 GiB and 2 more`; empty where nobody has any."""
    if not who:
        return ""
    more = len(who) - _SHOWN
    return f": {', '.join(who[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def _part(percent: int | None, card: Card) -> int | None:
    return None if percent is None else card.memory_bytes * percent // 100
