# SPDX-License-Identifier: Apache-2.0
"""What the node's policy leaves of each card to a namespace, or to a user of this host."""

from __future__ import annotations

from collections.abc import Iterable

from gpushare.daemon.placement.request import Bounds, TenantCardUsage
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.claim import reservations
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.store.ticket import TicketRecord
from gpushare.quota.request import QuotaRequest
from gpushare.quota.request_policy import RequestPolicy


def of_user(
    uid: int, terms: RequestPolicy, quota: QuotaRequest, state: DaemonState, without: str = ""
) -> Bounds:
    """Return what holds for a request of a user without root.

    What is reserved for the user's tickets counts, but for that in the file `without`.
    """
    own = [one for one in state.ledger.holders if one.is_rootless and one.uid == uid]
    parts = _parts([one for one in own if one.file != without], state)
    return _bounds(terms, quota, f"user {uid}", parts)


def of_namespace(
    namespace: str, terms: RequestPolicy, quota: QuotaRequest, state: DaemonState
) -> Bounds:
    """Return what holds for a request in a namespace; empty: of a container in none.

    What a claim has reserved counts, also while no container has it.
    """
    if not namespace:
        return _bounds(terms, quota, "", ())
    records = [one for one in state.ledger.entries.values() if one.namespace == namespace]
    parts = (*_parts(records, state), *_of_claims(namespace, state))
    return _bounds(terms, quota, f"namespace {namespace}", parts)


def _bounds(
    terms: RequestPolicy, quota: QuotaRequest, whose: str, parts: tuple[TenantCardUsage, ...]
) -> Bounds:
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
    holders: Iterable[TenantRecord | TicketRecord], state: DaemonState
) -> tuple[TenantCardUsage, ...]:
    driver = state.loaded()
    return tuple(
        TenantCardUsage(
            *(one.file, one.title, card, allocation.most_bytes),
            one.reserved_cores(allocation, state.policy_of(allocation.uuid)),
        )
        for one in holders
        for allocation in one.allocations
        if (card := driver.card(allocation.uuid)) is not None
    )


def _of_claims(namespace: str, state: DaemonState) -> tuple[TenantCardUsage, ...]:
    claims = [claim for claim in state.ledger.claims.values() if claim.namespace == namespace]
    tenants = state.ledger.entries.values()
    return tuple(
        TenantCardUsage(use.key, use.tenant, card, use.memory_bytes, use.cores)
        for card in state.loaded().cards
        for use in reservations(card.uuid, claims, tenants, state.policy_of(card.uuid))
        if use.memory_bytes or use.cores
    )
