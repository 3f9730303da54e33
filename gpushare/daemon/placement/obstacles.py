# SPDX-License-Identifier: Apache-2.0
"""Why a card cannot be taken for a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpushare.daemon.placement.model import (
    LESS,
    MORE,
    MOST_NAMED,
    CardCapacity,
    Obstacle,
    available_text,
    capacity_text,
    cores_text,
    matches_card,
)
from gpushare.daemon.placement.request import (
    PlacementRequest,
)
from gpushare.quota.card_lists import accepts_capability
from gpushare.quota.size import format_size


def find_obstacle(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    """Return why `capacity` cannot be taken, as the end of "card 0 ..."; None when it can."""
    return (
        _closed(request, capacity)
        or _listed(request, capacity)
        or _incapable(request, capacity)
        or _of_mode(request, capacity)
        or _taken(request, capacity)
        or request.bounds.why_not(request.wanted_of(capacity), capacity.card)
        or (None if request.whole else _too_little(request, capacity))
    )


def _closed(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    if capacity.health != "ok":
        return Obstacle(f"is unhealthy: {capacity.health}")
    if capacity.card.is_divided:
        return Obstacle("is divided into MIG instances, which are used instead")
    if capacity.withheld:
        return Obstacle(capacity.withheld, WAIT)
    if capacity.cordoned is None:
        return None
    why = f" ({capacity.cordoned})" if capacity.cordoned else ""
    helps = find_obstacle(request, replace(capacity, cordoned=None)) is None
    fix = f"gpushare card uncordon {capacity.card.index}"
    if capacity.cordoned_by:
        fix = f"change the {capacity.cordoned_by}"
    return Obstacle(f"is cordoned{why}", fix if helps else "")


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


MIG: Final = "mig"
#: What helps where a card is withheld for a request that waits.
WAIT: Final = "wait in the queue (gpushare run --wait, GPUSHARE_WAIT=30s)"


def _incapable(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    """Return why a card has not what the request, or its image, needs."""
    card, key = capacity.card, "compute-capability"
    if not accepts_capability(request.compute_capability, card.capability):
        wanted = ",".join(request.compute_capability)
        has = "unknown" if card.capability is None else ".".join(map(str, card.capability))
        text = f"({card.model}) has compute capability {has}, and {wanted} is requested"
        fix = f"change {key}{request.where(key)}"
        others = replace(request, compute_capability=())
    elif card.uuid in request.image_needs:
        need = request.image_needs[card.uuid]
        text, fix = f"({card.model}) does not fit the image: {need.why}", need.fix
        others = replace(request, image_needs={})
    else:
        return None
    return Obstacle(text, fix if find_obstacle(others, capacity) is None else "")


def _of_mode(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    instance = capacity.card.instance
    if instance is None and request.backend == MIG:
        return Obstacle("is not a MIG instance", f"change backend{request.where('backend')}")
    if instance is not None and request.count != 1:
        return Obstacle("is a MIG instance, and a program can use only one")
    if instance is not None and request.whole and not request.devices and request.backend != MIG:
        return Obstacle("is a MIG instance, and a whole card is requested", f"set backend to {MIG}")
    where = f" ({capacity.mode_source})" if capacity.mode_source else ""
    if request.whole and capacity.mode == "shared":
        return Obstacle(f"is for shares only{where}")
    if not request.whole and capacity.mode == "exclusive":
        return Obstacle(f"is allocated only as a whole{where}")
    if not request.whole and capacity.compute_mode:
        text = f"is in compute mode {capacity.compute_mode}: one process at a time can use it"
        return Obstacle(text, f"run nvidia-smi -i {capacity.card.index} -c DEFAULT as root")
    return None


def _taken(request: PlacementRequest, capacity: CardCapacity) -> Obstacle | None:
    if capacity.exclusive:
        to = f" to {capacity.holders[0].tenant}" if request.shows_holders else ""
        return Obstacle(f"is allocated exclusively{to}")
    if request.whole:
        names = ", ".join(use.tenant for use in capacity.holders[:MOST_NAMED])
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
