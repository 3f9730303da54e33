# SPDX-License-Identifier: Apache-2.0
"""The order in which requests wait for room, and which of them is granted next; pure.

Requests are granted by class (online first), priority, then arrival. They are starts with a ticket,
and the restores of evicted containers, which are only put in order here: another thread does them.
The order is strict: for one that does not fit, as many cards as it requests are withheld from every
request after it, also from starts that do not wait. They are those on which the least has to end
before it fits, so that amount never grows. Once it has ended, the request is granted.

A request withholds only cards on which nothing but room is missing for it: not a cordoned card, and
none while what its own user or namespace already has stands in its way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpushare.daemon.placement.choose import find_obstacle, place_request
from gpushare.daemon.placement.model import NO_LINKS, AllocationUse, CardCapacity, Links
from gpushare.daemon.placement.request import (
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    Rank,
    candidate_cards,
)
from gpushare.quota.request_policy import MaxPerNode


@dataclass(frozen=True)
class WaitingRequest:
    """A request that waits."""

    ticket: str  # the key of an evicted container that waits for its restore
    request: PlacementRequest
    since: float = 0.0  # seconds since the epoch
    container: str = ""  # the name of the evicted container; "": a start
    obstacle: str = ""  # the need that no card meets; "": none

    @property
    def is_online(self) -> bool:
        """Whether it is of class online."""
        return not self.request.rank[0]

    @property
    def title(self) -> str:
        """Its name in refusals of others, which do not name another's container."""
        return "an evicted container" if self.container else f"ticket {self.ticket}"


@dataclass(frozen=True)
class NextGrant:
    """The result of a look at the queue."""

    granted: WaitingRequest | None = None  # it gets `placed`; None: none fits
    placed: tuple[PlacedCard, ...] = ()
    withheld: Mapping[str, WaitingRequest] = field(default_factory=dict)  # by a card's UUID
    reasons: Mapping[str, str] = field(default_factory=dict)  # why each does not fit, by ticket


@dataclass
class QueueState:
    """The queue as the decide thread has published it for any thread: only replaced."""

    waiting: tuple[WaitingRequest, ...] = ()  # in the order in which they are granted
    reasons: Mapping[str, str] = field(default_factory=dict)  # why each does not fit, by ticket
    withheld: Mapping[str, WaitingRequest] = field(default_factory=dict)  # by a card's UUID
    ended: Mapping[str, str] = field(default_factory=dict)  # how the last tickets ended, by ID
    claimants: int = 0  # others are evicted for them; nothing is granted meanwhile

    def open_to(
        self, own: str, capacities: Sequence[CardCapacity], rank: Rank
    ) -> tuple[CardCapacity, ...]:
        """Return `capacities`, with those closed that are withheld for others than `own`."""
        others = {uuid: entry for uuid, entry in self.withheld.items() if entry.ticket != own}
        return with_withheld(capacities, others, rank)


def usable_cards(request: PlacementRequest, capacities: Sequence[CardCapacity]) -> frozenset[str]:
    """Return the UUIDs of the cards on which nothing but room is missing for `request`."""
    try:
        named = candidate_cards(request, capacities)
    except NoSuchCard:
        return frozenset()
    return frozenset(
        capacity.card.uuid for capacity in named if not find_obstacle(request, _emptied(capacity))
    )


def can_ever_fit(
    request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links = NO_LINKS
) -> None:
    """Raise NoRoom or NoSuchCard if `request` does not fit even while nothing else runs."""
    empty = [
        replace(_emptied(capacity), cordoned=None, health="ok", non_tenant_bytes=0, non_tenants=())
        for capacity in capacities
    ]
    place_request(replace(request, bounds=replace(request.bounds, parts=())), empty, links)


