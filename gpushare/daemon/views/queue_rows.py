# SPDX-License-Identifier: Apache-2.0
"""The answers of `gpushare queue`: who waits, in which order, and why. This changes no state."""

from __future__ import annotations

from collections.abc import Iterator

from gpushare.daemon.core.loop import boottime
from gpushare.daemon.placement.waiting import WaitingRequest
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.store.ticket import TicketRecord
from gpushare.protocol.queue import QueueEntry, TicketStatus
from gpushare.quota.size import format_size


def queue_rows(state: DaemonState) -> Iterator[QueueEntry]:
    """Yield a row for each that was granted, then for each that waits, in the order of grants."""
    tickets = state.ledger.tickets
    for ticket in tickets.values():
        if ticket.is_granted:
            yield _granted(ticket, state)
    for position, one in enumerate(state.queue.waiting, 1):
        record = state.ledger.entries.get(one.ticket)
        if one.container and record is not None:
            yield _restore(record, one, position, state)
        found = tickets.get(one.ticket)
        if found is not None and not found.is_granted:
            yield _waiting(found, one, position, state)


def ticket_status(ticket: TicketRecord, state: DaemonState) -> TicketStatus:
    """Return what has become of a ticket that has not ended."""
    waiting = [one.ticket for one in state.queue.waiting]
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
    if state.driver is None:
        return state.no_driver_reason
    return state.integrity.why or state.queue.reasons.get(ticket.id, "")


def _granted(ticket: TicketRecord, state: DaemonState) -> QueueEntry:
    found = (state.loaded().card(one.uuid) for one in ticket.allocations) if state.driver else ()
    first = ticket.allocations[0]
    cores = f" and {first.cores} % of its compute" if first.cores and not first.whole else ""
    return QueueEntry(
        ticket=ticket.id,
        state="granted",
        position=0,
        name=ticket.name,
        kind=ticket.kind,
        uid=ticket.uid,
        pid=ticket.pid,
        requests="a whole card" if first.whole else f"{format_size(first.memory_bytes)}{cores}",
        count=len(ticket.allocations),
        memory_bytes=None if first.whole else first.memory_bytes,
        cores=first.cores,
        priority=ticket.priority,
        since=ticket.arrived,
        granted=ticket.granted,
        cards=[card.index for card in found if card is not None],
        ends_in_seconds=max(0.0, ticket.expires - boottime()),
        reason="",
    )


def _restore(
    record: TenantRecord, one: WaitingRequest, position: int, state: DaemonState
) -> QueueEntry:
    return QueueEntry(
        ticket="",
        state="waiting",
        position=position,
        name=one.container,
        kind="restore",
        uid=record.uid,
        pid=record.pid,
        requests=str(one.request),
        count=one.request.count,
        memory_bytes=one.request.memory_bytes,
        cores=one.request.cores,
        priority=one.request.rank[1],
        since=one.since,
        granted=0.0,
        cards=[],
        ends_in_seconds=None,
        reason=state.queue.reasons.get(one.ticket, ""),
    )


def _waiting(
    ticket: TicketRecord, one: WaitingRequest, position: int, state: DaemonState
) -> QueueEntry:
    now = boottime()
    return QueueEntry(
        ticket=ticket.id,
        state="waiting",
        position=position,
        name=ticket.name,
        kind=ticket.kind,
        uid=ticket.uid,
        pid=ticket.pid,
        requests=str(one.request),
        count=one.request.count,
        memory_bytes=one.request.memory_bytes,
        cores=one.request.cores,
        priority=ticket.priority,
        since=ticket.arrived,
        granted=0.0,
        cards=[],
        ends_in_seconds=max(0.0, ticket.deadline - now) if ticket.deadline else None,
        reason=_reason(ticket, state),
    )
