# SPDX-License-Identifier: Apache-2.0
"""Where placement is decided: which cards a request gets, from what each card has left; pure.

Each card is checked by itself (`find_obstacle`), a set of cards by what the request may have of all
of them together (Bounds); of the sets that may be taken the strategy takes its first
(strategy.py). A refusal states for every card why it was not chosen, and gives only advice that
would help. A tenant that grows is checked here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from gpushare.daemon.placement import strategy
from gpushare.daemon.placement.model import (
    LESS,
    MORE,
    NO_LINKS,
    AllocationUse,
    CardCapacity,
    Links,
    Obstacle,
    matches_card,
)
from gpushare.daemon.placement.request import (
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    candidate_cards,
)
from gpushare.quota import MaxPerNode, format_size


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
        less_helps = _less_helps(request, named)
        raise NoRoom(refusal_text(request, wanted, named, obstacles, less_helps=less_helps))
    taken = strategy.first_set(request, fitting, wanted, links, _bound(request))
    if taken is None:
        best = strategy.first_set(request, fitting, wanted, links)
        over = _over(request, best or ())
        assert over is not None
        raise NoRoom(refusal_of_set(request, over, less_helps=_less_helps(request, named)))
    return tuple(
        PlacedCard(
            capacity.card,
            request.bytes_of(capacity.card),
            request.cores_of(capacity),
            request.whole,
        )
        for capacity in sorted(taken, key=lambda capacity: capacity.card.index)
    )


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


def _less_helps(request: PlacementRequest, named: Sequence[CardCapacity]) -> bool:
    """Whether the smallest possible request would get one card."""
    if request.whole:
        return False
    for size in {capacity.context_bytes + 1 for capacity in named}:
        little = replace(
            request, memory_bytes=size, memory_percent=None, memory_limit_bytes=None, cores=0
        )
        if any(
            find_obstacle(little, capacity) is None and _over(little, [capacity]) is None
            for capacity in named
        ):
            return True
    return False


def _count(request: PlacementRequest, named: Sequence[CardCapacity]) -> int:
    """Return how many cards are requested; NoSuchCard for more than there are to choose from."""
    wanted = len(named) if request.count is None else request.count
    if wanted > len(named):
        raise NoSuchCard(
            f"{wanted} cards are requested{request.where('count')}, and there {_are(len(named))} "
            "to choose from; request fewer or see gpushare ls"
        )
    most = request.bounds.max_per_request.count
    if request.count is None and most is not None and wanted > most:
        where = request.bounds.max_per_request.source("count")
        raise NoRoom(
            f"all {wanted} cards are requested, above the ceiling {most}{where}; request {most}"
        )
    return wanted


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


_SEE = "see gpushare ls"


def refusal_text(
    request: PlacementRequest,
    wanted: int,
    capacities: Sequence[CardCapacity],
    why: Mapping[str, Obstacle],
    *,
    less_helps: bool,
) -> str:
    """Return why fewer than `wanted` of `capacities` can be taken; `why` is by the card's UUID.

    `less_helps`: the smallest possible request would get a card.
    """
    texts = [
        (capacity.card, why.get(capacity.card.uuid, Obstacle("fits")).text)
        for capacity in capacities
    ]
    each = "; ".join(f"card {card.index} {text}" for card, text in texts)
    found = [why[capacity.card.uuid] for capacity in capacities if capacity.card.uuid in why]
    advice = _fixes(request, [one for one in found if less_helps or one.fix != LESS])
    less = "" if request.shows_holders else _would_fit(request, wanted, capacities)
    if wanted > 1:
        fit = len(capacities) - len(why)
        what = f"{wanted} whole cards" if request.whole else f"{wanted} cards with {request} each"
        many = f"{what} are requested, and {fit} of {len(capacities)} have room"
        fewer = [f"request fewer{request.where('count')}"] if fit else []
        return f"{many}: {each}; {_either([*fewer, *advice, _SEE])}{less}"
    if advice == [MORE]:
        return f"{request} is too small for a CUDA context: {each}; {MORE}"
    if request.whole:  # the caller knows how a share is asked for instead
        return f"no whole card is available: {each}; {_either([*advice, _SEE])}"
    return f"no card has room for {request}: {each}; {_either([*advice, _SEE])}{less}"


def _would_fit(request: PlacementRequest, wanted: int, capacities: Sequence[CardCapacity]) -> str:
    """Return `; at most 23 GiB would fit`, "" if nothing less does."""

    def fits(smaller: PlacementRequest) -> bool:
        return sum(find_obstacle(smaller, one) is None for one in capacities) >= wanted

    def less(size: int) -> PlacementRequest:
        burst = request.memory_limit_bytes and max(size, request.memory_limit_bytes)
        return replace(request, memory_bytes=size, memory_percent=None, memory_limit_bytes=burst)

    if request.whole:
        return ""
    sizes = sorted({one.available_bytes for one in capacities}, reverse=True)
    cores = sorted({one.cores_available for one in capacities}, reverse=True)
    fewer = [(f"{most} % of the compute", most) for most in cores if most < request.cores]
    smaller = [(format_size(size), less(size)) for size in sizes]
    tried = (
        *smaller,
        *((text, replace(request, cores=most)) for text, most in fewer),
        *(
            (f"{size} and {text}", replace(one, cores=most))
            for size, one in smaller
            for text, most in fewer
        ),
    )
    found = next((text for text, one in tried if fits(one)), "")
    return f"; at most {found} would fit" if found else ""


def _fixes(request: PlacementRequest, why: Sequence[Obstacle]) -> list[str]:
    """Return what each obstacle would take, once; of which keys less is to be asked."""
    keys = {one.key for one in why if one.fix == LESS}
    if "memory" in keys:
        keys.add("memory-percent")
    where = [text for key, text in request.sources.items() if key in keys]
    sources = f" ({', '.join(where)})" if where else ""
    fixes = dict.fromkeys(one.fix for one in why if one.fix)
    return [f"{fix}{sources}" if fix == LESS else fix for fix in fixes]


def _either(fixes: Sequence[str]) -> str:
    return fixes[0] if len(fixes) == 1 else f"{', '.join(fixes[:-1])} or {fixes[-1]}"


def refusal_of_set(request: PlacementRequest, over: Obstacle, *, less_helps: bool) -> str:
    """Return why no set of cards may be taken, though each by itself could be: `over` of all."""
    advice = _fixes(request, [over] if less_helps else [])
    return (
        f"no card can be allocated for {request}: {over.text}; "
        f"{_either([*advice, 'see gpushare ps'])}"
    )


_GIB = 1 << 30
_SHOWN = 8  # tenants of a card that a refusal names


def find_obstacle(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    """Return why `capacity` cannot be taken, as the end of "card 0 ..."; None when it can."""
    return (
        _closed(request, capacity)
        or _listed(request, capacity)
        or _of_mode(request, capacity)
        or _taken(request, capacity)
        or request.bounds.why_not(request.wanted_of(capacity), capacity.card)
        or (None if request.whole else _too_little(request, capacity))
    )


def _closed(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    if capacity.health != "ok":
        return Obstacle(f"is unhealthy: {capacity.health}")
    if capacity.cordoned is None:
        return None
    why = f" ({capacity.cordoned})" if capacity.cordoned else ""
    helps = find_obstacle(request, replace(capacity, cordoned=None)) is None
    fix = f"gpushare card uncordon {capacity.card.index}" if helps else ""
    return Obstacle(f"is cordoned{why}", fix)


def _listed(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    card = capacity.card
    if request.allow and not any(matches_card(name, card) for name in request.allow):
        key, how = "allow", "is not in allow"
    elif any(matches_card(name, card) for name in request.deny):
        key, how = "deny", "is in deny"
    else:
        return None
    helps = find_obstacle(replace(request, allow=(), deny=()), capacity) is None
    return Obstacle(f"({card.model}) {how}", f"change {key}{request.where(key)}" if helps else "")


def _of_mode(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    where = f" ({capacity.mode_source})" if capacity.mode_source else ""
    if request.whole and capacity.mode == "shared":
        return Obstacle(f"is for shares only{where}")
    if not request.whole and capacity.mode == "exclusive":
        return Obstacle(f"is allocated only as a whole{where}")
    return None


def _taken(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    if capacity.exclusive:
        to = f" to {capacity.holders[0].tenant}" if request.shows_holders else ""
        return Obstacle(f"is allocated exclusively{to}")
    if request.whole:
        names = ", ".join(use.tenant for use in capacity.holders[:_SHOWN])
        by = f" by {names}" if request.shows_holders else ""
        return Obstacle(f"is shared{by}") if capacity.holders else None
    if len(capacity.holders) >= capacity.max_tenants:
        most = f"{capacity.max_tenants} ({capacity.max_tenants_source})"
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
        return Obstacle(text, LESS, "memory")
    if request.cores_of(capacity) > capacity.cores_available:
        holders = cores_text(capacity) if request.shows_holders else ""
        left = f"has {capacity.cores_available} % of its compute left{holders}"
        return Obstacle(left, LESS, "cores")
    return None


def available_text(capacity: CardCapacity) -> str:
    """Return `has 126 of 140 GiB available`."""
    total = format_size(capacity.card.memory_bytes)
    free = format_size(capacity.available_bytes)
    if free.rpartition(" ")[2] == total.rpartition(" ")[2]:
        free = free.rpartition(" ")[0]
    return f"has {free} of {total} available"


def capacity_text(capacity: CardCapacity) -> str:
    """Return `has 126 of 140 GiB available (train 4, serve 8, non-tenant 1.1 by pid 812 Xorg)`."""
    holders = [_holder_text(use) for use in capacity.holders]
    if len(holders) > _SHOWN:
        rest = sum(use.memory_bytes + use.burst_used_bytes for use in capacity.holders[_SHOWN:])
        holders = [*holders[:_SHOWN], f"{len(holders) - _SHOWN} more {_short(rest)}"]
    if capacity.non_tenant_bytes:
        holders.append(
            f"non-tenant {_short(capacity.non_tenant_bytes)}{_non_tenant_text(capacity)}"
        )
    if capacity.reserve_bytes:
        holders.append(f"reserve {_short(capacity.reserve_bytes)}")
    return available_text(capacity) + (f" ({', '.join(holders)})" if holders else "")


def _holder_text(use: AllocationUse) -> str:
    """Return `train 4`, or `train 4 and 2 burst` if it uses more than its quota.

    `and 2 above it` is what a quota that was made smaller has left.
    """
    has = f"{use.tenant} {_short(use.memory_bytes)}"
    if not use.burst_used_bytes:
        return has
    how = "burst" if use.most_bytes > use.memory_bytes else "above it"
    return f"{has} and {_short(use.burst_used_bytes)} {how}"


def _non_tenant_text(capacity: CardCapacity) -> str:
    if not capacity.non_tenants:
        return " until recently"
    largest = max(capacity.non_tenants, key=lambda process: process.bytes)
    others = len(capacity.non_tenants) - 1
    return f" by pid {largest.pid} {largest.name}" + (f" and {others} more" if others else "")


def cores_text(capacity: CardCapacity) -> str:
    """Return ` (train 30, serve 60)`: the tenants that have reserved cores of the card."""
    holders = [f"{use.tenant} {use.cores}" for use in capacity.holders if use.cores]
    return f" ({', '.join(holders[:_SHOWN])})" if holders else ""


def _short(size: int) -> str:
    """Return a size for a list whose unit is GiB: `4`, `1.1`, or with its own unit below that."""
    shown = format_size(size)
    return shown.removesuffix(" GiB") if size >= _GIB else shown


def check_memory_growth(capacity: CardCapacity, key: str, tenant: str, memory_bytes: int) -> None:
    """Raise NoRoom if the card cannot raise the tenant's quota to `memory_bytes`."""
    own = next((use for use in capacity.allocations if use.key == key), AllocationUse(tenant, 0))
    if memory_bytes - own.memory_bytes - own.burst_used_bytes > capacity.available_bytes:
        more_bytes = memory_bytes - own.memory_bytes
        raise NoRoom(
            f"cannot grow {tenant} by {format_size(more_bytes)}: "
            f"card {capacity.card.index} {capacity_text(capacity)}; request less or see gpushare ls"
        )


def check_cores_growth(capacity: CardCapacity, key: str, tenant: str, cores: int) -> None:
    """Raise NoRoom if the card cannot reserve `cores` percent for tenant `key`."""
    others = replace(
        capacity, allocations=tuple(one for one in capacity.allocations if one.key != key)
    )
    if cores > others.cores_available:
        raise NoRoom(
            f"the card of {tenant} has no room for {cores} % of its compute: card "
            f"{capacity.card.index} has {others.cores_available} % left{cores_text(others)}; "
            "request less, use policy best-effort, or see gpushare ls"
        )
