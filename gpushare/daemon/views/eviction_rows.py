# SPDX-License-Identifier: Apache-2.0
"""What clients are told of evictions. This module changes no state."""

from __future__ import annotations

from typing import NamedTuple

from gpushare.daemon.eviction.checkpoint_client import why_unsupported
from gpushare.daemon.eviction.preconditions import host_memory_bound
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import TenantEviction


class EvictedOnCard(NamedTuple):
    """The evicted tenants that a card's memory came from."""

    tenants: int = 0
    bytes: int = 0


def eviction_row(record: TenantRecord, state: DaemonState) -> TenantEviction | None:
    """Return where the GPU memory of a tenant is, None if it is on its cards."""
    eviction = record.eviction
    if eviction is None:
        return None
    cards = [None if state.driver is None else state.driver.card(one) for one in eviction.cards]
    return TenantEviction(
        state=eviction.state,
        since=eviction.since,
        cause=eviction.cause,
        reason=eviction.reason,
        bytes=eviction.bytes,
        from_cards=[-1 if card is None else card.index for card in cards],
        held=eviction.held,
        waits_since=state.observed.waiting.get(record.key),
        error=eviction.error,
    )


def eviction_fault(state: DaemonState) -> str:
    """Return why no container of this node can be evicted, "" if they can."""
    if state.driver is None:
        return "there is no driver"
    if host_memory_bound(state) <= 0:
        return "evict.host_memory of gpushare.yaml is 0"
    return why_unsupported(state.driver.nvml.driver_version)


def evicted_on(uuid: str, state: DaemonState) -> EvictedOnCard:
    """Return the tenants whose memory was evicted from a card, and its bytes."""
    found = [
        size
        for record in state.ledger.entries.values()
        if record.is_off_card and record.eviction is not None
        for card, size in zip(record.eviction.cards, record.eviction.card_bytes, strict=False)
        if card == uuid
    ]
    return EvictedOnCard(len(found), sum(found))