def find_next(
    ordered: Sequence[WaitingRequest], capacities: Sequence[CardCapacity], links: Links
) -> NextGrant:
    """Return the first start of `ordered` that fits, and what is withheld for those before it.

    What a restore before it needs is reserved for that one; it stays withheld until it is restored.
    """
    withheld: dict[str, WaitingRequest] = {}
    reasons: dict[str, str] = {}
    for entry in ordered:
        if entry.obstacle:
            reasons[entry.ticket] = entry.obstacle
            continue
        left = with_withheld(capacities, withheld, entry.request.rank)
        try:
            placed = place_request(entry.request, left, links)
        except (NoRoom, NoSuchCard) as error:
            reasons[entry.ticket] = str(error)
            cards = _nearest_cards(entry.request, left)
        else:
            if not entry.container:
                return NextGrant(entry, placed, withheld, reasons)
            capacities = _with_reserved(capacities, entry, placed)
            cards = frozenset(part.card.uuid for part in placed)
        withheld |= dict.fromkeys(cards - withheld.keys(), entry)
    return NextGrant(withheld=withheld, reasons=reasons)


def _with_reserved(
    capacities: Sequence[CardCapacity], entry: WaitingRequest, placed: Sequence[PlacedCard]
) -> tuple[CardCapacity, ...]:
    uses = {
        part.card.uuid: AllocationUse(entry.title, part.memory_bytes, part.cores) for part in placed
    }
    return tuple(
        replace(capacity, reservations=(*capacity.reservations, uses[capacity.card.uuid]))
        if capacity.card.uuid in uses
        else capacity
        for capacity in capacities
    )


def with_withheld(
    capacities: Sequence[CardCapacity],
    withheld: Mapping[str, WaitingRequest],
    rank: Rank,
) -> tuple[CardCapacity, ...]:
    """Return `capacities`, with those closed that are withheld for what comes before `rank`."""
    closed = {uuid: entry for uuid, entry in withheld.items() if entry.request.rank < rank}
    if not closed:
        return tuple(capacities)
    return tuple(
        replace(
            capacity,
            withheld=f"is withheld for {entry.title}, which is before it in the queue",
        )
        if (entry := closed.get(capacity.card.uuid)) is not None
        else capacity
        for capacity in capacities
    )


def _wanted_cards(request: PlacementRequest, capacities: Sequence[CardCapacity]) -> frozenset[str]:
    """Return the cards that may be withheld for `request`; none if it would not fit empty ones."""
    usable = usable_cards(request, capacities)
    if len(usable) < (len(capacities) if request.count is None else request.count):
        return frozenset()
    if request.bounds.max_per_node == MaxPerNode():  # each card by itself decides
        return usable
    try:
        place_request(request, [_emptied(capacity) for capacity in capacities])
    except (NoRoom, NoSuchCard):
        return frozenset()
    return usable


def _nearest_cards(request: PlacementRequest, capacities: Sequence[CardCapacity]) -> frozenset[str]:
    """Return the cards that are withheld for `request`, of those that are not yet."""
    uuids = _wanted_cards(request, capacities)
    usable = [
        capacity for capacity in capacities if capacity.card.uuid in uuids and not capacity.withheld
    ]
    usable.sort(key=lambda capacity: (*_missing(request, capacity), capacity.card.index))
    nearest = usable[: request.count]
    try:
        place_request(request, [_emptied(capacity) for capacity in nearest])
    except (NoRoom, NoSuchCard):  # they are too few, or may not be had together
        nearest = usable
    return frozenset(capacity.card.uuid for capacity in nearest)


def _missing(request: PlacementRequest, capacity: CardCapacity) -> tuple[int, int]:
    """Return the bytes and the cores of a card that have to become available for `request`."""
    if request.whole:
        return capacity.allocated_bytes, 0
    wanted = request.wanted_of(capacity)
    cores = max(0, wanted.cores - capacity.cores_available)
    return max(0, wanted.memory_bytes - capacity.available_bytes), cores


def _emptied(capacity: CardCapacity) -> CardCapacity:
    """Return a card as it would be without any allocation."""
    return replace(capacity, allocations=(), reservations=(), withheld="")
