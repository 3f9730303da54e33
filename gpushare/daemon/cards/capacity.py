# SPDX-License-Identifier: Apache-2.0
"""What a card can still promise: its memory less the reserve, foreign use and what is taken.

A tenant takes what it was promised, and what it uses above that: lent to it, or its own before its
quota was made smaller. A promise must be there physically, so neither can be promised to another.

Foreign use is the memory of processes that belong to no tenant. It is taken at its high-water mark,
which then follows a fall slowly: a desktop that grew to 1 GiB a minute ago may do so again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpushare.daemon.cards.card import Card


@dataclass(frozen=True)
class Foreign:
    """A process of no tenant and what it holds of one card."""

    pid: int
    name: str
    bytes: int
    container: str = ""  # which it seems to be in; empty: a program of the host


@dataclass(frozen=True)
class Promise:
    """What one tenant was promised of one card; `cores` as far as its policy guarantees them.

    `used_bytes` may be more than is promised, `limit_bytes` too: what it may use now.
    """

    tenant: str  # the name that a user knows
    memory_bytes: int
    cores: int = 0
    whole: bool = False
    key: str = ""
    used_bytes: int = 0
    limit_bytes: int = 0
    most_bytes: int = 0  # what it may be lent with its promise; none where it is less

    @property
    def borrowed_bytes(self) -> int:
        """What it uses above its promise."""
        return max(0, self.used_bytes - self.memory_bytes)

    @property
    def lent_bytes(self) -> int:
        """What it has above its promise: what it may use now, and what it does."""
        return max(self.limit_bytes, self.used_bytes, self.memory_bytes) - self.memory_bytes


@dataclass(frozen=True)
class Room:
    """A card with all that is taken of it."""

    card: Card
    promises: tuple[Promise, ...] = ()
    foreign: tuple[Foreign, ...] = ()
    foreign_bytes: int = 0  # high-water mark, at least the sum of `foreign`
    reserve_bytes: int = 0
    context_bytes: int = 0  # what one CUDA context takes: a quota of no more holds nothing
    health: str = "ok"
    utilisation: int | None = None  # percent of its time, as the driver says it
    unattributed_bytes: int = 0  # in use, and the driver tells of no process
    policy: str = ""  # the operator's, for its tenants' compute; "" where each has what it asked
    mode: str = "any"  # which requests the operator lets on it: "shared", "exclusive" or "any"
    mode_said: str = ""  # where he says so
    max_shares: int = 16
    max_shares_said: str = "max_shares"
    cordoned: str | None = None  # why nothing new is placed on it; None: it is

    @property
    def promised_bytes(self) -> int:
        """What all tenants were promised; a whole card is promised entirely."""
        return sum(promise.memory_bytes for promise in self.promises)

    @property
    def borrowed_bytes(self) -> int:
        """What tenants use above their promises."""
        return sum(promise.borrowed_bytes for promise in self.promises)

    @property
    def lent_bytes(self) -> int:
        """What tenants have above their promises, used or not."""
        return sum(promise.lent_bytes for promise in self.promises)

    @property
    def tenants_bytes(self) -> int:
        """What there is for tenants at all."""
        return max(0, self.card.memory_bytes - self.reserve_bytes - self.foreign_bytes)

    @property
    def free_bytes(self) -> int:
        """What can still be promised, never below 0."""
        if self.exclusive:
            return 0
        return max(0, self.tenants_bytes - self.promised_bytes - self.borrowed_bytes)

    @property
    def cores_free(self) -> int:
        """Percent of the card that no policy has set aside."""
        if self.exclusive:
            return 0
        return max(0, 100 - sum(promise.cores for promise in self.promises))

    @property
    def exclusive(self) -> bool:
        """Whether one tenant has the whole card."""
        return any(promise.whole for promise in self.promises)


@dataclass
class HighWater:
    """The most that was seen, halving its distance to what is seen now every `half_life` seconds.

    Within `granule` bytes of what is seen now it is that, so that it arrives.
    """

    half_life: float
    granule: int = 1 << 20
    _bytes: int = field(default=0, init=False)
    _at: float = field(default=0.0, init=False)

    def observe(self, now: float, seen: int) -> int:
        """Return the mark after `seen` bytes were seen at `now` (seconds of a monotonic clock)."""
        distance = self._bytes - seen
        if distance > 0:
            distance = int(distance * 0.5 ** (max(0.0, now - self._at) / self.half_life))
        self._bytes = seen if distance < self.granule else seen + distance
        self._at = now
        return self._bytes
