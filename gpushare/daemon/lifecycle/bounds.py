# SPDX-License-Identifier: Apache-2.0
"""The bounds that the node's policy sets on each card, for a namespace or a user of this host."""

from __future__ import annotations

from collections.abc import Iterable

from gpushare.daemon.node import Node
from gpushare.daemon.placement.request import Bounds, NoRoom, TenantCardUsage
from gpushare.daemon.store.claim import reservations
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.store.ticket import TicketRecord
from gpushare.quota.keys import oversubscribed_bytes
from gpushare.quota.request import QuotaRequest
from gpushare.quota.request_policy import ResolvedRequest
from gpushare.quota.size import exact_size, format_size


def of_holder(
    holder: TenantRecord | TicketRecord,
    request: ResolvedRequest,
    node: Node,
    ledger: Ledger,
    without: str,
) -> Bounds:
    """Return what holds for a request of `holder`, by its namespace, or its user without root.

    Of a user, reservations for tickets count, but for the one in the file `without`.
    """
    if not holder.is_rootless:
        return of_namespace(holder.namespace, request, node, ledger)
    own = [
        other
        for other in ledger.holders
        if other.is_rootless and node.users.are_one(other.uid, holder.uid)
    ]
    parts = _parts([other for other in own if other.file != without], node)
    return _bounds(request, f"user {node.users.title(holder.uid)}", parts)


def of_namespace(namespace: str, request: ResolvedRequest, node: Node, ledger: Ledger) -> Bounds:
    """Return what holds for a request in a namespace; empty: of a container in none.

    A claim's reservation counts, also while no container has it.
    """
    if not namespace:
        return _bounds(request, "", ())
    records = [record for record in ledger.entries.values() if record.namespace == namespace]
    parts = (*_parts(records, node), *_of_claims(namespace, node, ledger))
    return _bounds(request, f"namespace {namespace}", parts)


def _bounds(request: ResolvedRequest, whose: str, parts: tuple[TenantCardUsage, ...]) -> Bounds:
    quota, terms = request.quota, request.terms
    return Bounds(
        terms.max_per_request,
        terms.max_per_card,
        terms.max_per_node,
        whose,
        parts,
        memory_is_set=any(map(quota.is_set, ("memory", "memory-percent"))),
        cores_are_set=quota.is_set("cores"),
    )


def _parts(
    holders: Iterable[TenantRecord | TicketRecord], node: Node
) -> tuple[TenantCardUsage, ...]:
    driver = node.loaded()
    return tuple(
        TenantCardUsage(
            holder.file,
            card,
            allocation.burst_limit_bytes,
            holder.reserved_cores(allocation, node.policy_of(allocation.uuid)),
        )
        for holder in holders
        for allocation in holder.allocations
        if (card := driver.card(allocation.uuid)) is not None
    )


def _of_claims(namespace: str, node: Node, ledger: Ledger) -> tuple[TenantCardUsage, ...]:
    claims = [claim for claim in ledger.claims.values() if claim.namespace == namespace]
    tenants = ledger.entries.values()
    return tuple(
        TenantCardUsage(use.key, card, use.quota_bytes, use.cores)
        for card in node.loaded().cards
        for use in reservations(card.uuid, claims, tenants, node.policy_of(card.uuid))
        if use.quota_bytes or use.cores
    )


# --- how much managed memory a container may have beyond its quota, in host memory ---
#
# The driver moves managed memory between the card and the host by itself. So a part of it needs no
# room on the card, but host memory: as much as the container may have is reserved for it, and all
# containers together never get more than `oversubscribe.host_memory`.

_KEY = "oversubscribe"


def managed_bytes(  # noqa: PLR0913, PLR0917 - all that it depends on
    quota: QuotaRequest,
    own: frozenset[str],
    cards: int,
    memory_max_bytes: int,
    node: Node,
    ledger: Ledger,
) -> int:
    """Return the bytes that a request for `oversubscribe` may have on each of `cards`; 0: none.

    `memory_max_bytes` is the container's own memory limit, which its host memory counts against; 0:
    it has none. QuotaError, and NoRoom if the tenants and granted tickets whose keys are not in
    `own` leave too little.
    """
    if quota.oversubscribe in {None, "none"}:
        return 0
    limits = node.config.oversubscribe
    if not quota.has_memory():
        rule = "is for shares: a whole card has no quota"
        raise quota.refuse(_KEY, rule, "request memory, or leave it out")
    if not limits.host_memory_bytes:
        rule = "is off on this node"
        fix = "set oversubscribe.host_memory in gpushare.yaml, or leave it out"
        raise quota.refuse(_KEY, rule, fix)
    wanted = oversubscribed_bytes(quota.oversubscribe or "")
    size = limits.most_bytes if wanted is None else wanted
    if size > limits.most_bytes:
        most = exact_size(limits.most_bytes)
        rule = f"exceeds {limits.most_source}, {most}"
        raise quota.refuse(_KEY, rule, f"use host:{most} or less")
    needs = f"needs {exact_size(size * cards)}" + (f" on {cards} cards" if cards > 1 else "")
    for bound, what in (
        (memory_max_bytes, "above the container's memory limit"),
        (limits.host_memory_bytes, "above oversubscribe.host_memory"),
    ):
        if 0 < bound < size * cards:
            fix = f"use host:{exact_size(bound // cards)} or less"
            raise quota.refuse(_KEY, f"{needs}, {what}, {exact_size(bound)}", fix)
    others = (holder.allocations for holder in ledger.holders if holder.file not in own)
    taken = sum(allocation.managed_bytes for one in others for allocation in one)
    if taken + size * cards > limits.host_memory_bytes:
        # Users of a cluster read this of their own pods: it names no other container.
        raise NoRoom(
            f"no host memory is left for {format_size(size * cards)} of managed memory: "
            f"{format_size(taken)} of {format_size(limits.host_memory_bytes)} "
            "(oversubscribe.host_memory) is reserved; request less (oversubscribe), or see "
            "gpushare ps"
        )
    return size
