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

from collections.abc import Iterable, Mapping, Sequence
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
    """A request that waits.

    `since` is seconds since the epoch. `container` is the name of an evicted container that waits
    for its restore, and `ticket` then its key; "": a start. `obstacle` is what is missing for it
    that no card has; "": nothing.
    """

    ticket: str
    request: PlacementRequest
    since: float = 0.0
    container: str = ""
    obstacle: str = ""

    @property
    def is_online(self) -> bool:
        """Whether it is of class online."""
        return not self.request.rank[0]

    @property
    def title(self) -> str:
        """What refusals of others call it; they do not name another's container."""
        return "an evicted container" if self.container else f"ticket {self.ticket}"


@dataclass(frozen=True)
class NextGrant:
    """What a look at the queue has found.

    `granted` is the request that gets `placed`; None: none fits. `withheld` says by the card's UUID
    for which ticket it is withheld, and `reasons` by ticket why each request does not fit.
    """

    granted: WaitingRequest | None = None
    placed: tuple[PlacedCard, ...] = ()
    withheld: Mapping[str, WaitingRequest] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass
class QueueState:
    """What the decide thread has published of the queue, for any thread: only replaced.

    `waiting` are the requests in the order in which they are granted, `reasons` by ticket why each
    does not fit, and `withheld` by a card's UUID for which of them it is withheld. `ended` has how
    the last tickets ended, by ID. While there are `claimants`, for whom others are evicted, nothing
    is granted.
    """

    waiting: tuple[WaitingRequest, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    withheld: Mapping[str, WaitingRequest] = field(default_factory=dict)
    ended: Mapping[str, str] = field(default_factory=dict)
    granted: int = 0  # tickets since gpushared started
    waited_seconds: float = 0.0  # by all of them together
    claimants: int = 0

    def open_to(
        self, own: str, capacities: Sequence[CardCapacity], rank: Rank
    ) -> tuple[CardCapacity, ...]:
        """Return `capacities`, with those closed that are withheld for others than `own`."""
        others = {uuid: one for uuid, one in self.withheld.items() if one.ticket != own}
        return with_withheld(capacities, others, rank)


def in_order(waiting: Iterable[WaitingRequest]) -> list[WaitingRequest]:
    """Return the requests in the order in which they are granted."""
    return sorted(waiting, key=lambda one: one.request.rank)


def usable_cards(request: PlacementRequest, capacities: Sequence[CardCapacity]) -> frozenset[str]:
    """Return the UUIDs of the cards on which nothing but room is missing for `request`."""
    try:
        named = candidate_cards(request, capacities)
    except NoSuchCard:
        return frozenset()
    empty = map(_emptied, named)
    return frozenset(one.card.uuid for one in empty if find_obstacle(request, one) is None)


def can_ever_fit(
    request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links = NO_LINKS
) -> None:
    """Raise NoRoom or NoSuchCard if `request` does not fit even while nothing else runs."""
    empty = [
        replace(_emptied(one), cordoned=None, health="ok", non_tenant_bytes=0, non_tenants=())
        for one in capacities
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
    for one in ordered:
        if one.obstacle:
            reasons[one.ticket] = one.obstacle
            continue
        left = with_withheld(capacities, withheld, one.request.rank)
        try:
            placed = place_request(one.request, left, links)
        except (NoRoom, NoSuchCard) as error:
            reasons[one.ticket] = str(error)
            cards = _nearest_cards(one.request, left)
        else:
            if not one.container:
                return NextGrant(one, placed, withheld, reasons)
            capacities = _with_reserved(capacities, one, placed)
            cards = frozenset(each.card.uuid for each in placed)
        withheld |= dict.fromkeys(cards - withheld.keys(), one)
    return NextGrant(withheld=withheld, reasons=reasons)


def _with_reserved(
    capacities: Sequence[CardCapacity], one: WaitingRequest, placed: Sequence[PlacedCard]
) -> tuple[CardCapacity, ...]:
    uses = {
        each.card.uuid: AllocationUse(one.title, each.memory_bytes, each.cores) for each in placed
    }
    return tuple(
        replace(each, reservations=(*each.reservations, uses[each.card.uuid]))
        if each.card.uuid in uses
        else each
        for each in capacities
    )


def with_withheld(
    capacities: Sequence[CardCapacity],
    withheld: Mapping[str, WaitingRequest],
    rank: Rank,
) -> tuple[CardCapacity, ...]:
    """Return `capacities`, with those closed that are withheld for what comes before `rank`."""
    closed = {uuid: one for uuid, one in withheld.items() if one.request.rank < rank}
    if not closed:
        return tuple(capacities)
    return tuple(
        replace(one, withheld=_why(closed[one.card.uuid])) if one.card.uuid in closed else one
        for one in capacities
    )


def _why(one: WaitingRequest) -> str:
    return f"is withheld for {one.title}, which is before it in the queue"


def _wanted_cards(request: PlacementRequest, capacities: Sequence[CardCapacity]) -> frozenset[str]:
    """Return the cards that may be withheld for `request`; none if it would not fit empty ones."""
    usable = usable_cards(request, capacities)
    if len(usable) < (len(capacities) if request.count is None else request.count):
        return frozenset()
    if request.bounds.max_per_node == MaxPerNode():  # each card by itself decides
        return usable
    try:
        place_request(request, [_emptied(one) for one in capacities])
    except (NoRoom, NoSuchCard):
        return frozenset()
    return usable


def _nearest_cards(request: PlacementRequest, capacities: Sequence[CardCapacity]) -> frozenset[str]:
    """Return the cards that are withheld for `request`, of those that are not yet."""
    wanted = _wanted_cards(request, capacities)
    usable = [one for one in capacities if one.card.uuid in wanted and not one.withheld]
    usable.sort(key=lambda one: (*_missing(request, one), one.card.index))
    nearest = usable[: request.count]
    try:
        place_request(request, [_emptied(one) for one in nearest])
    except (NoRoom, NoSuchCard):  # they are too few, or may not be had together
        nearest = usable
    return frozenset(one.card.uuid for one in nearest)


def _missing(request: PlacementRequest, one: CardCapacity) -> tuple[int, int]:
    """Return the bytes and the cores of a card that have to become available for `request`."""
    if request.whole:
        return one.allocated_bytes, 0
    wanted = request.wanted_of(one)
    cores = max(0, wanted.cores - one.cores_available)
    return max(0, wanted.memory_bytes - one.available_bytes), cores


def _emptied(one: CardCapacity) -> CardCapacity:
    """Return a card as it would be without any allocation."""
    return replace(one, allocations=(), reservations=(), withheld="")
