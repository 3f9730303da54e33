# SPDX-License-Identifier: Apache-2.0
"""The rows of cards and tenants (gpushare/protocol/rows.py), each computed here and nowhere else.

`ps`, `ls`, `why` and the metrics select from them. This module changes no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, cast

from gpushare import abi
from gpushare.daemon import scheduler_sync
from gpushare.daemon.freezer import is_frozen
from gpushare.daemon.identity import processes
from gpushare.daemon.node import Node
from gpushare.daemon.observe.compute_usage import CHECKED, GATE
from gpushare.daemon.observed import ComputeUsage, Observations
from gpushare.daemon.pages.status_page import MemoryUse, ProcessClaim, TenantClaims
from gpushare.daemon.placement.model import NO_NODE, CardCapacity
from gpushare.daemon.policy import Share
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.protocol.rows import (
    ACTIONS,
    CardComputeUsage,
    CardLink,
    CardRow,
    Intervention,
    NonTenantProcessStatus,
    TenantCard,
    TenantEviction,
    TenantRow,
)
from gpushare.settings import MPS

_MOST_NON_TENANTS: Final = 64  # they fit a packet


# --- cards ---


def card_rows(state: DaemonState, uuid: str = "") -> Iterator[CardRow]:
    """Yield a row for each card, or for the card `uuid`."""
    if state.node.driver is None:
        return
    capacities = state.accounts.capacities()
    evicted = evicted_by_card(state.ledger)
    uses = {capacity.card.uuid: list[int | None]() for capacity in capacities}
    strays = {(card.card.uuid, other.pid) for card in capacities for other in card.non_tenants}
    for on_cards in state.observed.usage.processes.values():
        for place, use in on_cards:
            if place in uses and (place, use.pid) not in strays:
                uses[place].append(use.bytes)
    for capacity in capacities:
        if uuid in {"", capacity.card.uuid}:
            yield _card_row(capacity, capacities, uses[capacity.card.uuid], evicted, state)


def _card_row(
    capacity: CardCapacity,
    capacities: Sequence[CardCapacity],
    used_bytes: Sequence[int | None],
    evicted_by_card: Mapping[str, tuple[int, int]],
    state: DaemonState,
) -> CardRow:
    card, links, last = capacity.card, state.node.loaded().links, state.observed.last
    fault = scheduling_fault(state.node, state.ledger)
    reason = fault or _unschedulable(capacity)
    is_closed = fault or capacity.health != "ok" or capacity.cordoned is not None
    node = links.node(card.uuid)
    evicted_tenants, evicted_bytes = evicted_by_card.get(card.uuid, (0, 0))
    largest_first = sorted(capacity.non_tenants, key=lambda process: -process.bytes)
    return CardRow(
        index=card.index,
        uuid=card.uuid,
        model=card.model,
        name=card.name or card.model,
        brand=card.brand,
        bus_id=card.bus_id,
        compute_capability=".".join(map(str, card.capability or ())),
        is_datacenter=card.datacenter,
        memory_bytes=card.memory_bytes,
        system_reserved_bytes=capacity.reserve_bytes,
        used_bytes=_used_bytes(capacity, used_bytes),
        allocated_bytes=capacity.allocated_bytes,
        burst_granted_bytes=capacity.burst_granted_bytes,
        non_tenant_bytes=capacity.non_tenant_bytes,
        non_tenant_processes=[
            cast(NonTenantProcessStatus, dict(vars(process)))
            for process in largest_first[:_MOST_NON_TENANTS]
        ],
        non_tenant_actions=_non_tenant_actions(capacity),
        unattributed_bytes=capacity.unattributed_bytes,
        available_bytes=0 if is_closed else capacity.available_bytes,
        evicted_bytes=evicted_bytes,
        evicted_tenants=evicted_tenants,
        cores_available=capacity.cores_available,
        tenants=len(capacity.allocations),
        max_tenants=capacity.rule.max_tenants,
        mode=_mode(capacity),
        mps_trusted=capacity.rule.mps_trusted and capacity.backend == MPS,
        utilization=capacity.utilization,
        sensors={} if last is None else last.sample.sensors.get(card.uuid, {}),
        health=capacity.health,
        xids={
            str(number): count
            for (uuid, number), count in state.observed.xids.items()
            if uuid == card.uuid
        },
        policy=capacity.policy,
        allowed_mode=capacity.rule.mode,
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
            if other.card.uuid != card.uuid
            for link in (links.link(card.uuid, other.card.uuid),)
        ],
    )


def scheduling_fault(node: Node, ledger: Ledger) -> str:
    """Return why no container gets a card of this node now, "" if they do."""
    if node.driver_fault:
        return f"driver: {node.driver_fault}"
    return f"integrity: {ledger.integrity.why}" if ledger.integrity.why else ""


def _unschedulable(capacity: CardCapacity) -> str:
    if capacity.health != "ok":
        return f"unhealthy: {capacity.health}"
    if capacity.cordoned is not None:
        return f"cordoned: {capacity.cordoned}" if capacity.cordoned else "cordoned"
    if capacity.backend == MPS:
        return "mps: it takes only containers that request the backend mps"
    return ""


def _mode(capacity: CardCapacity) -> str:
    if capacity.backend == MPS:
        return MPS
    if not capacity.holders:
        return "unused"
    return "exclusive" if capacity.exclusive else "shared"


def _used_bytes(capacity: CardCapacity, figures: Sequence[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    non_tenants = sum(process.bytes for process in capacity.non_tenants)
    return sum(known) + non_tenants if len(known) == len(figures) else None


def _non_tenant_actions(capacity: CardCapacity) -> dict[str, int]:
    actions = ["warn" if process.container else "ignore" for process in capacity.non_tenants]
    return {action: actions.count(action) for action in ACTIONS}


def evicted_by_card(ledger: Ledger) -> dict[str, tuple[int, int]]:
    """Return, by card, how many tenants' memory was evicted from it, and its bytes."""
    evicted: dict[str, tuple[int, int]] = {}
    for record in ledger.entries.values():
        if record.eviction is None or not record.is_off_card:
            continue
        for uuid, size in zip(record.eviction.cards, record.eviction.card_bytes, strict=False):
            tenants, total = evicted.get(uuid, (0, 0))
            evicted[uuid] = tenants + 1, total + size
    return evicted


