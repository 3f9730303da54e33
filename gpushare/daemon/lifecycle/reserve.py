# SPDX-License-Identifier: Apache-2.0
"""From a request to a reservation with pages, for containers and host processes alike.

The ledger is written first, then what it describes, so that a crash in between leaves a record that
expires, and never uncounted memory. If anything fails, everything is undone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.freezer import runs_unbound
from gpushare.daemon.lifecycle import bounds, release, scheduled
from gpushare.daemon.limits import EXCLUSIVE, INTERPOSER, check_supported, reclaim_rounds
from gpushare.daemon.node import LoadedDriver, Node
from gpushare.daemon.pages.process_watch import TenantSocket
from gpushare.daemon.pages.tenants import SIZE_BYTES, CardGrant, Pages
from gpushare.daemon.placement.choose import place_request
from gpushare.daemon.placement.request import (
    NoRoom,
    NoSuchCard,
    PlacedCard,
    PlacementRequest,
    each_card_once,
)
from gpushare.daemon.placement.waiting import with_withheld
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger, ReservationLost
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.store.ticket import TicketRecord
from gpushare.quota.errors import quoted
from gpushare.quota.keys import is_card
from gpushare.quota.request import to_record
from gpushare.quota.request_policy import ResolvedRequest
from gpushare.quota.size import exact_size
from gpushare.settings import MPS

_MOST_NOTES: Final = 16


@dataclass(frozen=True)
class TenantIdentity:
    """The container or process that requests, and what its reservation depends on beside that."""

    record: TenantRecord  # of no allocation; with its maker, the reservation ends
    label: str = ""  # the SELinux label of a container's mounts
    owner: int = 0  # who may mount its directory, beside root
    status_owner: int | None = None  # who alone may write its status; None: whoever is in it
    shows_holders: bool = False  # as in PlacementRequest
    uid: int | None = None  # as in PlacementRequest
    memory_max_bytes: int = 0  # the container's own memory limit; 0: none


def truncated_notes(notes: Sequence[str]) -> tuple[str, ...]:
    """Return what is kept of a quota's notes: as many as a packet has room for."""
    if len(notes) <= _MOST_NOTES:
        return tuple(notes)
    return (*notes[: _MOST_NOTES - 1], f"and {len(notes) - _MOST_NOTES + 1} more")


def reserve(
    applicant: TenantIdentity,
    request: ResolvedRequest,
    state: DaemonState,
    ticket: TicketRecord | None = None,
) -> TenantRecord:
    """Find room and take it; the entry is `reserved` and its pages are there. The caller logs it.

    `ticket` was granted: what is reserved for it is taken over. The caller has the queue note it.

    NoRoom, NoSuchCard, NoDriver, QuotaError: nothing was taken. OSError: the pages could not be
    made, and nothing is taken.
    """
    driver = state.node.loaded()
    state.ledger.integrity.refuse()
    _refuse_unsupported(applicant.record, request, driver)
    release_earlier(applicant.record, state)
    if not request.is_whole:
        driver.contexts.wait()
    effective = request.terms.max_per_request.put_down(request.quota, request.effective)
    request = replace(request, effective=effective)
    try:
        record = _placed_record(applicant, request, state, ticket)
    except NoRoom:
        if not release.release_ended(state):
            raise
        record = _placed_record(applicant, request, state, ticket)
    state.ledger.add(record)
    try:
        if record.shared:
            _make_pages(record, applicant, driver, state)
    except BaseException:
        release.release_tenant(record.key, state, "its pages could not be created")
        raise
    if effective.memory_limit_bytes is not None:
        state.limits.update()
    return record


def log_reserved(record: TenantRecord, node: Node) -> None:
    """Log what `reserve` returned; the history is a listener of the log, and has its own thread."""
    driver, first = node.loaded(), record.allocations[0]
    cards = [driver.card(allocation.uuid) for allocation in record.allocations]
    log(
        "tenant-reserved",
        **record.identity,
        mode="shared" if record.shared else "exclusive",
        cards=[card.index for card in cards if card is not None],
        memory_bytes=first.quota_bytes,
        cores=record.reserved_cores(first, node.policy_of(first.uuid)),
        policy=record.policy,
        notes=record.notes,
        pod=record.of_pod,
    )


