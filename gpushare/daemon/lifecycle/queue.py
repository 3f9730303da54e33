# SPDX-License-Identifier: Apache-2.0
"""The queue: starts that wait for room, and the room that is reserved for them.

A ticket is a record in the ledger (store/ticket.py), so a restart of gpushared changes no order and
loses no grant. It ends with its client's process, when it is cancelled, at its deadline, or when
its start has taken over what it was granted. `look` is run whenever the ledger has changed, and
once a second while something waits. placement/waiting.py has the order, in which evicted containers
that wait for their restore have their places too.

All of this is the decide thread's.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from gpushare.config import Config
from gpushare.daemon.core.log import log
from gpushare.daemon.eviction.evictions import Evictions
from gpushare.daemon.eviction.preconditions import restore_request
from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import bounds
from gpushare.daemon.lifecycle.reserve import placement_request
from gpushare.daemon.limits import reclaim_rounds
from gpushare.daemon.placement.request import NoRoom, PlacementRequest
from gpushare.daemon.placement.waiting import (
    NextGrant,
    WaitingRequest,
    can_ever_fit,
    find_next,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.store.ticket import TicketKind, TicketRecord, TicketSource, digest
from gpushare.errors import UserError
from gpushare.protocol import START_SECONDS
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards
from gpushare.quota.request_policy import ResolvedRequest

LOOK_SECONDS: Final = 1.0
_MOST_ENDED: Final = 256
_ROOTS_PART: Final = 8  # one place in so many is root's alone

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
    """The client of a ticket, and its start."""

    name: str
    uid: int
    pid: int  # the ticket ends with this process
    is_rootless: bool
    kind: TicketKind = "command"
    wait_seconds: float | None = None  # None: without a limit


class Queue:
    """The queue of `state`, which publishes what it decides in `state.queue`."""

    def __init__(self, state: DaemonState) -> None:
        self._state, self._clock = state, state.clock
        self._resolved: dict[str, tuple[object, ResolvedRequest]] = {}
        self._restores = WaitingRestores(state)

    def look_soon(self) -> None:
        """Look after what the decide thread does now, if something waits; any thread."""
        state = self._state
        if state.ledger.tickets or state.observed.waiting or state.queue.waiting:
            state.decide.submit_once(self.look)

    def take(self, applicant: Applicant, source: TicketSource) -> tuple[TicketRecord, str]:
        """Return a new ticket, which may be granted by now, and its secret.

        QuotaError, NoRoom and NoSuchCard for what can never be granted; QueueFull.
        """
        state = self._state
        driver = state.node.loaded()
        state.ledger.integrity.refuse()
        self._refuse_full(applicant)
        starttime = processes.start_time(applicant.pid)
        if starttime is None:
            raise TicketNotFound(f"there is no process {applicant.pid} to wait for")
        resolved = resolve_source(source, state.node.config, is_rootless=applicant.is_rootless)
        secret, now = secrets.token_hex(16), self._clock.boot()
        ticket = TicketRecord(
            id=secrets.token_hex(4),
            number=self._next_number(),
            secret=digest(secret),
            name=applicant.name,
            uid=applicant.uid,
            pid=applicant.pid,
            starttime=starttime,
            priority=resolved.effective.priority,
            source=source,
            is_rootless=applicant.is_rootless,
            kind=applicant.kind,
            arrived=self._clock.wall(),
            deadline=0.0 if applicant.wait_seconds is None else now + applicant.wait_seconds,
        )
        request, capacities = self._request(ticket, resolved), state.accounts.capacities()
        can_ever_fit(request, capacities, driver.links)
        with suppress(NoRoom):  # for now: QuotaError is for ever
            self._managed_bytes(ticket, resolved, request.count or len(capacities))
        state.ledger.put(ticket)
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
        state = self._state
        for ticket in tuple(state.ledger.tickets.values()):
            if (how := self._how_ended(ticket)) is not None:
                self._end(ticket, how)
        grant = NextGrant()
        if state.node.driver is not None and not state.ledger.integrity.why:
            while (grant := self._next()).granted is not None and not state.queue.claimants:
                try:
                    self._grant(grant.granted, grant)
                except OSError as error:  # the disk is full; the next look tries it again
                    grant = NextGrant(reasons={**grant.reasons, grant.granted.ticket: str(error)})
                    break
            state.queue.waiting = tuple(self._waiting())
        tickets = state.ledger.tickets
        state.queue.waiting = tuple(
            request
            for request in state.queue.waiting
            if request.container or request.ticket in tickets
        )
        state.queue.reasons = grant.reasons
        state.queue.withheld = grant.withheld

    def _next(self) -> NextGrant:
        """Return what to grant next, where no tenant has burst memory of it."""
        state, grant = self._state, NextGrant()
        waiting = self._waiting()
        if not waiting:
            return grant
        with suppress(NoRoom):  # of reclaim_rounds: the next look tries it again
            for _ in reclaim_rounds():
                capacities = state.accounts.capacities()
                grant = find_next(waiting, capacities, state.node.loaded().links)
                wanted = {placed.card.uuid: placed.memory_bytes for placed in grant.placed}
                if not state.limits.reclaim(wanted, capacities):
                    return grant
        return NextGrant(reasons=grant.reasons, withheld=grant.withheld)

    def _grant(self, request: WaitingRequest, grant: NextGrant) -> None:
        """Reserve what was found for a request; one write."""
        state = self._state
        ticket, limits = state.ledger.tickets[request.ticket], state.node.config.queue
        resolved = self._resolve(ticket)
        managed = self._managed_bytes(ticket, resolved, len(grant.placed))
        granted = replace(
            ticket,
            granted=self._clock.wall(),
            expires=self._clock.boot() + limits.start_timeout_seconds,
            allocations=tuple(
                CardAllocation(
                    card.card.uuid,
                    card.memory_bytes,
                    card.cores,
                    card.whole,
                    memory_limit_bytes=resolved.effective.memory_limit_bytes,
                    managed_bytes=managed,
                )
                for card in grant.placed
            ),
        )
        state.ledger.put(granted)
        log(
            "ticket-granted",
            ticket=ticket.id,
            name=ticket.name,
            uid=ticket.uid,
            waited_seconds=round(granted.granted - ticket.arrived, 1),
            cards=[card.card.index for card in grant.placed],
        )

    def note_start(self, ticket: TicketRecord) -> None:
        """End the ticket that a start took over.

        The start is recorded by now, and a full disk does not undo it: a ticket that stays expires.
        """
        with suppress(OSError):
            self._end(ticket, STARTED)

    def _next_number(self) -> int:
        tickets = self._state.ledger.tickets.values()
        return 1 + max((self._restores.last, *(ticket.number for ticket in tickets)))

    def _waiting(self) -> list[WaitingRequest]:
        """Return the requests that wait, in the order in which they are granted."""
        state = self._state
        if state.node.driver is None:
            return []
        requests = []
        for ticket in tuple(state.ledger.tickets.values()):
            if ticket.is_granted:
                continue
            try:
                resolved = self._resolve(ticket)
                request, obstacle = self._request(ticket, resolved), ""
                try:
                    count = request.count or len(state.node.loaded().cards)
                    self._managed_bytes(ticket, resolved, count)
                except NoRoom as error:
                    obstacle = str(error)
            except UserError as error:  # a changed configuration does not allow it any more
                self._end(ticket, REFUSED, str(error))
                continue
            requests.append(
                WaitingRequest(ticket.id, request, since=ticket.arrived, obstacle=obstacle)
            )
        requests += self._restores.requests(self._next_number())
        return sorted(requests, key=lambda entry: entry.request.rank)

    def _request(self, ticket: TicketRecord, resolved: ResolvedRequest) -> PlacementRequest:
        node, ledger = self._state.node, self._state.ledger
        request = placement_request(ticket, resolved, node, ledger, ticket.file)
        return replace(request, rank=(*request.rank[:2], ticket.number))

    def _managed_bytes(self, ticket: TicketRecord, resolved: ResolvedRequest, cards: int) -> int:
        """Return its managed memory beyond the quota on each card; QuotaError, NoRoom for now."""
        own, node, ledger = frozenset({ticket.file}), self._state.node, self._state.ledger
        return bounds.managed_bytes(resolved.quota, own, cards, 0, node, ledger)

    def _resolve(self, ticket: TicketRecord) -> ResolvedRequest:
        """Return what a ticket requests under the configuration of now; QuotaError."""
        config = self._state.node.config
        kept = self._resolved.get(ticket.id)
        if kept is None or kept[0] is not config:
            kept = config, resolve_source(ticket.source, config, is_rootless=ticket.is_rootless)
            self._resolved[ticket.id] = kept
        return kept[1]

    def _refuse_full(self, applicant: Applicant) -> None:
        limits, tickets = self._state.node.config.queue, self._state.ledger.tickets.values()
        uid, host_users = applicant.uid, self._state.node.users
        own = sum(host_users.are_one(ticket.uid, uid) for ticket in tickets if ticket.uid)
        roots = limits.max_tickets // _ROOTS_PART if uid else 0
        users = sum(bool(ticket.uid) for ticket in tickets) if uid else len(tickets)
        if users >= limits.max_tickets - roots or len(tickets) >= limits.max_tickets:
            raise QueueFull(
                f"the queue is full: {limits.max_tickets} tickets (queue.max_tickets). "
                "Try again later"
            )
        if uid and own >= limits.max_tickets_per_user:
            raise QueueFull(
                f"user {host_users.title(uid)} has {own} tickets, the maximum of one user "
                "(queue.max_tickets_per_user). Cancel one: gpushare queue cancel TICKET"
            )

    def _how_ended(self, ticket: TicketRecord) -> str | None:
        if processes.start_time(ticket.pid) != ticket.starttime:
            return CLIENT_ENDED
        if ticket.is_granted:
            return EXPIRED if self._clock.boot() >= ticket.expires else None
        return TIMED_OUT if ticket.deadline and self._clock.boot() >= ticket.deadline else None

    def _end(self, ticket: TicketRecord, how: str, reason: str = "") -> None:
        """Delete a ticket, and what is reserved for it."""
        state = self._state
        state.ledger.release(ticket.file)
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
            waited_seconds=round((ticket.granted or self._clock.wall()) - ticket.arrived, 1),
        )
        if ticket.is_granted and how != STARTED:
            self.look_soon()


# --- evicted containers that wait for their restore, as requests of the queue ---
#
# A program that blocks in a CUDA call until its memory is back waits for room as a start does. It
# has the same order. Its place is not recorded: its call asks the next gpushared again. The decide
# thread's.


class WaitingRestores:
    """The places of the waiting containers of `state` in the queue, by key."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._numbers: dict[str, int] = {}

    @property
    def last(self) -> int:
        """The highest number that a container has; 0: none waits."""
        return max(self._numbers.values(), default=0)

    def requests(self, number: int) -> Iterator[WaitingRequest]:
        """Yield the requests of those for which nothing but room is missing.

        `number` is that of the next arrival.
        """
        state = self._state
        waiting, records = state.observed.waiting, state.ledger.entries
        self._numbers = {key: own for key, own in self._numbers.items() if key in waiting}
        for key, since in waiting.items():
            if key not in self._numbers:
                self._numbers[key] = number
                number += 1
            record = records.get(key)
            if record is None or not record.is_off_card or record.eviction is None:
                continue
            is_faulty = key in state.observed.restore_faults
            if record.eviction.held or is_faulty or state.ledger.is_frozen(key):
                continue
            request = restore_request(record, state.node)
            yield WaitingRequest(
                ticket=key,
                request=replace(request, rank=(*request.rank[:2], self._numbers[key])),
                since=since,
                container=record.title,
            )