def card_index(uuid: str, node: Node) -> int:
    """Return the index of a card, -1 if it is gone."""
    return -1 if (card := node.card(uuid)) is None else card.index


# --- tenants ---


class RowLookups:
    """Facts that the rows of one answer have in common, looked up once: a node has many mounts."""

    def __init__(self, node: Node, ledger: Ledger) -> None:
        self._shares = scheduler_sync.shares_by_card(node, ledger)

    def share(self, key: str, uuid: str) -> Share | None:
        """Return the compute share of a tenant on a card; None while it takes no turns there."""
        return self._shares.get(uuid, {}).get(key)

    @cached_property
    def cgroups(self) -> processes.Cgroups:
        """The mounted cgroup hierarchies."""
        return processes.Cgroups.mounted()


def tenant_row(record: TenantRecord, state: DaemonState, lookups: RowLookups) -> TenantRow:
    """Return the row of a tenant."""
    pages = state.tenants.pages.get(record.key)
    claims, accounts = ((), ()) if pages is None else pages.accounts()[:2]
    cards = []
    for number in range(0 if state.node.driver is None else len(record.allocations)):
        account = accounts[number] if number < len(accounts) else TenantClaims()
        memory = accounted_memory(record, number, claims, account, state)
        if record.is_off_card:  # it uses nothing, unless the audit has found it there
            part = record.allocations[number]
            finding = state.observed.findings.get((record.key, part.uuid))
            there = _kinds({}, 0 if finding is None else finding.used_bytes)
            memory = TenantMemory(there, part.quota_bytes, account)
        cards.append(tenant_card(record, number, memory, state, lookups))
    return {
        "key": record.key,
        "id": record.id,
        "name": record.title,
        "engine": record.engine,
        "pod": record.of_pod,
        "uid": _user(record),
        "labels": dict(record.labels),
        "state": record.state,
        "policy": record.policy,
        "class": record.class_,
        "priority": record.priority,
        "isolation": record.isolation,
        "interventions": interventions(record, state.ledger),
        "created": record.created,
        "idle_since": state.observed.idle.get(record.key),
        "eviction": eviction_row(record, state.node, state.observed),
        "denied_allocations": 0 if pages is None else pages.denials.total,
        "denied_since_start": 0 if pages is None else pages.denials.seen,
        "cards": cards,
    }


def _user(record: TenantRecord) -> int | None:
    if record.engine == "host":
        return record.uid
    return processes.owner_of(record.pid) if record.state == "bound" else None