def follow_reservation(record: TenantRecord, state: DaemonState) -> None:
    """Have a new reservation end with its maker; what the maker's start need not wait for.

    If gpushared is killed before, the next one watches the maker of each reservation.
    """

    def watch() -> None:  # unless the reservation is another's by now, or bound
        with suppress(ReservationLost):
            if state.ledger.require(record).state == "reserved":
                release.watch_process(record, state)

    if record.maker:
        state.decide.submit(watch)
    log_reserved(record, state.node)


def release_earlier(applicant: TenantRecord, state: DaemonState) -> None:
    """Release what an earlier start of the same container left; NoRoom while it still runs."""
    record = state.ledger.entries.get(applicant.key)
    if record is None:
        return
    if record.state == "reserved" and runs_unbound(record):
        fix = "wait until gpushared has killed it"
        raise NoRoom(f"an earlier start of container {record.title} has left a process; {fix}")
    if record.state == "bound":
        release.kill_abandoned_init(record)
    if record.state == "bound" and not release.is_gone(record, state.tenants):
        fix = "stop it before you create it again"
        raise NoRoom(f"container {record.title} is still running (pid {record.pid}); {fix}")
    release.release_tenant(applicant.key, state, "the container is created again")


def _refuse_unsupported(
    applicant: TenantRecord, request: ResolvedRequest, driver: LoadedDriver
) -> None:
    """Refuse what cannot be held here: a quota that is not held is worse than none."""
    quota, count = request.quota, request.effective.count
    check_supported(quota, driver, whole=request.is_whole, count=count)
    if quota.backend == MPS and (applicant.engine == "host" or applicant.claim):
        rule = f"is not for {'a claim' if applicant.claim else 'gpushare run'}"
        raise quota.refuse("backend", rule, "request it for a container, by annotation or variable")


def _placed_record(
    applicant: TenantIdentity,
    request: ResolvedRequest,
    state: DaemonState,
    ticket: TicketRecord | None,
) -> TenantRecord:
    """Return the record of a request that has a place: on its cards, or in its claim; NoRoom."""
    if applicant.record.claim:
        placed = scheduled.place_container(
            applicant.record, request.quota, request.effective, state.ledger, state.accounts
        )
        request = replace(request, quota=scheduled.with_placed_cores(request.quota, placed))
    else:
        placed = _place(applicant, request, state, ticket)
    quota, most = request.quota, max(card.memory_bytes for card in placed)
    if quota.memory_limit_bytes is not None and quota.memory_limit_bytes < most:
        percent = quota.requested["memory-percent"]  # known only now in bytes
        rule = f"is below {percent.source} {quoted(percent.shown)}, {exact_size(most)}"
        raise quota.refuse("memory-limit", rule, f"use {exact_size(most)} or more")
    own = frozenset({applicant.record.key, "" if ticket is None else ticket.file})
    managed = bounds.managed_bytes(
        quota, own, len(placed), applicant.memory_max_bytes, state.node, state.ledger
    )
    record = _entry(applicant.record, request, placed, managed, state.node)
    if ticket is not None:
        record = replace(record, ticket=ticket.id)
    state.ledger.refuse_above_claim(record, state.node.loaded().cards, state.node.policy_of)
    return record


def _place(
    applicant: TenantIdentity,
    resolved: ResolvedRequest,
    state: DaemonState,
    ticket: TicketRecord | None,
) -> tuple[PlacedCard, ...]:
    """Place a request where no tenant has burst memory of it, or is about to take it; NoRoom.

    A card withheld for a request that waits is only for that one; a ticket has its own cards.
    """
    without = "" if ticket is None else ticket.file
    own = () if ticket is None else {allocation.uuid for allocation in ticket.allocations}
    request = replace(
        placement_request(applicant.record, resolved, state.node, state.ledger, without),
        shows_holders=applicant.shows_holders,
        uid=applicant.uid,
    )
    for _ in reclaim_rounds():
        capacities = state.accounts.capacities(without)
        if withheld := {
            uuid: waiting for uuid, waiting in state.queue.withheld.items() if uuid not in own
        }:
            capacities = with_withheld(capacities, withheld, request.rank)
        try:
            placed = place_request(request, capacities, state.node.loaded().links)
        except NoRoom as error:
            error.request = request
            raise
        if not state.limits.reclaim(
            {card.card.uuid: card.memory_bytes for card in placed}, capacities
        ):
            break
    if ticket is not None:
        ticket.refuse_above(placed)
    return placed