# --- the request of a ticket of `gpushare run`, and who shows the ticket ---


def _refuse_for_user(request: ResolvedRequest, *, rootless: bool) -> None:
    """Raise QuotaError if `gpushare run` does not start, or queue, what is requested."""
    if request.effective.kind == "none":
        raise QuotaError("run", None, "asks for no GPU", "add --memory 4GiB")
    if request.effective.kind == "remote":
        fix = "request it for a container, by annotation or variable"
        raise request.quota.refuse("remote", "is not for gpushare run", fix)
    if request.is_whole and rootless:
        # gpushare could not keep others off the card, and would refuse the card to all of them.
        raise QuotaError("run", None, "whole cards require root", "use sudo, or add --memory 4GiB")
    request.terms.max_per_request.refuse_above(request.quota, request.effective)


def resolve_source(source: TicketSource, config: Config, *, is_rootless: bool) -> ResolvedRequest:
    """Return what a command, or a ticket, requests under `config`; QuotaError."""
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
    request = ResolvedRequest(quota, resolve_request(quota, cards=cards), terms)
    _refuse_for_user(request, rootless=is_rootless)
    return replace(request, effective=terms.max_per_request.put_down(quota, request.effective))


def has_secret(ticket: TicketRecord, secret: str) -> bool:
    """Whether `secret` is what the holder of `ticket` has."""
    return hmac.compare_digest(ticket.secret, digest(secret))