def interventions(record: TenantRecord, ledger: Ledger) -> list[Intervention]:
    """Return what froze, paused or is stopping a tenant; another program: "engine"."""
    freezes = ledger.freezes.of(record.key)
    if not freezes and is_frozen(record):
        return [Intervention(by="engine", reason="", since=None)]
    return [Intervention(by=freeze.by, reason=freeze.why, since=freeze.since) for freeze in freezes]


def eviction_row(record: TenantRecord, node: Node, observed: Observations) -> TenantEviction | None:
    """Return where the GPU memory of a tenant is, None if it is on its cards."""
    eviction = record.eviction
    if eviction is None:
        return None
    return TenantEviction(
        state=eviction.state,
        since=eviction.since,
        cause=eviction.cause,
        reason=eviction.reason,
        bytes=eviction.bytes,
        from_cards=[card_index(uuid, node) for uuid in eviction.cards],
        held=eviction.held,
        waits_since=observed.waiting.get(record.key),
        error=eviction.error,
    )


def tenant_card(
    record: TenantRecord, number: int, memory: TenantMemory, state: DaemonState, lookups: RowLookups
) -> TenantCard:
    """Return a tenant's part of its card `number`, of which it uses `memory`."""
    allocation, observed = record.allocations[number], state.observed
    place = record.key, allocation.uuid
    card = state.node.card(allocation.uuid)
    compute, finding = observed.compute_of(*place), observed.findings.get(place)
    share, used_bytes = lookups.share(*place), memory.used_bytes
    stale = bool(observed.usage.stale)
    listed = observed.usage.processes.get(record.key, ())
    uses = [use for uuid, use in listed if uuid == allocation.uuid]
    most_bytes = allocation.burst_limit_bytes if card is None else card.memory_bytes
    utilization, source = busy_cores(compute, running=record.state == "bound")
    return TenantCard(
        index=-1 if card is None else card.index,
        uuid=allocation.uuid,
        quota_bytes=allocation.quota_bytes,
        burst_limit_bytes=allocation.burst_limit_bytes,
        limit_bytes=memory.limit_bytes,
        used_bytes=used_bytes,
        kinds=dict(memory.kinds),
        over_limit_bytes=max(0, used_bytes - memory.limit_bytes),
        overhead_bytes=memory.overhead_bytes,
        contexts=memory.account.contexts,
        evicted_bytes=record.evicted_bytes(number) if record.is_off_card else 0,
        oversubscribed_bytes=memory.account.spared_bytes,
        oversubscribed_limit_bytes=allocation.managed_bytes,
        peak_bytes=max(used_bytes, min(observed.peaks.get(place, 0), most_bytes)),
        expected_bytes=memory.expected_bytes,
        driver_bytes=driver_sum(use.bytes for use in uses),
        over_quota_bytes=max(0, finding.used_bytes - finding.may_bytes) if finding else 0,
        over_quota_state=finding.level if finding else "",
        cores=allocation.cores,
        policy=record.policy_on(allocation, state.node.policy_of(allocation.uuid)),
        share_percent=None if share is None else share.permille / 10,
        is_capped=share is not None and share.capped,
        utilization=utilization,
        utilization_source=source,
        encoder_percent=None if stale else driver_sum(use.encoder_percent for use in uses),
        decoder_percent=None if stale else driver_sum(use.decoder_percent for use in uses),
        gpu_seconds=compute.got_ns / 1e9,
        last_active=max(compute.last_active, record.created),
        compute=_compute_usage(compute),
    )


def driver_sum(figures: Iterable[int | None]) -> int | None:
    """Return the sum of the driver's figures; None if it lists processes and has none of any."""
    listed = list(figures)
    known = [figure for figure in listed if figure is not None]
    return sum(known) if known or not listed else None


def busy_cores(compute: ComputeUsage, *, running: bool) -> tuple[float | None, str]:
    """Return percent of the card over ten seconds, and the source: the driver, or the gate.

    The driver's figure comes first. If it has none, or reports 0 for a tenant that the gate charged
    (drivers do, for cards that are newer than they are), the gate's is used.
    """
    charged = compute.cores_used[CHECKED] if compute.source == GATE else None
    measured = compute.driver_percent
    if measured is not None and (measured or not charged):
        return measured, "driver"
    if charged is not None:
        return charged, "gate"
    # Nothing runs before a tenant is bound: that it has used nothing is known.
    return (None, "") if running else (0.0, "gate")


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


