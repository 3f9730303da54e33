# SPDX-License-Identifier: Apache-2.0
"""A placement request: what it asks for, the cards that it names, and what policy leaves it; pure.

A limit in the unit of the request is checked earlier (gpushare/quota/request_policy.py). `Bounds`
checks what depends on the card: percent against bytes, and what other containers of the same
namespace or user have of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from gpushare.daemon.placement.model import LESS, Card, CardCapacity, Obstacle
from gpushare.daemon.policy import FIXED, policy_on, reserved_cores
from gpushare.errors import UserError
from gpushare.quota.keys import format_percent, is_beginning, is_card
from gpushare.quota.request import Percent
from gpushare.quota.request_policy import MaxPerCard, MaxPerNode, MaxPerRequest
from gpushare.quota.size import format_size

_SHOWN = 8  # tenants that a refusal names


@dataclass(frozen=True)
class TenantCardUsage:
    """The part of one card that a tenant of the same namespace, or user, has already."""

    key: str
    tenant: str
    card: Card
    memory_bytes: int = 0
    cores: int = 0


@dataclass(frozen=True)
class CardRequest:
    """The part of one card that a request would have; `most_bytes` with its burst."""

    memory_bytes: int
    most_bytes: int
    cores: int
    whole: bool = False


@dataclass(frozen=True)
class Bounds:
    """The bounds that hold for one request."""

    max_per_request: MaxPerRequest = field(default_factory=MaxPerRequest)
    max_per_card: MaxPerCard = field(default_factory=MaxPerCard)
    max_per_node: MaxPerNode = field(default_factory=MaxPerNode)
    whose: str = ""  # for whom `max_per_card` and `max_per_node` hold
    parts: tuple[TenantCardUsage, ...] = ()  # their parts by now
    memory_is_set: bool = False  # by the operator, whose setting is above all of it
    cores_are_set: bool = False

    def why_not(self, wanted: CardRequest, card: Card) -> Obstacle | None:
        """Return why `wanted` is more than may be had of `card`; None: it may."""
        over = None if wanted.whole else self._over_ceiling(wanted, card)
        return over or self._over_together(wanted, card)

    def why_not_all(self, wanted: Sequence[tuple[Card, CardRequest]]) -> Obstacle | None:
        """Return why `wanted` is more than may be had of all cards; None: it may."""
        return next(self._over_total(self.max_per_node, wanted), None)

    def _over_ceiling(self, wanted: CardRequest, card: Card) -> Obstacle | None:
        if self.memory_is_set:
            return None
        most = self.max_per_request
        # A burst has a ceiling of its own, or those of the memory.
        burst = wanted.most_bytes if most.memory_limit_bytes is None else wanted.memory_bytes
        for size, bound, key in (
            (burst, most.memory_bytes, "memory"),
            (burst, _part(most.memory_percent, card), "memory_percent"),
            (wanted.most_bytes, most.memory_limit_bytes, "memory_limit"),
        ):
            if bound is not None and size > bound:
                shown = f"{format_size(size)}, above the ceiling {format_size(bound)}"
                return Obstacle(f"would give {shown}{most.source(key)}", LESS, "memory")
        return None

    def _over_together(self, wanted: CardRequest, card: Card) -> Obstacle | None:
        most = self.max_per_card
        held = [part for part in self.parts if part.card.uuid == card.uuid]
        cores = sum(part.cores for part in held) + wanted.cores
        if most.cores is not None and cores > most.cores and not self.cores_are_set:
            holders = [f"{part.tenant} {part.cores}" for part in held if part.cores]
            amount = f"{cores} % of its compute"
            return self._too_much(amount, f"{most.cores} %", "cores", holders)
        if most.tenants is not None and len(held) + 1 > most.tenants:
            holders = [part.tenant for part in held]
            return self._too_much(f"{len(held) + 1} parts", str(most.tenants), "tenants", holders)
        if self.memory_is_set:
            return None
        size = sum(part.memory_bytes for part in held) + wanted.most_bytes
        holders = [f"{part.tenant} {format_size(part.memory_bytes)}" for part in held]
        for bound, key in (
            (most.memory_bytes, "memory"),
            (_part(most.memory_percent, card), "memory_percent"),
        ):
            if bound is not None and size > bound:
                return self._too_much(format_size(size), format_size(bound), key, holders)
        return None

    def _too_much(self, all_of_it: str, most: str, key: str, holders: list[str]) -> Obstacle:
        limit = f"{most}{self.max_per_card.source(key)}"
        text = f"would give {self.whose} {all_of_it} in all, above {limit}"
        if key == "tenants":
            return Obstacle(text + _having(holders))
        return Obstacle(text + _having(holders), LESS, "cores" if key == "cores" else "memory")

    def _over_total(
        self, most: MaxPerNode, wanted: Sequence[tuple[Card, CardRequest]]
    ) -> Iterator[Obstacle]:
        """Yield each bound of `most` that is passed on all cards together."""
        parts = self.parts
        names = {part.key: part.tenant for part in parts}
        cards = {part.card.uuid for part in parts} | {card.uuid for card, _ in wanted}
        cores = sum(part.cores for part in parts) + sum(need.cores for _, need in wanted)
        size = sum(part.memory_bytes for part in parts) + sum(need.most_bytes for _, need in wanted)
        bounds = (
            ("cards", len(cards), most.cards, _count_of_cards(parts)),
            ("tenants", len(names) + 1, most.tenants, list(names.values())),
            ("cores", cores, None if self.cores_are_set else most.cores, _sums(parts, "cores")),
            ("memory", size, None if self.memory_is_set else most.memory_bytes, _sums(parts, "")),
        )
        for key, value, bound, holders in bounds:
            if bound is not None and value > bound:
                all_of = " of all cards together" if key in {"memory", "cores"} else ""
                shown = f"{_shown(key, value)}{all_of}"
                limit = f"{_shown(key, bound)}{most.source(key)}"
                text = f"{self.whose} would have {shown}, above {limit}{_having(holders)}"
                yield Obstacle(text, LESS if key in {"memory", "cores"} else "", key)


def _shown(key: str, value: int) -> str:
    if key == "memory":
        return format_size(value)
    if key == "cores":
        return f"{value} % of the compute"
    return f"{value} {key if value != 1 else key.removesuffix('s')}"


def _sums(parts: Sequence[TenantCardUsage], key: str) -> list[str]:
    sums: dict[str, int] = {}
    for part in parts:
        more = part.cores if key == "cores" else part.memory_bytes
        sums[part.tenant] = sums.get(part.tenant, 0) + more
    return [
        f"{tenant} {size if key == 'cores' else format_size(size)}"
        for tenant, size in sums.items()
        if size
    ]


def _count_of_cards(parts: Sequence[TenantCardUsage]) -> list[str]:
    on: dict[str, list[str]] = {}
    for part in parts:
        on.setdefault(part.tenant, []).append(str(part.card.index))
    return [f"{tenant} on {' '.join(cards)}" for tenant, cards in on.items()]


def _having(holders: list[str]) -> str:
    """Return `: train 8 GiB, serve 4 GiB and 2 more`; empty where no tenant has any."""
    if not holders:
        return ""
    more = len(holders) - _SHOWN
    return f": {', '.join(holders[:_SHOWN])}" + (f" and {more} more" if more > 0 else "")


def _part(percent: Percent | None, card: Card) -> int | None:
    return None if percent is None else card.memory_bytes * percent // 100


class NoRoom(UserError):
    """No card, or not enough of them, can give what is asked."""

    request: PlacementRequest | None = None  # an eviction of others may make room for it


class NoSuchCard(UserError):
    """A card was named that this machine does not have."""


#: Whether it is not online, its priority (0 is the highest), and the number of its arrival.
Rank = tuple[bool, int, float]
OFFLINE: Final[Rank] = (True, 5, inf)


@dataclass(frozen=True)
class PlacementRequest:
    """A request to place, per card."""

    whole: bool = False
    count: int | None = 1  # None: every card
    memory_bytes: int | None = None  # of a share exactly one of this and `memory_percent` is set
    memory_percent: Percent | None = None
    memory_limit_bytes: int | None = None
    cores: int = 0  # how many of them are set aside says the policy that holds on the card
    policy: str = FIXED  # it holds where the card has none, and where `policy_is_set`
    policy_is_set: bool = False  # by the operator
    devices: tuple[str, ...] = ()  # indices or UUIDs; empty: any
    minors: tuple[int, ...] = ()  # the N of /dev/nvidiaN; empty: any
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    compute_capability: tuple[str, ...] = ()  # comparisons, which all have to hold
    strategy: str = ""  # binpack, spread or topology; "": the best for the request (choose.py)
    backend: str = ""  # mig: only MIG instances are used
    uid: int | None = None  # of a container: the host's; None: unknown
    bounds: Bounds = field(default_factory=Bounds)  # of the node's policy, for each card
    sources: Mapping[str, str] = field(default_factory=dict)  # where each key was written
    # A refusal names what has the rest of a card. Otherwise it says only what is available: users
    # of a cluster read the refusals of their own pods, and the names and quotas of other namespaces
    # are not theirs to know.
    shows_holders: bool = True
    rank: Rank = OFFLINE  # its place in the order of the queue; without a ticket it arrives last

    def bytes_of(self, card: Card) -> int:
        """Return what is asked of `card`, in bytes."""
        if self.whole:
            return card.memory_bytes
        if self.memory_percent is not None:
            return max(1, card.memory_bytes * self.memory_percent // 100)
        assert self.memory_bytes is not None
        return self.memory_bytes

    def cores_of(self, capacity: CardCapacity) -> int:
        """Return how many cores would be set aside for it, in percent of the card."""
        if self.whole:
            return 100
        policy = policy_on(self.policy, self.cores, capacity.policy, is_set=self.policy_is_set)
        return reserved_cores(policy, self.cores)

    def wanted_of(self, capacity: CardCapacity) -> CardRequest:
        """Return all that it would have of a card."""
        memory_bytes = self.bytes_of(capacity.card)
        most_bytes = max(memory_bytes, self.memory_limit_bytes or 0)
        return CardRequest(memory_bytes, most_bytes, self.cores_of(capacity), self.whole)

    def where(self, key: str) -> str:
        """Return ` (annotation gpushare.io/allow)`; empty where that is not known."""
        return f" ({self.sources[key]})" if key in self.sources else ""

    def __str__(self) -> str:
        """Return `8 GiB`, `10 % of its memory and 30 % of its compute`, `a whole card`."""
        if self.whole:
            return "a whole card"
        if self.memory_percent is not None:
            memory = f"{format_percent(self.memory_percent)} of its memory"
        else:
            assert self.memory_bytes is not None
            memory = format_size(self.memory_bytes)
        cores = reserved_cores(self.policy, self.cores)
        return f"{memory} and {cores} % of its compute" if cores else memory


@dataclass(frozen=True)
class PlacedCard:
    """One card that was taken, and how much of it."""

    card: Card
    memory_bytes: int
    cores: int
    whole: bool


def candidate_cards(
    request: PlacementRequest, capacities: Sequence[CardCapacity]
) -> list[CardCapacity]:
    """Return the cards that may be taken at all; NoSuchCard for one that is not there."""
    if request.devices:
        by_card = {capacity.card: capacity for capacity in capacities}
        return [by_card[find_card(name, [*by_card])] for name in request.devices]
    if request.minors:
        cards = [capacity for capacity in capacities if capacity.card.instance is None]
        by_minor = {capacity.card.minor: capacity for capacity in cards}
        missing = next((minor for minor in request.minors if minor not in by_minor), None)
        if missing is not None:
            there = _there_are([capacity.card for capacity in capacities])
            raise NoSuchCard(f"/dev/nvidia{missing} is not a card of this machine: {there}")
        return [by_minor[minor] for minor in request.minors]
    return list(capacities)


def each_card_once(names: Sequence[str], cards: Sequence[Card]) -> tuple[str, ...]:
    """Return the first of the names of each card, as NVIDIA's toolkit takes a card once.

    The name of no card stays: its placement is refused.
    """
    first: dict[str, str] = {}
    for name in names:
        try:
            first.setdefault(find_card(name, cards).uuid, name)
        except NoSuchCard:
            first[name] = name
    return tuple(first.values())


def find_card(name: str, cards: Sequence[Card]) -> Card:
    """Return the card that `name` is, in any case; NoSuchCard.

    It is its index, its UUID or PCI address, or a beginning of the UUID that no other card's has,
    as CUDA takes it. `0:1` is a MIG instance, as NVIDIA's tools name it.
    """
    for card in cards:
        bus_id = "" if card.instance else card.bus_id
        if is_card(name, card.index, card.uuid, bus_id):
            return card
        if card.instance and name in card.instance.names:
            return card
    close = [card for card in cards if is_beginning(name, card.uuid)]
    if len(close) == 1:
        return close[0]
    if close:
        those = " and ".join(str(card.index) for card in close)
        raise NoSuchCard(f"{name} is the beginning of the UUIDs of cards {those}; write more of it")
    raise NoSuchCard(f"card {name} does not exist: {_there_are(cards)}; see gpushare ls")


def _there_are(cards: Sequence[Card]) -> str:
    listed = ", ".join(f"{card.index} ({card.model})" for card in cards)
    return f"this machine has card {listed}" if len(cards) == 1 else f"this machine has {listed}"
