# SPDX-License-Identifier: Apache-2.0
"""The rows of cards and tenants for clients. This module changes no state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Final, Literal, NamedTuple

from gpushare.daemon import scheduler_sync
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.cards.mps_state import MPS, MpsCardState
from gpushare.daemon.core.loop import boottime
from gpushare.daemon.eviction.checkpoint_client import why_unsupported
from gpushare.daemon.eviction.preconditions import host_memory_bound
from gpushare.daemon.identity import processes
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.observe.time_limits import ends_at
from gpushare.daemon.observed import ComputeUsage
from gpushare.daemon.pages.status_page import ProcessClaim, TenantClaims, sum_claims
from gpushare.daemon.placement.choose import find_obstacle
from gpushare.daemon.placement.model import NO_LINKS, NO_NODE, AllocationUse, CardCapacity, Links
from gpushare.daemon.placement.request import PlacementRequest
from gpushare.daemon.placement.waiting import WaitingRequest
from gpushare.daemon.policy import Share
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.store.ticket import TicketRecord
from gpushare.daemon.views.tenant_memory import memory_of
from gpushare.daemon.views.tenant_warnings import warnings_of
from gpushare.metrics_schema import CardSensors
from gpushare.protocol import (
    MAX_REPLY_BYTES,
    CardComputeUsage,
    CardLink,
    CardStatus,
    Intervention,
    NonTenantProcessStatus,
    ProcessCard,
    ProfileStatus,
    TenantCard,
    TenantEviction,
    TenantMps,
    TenantProcess,
    TenantStatus,
)
from gpushare.protocol.queue import QueueEntry, TicketStatus
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.keys import request_from
from gpushare.quota.request import PROFILE, RequestedValue, ValueSource, recorded_text
from gpushare.quota.request_policy import ShareProfile
from gpushare.quota.size import format_size

# The most rows that fit one packet.
_MOST_NON_TENANTS = 64
_MOST_ROW_BYTES = MAX_REPLY_BYTES - 1024
_SURELY_FEW = 24  # entries that fit whatever they contain
_SHORTENED: tuple[Literal["processes", "warnings", "notes"], ...] = (
    *("processes", "warnings", "notes"),
)
_MOST_PROCESSES = 192
_MOST_USES = 256  # of all processes together, one for each card that a process uses


def card_row(
    capacity: CardCapacity,
    capacities: Sequence[CardCapacity] = (),
    links: Links = NO_LINKS,
    fault: str = "",
    sensors: CardSensors | None = None,
) -> CardStatus:
    """Return one row of `gpushare ls`; `capacities` are the cards to show links to.

    `fault` is why no card can be allocated; "" if they can. The caller adds what is evicted.
    """
    sensors = sensors or {}
    reason = fault or _unschedulable(capacity)
    node = links.node(capacity.card.uuid)
    largest_first = sorted(capacity.non_tenants, key=lambda process: -process.bytes)
    return CardStatus(
        index=capacity.card.index,
        uuid=capacity.card.uuid,
        model=capacity.card.model,
        brand=capacity.card.brand,
        compute_capability=".".join(map(str, capacity.card.capability or ())),
        is_datacenter=capacity.card.datacenter,
        memory_bytes=capacity.card.memory_bytes,
        system_reserved_bytes=capacity.reserve_bytes,
        allocated_bytes=capacity.allocated_bytes,
        burst_used_bytes=capacity.burst_used_bytes,
        burst_granted_bytes=capacity.burst_granted_bytes,
        non_tenant_bytes=capacity.non_tenant_bytes,
        non_tenant_processes=[
            NonTenantProcessStatus(
                pid=process.pid,
                name=process.name,
                bytes=process.bytes,
                container=process.container,
            )
            for process in largest_first[:_MOST_NON_TENANTS]
        ],
        unattributed_bytes=capacity.unattributed_bytes,
        available_bytes=available_bytes(capacity, fault),
        evicted_bytes=0,
        evicted_tenants=0,
        cores_available=capacity.cores_available,
        tenants=len(capacity.allocations),
        max_tenants=capacity.max_tenants,
        mode=card_mode(capacity),
        utilization=capacity.utilization,
        temperature_celsius=sensors.get("temperature_celsius"),
        power_milliwatts=sensors.get("power_milliwatts"),
        health=capacity.health,
        policy=capacity.policy,
        allowed_mode=capacity.mode,
        schedulable_bytes=capacity.schedulable_bytes,
        schedulable_cores=capacity.schedulable_cores,
        is_schedulable=not reason,
        schedulable_reason=reason,
        cordoned=capacity.cordoned is not None,
        cordon_reason=capacity.cordoned or "",
        numa_node=None if node == NO_NODE else node,
        links=[
            CardLink(
                index=other.card.index, uuid=other.card.uuid, kind=link.kind, distance=link.distance
            )
            for other in capacities
            if other.card.uuid != capacity.card.uuid
            for link in (links.link(capacity.card.uuid, other.card.uuid),)
        ],
    )


def available_bytes(capacity: CardCapacity, fault: str) -> int:
    """Return what a new container may still get of a card: nothing of one that takes none."""
    is_closed = fault or capacity.health != "ok" or capacity.cordoned is not None
    return 0 if is_closed else capacity.available_bytes


def scheduling_fault(state: DaemonState) -> str:
    """Return why no container gets a card of this node now, "" if they do."""
    if state.node.driver_fault:
        return f"driver: {state.node.driver_fault}"
    return f"integrity: {state.ledger.integrity.why}" if state.ledger.integrity.why else ""


def _unschedulable(capacity: CardCapacity) -> str:
    if capacity.health != "ok":
        return f"unhealthy: {capacity.health}"
    if capacity.cordoned is not None:
        return f"cordoned: {capacity.cordoned}" if capacity.cordoned else "cordoned"
    if capacity.backend == MPS:
        return "mps: it takes only containers that request the backend mps"
    return ""


def card_mode(capacity: CardCapacity) -> str:
    """Return "unused", "shared" or "exclusive"; "mps" for a card in that mode, used or not."""
    if capacity.backend == MPS:
        return MPS
    if not capacity.holders:
        return "unused"
    return "exclusive" if capacity.exclusive else "shared"


class RowLookups:
    """What the rows of one answer have in common, looked up once: a node has many mounts."""

    def __init__(self, state: DaemonState) -> None:
        self._state = state
        self._shares: dict[str, dict[str, Share]] = {}

    @cached_property
    def cgroups(self) -> processes.Cgroups:
        """The mounted cgroup hierarchies."""
        return processes.Cgroups.mounted()

    def shares(self, uuid: str) -> dict[str, Share]:
        """Return the compute share of each tenant on a card."""
        if uuid not in self._shares:
            self._shares[uuid] = scheduler_sync.shares_on_card(uuid, self._state)
        return self._shares[uuid]


def tenant_row(
    record: TenantRecord, state: DaemonState, lookups: RowLookups | None = None
) -> TenantStatus:
    """Return one row of `gpushare ps`; `lookups` are those of the other rows of the answer."""
    lookups = lookups or RowLookups(state)
    pages = state.tenants.pages.get(record.key)
    claims = () if pages is None else pages.claims()
    limits = [allocation.managed_bytes for allocation in record.allocations]
    sums = sum_claims(claims, len(record.allocations), limits)
    cards = _card_rows(record, claims, sums, state, lookups)
    row = TenantStatus(
        key=record.key,
        id=record.id,
        name=record.title,
        engine=record.engine,
        pod=record.of_pod,
        state=record.state,
        reason=record.why,
        pid=record.pid,
        policy=record.policy,
        online=record.class_ == "online",
        priority=record.priority,
        weight=record.weight,
        isolation=record.isolation,
        mps=_mps(record, state),
        over_quota_action=state.node.over_quota_action(record) if record.shared else "",
        throttled_ratio=max(
            (card["compute"]["throttled"]["1s"] or 0.0 for card in cards), default=0.0
        ),
        created_at=record.created,
        idle_since=state.observed.idle.get(record.key),
        evicted=eviction_row(record, state),
        ends_at=ends_at(record),
        cards=cards,
        processes=_process_rows(record, claims, state, lookups) if record.state == "bound" else [],
        interventions=interventions(record, state),
        quota={key: recorded_text(value) for key, value in record.quota.items()},
        notes=list(record.notes),
        warnings=list(warnings_of(record, cards, interventions(record, state), state)),
    )
    return _within_packet(row)


def _mps(record: TenantRecord, state: DaemonState) -> TenantMps | None:
    """Return what a tenant has of its card's MPS server, None for one that is no client."""
    if record.isolation != MPS or not record.allocations:
        return None
    grant, loss = state.node.mps.grant_of(record.key), state.node.mps.loss_of(record.key)
    card = state.node.mps.cards.get(record.allocations[0].uuid, MpsCardState())
    limit = grant.memory_limit if grant else ""
    return TenantMps(
        share=grant.share if grant else "",
        percentage=grant.percentage if grant else 100,
        chunks=grant.chunks if grant else 0,
        memory_limit="cgroup" if record.key in state.tenants.limited_clients else limit,
        server_state=card.server_state,
        lost=loss.reason if loss else "",
    )


