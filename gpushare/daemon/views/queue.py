# SPDX-License-Identifier: Apache-2.0
"""The queue: who waits, in which order, and why. This module changes no state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpushare.daemon.node import Node
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.store.ticket import TicketKind, TicketRecord
from gpushare.daemon.views.rows import card_index
from gpushare.protocol.queue import QueueEntry, TicketStatus
from gpushare.quota.size import format_size


def queue_rows(state: DaemonState) -> Iterator[QueueEntry]:
    """Yield a row for each that was granted, then for each that waits, in the order of grants."""
    tickets, records = state.ledger.tickets, state.ledger.entries
    for granted in tickets.values():
        if granted.is_granted:
            yield _granted(granted, state.node)
    for position, entry in enumerate(state.queue.waiting, 1):
        reason, asked = state.queue.reasons.get(entry.ticket, ""), entry.request
        if entry.container and (record := records.get(entry.ticket)) is not None:
            row = _row(record, "restore", entry.since, str(asked), asked.count)
            yield {**row, "name": entry.container, "position": position, "reason": reason}
        ticket = tickets.get(entry.ticket)
        if ticket is not None and not ticket.is_granted:
            row = _row(ticket, ticket.kind, entry.since, str(asked), asked.count)
            reason = _reason(ticket, state)
            yield {**row, "ticket": ticket.id, "position": position, "reason": reason}


def ticket_status(ticket: TicketRecord, state: DaemonState) -> TicketStatus:
    """Return what has become of a ticket that has not ended."""
    waiting = [entry.ticket for entry in state.queue.waiting]
    position = 0 if ticket.is_granted or ticket.id not in waiting else waiting.index(ticket.id) + 1
    return TicketStatus(
        state="granted" if ticket.is_granted else "waiting",
        position=position,
        waiting=len(waiting),
        reason=_reason(ticket, state),
        since=ticket.arrived,
    )


def _reason(ticket: TicketRecord, state: DaemonState) -> str:
    if ticket.is_granted:
        return ""
    if state.node.driver is None:
        return state.node.no_driver_reason
    return state.ledger.integrity.why or state.queue.reasons.get(ticket.id, "")


def _granted(ticket: TicketRecord, node: Node) -> QueueEntry:
    indices = [card_index(allocation.uuid, node) for allocation in ticket.allocations]
    first = ticket.allocations[0]
    cores = f" and {first.cores} % of its compute" if first.cores and not first.whole else ""
    requests = "a whole card" if first.whole else f"{format_size(first.quota_bytes)}{cores}"
    return {
        **_row(ticket, ticket.kind, ticket.arrived, requests, len(ticket.allocations)),
        "ticket": ticket.id,
        "state": "granted",
        "granted": ticket.granted,
        "cards": [index for index in indices if index >= 0],
    }


def _row(
    holder: TicketRecord | TenantRecord,
    kind: TicketKind | Literal["restore"],
    since: float,
    requests: str,
    count: int | None,
) -> QueueEntry:
    """Return a row of one that waits; its place, its reason and its ticket are its caller's."""
    return QueueEntry(
        ticket="",
        state="waiting",
        position=0,
        name=holder.name,
        kind=kind,
        uid=holder.uid,
        pid=holder.pid,
        requests=requests,
        count=count,
        priority=holder.priority,
        since=since,
        granted=0.0,
        cards=[],
        reason="",
    )
