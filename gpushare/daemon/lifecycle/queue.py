# SPDX-License-Identifier: Apache-2.0
"""The queue: starts that wait for room, and the room that is reserved for them.

A ticket is a record in the ledger (store/ticket.py), so a restart of gpushared changes no order and
loses no grant. It ends with its client's process, when it is cancelled, at its deadline, or when
its start has taken over what it was granted. `look` is run whenever room may have appeared, and
once a second while a ticket waits. placement/waiting.py has the order.

All of this is the decide thread's.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle.host_process import refuse_for_user
from gpushare.daemon.lifecycle.reserve import TenantIdentity, placement_request
from gpushare.daemon.limits.burst import reclaim_burst, reclaim_rounds
from gpushare.daemon.placement.request import NoRoom, PlacementRequest
from gpushare.daemon.placement.waiting import (
    NextGrant,
    WaitingRequest,
    can_ever_fit,
    find_next,
    in_order,
    overtaken_by,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.store.ticket import TicketKind, TicketRecord, TicketSource, digest
from gpushare.errors import UserError
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, QuotaRequest
from gpushare.quota.request_policy import RequestPolicy

LOOK_SECONDS: Final = 1.0
_MOST_ENDED: Final = 256

CANCELLED: Final = "cancelled"
TIMED_OUT: Final = "timed-out"
EXPIRED: Final = "expired"
STARTED: Final = "started"
CLIENT_ENDED: Final = "client-ended"
REFUSED: Final = "refused"


class QueueFull(UserError):
    """There are as many tickets as gpushare.yaml allows."""


class TicketNotFound(UserError):
    """There is no such ticket, or it is another user's."""


@dataclass(frozen=True)
class Applicant:
    """Who takes a ticket: the process with which it ends, and what its start is.

    `wait_seconds` None: without a limit.
    """

    name: str
    uid: int
    pid: int
    is_rootless: bool
    kind: TicketKind = "command"
    wait_seconds: float | None = None


@dataclass(frozen=True)
class _Resolved:
    quota: QuotaRequest
    effective: EffectiveRequest
    terms: RequestPolicy


