# SPDX-License-Identifier: Apache-2.0
"""The decision of placement: which cards a request gets, from what each card has left; pure.

Each card is checked by itself (`find_obstacle`), a set of cards by what the request may have of all
of them together (Bounds); of the sets that may be taken the strategy takes its first. A refusal
states for every card why it was not chosen.

| request | the set that is taken |
|---|---|
| spread | the emptiest cards |
| whole cards else | those nearest to each other |
| binpack, or a share of one card | the fullest cards, so that whole cards stay whole |
| topology, or shares of several cards | those nearest to each other; of those, the fullest |

Of sets that are as good but for spread, those go first that leave close cards together; what is
the same in all of it is decided by the index. All sets are looked at; where those are more than
`MOST_SETS` (8 of more than 16 cards), the first so many by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import Final, TypeAlias

from gpushare.daemon.placement.model import (
    LESS,
    MORE,
    MOST_NAMED,
    NO_LINKS,
    UNKNOWN,
    CardCapacity,
    Links,
    Obstacle,
    available_text,
    capacity_text,
    cores_text,
    matches_card,
)
from gpushare.daemon.placement.request import (
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    candidate_cards,
)
from gpushare.quota.keys import accepts_capability
from gpushare.quota.request_policy import MaxPerNode
from gpushare.quota.size import format_size


def place_request(
    request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links = NO_LINKS
) -> tuple[PlacedCard, ...]:
    """Return a place on each card that `request` gets, by index; NoRoom or NoSuchCard otherwise."""
    if not capacities:
        raise NoRoom("this machine has no card; see gpushare doctor")
    named = candidate_cards(request, capacities)
    wanted = _count(request, named)
    obstacles = {
        capacity.card.uuid: why for capacity in named if (why := find_obstacle(request, capacity))
    }
    fitting = [capacity for capacity in named if capacity.card.uuid not in obstacles]
    if len(fitting) < wanted:
        raise NoRoom(refusal_text(request, wanted, named, obstacles))
    taken = _first_set(request, fitting, wanted, links, _bound(request))
    if taken is None:
        best = _first_set(request, fitting, wanted, links)
        over = _over(request, best or ())
        assert over is not None
        fixes = [*_fixes(request, [over]), "see gpushare ps"]
        raise NoRoom(f"no card can be allocated for {request}: {over.text}; {_either(fixes)}")
    in_order = sorted(taken, key=lambda capacity: capacity.card.index)
    sizes = ((of.card, request.bytes_of(of.card), request.cores_of(of)) for of in in_order)
    return tuple(PlacedCard(*size, request.whole) for size in sizes)


def _bound(request: PlacementRequest) -> Callable[[Sequence[CardCapacity]], bool] | None:
    """Return whether a set of cards may be had together; None where all of them may."""
    if request.bounds.max_per_node == MaxPerNode():
        return None
    return lambda taken: _over(request, taken) is None


def _over(request: PlacementRequest, taken: Sequence[CardCapacity]) -> Obstacle | None:
    """Return why a set of cards may not be had together; None where it may."""
    return request.bounds.why_not_all(
        [(capacity.card, request.wanted_of(capacity)) for capacity in taken]
    )


def _count(request: PlacementRequest, named: Sequence[CardCapacity]) -> int:
    """Return how many cards are requested; NoSuchCard for more than there are to choose from."""
    wanted = len(named) if request.count is None else request.count
    if wanted > len(named):
        are = "is 1" if len(named) == 1 else f"are {len(named)}"
        raise NoSuchCard(
            f"{wanted} cards are requested{request.where('count')}, and there {are} to choose "
            "from; request fewer or see gpushare ls"
        )
    most = request.bounds.max_per_request.count
    if request.count is None and most is not None and wanted > most:
        where = request.bounds.max_per_request.source("count")
        raise NoRoom(
            f"all {wanted} cards are requested, above the ceiling {most}{where}; request {most}"
        )
    return wanted


_SEE = "see gpushare ls"


def refusal_text(
    request: PlacementRequest,
    wanted: int,
    capacities: Sequence[CardCapacity],
    why: Mapping[str, Obstacle],
) -> str:
    """Return why fewer than `wanted` of `capacities` can be taken; `why` is by the card's UUID."""
    cards, fits = [capacity.card for capacity in capacities], Obstacle("fits")
    listed = "; ".join(f"card {card.index} {why.get(card.uuid, fits).text}" for card in cards)
    fixes = _fixes(request, [why[card.uuid] for card in cards if card.uuid in why])
    if wanted > 1:
        fit = len(capacities) - len(why)
        some = f"{wanted} whole cards" if request.whole else f"{wanted} cards with {request} each"
        many = f"{some} are requested, and {fit} of {len(capacities)} have room"
        fewer = [f"request fewer{request.where('count')}"] if fit else []
        return f"{many}: {listed}; {_either([*fewer, *fixes, _SEE])}"
    if fixes == [MORE]:
        return f"{request} is too small for a CUDA context: {listed}; {MORE}"
    rest = f"{listed}; {_either([*fixes, _SEE])}"
    if request.devices and len(cards) == 1:
        # It may be the only one that the request allows: others are not spoken of.
        has = "is not available as a whole" if request.whole else f"has no room for {request}"
        return f"the requested card{request.where('devices')} {has}: {rest}"
    if request.whole:  # the caller knows how a share is asked for instead
        return f"no whole card is available: {rest}"
    return f"no card has room for {request}: {rest}"