def placement_request(
    holder: TenantRecord | TicketRecord,
    request: ResolvedRequest,
    node: Node,
    ledger: Ledger,
    without: str = "",
) -> PlacementRequest:
    """Return what has to be placed for `holder`; what the file `without` has does not count.

    NoSuchCard for a card with unified memory.
    """
    quota, effective, whole = request.quota, request.effective, request.is_whole
    driver = node.loaded()
    for card in driver.nvml.loaded.unified:
        named = any(is_card(name, card["index"], card["uuid"], "") for name in effective.devices)
        if named or not driver.cards:
            raise NoSuchCard(card["schedulable_reason"])
    devices = each_card_once(effective.devices, driver.cards)
    return PlacementRequest(
        whole=whole,
        count=len(devices) if devices and quota.count is None else effective.count,
        memory_bytes=effective.memory_bytes,
        memory_percent=effective.memory_percent,
        memory_limit_bytes=effective.memory_limit_bytes,
        cores=0 if whole else effective.cores,
        policy=effective.policy,
        policy_is_set=quota.is_set("policy"),
        devices=devices,
        minors=effective.minors,
        allow=quota.allow,
        deny=quota.deny,
        compute_capability=quota.compute_capability,
        strategy=quota.placement or "",
        backend=quota.backend or "",
        bounds=bounds.of_holder(holder, request, node, ledger, without),
        sources={key: str(value.source) for key, value in quota.requested.items()},
        rank=(effective.class_ != "online", effective.priority, inf),
    )


def _entry(
    applicant: TenantRecord,
    request: ResolvedRequest,
    placed: tuple[PlacedCard, ...],
    managed_bytes: int,
    node: Node,
) -> TenantRecord:
    quota, effective, whole = request.quota, request.effective, request.is_whole
    # Until it is bound: advice for a process that may bypass the interposer.
    isolation = EXCLUSIVE if whole else applicant.isolation or INTERPOSER
    return replace(
        applicant,
        state="reserved",
        policy="" if whole else effective.policy,
        weight=effective.weight,
        priority=effective.priority,
        class_=effective.class_,
        isolation=MPS if quota.backend == MPS else isolation,
        quota=to_record(quota.requested),
        requested=to_record(quota.before_operator),
        notes=truncated_notes(effective.notes),
        created=time.time(),
        since=boottime(),
        expires=boottime() + node.config.timing.bind_timeout_seconds,
        allocations=tuple(
            CardAllocation(
                card.card.uuid,
                card.memory_bytes,
                card.cores if applicant.claim else effective.cores,
                card.whole,
                memory_limit_bytes=effective.memory_limit_bytes,
                managed_bytes=managed_bytes,
            )
            for card in placed
        ),
    )


def _make_pages(
    record: TenantRecord, applicant: TenantIdentity, driver: LoadedDriver, state: DaemonState
) -> None:
    directory = state.mounts.make(
        record.key, size_bytes=SIZE_BYTES, owner=applicant.owner, label=applicant.label
    )
    cards = [driver.card(allocation.uuid) for allocation in record.allocations]
    granted = [
        CardGrant(
            card.uuid,
            allocation.quota_bytes,
            driver.contexts.sizes.get(card.model, 0),
            allocation.cores,
            allocation.managed_bytes,
        )
        for card, allocation in zip(cards, record.allocations, strict=True)
        if card is not None
    ]
    pages = Pages.make(directory, record.key, granted, applicant.status_owner)
    pages.grant.set_mps(is_client=record.isolation == MPS)
    try:
        tenant_socket = TenantSocket.listen(record.key, directory)
    except BaseException:
        pages.close()
        raise
    state.tenants.add(record.key, pages)
    state.loop.soon(lambda: state.watch.listen(tenant_socket))
    state.loop.soon(state.mounts.refill)
