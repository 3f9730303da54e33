# SPDX-License-Identifier: Apache-2.0
"""What the node's policy leaves of each card to one request: pure.

A ceiling in the form in which memory is asked is held before (gpushare/quota/ceilings.py); here is
what takes a card to know: percent against bytes, and what others of the same namespace or user have
of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpushare.daemon.cards.card import Card
from gpushare.quota import Ceilings, Together, format_size


@dataclass(frozen=True)
class Held:
    """What a namespace, or a user, has of one card already."""

    memory_bytes: int = 0
    cores: int = 0
    tenants: int = 0


@dataclass(frozen=True)
class Wanted:
    """What a request would have of one card; `most_bytes` with its burst."""

    memory_bytes: int
    most_bytes: int
    cores: int
    whole: bool = False


_NOTHING: Final = Held()


@dataclass(frozen=True)
class Bounds:
    """What holds for one request; `whose` says for whom `together` does, `held` by card."""

    ceilings: Ceilings = field(default_factory=Ceilings)
    together: Together = field(default_factory=Together)
    whose: str = ""
    held: Mapping[str, Held] = field(default_factory=dict)
    memory_is_set: bool = False  # by the operator, who stands above all of it
    cores_are_set: bool = False

    def why_not(self, wanted: Wanted, card: Card) -> str | None:
        """Return why `wanted` is more than may be had, as the end of "card 0 ..."; None: it may."""
        over = None if wanted.whole else self._over_ceiling(wanted, card)
        return over or self._over_together(wanted, card)

    def _over_ceiling(self, wanted: Wanted, card: Card) -> str | None:
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
                return f"would give {shown}{most.said(key)}"
        return None

    def _over_together(self, wanted: Wanted, card: Card) -> str | None:
        most, held = self.together, self.held.get(card.uuid, _NOTHING)
        cores, tenants = held.cores + wanted.cores, held.tenants + 1
        if most.cores is not None and cores > most.cores and not self.cores_are_set:
            return self._too_much(f"{cores} % of its compute", f"{most.cores} %", "cores")
        if most.tenants is not None and tenants > most.tenants:
            return self._too_much(f"{tenants} parts", str(most.tenants), "tenants")
        if self.memory_is_set:
            return None
        size = held.memory_bytes + wanted.most_bytes
        for bound, key in (
            (most.memory_bytes, "memory"),
            (_part(most.memory_percent, card), "memory_percent"),
        ):
            if bound is not None and size > bound:
                return self._too_much(format_size(size), format_size(bound), key)
        return None

    def _too_much(self, all_of_it: str, most: str, key: str) -> str:
        return f"would give {self.whose} {all_of_it} in all, above {most}{self.together.said(key)}"


def _part(percent: int | None, card: Card) -> int | None:
    return None if percent is None else card.memory_bytes * percent // 100