class Queue:
    """The queue of `state`, which publishes what it decides in `state.queue`."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._resolved: dict[str, tuple[object, _Resolved]] = {}
        self._is_due = False
        state.queue.changed = self.look_soon
        state.queue.started = self._note_start
        state.queue.control = self

    def adopt(self) -> None:
        """Take over the tickets of an earlier daemon: all but those of creates, which ended."""
        for ticket in tuple(self._state.ledger.tickets.values()):
            if ticket.kind == "create":
                self._end(ticket, CLIENT_ENDED)
        self.look()

    def tick(self) -> None:
        """Look, if there are tickets; any thread."""
        if self._state.ledger.tickets or self._state.queue.waiting:
            self._state.decide.submit(self.look)

    def look_soon(self) -> None:
        """Look after what the decide thread does now."""
        if self._state.ledger.tickets and not self._is_due:
            self._is_due = True
            self._state.decide.submit(self.look)

    def take(self, applicant: Applicant, source: TicketSource) -> tuple[TicketRecord, str]:
        """Return a new ticket, which may be granted by now, and its secret.

        QuotaError, NoRoom and NoSuchCard for what can never be granted; QueueFull.
        """
        state = self._state
        driver = state.loaded()
        state.integrity.refuse()
        self._refuse_full(applicant)
        starttime = processes.start_time(applicant.pid)
        if starttime is None:
            raise TicketNotFound(f"there is no process {applicant.pid} to wait for")
        resolved = self._resolve(source, is_rootless=applicant.is_rootless)
        secret, now = secrets.token_hex(16), boottime()
        ticket = TicketRecord(
            id=secrets.token_hex(4),
            number=1 + max((one.number for one in state.ledger.tickets.values()), default=0),
            secret=digest(secret),
            name=applicant.name,
            uid=applicant.uid,
            pid=applicant.pid,
            starttime=starttime,
            priority=resolved.effective.priority,
            source=source,
            is_rootless=applicant.is_rootless,
            kind=applicant.kind,
            arrived=time.time(),
            deadline=0.0 if applicant.wait_seconds is None else now + applicant.wait_seconds,
        )
        can_ever_fit(self._request(ticket, resolved), state.capacities(), driver.links)
        state.ledger.put_ticket(ticket)
        self.look()
        ticket = state.ledger.tickets.get(ticket.id, ticket)
        if not ticket.is_granted:
            log(
                "ticket-queued",
                ticket=ticket.id,
                name=ticket.name,
                uid=ticket.uid,
                priority=ticket.priority,
                reason=state.queue.reasons.get(ticket.id, ""),
            )
        return ticket, secret

    def cancel(self, identity: str, uid: int) -> TicketRecord:
        """End a ticket for user `uid`: its own, or any for root; TicketNotFound."""
        ticket = self._state.ledger.tickets.get(identity)
        if ticket is None or uid not in {0, ticket.uid}:
            raise TicketNotFound(f"there is no ticket {identity} of yours; see gpushare queue")
        self._end(ticket, CANCELLED)
        self.look()
        return ticket

    def drop(self, identity: str) -> None:
        """End a ticket whose start does not wait any more, if it still exists."""
        ticket = self._state.ledger.tickets.get(identity)
        if ticket is not None:
            self._end(ticket, EXPIRED if ticket.is_granted else TIMED_OUT)
            self.look()

    def look(self) -> None:
        """End the tickets whose time is over, grant those that fit, and publish what is left."""
        self._is_due = False
        state = self._state
        for ticket in tuple(state.ledger.tickets.values()):
            if (how := self._how_ended(ticket)) is not None:
                self._end(ticket, how)
        found = NextGrant()
        if state.driver is not None and not state.integrity.why:
            while (found := self._next()).granted is not None:
                try:
                    self._grant(found.granted, found)
                except OSError as error:  # the disk is full; the next look tries it again
                    found = NextGrant(reasons={**found.reasons, found.granted.ticket: str(error)})
                    break
            state.queue.waiting = tuple(self._waiting())
        tickets = state.ledger.tickets
        state.queue.waiting = tuple(one for one in state.queue.waiting if one.ticket in tickets)
        state.queue.reasons = found.reasons
        state.queue.withheld = found.withheld

    def _next(self) -> NextGrant:
        """Return what to grant next, where no tenant has burst memory of it."""
        state, found = self._state, NextGrant()
        waiting = self._waiting()
        if not waiting:
            return found
        with suppress(NoRoom):  # of reclaim_rounds: the next look tries it again
            for _ in reclaim_rounds():
                capacities = state.capacities()
                links, limits = state.loaded().links, state.config.queue
                found = find_next(waiting, capacities, links, limits, boottime())
                wanted = {one.card.uuid: one.memory_bytes for one in found.placed}
                if not reclaim_burst(wanted, capacities, state):
                    return found
        return NextGrant(reasons=found.reasons, withheld=found.withheld)

    def _grant(self, one: WaitingRequest, found: NextGrant) -> None:
        """Reserve what was found for a request; one write."""
        state = self._state
        ticket, limits = state.ledger.tickets[one.ticket], state.config.queue
        resolved = self._resolve(ticket.source, ticket.id, is_rootless=ticket.is_rootless)
        granted = replace(
            ticket,
            granted=time.time(),
            expires=boottime() + limits.start_timeout_seconds,
            allocations=tuple(
                CardAllocation(
                    *(card.card.uuid, card.memory_bytes, card.cores, card.whole),
                    memory_limit_bytes=resolved.effective.memory_limit_bytes,
                )
                for card in found.placed
            ),
        )
        state.ledger.put_ticket(granted)
        log(
            "ticket-granted",
            ticket=ticket.id,
            name=ticket.name,
            uid=ticket.uid,
            waited_seconds=round(granted.granted - ticket.arrived, 1),
            overtaken=ticket.overtaken,
            cards=[card.card.index for card in found.placed],
        )
        state.queue.granted += 1
        state.queue.waited_seconds += granted.granted - ticket.arrived
        self._overtake(one.number, [card.card.uuid for card in found.placed])

    def _overtake(self, number: int, cards: Sequence[str]) -> None:
        """Count for each request that arrived before `number` that others took cards it can use."""
        state = self._state
        waiting = [one for one in self._waiting() if one.number < number]
        for one in overtaken_by(waiting, number, cards, state.capacities()) if waiting else ():
            ticket = state.ledger.tickets[one.ticket]
            first = ticket.first_overtaken or boottime()
            overtaken = ticket.overtaken + 1
            state.ledger.put_ticket(replace(ticket, overtaken=overtaken, first_overtaken=first))

    def _note_start(self, record: TenantRecord, ticket: TicketRecord | None) -> None:
        """End the ticket that a start took over; a start without one has overtaken all of them.

        The start is recorded by now, and a full disk does not undo it: a ticket that stays expires.
        """
        with suppress(OSError):
            if ticket is not None:
                self._end(ticket, STARTED)
                return
            number = 1 + max(one.number for one in self._state.ledger.tickets.values())
            self._overtake(number, [allocation.uuid for allocation in record.allocations])
        self.look_soon()

    def _waiting(self) -> list[WaitingRequest]:
        """Return the requests that wait, in the order in which they are granted."""
        state = self._state
        if state.driver is None:
            return []
        found = []
        for ticket in tuple(state.ledger.tickets.values()):
            if ticket.is_granted:
                continue
            try:
                resolved = self._resolve(ticket.source, ticket.id, is_rootless=ticket.is_rootless)
            except UserError as error:  # a changed configuration does not allow it any more
                self._end(ticket, REFUSED, str(error))
                continue
            found.append(
                WaitingRequest(
                    ticket=ticket.id,
                    number=ticket.number,
                    request=self._request(ticket, resolved),
                    priority=ticket.priority,
                    since=ticket.arrived,
                    overtaken=ticket.overtaken,
                    first_overtaken=ticket.first_overtaken,
                )
            )
        return in_order(found, state.config.queue, boottime())

    def _request(self, ticket: TicketRecord, resolved: _Resolved) -> PlacementRequest:
        applicant = TenantIdentity(
            key=ticket.file,
            identity=ticket.id,
            name=ticket.name,
            engine="host",
            uid=ticket.uid,
            isolation="advisory" if ticket.is_rootless else "interposer",
            terms=resolved.terms,
            shows_holders=self._state.config.read_group is None or ticket.kind != "create",
        )
        quota, effective = resolved.quota, resolved.effective
        return placement_request(applicant, quota, effective, self._state, ticket.id)

    def _resolve(self, source: TicketSource, identity: str = "", *, is_rootless: bool) -> _Resolved:
        """Return the effective request of a ticket under the configuration of now; QuotaError."""
        config = self._state.config
        kept = self._resolved.get(identity)
        if kept is not None and kept[0] is config:
            return kept[1]
        terms = config.users if is_rootless else config.terms
        cards = engine_cards(source.cards)
        parsed = parse_request(
            source.annotations,
            source.variables,
            options=source.options,
            cards=cards,
            defaults=terms.defaults,
            trust=terms.trust,
            dialects=terms.dialects if source.annotations or source.variables else None,
            profiles=terms.profiles,
        )
        quota = terms.idle.limit(parsed.valid())
        effective = resolve_request(quota, cards=cards)
        refuse_for_user(quota, effective, terms, rootless=is_rootless)
        effective = terms.max_per_request.put_down(quota, effective)
        resolved = _Resolved(quota, effective, terms)
        if identity:
            self._resolved[identity] = (config, resolved)
        return resolved

    def _refuse_full(self, applicant: Applicant) -> None:
        limits, tickets = self._state.config.queue, self._state.ledger.tickets.values()
        own = sum(one.uid == applicant.uid for one in tickets)
        if len(tickets) >= limits.max_tickets:
            raise QueueFull(
                f"the queue is full: {limits.max_tickets} tickets (queue.max_tickets). "
                "Try again later"
            )
        if applicant.uid and own >= limits.max_tickets_per_user:
            raise QueueFull(
                f"user {applicant.uid} has {own} tickets, the maximum of one user "
                "(queue.max_tickets_per_user). Cancel one: gpushare queue cancel TICKET"
            )

    def _how_ended(self, ticket: TicketRecord) -> str | None:
        if processes.start_time(ticket.pid) != ticket.starttime:
            return CLIENT_ENDED
        if ticket.is_granted:
            return EXPIRED if boottime() >= ticket.expires else None
        return TIMED_OUT if ticket.deadline and boottime() >= ticket.deadline else None

    def _end(self, ticket: TicketRecord, how: str, reason: str = "") -> None:
        """Delete a ticket, and what is reserved for it."""
        state = self._state
        state.ledger.release_ticket(ticket.id)
        self._resolved.pop(ticket.id, None)
        ended = {**state.queue.ended, ticket.id: f"{how}: {reason}" if reason else how}
        state.queue.ended = dict(list(ended.items())[-_MOST_ENDED:])
        log(
            "ticket-ended",
            ticket=ticket.id,
            name=ticket.name,
            uid=ticket.uid,
            how=how,
            reason=reason,
            waited_seconds=round((ticket.granted or time.time()) - ticket.arrived, 1),
        )
        if ticket.is_granted and how != STARTED:
            self.look_soon()


def has_secret(ticket: TicketRecord, secret: str) -> bool:
    """Whether `secret` is what the holder of `ticket` has."""
    return hmac.compare_digest(ticket.secret, digest(secret))


def find_granted(secret: str, state: DaemonState) -> TicketRecord | None:
    """Return the granted ticket whose secret it is; None where there is none (any more)."""
    granted = (one for one in state.ledger.tickets.values() if one.is_granted)
    return next((one for one in granted if has_secret(one, secret)), None)


_ALL_CARDS: Final = "all"


def engine_cards(text: str) -> EngineCards | None:
    """Return the cards of `--gpus`: all, a number, or device=0,1; "": none. QuotaError."""
    if not text:
        return None
    source = "--gpus"
    if text in {_ALL_CARDS, "-1"}:
        return EngineCards(source, all_cards=True)
    if text.isdecimal() and text != "0":
        return EngineCards(source, count=int(text))
    kind, _, names = text.strip('"').partition("=")
    if kind == "device" and names:
        return EngineCards(source, devices=tuple(names.split(",")))
    rule = "is not a request for cards that the queue knows"
    raise QuotaError(source, text, rule, "use all, a number, or device=0,1")
