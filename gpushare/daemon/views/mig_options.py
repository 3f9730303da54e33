# SPDX-License-Identifier: Apache-2.0
"""Which cards can be divided into MIG instances, and which kinds of instances fit a request.

A kind fits if placement would take an instance of it, were there one: the same rules decide
(`find_obstacle`), on an instance with that kind's memory. A percentage of memory or compute is
taken of the card, not of the instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpushare.daemon.cards.driver_client import DriverError
from gpushare.daemon.placement.division import CardDivision, MigKind
from gpushare.daemon.placement.model import CardCapacity, MigInstance
from gpushare.daemon.placement.obstacles import MIG, find_obstacle
from gpushare.daemon.placement.request import PlacementRequest
from gpushare.daemon.state import DaemonState
from gpushare.protocol.mig import MigCard, MigPart, MigProfileRow, MigRequest
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.parse import parse_request


@dataclass(frozen=True)
class NamedRequest:
    """A request to plan for; `is_waiting`: a start that waits, not the caller's own."""

    name: str
    request: PlacementRequest
    is_waiting: bool = False


def placement_request(texts: Mapping[str, str], state: DaemonState) -> PlacementRequest:
    """Return the request of `texts`, by canonical key, with the node's defaults; QuotaError."""
    terms = state.config.terms
    parsed = parse_request({}, {}, options=texts, defaults=terms.defaults, profiles=terms.profiles)
    quota = parsed.valid()
    effective = resolve_request(quota)
    whole = effective.kind == "exclusive"
    return PlacementRequest(
        whole=whole,
        count=effective.count,
        memory_bytes=effective.memory_bytes,
        memory_percent=effective.memory_percent,
        memory_limit_bytes=effective.memory_limit_bytes,
        cores=effective.cores,
        policy=effective.policy,
        devices=effective.devices,
        allow=quota.allow,
        deny=quota.deny,
        compute_capability=quota.compute_capability,
        backend=quota.backend or "",
        sources={key: str(value.source) for key, value in quota.requested.items()},
        shows_holders=False,
    )


def waiting_requests(state: DaemonState) -> Iterator[NamedRequest]:
    """Yield the requests of the starts that wait, in the order in which they are granted."""
    for one in state.queue.waiting:
        ticket = state.ledger.tickets.get(one.ticket)
        if ticket is not None and not ticket.is_granted:
            yield NamedRequest(ticket.name or ticket.id, one.request, is_waiting=True)


@dataclass(frozen=True)
class _Card:
    capacity: CardCapacity
    division: CardDivision
    fault: str = ""  # why the driver did not describe it


def mig_options(
    requests: Sequence[NamedRequest], state: DaemonState
) -> tuple[list[MigCard], list[MigRequest]]:
    """Return the cards, and which of their instances each request fits; NoDriver."""
    capacities = state.capacities()
    cards = [
        _described(capacity, state) for capacity in capacities if capacity.card.instance is None
    ]
    return (
        [_card_row(card, capacities) for card in cards],
        [_request_row(one, cards, capacities) for one in requests],
    )


def _described(capacity: CardCapacity, state: DaemonState) -> _Card:
    try:
        return _Card(capacity, state.loaded().nvml.division(capacity.card.uuid))
    except DriverError as error:
        return _Card(capacity, CardDivision(), str(error))


def _card_row(card: _Card, capacities: Sequence[CardCapacity]) -> MigCard:
    capacity, division = card.capacity, card.division
    blocked, fix = _blocked(card)
    return MigCard(
        index=capacity.card.index,
        uuid=capacity.card.uuid,
        model=capacity.card.model,
        mig_mode=division.is_enabled,
        profiles=[_profile(kind) for kind in division.kinds],
        placement_source="driver" if division.places_are_told else "guide",
        instances=list(_parts(card, capacities)),
        blocked=blocked,
        fix=fix,
    )


def _profile(kind: MigKind) -> MigProfileRow:
    return MigProfileRow(
        id=kind.number,
        name=kind.name,
        slices=kind.slices,
        count=kind.count,
        multiprocessors=kind.multiprocessors,
        memory_bytes=kind.memory_bytes,
        places=[list(place) for place in kind.places],
    )


def _parts(card: _Card, capacities: Sequence[CardCapacity]) -> Iterator[MigPart]:
    """Yield the GPU instances of a card; one without a MIG device is used by nobody."""
    inside = {
        one.card.instance.gpu_instance: one
        for one in capacities
        if one.card.instance is not None and one.card.instance.card_uuid == card.capacity.card.uuid
    }
    for held in card.division.instances:
        found = inside.get(held.gpu_instance)
        yield MigPart(
            profile_id=held.kind,
            start=held.place[0],
            size=held.place[1],
            uuid=found.card.uuid if found else "",
            available=found is not None and not found.holders and found.health == "ok",
        )