def _fixes(request: PlacementRequest, why: Sequence[Obstacle]) -> list[str]:
    """Return what each obstacle would take, once; of which keys less is to be asked."""
    keys = {obstacle.key for obstacle in why if obstacle.fix == LESS}
    if "memory" in keys:
        keys.add("memory-percent")
    where = [text for key, text in request.sources.items() if key in keys]
    sources = f" ({', '.join(where)})" if where else ""
    fixes = dict.fromkeys(obstacle.fix for obstacle in why if obstacle.fix)
    return [f"{fix}{sources}" if fix == LESS else fix for fix in fixes]


def _either(fixes: Sequence[str]) -> str:
    return fixes[0] if len(fixes) == 1 else f"{', '.join(fixes[:-1])} or {fixes[-1]}"


MOST_SETS: Final = 20_000

_Places: TypeAlias = "tuple[int, ...]"  # of rooms in a ranking
_Rank: TypeAlias = "tuple[object, ...]"


def _first_set(
    request: PlacementRequest,
    fitting: Sequence[CardCapacity],
    count: int,
    links: Links,
    may: Callable[[Sequence[CardCapacity]], bool] | None = None,
) -> tuple[CardCapacity, ...] | None:
    """Return the set of `count` of the `fitting` cards to take; None where none of them `may`.

    `may` None: all of them.
    """
    ranking = _Ranking(request, sorted(fitting, key=lambda capacity: capacity.card.index), links)
    places = range(len(ranking.capacities))
    sets: Iterable[_Places] = islice(combinations(places, count), MOST_SETS)
    if may is not None:
        sets = (chosen for chosen in sets if may(ranking.at(chosen)))
    best = min(sets, key=ranking.rank, default=None)
    return None if best is None else ranking.at(best)