def _within_packet(row: TenantStatus) -> TenantStatus:
    """Return `row` short enough for a packet: one tenant must not keep the others from being shown.

    What is left out, as far as it has to be, is the end of the lists that a tenant makes long.
    """

    def is_too_long() -> bool:
        return len(json.dumps(row, separators=(",", ":"))) > _MOST_ROW_BYTES

    if len(row["processes"]) + len(row["warnings"]) + len(row["notes"]) <= _SURELY_FEW:
        return row
    for key in _SHORTENED:
        while row[key] and is_too_long():
            row[key] = row[key][: len(row[key]) // 2]
    return row


def interventions(record: TenantRecord, state: DaemonState) -> list[Intervention]:
    """Return what froze, paused or is stopping a tenant."""
    freezes = state.ledger.freezes.of(record.key)
    return [Intervention(by=freeze.by, reason=freeze.why, since=freeze.since) for freeze in freezes]


def _card_rows(
    record: TenantRecord,
    claims: Sequence[ProcessClaim],
    sums: tuple[TenantClaims, ...],
    state: DaemonState,
    lookups: RowLookups,
) -> list[TenantCard]:
    if state.node.driver is None:
        return []
    return [
        _card(record, number, allocation, claims, sums[number], state, state.node.driver, lookups)
        for number, allocation in enumerate(record.allocations)
    ]


def _card(  # noqa: PLR0913, PLR0917 - a row is put together from all there is
    record: TenantRecord,
    number: int,
    allocation: CardAllocation,
    claims: Sequence[ProcessClaim],
    account: TenantClaims,
    state: DaemonState,
    driver: LoadedDriver,
    lookups: RowLookups,
) -> TenantCard:
    card = driver.card(allocation.uuid)
    found = state.observed.findings.get((record.key, allocation.uuid))
    compute = _compute_usage(state.observed.compute_of(record.key, allocation.uuid))
    share = lookups.shares(allocation.uuid).get(record.key)
    memory = memory_of(record, number, claims, account, state)
    used, limit = memory.used_bytes, memory.limit_bytes
    pages = state.tenants.pages.get(record.key)
    return TenantCard(
        index=-1 if card is None else card.index,
        uuid=allocation.uuid,
        quota_bytes=allocation.quota_bytes,
        burst_limit_bytes=allocation.burst_limit_bytes,
        current_limit_bytes=limit,
        used_bytes=used,
        burst_used_bytes=max(0, used - allocation.quota_bytes),
        over_limit_bytes=max(0, used - limit),
        tracked_bytes=used - memory.overhead_bytes,
        oversubscribed_bytes=account.spared_bytes,
        oversubscribed_limit_bytes=allocation.managed_bytes,
        overhead_bytes=memory.overhead_bytes,
        contexts=account.contexts,
        cores=allocation.cores,
        policy=record.policy_on(allocation, state.node.policy_of(allocation.uuid)),
        share_percent=None if share is None else share.permille / 10,
        is_capped=share is not None and share.capped,
        cores_used_1s=compute["cores_used"]["1s"],
        compute=compute,
        denied_allocations=0 if pages is None else pages.denials.total,
        over_quota_state=found.level if found else "",
    )


def _compute_usage(compute: ComputeUsage) -> CardComputeUsage:
    return CardComputeUsage(
        cores_source=compute.source,
        gate=compute.gate,
        cores_used={f"{seconds}s": _rounded(got) for seconds, got in compute.cores_used.items()},
        throttled={f"{seconds}s": _rounded(part) for seconds, part in compute.throttled.items()},
        charged_ns=compute.charged_ns,
        windows=compute.windows,
        overruns=compute.overruns,
        forced_launches=compute.forced_launches,
        throttled_ns=compute.throttled_ns,
        is_hung=compute.is_hung,
        driver_utilization=_rounded(compute.driver_percent),
        gate_bypassed=compute.gate_bypassed,
    )


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def _process_rows(
    record: TenantRecord,
    claims: Sequence[ProcessClaim],
    state: DaemonState,
    lookups: RowLookups,
) -> list[TenantProcess]:
    """Return the processes that use the driver: those that claim to, and those that it lists."""
    by_driver: dict[int, list[tuple[str, ProcessUse]]] = {}
    if state.node.driver is not None:
        for uuid, use in state.observed.usage.processes.get(record.key, ()):
            by_driver.setdefault(use.pid, []).append((uuid, use))
    claimed = {(claim.pid, claim.starttime) for claim in claims}
    found = [
        process
        for process in processes.members(record.cgroup, record.pid, lookups.cgroups)
        if (process.namespaced_pid, process.starttime) in claimed or process.pid in by_driver
    ]
    rows: list[TenantProcess] = []
    left = _MOST_USES
    for process in sorted(found, key=lambda one: one.pid)[:_MOST_PROCESSES]:
        uses = by_driver.get(process.pid, [])
        rows.append(_process_row(process, uses[:left], state))
        left -= len(uses[:left])
    return rows


def _process_row(
    process: processes.Process, uses: Sequence[tuple[str, ProcessUse]], state: DaemonState
) -> TenantProcess:
    known = [use.bytes for _, use in uses if use.bytes is not None]
    return TenantProcess(
        pid=process.pid,
        container_pid=process.namespaced_pid,
        name=processes.name_of(process.pid),
        bytes=sum(known) if known else None,
        cards=[
            ProcessCard(index=card_index(uuid, state), bytes=use.bytes, utilization=use.utilization)
            for uuid, use in uses
        ],
    )


def card_index(uuid: str, state: DaemonState) -> int:
    """Return the index of a card, -1 if it is gone."""
    card = None if state.node.driver is None else state.node.driver.card(uuid)
    return -1 if card is None else card.index


# --- evictions ---


class EvictedOnCard(NamedTuple):
    """The evicted tenants that a card's memory came from."""

    tenants: int = 0
    bytes: int = 0


def eviction_row(record: TenantRecord, state: DaemonState) -> TenantEviction | None:
    """Return where the GPU memory of a tenant is, None if it is on its cards."""
    eviction = record.eviction
    if eviction is None:
        return None
    cards = [
        None if state.node.driver is None else state.node.driver.card(one) for one in eviction.cards
    ]
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
    if state.node.driver is None:
        return "there is no driver"
    if host_memory_bound(state) <= 0:
        return "evict.host_memory of gpushare.yaml is 0"
    return why_unsupported(state.node.driver.nvml.driver_version)


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


# --- the node's profiles, and how many more containers of each the cards have room for ---

_SOURCE: Final = ValueSource("default", PROFILE)


def profile_rows(state: DaemonState) -> Iterator[ProfileStatus]:
    """Yield the row of each profile, in the order of gpushare.yaml."""
    terms = state.node.config.terms
    capacities = state.accounts.capacities()
    for profile in terms.profiles.values():
        request = _request(profile, terms.defaults.policy)
        yield ProfileStatus(
            name=profile.name,
            requests=dict(profile.values),
            fits=sum(_fits(request, capacity) for capacity in capacities),
        )


def _request(profile: ShareProfile, policy: str | None) -> PlacementRequest:
    named = RequestedValue(profile.name, profile.name, _SOURCE)
    effective = resolve_request(request_from(profile.layer(named)))
    return PlacementRequest(
        memory_bytes=effective.memory_bytes,
        memory_percent=effective.memory_percent,
        memory_limit_bytes=effective.memory_limit_bytes,
        cores=effective.cores,
        policy=profile.values.get("policy") or policy or effective.policy,
    )


def _fits(request: PlacementRequest, capacity: CardCapacity) -> int:
    """Return how many more of a request a card has room for, one placed after the other."""
    more: list[AllocationUse] = []
    for number in count():
        held = (*capacity.allocations, *more)
        if find_obstacle(request, replace(capacity, allocations=held)) is not None:
            return number
        wanted = request.wanted_of(capacity)
        more.append(AllocationUse("", wanted.memory_bytes, wanted.cores))
    raise AssertionError


# --- the queue: who waits, in which order, and why ---


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
    if state.node.driver is None:
        return state.node.no_driver_reason
    return state.ledger.integrity.why or state.queue.reasons.get(ticket.id, "")


def _granted(ticket: TicketRecord, state: DaemonState) -> QueueEntry:
    found = (
        (state.node.loaded().card(one.uuid) for one in ticket.allocations)
        if state.node.driver
        else ()
    )
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
        requests="a whole card" if first.whole else f"{format_size(first.quota_bytes)}{cores}",
        count=len(ticket.allocations),
        memory_bytes=None if first.whole else first.quota_bytes,
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
