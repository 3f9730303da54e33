# SPDX-License-Identifier: Apache-2.0
"""A placement request: what it asks for, the cards that it names, and what policy leaves it; pure.

A limit in the unit of the request is checked earlier (gpushare/quota/request_policy.py). `Bounds`
checks what depends on the card: percent against bytes, and what other containers of the same
namespace or user have of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True)
class TenantCardUsage:
    """The part of one card that a tenant of the same namespace, or user, has already."""

    key: str  # of the tenant
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
        most, parts = self.max_per_node, self.parts
        cards = {part.card.uuid for part in parts} | {card.uuid for card, _ in wanted}
        cores = sum(part.cores for part in parts) + sum(need.cores for _, need in wanted)
        size = sum(part.memory_bytes for part in parts) + sum(need.most_bytes for _, need in wanted)
        bounds = (
            ("cards", len(cards), most.cards),
            ("tenants", len({part.key for part in parts}) + 1, most.tenants),
            ("cores", cores, most.cores),
            ("memory", size, most.memory_bytes),
        )
        return self._first_over(bounds, "it would give", most)

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
        size = sum(part.memory_bytes for part in held) + wanted.most_bytes
        bounds = (
            ("cores", sum(part.cores for part in held) + wanted.cores, most.cores),
            ("tenants", len(held) + 1, most.tenants),
            ("memory", size, most.memory_bytes),
            ("memory_percent", size, _part(most.memory_percent, card)),
        )
        return self._first_over(bounds, "would give", most)

    def _first_over(
        self,
        bounds: Iterable[tuple[str, int, int | None]],
        text: str,
        most: MaxPerCard | MaxPerNode,
    ) -> Obstacle | None:
        """Return the first of `bounds` (a key, what there would be in all, the bound) passed."""
        for key, value, bound in bounds:
            name = key.removesuffix("_percent")
            is_set = {"memory": self.memory_is_set, "cores": self.cores_are_set}.get(name)
            if bound is not None and value > bound and not is_set:
                limit = f"{_shown(name, bound)}{most.source(key)}"
                text = f"{text} {self.whose} {_shown(name, value)} in all, above {limit}"
                return Obstacle(text, "" if is_set is None else LESS, name)
        return None


def _shown(key: str, value: int) -> str:
    if key == "memory":
        return format_size(value)
    if key == "cores":
        return f"{value} % of the compute"
    return f"{value} {key if value != 1 else key.removesuffix('s')}"


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
