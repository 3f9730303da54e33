# SPDX-License-Identifier: Apache-2.0
"""A ResourceClaim as a request: what the scheduler allocated, and the claim's parameters. Pure."""

from __future__ import annotations

from typing import Final

from gpushare.daemon.store.claim import ClaimRecord
from gpushare.quota import (
    EffectiveRequest,
    QuotaError,
    QuotaRequest,
    RequestedValue,
    RequestPolicy,
    ScheduledAllocation,
    ValueSource,
    exact_size,
    request_from,
    resolve_request,
)
from gpushare.quota.keys import KEYS, read
from gpushare.quota.request import COMPUTE_KEYS, Layer

#: Canonical keys that the opaque configuration of a claim may set.
PARAMETERS: Final = ("policy", "priority", "class", "weight", "memory-limit")
# Cores are the scheduler's: a container may use fewer, and never add some.
_REFINABLE: Final = frozenset(COMPUTE_KEYS) - {"cores"}


def container_request(claim: ClaimRecord) -> ScheduledAllocation:
    """Return what a container of a claim may have of each card, at most. QuotaError."""
    parts = [claim.part(card) for card in claim.cards]
    memory_bytes, cores = max(part.memory_bytes for part in parts), max(p.cores for p in parts)
    layer = _layer(claim, claim.cards, memory_bytes, cores, whole=parts[0].whole)
    return ScheduledAllocation(layer, _REFINABLE)


def requests_of(
    claim: ClaimRecord, terms: RequestPolicy
) -> dict[str, tuple[QuotaRequest, EffectiveRequest]]:
    """Return what a claim requests of each card, by UUID, under a namespace's `terms`.

    QuotaError: a parameter that is unknown, invalid or above a maximum, or devices that no
    container could have.
    """
    if len({device.whole for device in claim.devices}) > 1:
        rule = "has whole cards and shares, and a container cannot have both"
        raise QuotaError(claim.title, None, rule, "request them in two claims")
    found = {}
    for card in claim.cards:
        part = claim.part(card)
        if part.cores >= 100 and not part.whole:
            rule = f"has all of the compute of card {card}, but not all of its memory"
            fix = "request less than 100 cores, or all of the memory as well"
            raise QuotaError(claim.title, None, rule, fix)
        layer = _layer(claim, claim.cards, part.memory_bytes, part.cores, whole=part.whole)
        terms.defaults.beside(ScheduledAllocation(layer, _REFINABLE)).fill(layer)
        quota = request_from(layer)
        effective = resolve_request(quota)
        terms.max_per_request.refuse_above(quota, effective)
        found[card] = quota, effective
    return found


def _layer(
    claim: ClaimRecord, cards: tuple[str, ...], memory_bytes: int, cores: int, *, whole: bool
) -> Layer:
    layer = {"devices": RequestedValue(",".join(cards), cards, _source("devices"))}
    if not whole:
        layer["memory"] = RequestedValue(exact_size(memory_bytes), memory_bytes, _source("memory"))
        if cores:
            layer["cores"] = RequestedValue(str(cores), cores, _source("cores"))
    for name, text in claim.parameters.items():
        if name not in PARAMETERS:
            fix = f"the parameters are {', '.join(PARAMETERS)}"
            raise QuotaError(str(_source(name)), text, "is not a parameter of a claim", fix)
        layer[name] = read(name, _source(name), text, KEYS)
    return layer


def _source(name: str) -> ValueSource:
    return ValueSource("claim", name)