class _Ranking:
    """The order of sets of `rooms`, which are sorted by index, as places among them."""

    def __init__(
        self, request: PlacementRequest, capacities: Sequence[CardCapacity], links: Links
    ) -> None:
        self.capacities = capacities
        self._ask = request
        self._free = [capacity.available_bytes for capacity in capacities]
        self._non_tenant_bytes = [capacity.non_tenant_bytes for capacity in capacities]
        uuids = [capacity.card.uuid for capacity in capacities]
        self._distances = [
            [links.link(one, other).distance if one != other else 0 for other in uuids]
            for one in uuids
        ]
        # The closeness of each to all the others together.
        self._nearness = [(len(uuids) - 1) * UNKNOWN.distance - sum(row) for row in self._distances]

    def at(self, places: _Places) -> tuple[CardCapacity, ...]:
        return tuple(self.capacities[place] for place in places)

    def rank(self, places: _Places) -> _Rank:
        """Return where a set stands among those of its size: the least comes first."""
        if self._ask.strategy == "spread":
            return sorted(-self._free[place] for place in places), places
        # Cards farther from all of them leave closer ones behind.
        nearness = sum(self._nearness[place] for place in places)
        if self._ask.whole:
            non_tenant_bytes = sum(self._non_tenant_bytes[place] for place in places)
            return self._distance(places), non_tenant_bytes, nearness, places
        free = sorted(self._free[place] for place in places)
        if self._ask.strategy == "binpack" or len(places) == 1:
            return free, nearness, places
        return self._distance(places), free, nearness, places

    def _distance(self, places: _Places) -> int:
        rows = self._distances
        return sum([rows[one][other] for one, other in combinations(places, 2)])


# --- why a card cannot be taken for a request ---


