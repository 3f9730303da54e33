# SPDX-License-Identifier: Apache-2.0
"""What a look at the driver has found, as it is published: immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.daemon.cards.capacity import Foreign
from gpushare.daemon.cards.card import Sample, Use
from gpushare.daemon.identity.sightings import Sighting
from gpushare.daemon.pages.account import Claim
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.tenants import Pages


@dataclass(frozen=True)
class CardTruth:
    """What the driver says of one card, less the tenants: high-water mark and who is there now."""

    foreign: tuple[Foreign, ...] = ()
    foreign_bytes: int = 0
    health: str = "ok"
    utilisation: int | None = None  # percent of its time


@dataclass(frozen=True)
class View:
    """The last look. `utilisation` and `used` are by (tenant key, card uuid)."""

    cards: Mapping[str, CardTruth] = field(default_factory=dict)
    processes: Mapping[str, tuple[tuple[str, Use], ...]] = field(default_factory=dict)
    utilisation: Mapping[tuple[str, str], int] = field(default_factory=dict)
    used: Mapping[tuple[str, str], int] = field(default_factory=dict)  # bytes of the quota
    stale: str = ""  # why nobody may be judged by this; empty when it was the driver's word

    def driver_bytes(self, key: str, uuid: str) -> int:
        """Return what the driver says that tenant `key` holds of card `uuid`."""
        uses = self.processes.get(key, ())
        return sum(use.bytes or 0 for card, use in uses if card == uuid)


@dataclass(frozen=True)
class Look:
    """All of one look at the driver that was answered, for who judges by it.

    `owned` has what each card's processes take, by the card's uuid, and `before` and `after` what
    the tenants said, by their key, before the driver was asked and after it had answered.
    """

    entries: Mapping[str, Entry]
    pages: Mapping[str, Pages]
    sample: Sample
    owned: Mapping[str, tuple[tuple[Sighting | None, Use], ...]]
    before: Mapping[str, tuple[Claim, ...]]
    after: Mapping[str, tuple[Claim, ...]]
