# SPDX-License-Identifier: Apache-2.0
"""What has to be placed, and where it came to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpushare.daemon.cards.capacity import Room
from gpushare.daemon.cards.card import Card
from gpushare.daemon.placement.bounds import Bounds, Wanted
from gpushare.daemon.policy import FIXED, policy_on, reserved_cores
from gpushare.errors import UserError
from gpushare.quota import format_size


class NoRoom(UserError):
    """No card, or not enough of them, can give what is asked."""


class NoSuchCard(UserError):
    """A card was named that this machine does not have."""


@dataclass(frozen=True)
class Ask:
    """What has to be placed, per card.

    For a share exactly one of `memory_bytes` and `memory_percent` is set. How many of the `cores`
    are set aside says the policy that holds on the card: the card's own, where it has one and
    `policy_is_set` (by the operator) is not there. `count` None is every card. `devices` are
    indices or UUIDs, `minors` the N of /dev/nvidiaN; either narrows the choice when not empty.
    `strategy` is binpack, spread or topology; "" is what the asker would want (order.py).
    `bounds` is what the node's policy leaves of each card, `said` where each key was written.
    """

    whole: bool = False
    count: int | None = 1
    memory_bytes: int | None = None
    memory_percent: int | None = None
    memory_limit_bytes: int | None = None
    cores: int = 0
    policy: str = FIXED
    policy_is_set: bool = False
    devices: tuple[str, ...] = ()
    minors: tuple[int, ...] = ()
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    strategy: str = ""
    bounds: Bounds = field(default_factory=Bounds)
    said: Mapping[str, str] = field(default_factory=dict)

    def bytes_of(self, card: Card) -> int:
        """Return what is asked of `card`, in bytes."""
        if self.whole:
            return card.memory_bytes
        if self.memory_percent is not None:
            return card.memory_bytes * self.memory_percent // 100
        assert self.memory_bytes is not None
        return self.memory_bytes

    def cores_of(self, room: Room) -> int:
        """Return how many cores would be set aside for it, in percent of the card."""
        if self.whole:
            return 100
        policy = policy_on(self.policy, self.cores, room.policy, is_set=self.policy_is_set)
        return reserved_cores(policy, self.cores)

    def wanted_of(self, room: Room) -> Wanted:
        """Return all that it would have of a card."""
        memory_bytes = self.bytes_of(room.card)
        most_bytes = max(memory_bytes, self.memory_limit_bytes or 0)
        return Wanted(memory_bytes, most_bytes, self.cores_of(room), self.whole)

    def where(self, key: str) -> str:
        """Return ` (annotation gpushare.io/allow)`; empty where nobody knows."""
        return f" ({self.said[key]})" if key in self.said else ""

    def __str__(self) -> str:
        """Return `8 GiB`, `10 % of its memory and 30 % of its compute`, `a whole card`."""
        if self.whole:
            return "a whole card"
        if self.memory_percent is not None:
            memory = f"{self.memory_percent} % of its memory"
        else:
            assert self.memory_bytes is not None
            memory = format_size(self.memory_bytes)
        cores = reserved_cores(self.policy, self.cores)
        return f"{memory} and {cores} % of its compute" if cores else memory


@dataclass(frozen=True)
class Placed:
    """One card that was taken, and how much of it."""

    card: Card
    memory_bytes: int
    cores: int
    whole: bool