def _blocked(card: _Card) -> tuple[str, str]:
    """Return why no instance can be created on a card now, and what helps; "": one can be."""
    capacity, division = card.capacity, card.division
    index = capacity.card.index
    if card.fault:
        return f"is not described by the driver: {card.fault}", ""
    if not division.kinds:
        return "does not support MIG", ""
    if capacity.cordoned is not None:
        return "is cordoned", f"gpushare card uncordon {index}"
    if division.is_enabled:
        # Without an instance it is unhealthy: nothing can be placed on it yet.
        unhealthy = capacity.health != "ok" and bool(division.instances)
        return (f"is unhealthy: {capacity.health}", "") if unhealthy else ("", "")
    if capacity.health != "ok":
        return f"is unhealthy: {capacity.health}", ""
    users = [use.tenant for use in capacity.holders]
    users += [f"pid {one.pid} {one.name}" for one in capacity.non_tenants]
    if users:
        rule = "MIG mode is off, and only the mode of an unused card can be changed"
        fix = f"gpushare card drain {index} --wait" if capacity.holders else ""
        return f"is in use by {', '.join(users)}: {rule}", fix
    return "", ""


def _request_row(
    one: NamedRequest, cards: Sequence[_Card], capacities: Sequence[CardCapacity]
) -> MigRequest:
    found = {card.capacity.card.uuid: list(_kinds(one.request, card)) for card in cards}
    fitting = {uuid: kinds for uuid, kinds in found.items() if kinds}
    there = [
        capacity.card.uuid
        for capacity in capacities
        if capacity.card.instance is not None
        and not capacity.holders
        and _fits_instance(one.request, capacity, cards)
    ]
    return MigRequest(
        name=one.name,
        request=str(one.request),
        waiting=one.is_waiting,
        profiles=fitting,
        instances=there,
        refusal="" if fitting else _refusal(one.request, cards),
    )


def _kinds(request: PlacementRequest, card: _Card) -> Iterator[int]:
    for kind in card.division.kinds:
        if _why_not(request, card, kind) == "":
            yield kind.number


def _fits_instance(
    request: PlacementRequest, capacity: CardCapacity, cards: Sequence[_Card]
) -> bool:
    """Whether a request fits an instance that is there, by the rules for one that is not."""
    instance = capacity.card.instance
    assert instance is not None
    if find_obstacle(request, capacity) is not None:
        return False
    for card in cards:
        if card.capacity.card.uuid == instance.card_uuid:
            kinds = {held.gpu_instance: held.kind for held in card.division.instances}
            kind = kinds.get(instance.gpu_instance)
            return kind is not None and kind in _kinds(request, card)
    return False


def _why_not(request: PlacementRequest, card: _Card, kind: MigKind) -> str:
    """Return why an instance of a kind would not be taken for a request; "": it would be."""
    parent = card.capacity
    if request.devices or request.minors:
        return "the request names its card"
    if request.count != 1:
        return "a program can use only one instance"
    if not request.whole:
        request = replace(request, memory_bytes=request.bytes_of(parent.card), memory_percent=None)
    most = max(one.multiprocessors for one in card.division.kinds)
    if request.cores * most > 100 * kind.multiprocessors and not request.whole:
        share = 100 * kind.multiprocessors // most
        return f"MIG {kind.name} has {share} % of the compute of card {parent.card.index}"
    obstacle = find_obstacle(replace(request, cores=0), _imagined(parent, kind))
    return "" if obstacle is None else f"MIG {kind.name} {obstacle.text}"


def _imagined(parent: CardCapacity, kind: MigKind) -> CardCapacity:
    """Return an unused instance of a kind on a card."""
    name = f"{parent.card.model} MIG {kind.name}"
    place = MigInstance(parent.card.uuid, parent.card.index, 0, 0, 0)
    card = replace(
        parent.card,
        uuid=f"{parent.card.uuid}/{kind.number}",
        model=name,
        memory_bytes=kind.memory_bytes,
        instance=place,
        is_divided=False,
    )
    return CardCapacity(
        card,
        reserve_bytes=parent.reserve_bytes,
        context_bytes=parent.context_bytes,
        mode=parent.mode,
        mode_source=parent.mode_source,
    )


def _refusal(request: PlacementRequest, cards: Sequence[_Card]) -> str:
    """Return why no kind of instance of any card fits: what the largest has instead."""
    divisible = [card for card in cards if card.division.kinds]
    if not divisible:
        return "no card of this machine supports MIG"
    if request.whole and request.backend != MIG:
        return "a whole card is requested (an instance: GPUSHARE_BACKEND=mig)"
    texts = []
    for card in divisible:
        kind = max(card.division.kinds, key=lambda one: (one.memory_bytes, one.slices))
        why = _why_not(request, card, kind)
        texts.append(f"card {card.capacity.card.index}: {why}")
    return "; ".join(dict.fromkeys(texts))