# --- a tenant's memory on a card: its kinds add up to what counts against the quota, whatever the
# tenant wrote about itself ---

#: The kinds that a process records itself, in the order of the report.
_RECORDED: Final[Mapping[str, int]] = {
    "buffers": abi.KIND_BUFFER,
    "managed": abi.KIND_MANAGED,
    "pools": abi.KIND_POOL,
    "physical": abi.KIND_PHYSICAL,
    "arrays": abi.KIND_ARRAY,
    "graphs": abi.KIND_GRAPH,
    "modules": abi.KIND_MODULE,
    "context_limits": abi.KIND_CONTEXT_LIMIT,
    "external": abi.KIND_EXTERNAL,
    "contexts": abi.KIND_CONTEXT,
}
_OVERHEAD: Final = ("contexts", "modules", "unaccounted")


@dataclass(frozen=True)
class TenantMemory:
    """A tenant's memory of one card; `account` is the sum of its processes' claims there."""

    kinds: Mapping[str, int]  # bytes, by KINDS
    limit_bytes: int  # the most it may use now
    account: TenantClaims = field(default_factory=TenantClaims)
    most_bytes: int = 0  # the most that it may claim
    expected_bytes: int | None = None  # the driver's figure, by the account; None: it has none

    @property
    def used_bytes(self) -> int:
        """Memory that counts against the quota."""
        return sum(self.kinds.values())

    @property
    def overhead_bytes(self) -> int:
        """The part of it that no allocation of the tenant's requested; 0 without an account."""
        if self.expected_bytes is None:
            return 0
        return sum(self.kinds[name] for name in _OVERHEAD)


def accounted_memory(
    record: TenantRecord,
    number: int,
    claims: Iterable[ProcessClaim],
    account: TenantClaims,
    state: DaemonState,
) -> TenantMemory:
    """Return the memory in the account of a tenant; without one, the driver's figure."""
    allocation, pages = record.allocations[number], state.tenants.pages.get(record.key)
    if pages is None or number >= pages.grant.card_count:
        figure = state.observed.usage.driver_bytes[record.key, allocation.uuid]
        return TenantMemory(_kinds({}, figure), allocation.quota_bytes)
    most = most_bytes(allocation, state.node)
    return TenantMemory(
        _kinds(_claimed(claims, number, account, most), pages.grant.overhead_bytes(number)),
        pages.grant.limit_bytes(number),
        account,
        most,
        min(account.expected_bytes, most),
    )


def _kinds(claimed: Mapping[str, int], unaccounted: int) -> dict[str, int]:
    return {**dict.fromkeys(_RECORDED, 0), "orphaned": 0, **claimed, "unaccounted": unaccounted}


def most_bytes(allocation: CardAllocation, node: Node) -> int:
    """Return the most that a tenant may claim of a card: its memory, and host memory beyond it.

    Of a card that is gone, it is what is allocated of it.
    """
    card = node.card(allocation.uuid)
    most = allocation.burst_limit_bytes if card is None else card.memory_bytes
    return most + allocation.managed_bytes


def process_kinds(held: MemoryUse) -> dict[str, int]:
    """Return what a process holds, by kind.

    The kinds add up to the total: the recorded bytes of a kind are capped by the bytes that remain,
    and buffers are the rest. The two are not read at the same moment, and the tenant may write
    anything.
    """
    sizes, rest = dict.fromkeys(_RECORDED, 0), held.held_bytes
    for name, kind in _RECORDED.items():
        if kind != abi.KIND_BUFFER:
            sizes[name] = min(held.kinds[kind], rest)
            rest -= sizes[name]
    sizes["buffers"] = rest
    return sizes


def _claimed(
    claims: Iterable[ProcessClaim], number: int, account: TenantClaims, most: int
) -> dict[str, int]:
    """Return what processes claim of card `number`, by kind, and what is orphaned there.

    Managed memory that host memory is reserved for does not count. The rest is at most what the
    card has, which is `most` without that.
    """
    sizes = dict.fromkeys(_RECORDED, 0)
    for claim in claims:
        for name, size in process_kinds(claim.held[number]).items():
            sizes[name] += size
    sizes["orphaned"] = account.orphaned_bytes
    sizes["managed"] = max(0, sizes["managed"] - account.spared_bytes)
    left = most - account.spared_bytes
    for name, size in sizes.items():
        sizes[name] = min(size, left)
        left -= sizes[name]
    return sizes