def find_obstacle(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    """Return why `capacity` cannot be taken, as the end of "card 0 ..."; None when it can."""
    return (
        _closed(capacity)
        or _listed(request, capacity)
        or _incapable(request, capacity)
        or _of_mode(request, capacity)
        or _of_backend(request, capacity)
        or _taken(request, capacity)
        or request.bounds.why_not(request.wanted_of(capacity), capacity.card)
        or (None if request.whole else _too_little(request, capacity))
    )


def _closed(capacity: CardCapacity) -> Obstacle | None:
    if capacity.health != "ok":
        return Obstacle(f"is unhealthy: {capacity.health}")
    if capacity.card.is_divided:
        return Obstacle("is divided into MIG instances, which are used instead")
    if capacity.withheld:
        return Obstacle(capacity.withheld, WAIT)
    if capacity.cordoned is None:
        return None
    why = f" ({capacity.cordoned})" if capacity.cordoned else ""
    fix = f"gpushare card uncordon {capacity.card.index}"
    if capacity.rule.cordoned_by:
        fix = f"change the {capacity.rule.cordoned_by}"
    return Obstacle(f"is cordoned{why}", fix)


def _listed(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    card = capacity.card
    if request.allow and not any(matches_card(name, card) for name in request.allow):
        key, how = "allow", "is not in allow"
    elif any(matches_card(name, card) for name in request.deny):
        key, how = "deny", "is in deny"
    else:
        return None
    return Obstacle(f"({card.model}) {how}", f"change {key}{request.where(key)}")


MIG: Final = "mig"
#: The fix where a card is withheld for a request that waits.
WAIT: Final = "wait in the queue (gpushare run --wait)"
MPS: Final = "mps"
#: The fix where a container could end another one's work by the MPS server.
TRUST: Final = (
    "without mps_trusted, it takes one container of each host user, and beside root none: set "
    "mps_trusted: true for the card in gpushare.yaml if its containers trust each other, or start "
    "them in different user namespaces"
)
#: The fix where a card needs another backend.
SWITCH_BACKEND: Final = (
    "set backend: {backend} for a card in gpushare.yaml (gpushare card drain N, then gpushare "
    "config reload)"
)


def _incapable(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    """Return why a card has not the compute capability that is requested."""
    card, key = capacity.card, "compute-capability"
    if accepts_capability(request.compute_capability, card.capability):
        return None
    wanted = ",".join(request.compute_capability)
    has = "unknown" if card.capability is None else ".".join(map(str, card.capability))
    text = f"({card.model}) has compute capability {has}, and {wanted} is requested"
    return Obstacle(text, f"change {key}{request.where(key)}")


def _of_mode(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    instance = capacity.card.instance
    if instance is None and request.backend == MIG:
        return Obstacle("is not a MIG instance", f"change backend{request.where('backend')}")
    if instance is not None and request.count != 1:
        return Obstacle("is a MIG instance, and a program can use only one")
    if instance is not None and request.whole and not request.devices and request.backend != MIG:
        return Obstacle("is a MIG instance, and a whole card is requested", f"set backend to {MIG}")
    where = capacity.rule.source("allowed_mode")
    if request.whole and capacity.rule.mode == "shared":
        return Obstacle(f"is for shares only{where}")
    if not request.whole and capacity.rule.mode == "exclusive":
        return Obstacle(f"is allocated only as a whole{where}")
    # A server is one process: Exclusive_Process is what NVIDIA recommends for MPS.
    if not request.whole and capacity.compute_mode and capacity.backend != MPS:
        text = f"is in compute mode {capacity.compute_mode}: one process at a time can use it"
        return Obstacle(text, f"run nvidia-smi -i {capacity.card.index} -c DEFAULT as root")
    return None


def _of_backend(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    """Return why a card's shares have another backend than requested.

    A card in MPS mode takes only requests that name it: what they share with each other, a fault
    domain, is for their users to choose.
    """
    is_mps = capacity.backend == MPS
    if request.backend == MPS and not is_mps:
        return Obstacle("is not in MPS mode", SWITCH_BACKEND.format(backend=MPS))
    where = capacity.rule.source("backend")
    if is_mps and request.whole:
        return Obstacle(f"is in MPS mode, and is for shares only{where}")
    if is_mps and request.backend != MPS:
        return Obstacle(
            f"is in MPS mode, and takes only requests for backend {MPS}{where}",
            f"set backend to {MPS}{request.where('backend')}",
        )
    others = [use for use in capacity.allocations if (use.backend == MPS) != is_mps]
    if others and not request.whole:
        names = f": {', '.join(use.tenant for use in others[:MOST_NAMED])}"
        text = f"has containers {'without' if is_mps else 'of'} MPS from before it was configured"
        names = names if request.shows_holders else ""
        return Obstacle(f"{text}{names}", f"gpushare card drain {capacity.card.index}")
    if is_mps and capacity.backend_fault:
        return Obstacle(f"is in MPS mode, and {capacity.backend_fault}")
    for use in capacity.allocations if is_mps and not capacity.rule.mps_trusted else ():
        if are_of_one_user(use.uid, request.uid):
            of = use.tenant if request.shows_holders else "another container"
            return Obstacle(f"is in MPS mode, and {of} has host uid {use.uid}", TRUST)
    return None


def are_of_one_user(one: int | None, other: int | None) -> bool:
    """Whether of two clients of an MPS server one can command it against the other, by their uids.

    Root commands every server, and becomes any user; None is unknown.
    """
    return one is not None and other is not None and (one == other or 0 in (one, other))


def _taken(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    if capacity.exclusive:
        to = f" to {capacity.holders[0].tenant}" if request.shows_holders else ""
        return Obstacle(f"is allocated exclusively{to}")
    if request.whole:
        names = ", ".join(use.tenant for use in capacity.holders[:MOST_NAMED])
        by = f" by {names}" if request.shows_holders else ""
        return Obstacle(f"is shared{by}") if capacity.holders else None
    if len(capacity.holders) >= capacity.rule.max_tenants:
        most = capacity.rule.most_tenants
        return Obstacle(f"has {len(capacity.holders)} tenants of at most {most}")
    return None


def _too_little(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    wanted = request.bytes_of(capacity.card)
    if wanted <= capacity.context_bytes:
        return Obstacle(
            f"needs {format_size(capacity.context_bytes)} for a single CUDA context", MORE
        )
    if wanted > capacity.available_bytes:
        text = capacity_text(capacity) if request.shows_holders else available_text(capacity)
        return Obstacle(
            text, LESS if capacity.available_bytes > capacity.context_bytes else "", "memory"
        )
    if request.cores_of(capacity) > capacity.cores_available:
        holders = cores_text(capacity) if request.shows_holders else ""
        left = f"has {capacity.cores_available} % of its compute left{holders}"
        return Obstacle(left, LESS if capacity.cores_available else "", "cores")
    return None