def find_granted(secret: str, ledger: Ledger) -> TicketRecord | None:
    """Return the granted ticket whose secret it is; None where there is none (any more)."""
    granted = (ticket for ticket in ledger.tickets.values() if ticket.is_granted)
    return next((ticket for ticket in granted if has_secret(ticket, secret)), None)


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


def shown_by_container(secret: str, ledger: Ledger) -> TicketRecord | None:
    """Return the granted ticket that a container shows; None where there is none (any more).

    A container keeps its variables when it is started again, and then its ticket has ended.
    """
    ticket = find_granted(secret, ledger)
    return ticket if ticket is not None and ticket.kind != "command" else None


# --- how a start that has no room gets some: others are evicted for it, or it waits ---


@dataclass(frozen=True)
class RoomForStarts:
    """The means to make room for a start, as far as the configuration allows it."""

    evictions: Evictions
    queue: Queue

    def reserve(
        self,
        error: NoRoom,
        about: tuple[str, bool],
        reserve: Callable[[], TenantRecord],
        waits: Callable[[float], None],
    ) -> TenantRecord:
        """Return what `reserve` does once others are evicted for it; `error` if that cannot be.

        `about` is the name of the container, and whether it is of class online. `waits` is called
        before, and with 0 after: an eviction takes seconds. Never on the decide thread.
        """
        if error.request is None:
            raise error
        waits(START_SECONDS)
        try:
            record = self.evictions.evict_for(error.request, *about, reserve)
        finally:
            waits(0)
        if record is None:
            raise error
        return record
