# SPDX-License-Identifier: Apache-2.0
"""The figures of gpushare/metrics_schema.py, for metrics. This module changes no state."""

from __future__ import annotations

import operator
import os
import time
import traceback
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final, NamedTuple

import gpushare
from gpushare import abi
from gpushare.daemon.core.log import event_count, log
from gpushare.daemon.identity import processes
from gpushare.daemon.node import LoadedDriver
from gpushare.daemon.observe.compute_usage import CHECKED, GATE
from gpushare.daemon.observed import ComputeUsage
from gpushare.daemon.pages.grant_page import Gate
from gpushare.daemon.pages.status_page import ProcessClaim, TenantClaims
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.model import CardCapacity
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.views.status_rows import (
    available_bytes,
    card_mode,
    evicted_on,
    scheduling_fault,
)
from gpushare.daemon.views.tenant_memory import memory_of
from gpushare.events import COUNTED
from gpushare.metrics_schema import (
    ACTIONS,
    CardMetrics,
    CardSensors,
    EndedTenantMetrics,
    EvictionMetrics,
    NodeMetrics,
    TenantCardMetrics,
    TenantMetrics,
)
from gpushare.protocol.kubernetes import NODE_NAME

# What the parts of `gpushare why` are called one by one.
_KIND_OF: Final = {
    "buffers": "buffer",
    "pools": "pool",
    "arrays": "array",
    "graphs": "graph",
    "modules": "module",
    "context_limits": "context_limit",
    "contexts": "context",
}


def daemon_metrics(state: DaemonState) -> NodeMetrics:
    """Return the figures of the daemon itself."""
    driver, evictions = state.node.driver, state.observed.evictions
    starts = [one for one in state.queue.waiting if not one.container]
    return NodeMetrics(
        version=gpushare.__version__,
        node_name=node_name(state),
        started=state.started,
        driver_version="" if driver is None else driver.nvml.driver_version,
        cuda_version="" if driver is None else driver.nvml.cuda_version,
        driver_up=driver is not None and not state.observed.usage.stale,
        scheduler_up=state.node.scheduler_pid != 0,
        operations=state.durations.figures(),
        events={event: event_count(event) for event in sorted(COUNTED)},
        evictions=EvictionMetrics(
            evictions=int(evictions.evictions),
            restores=int(evictions.restores),
            moves=int(evictions.moves),
            failures=int(evictions.failures),
            eviction_seconds=evictions.eviction_seconds,
            restore_seconds=evictions.restore_seconds,
            driver_seconds=evictions.driver_seconds,
        ),
        history_lost=0 if state.history is None else state.history.lost,
        queue_waiting=len(starts),
        queue_oldest_seconds=max((time.time() - one.since for one in starts), default=0.0),
        queue_granted=state.queue.granted,
        queue_waited_seconds=state.queue.waited_seconds,
    )


def node_name(state: DaemonState) -> str:
    """Return the name of this machine in Kubernetes, "" if it is not known here."""
    return state.node.config.node_name or os.environ.get(NODE_NAME, "")


def card_metrics(state: DaemonState) -> Iterator[CardMetrics]:
    """Yield a row for each card."""
    if state.node.driver is not None:
        for capacity in state.accounts.capacities():
            yield _card(capacity, state)


def _card(capacity: CardCapacity, state: DaemonState) -> CardMetrics:
    uuid = capacity.card.uuid
    held = [
        use.bytes
        for seen in state.observed.usage.processes.values()
        for card, use in seen
        if card == uuid
    ]
    unallocated = sum(container.bytes for container in capacity.non_tenants)
    evicted = evicted_on(uuid, state)
    return CardMetrics(
        index=capacity.card.index,
        uuid=uuid,
        model=capacity.card.model,
        name=capacity.card.name or capacity.card.model,
        bus_id=capacity.card.bus_id,
        memory_bytes=capacity.card.memory_bytes,
        used_bytes=None if None in held else sum(one or 0 for one in held) + unallocated,
        allocated_bytes=capacity.allocated_bytes,
        available_bytes=available_bytes(capacity, scheduling_fault(state)),
        burst_bytes=capacity.burst_granted_bytes,
        non_tenant_bytes=capacity.non_tenant_bytes,
        evicted_bytes=evicted.bytes,
        evicted_tenants=evicted.tenants,
        cores_allocated=100 - capacity.cores_available,
        utilization=capacity.utilization,
        tenants=len(capacity.allocations),
        max_tenants=capacity.max_tenants,
        mode=card_mode(capacity),
        cordoned=capacity.cordoned is not None,
        healthy=capacity.health == "ok",
        health=capacity.health,
        xids={
            str(number): count
            for (card, number), count in state.observed.xids.items()
            if card == uuid
        },
        non_tenant_processes=non_tenant_processes(capacity, state.node.config.unknown),
        sensors=card_sensors(state, uuid),
    )


def card_sensors(state: DaemonState, uuid: str) -> CardSensors:
    """Return what the sensors of a card said last; nothing if the driver does not answer."""
    last = state.observed.last
    return {} if last is None else last.sample.sensors.get(uuid, {})


def non_tenant_processes(capacity: CardCapacity, unknown: str) -> dict[str, int]:
    """Return how many processes are no tenant's, by what is done about them."""
    actions = [unknown if container.container else "ignore" for container in capacity.non_tenants]
    return {action: actions.count(action) for action in ACTIONS}


def tenant_metrics(state: DaemonState) -> Iterator[TenantMetrics]:
    """Yield a row for each tenant that has a part of a card, from its reservation on.

    A row is made again only if something that it is made of is another: many tenants are idle.
    """
    driver, observed = state.node.driver, state.observed
    if driver is None:
        return
    # Each is replaced, never changed.
    published = (
        *(driver, observed.usage, observed.compute, observed.peaks, observed.findings),
        state.node.card_overrides.all(),
    )
    for record in state.ledger.entries.values():
        pages = state.tenants.pages.get(record.key)
        if record.state == "none":
            continue
        if pages is None:
            yield _tenant(record, (), (), state, driver)
            continue
        claims, sums = pages.claims_and_sums()
        sources = (*published, record, claims, state.ledger.freezes.of(record.key))
        figures = (
            *(pages.denials.seen, observed.idle.get(record.key)),
            observed.waiting.get(record.key),
            *(pages.grant.overhead_bytes(number) for number in range(len(sums))),
            *(pages.grant.limit_bytes(number) for number in range(len(sums))),
        )
        known: _KnownRow | None = pages.metrics
        if known is None or not known.is_of(sources, figures):
            row = _tenant(record, claims, sums, state, driver)
            known = pages.metrics = _KnownRow(sources, figures, row)
        yield known.row


class _KnownRow(NamedTuple):
    """A row, and what it was made of."""

    sources: tuple[object, ...]
    figures: tuple[float | None, ...]
    row: TenantMetrics

    def is_of(self, sources: tuple[object, ...], figures: tuple[float | None, ...]) -> bool:
        return figures == self.figures and all(map(operator.is_, sources, self.sources))


def tenant_metrics_of(
    record: TenantRecord, pages: Pages | None, state: DaemonState
) -> TenantMetrics:
    """Return a new row of a tenant, the driver being loaded."""
    claims, sums = ((), ()) if pages is None else pages.claims_and_sums()
    return _tenant(record, claims, sums, state, state.node.loaded())


def _tenant(
    record: TenantRecord,
    claims: tuple[ProcessClaim, ...],
    sums: tuple[TenantClaims, ...],
    state: DaemonState,
    driver: LoadedDriver,
) -> TenantMetrics:
    pages = state.tenants.pages.get(record.key)
    return TenantMetrics(
        key=record.key,
        id=record.id,
        name=record.title,
        engine=record.engine,
        pod=record.of_pod,
        uid=_user(record),
        labels=dict(record.labels),
        mode="exclusive" if record.isolation == "exclusive" else "shared",
        policy=record.policy,
        class_=record.class_,
        priority=record.priority,
        isolation=record.isolation,
        held=[freeze.by for freeze in state.ledger.freezes.of(record.key)],
        created=record.created,
        idle_since=state.observed.idle.get(record.key),
        eviction="" if record.eviction is None else record.eviction.state,
        restore_waits_since=state.observed.waiting.get(record.key) if record.eviction else None,
        denied=0 if pages is None else pages.denials.seen,
        cards=[
            _part(record, number, allocation, (claims, sums), state, driver)
            for number, allocation in enumerate(record.allocations)
        ],
    )


def _user(record: TenantRecord) -> int | None:
    if record.engine == "host":
        return record.uid
    return processes.owner_of(record.pid) if record.state == "bound" else None


def _part(  # noqa: PLR0913, PLR0917 - a row is put together from all there is
    record: TenantRecord,
    number: int,
    allocation: CardAllocation,
    claims: tuple[tuple[ProcessClaim, ...], tuple[TenantClaims, ...]],
    state: DaemonState,
    driver: LoadedDriver,
) -> TenantCardMetrics:
    card, compute = (
        driver.card(allocation.uuid),
        state.observed.compute_of(record.key, allocation.uuid),
    )
    account = claims[1][number] if number < len(claims[1]) else None
    memory = memory_of(record, number, claims[0], account, state)
    used, expected = memory.used_bytes, memory.expected_bytes
    kinds = {_KIND_OF.get(part, part): size for part, size in memory.kinds.items()}
    utilization, source = busy_cores(compute, running=record.state == "bound")
    finding = state.observed.findings.get((record.key, allocation.uuid))
    has = state.observed.usage.driver_bytes(record.key, allocation.uuid)
    peak = state.observed.peaks.get((record.key, allocation.uuid), 0)
    return TenantCardMetrics(
        index=-1 if card is None else card.index,
        uuid=allocation.uuid,
        memory_bytes=allocation.quota_bytes,
        limit_bytes=memory.limit_bytes,
        used_bytes=used,
        kinds=kinds,
        evicted_bytes=record.evicted_bytes(number) if record.is_off_card else 0,
        oversubscribed_bytes=0 if account is None else account.spared_bytes,
        oversubscribed_limit_bytes=allocation.managed_bytes,
        drift_bytes=None if expected is None else expected - has,
        peak_bytes=max(
            used, min(peak, allocation.burst_limit_bytes if card is None else card.memory_bytes)
        ),
        cores=allocation.cores,
        policy=record.policy_on(allocation, state.node.policy_of(allocation.uuid)),
        utilization=utilization,
        source=source,
        gpu_seconds=compute.got_ns / 1e9,
        throttled_seconds=compute.throttled_ns / 1e9,
        throttled=compute.throttled[CHECKED] if record.state == "bound" else 0.0,
        forced=compute.forced_launches,
        active=max(compute.last_active, record.created),
        over_bytes=0 if finding is None else max(0, finding.used_bytes - finding.may_bytes),
        bypassed=compute.gate_bypassed,
        hung=compute.is_hung,
    )


def busy_cores(compute: ComputeUsage, *, running: bool) -> tuple[float | None, str]:
    """Return percent of the card over ten seconds, and the source: nvml, or the gate.

    The driver's figure comes first. If it has none, or reports 0 for a tenant that the gate charged
    (drivers do, for cards that are newer than they are), the gate's is used.
    """
    charged = compute.cores_used[CHECKED] if compute.source == GATE else None
    measured = compute.driver_percent
    if measured is not None and (measured or not charged):
        return measured, "nvml"
    if charged is not None:
        return charged, "gate"
    # Nothing runs before a tenant is bound: that it has used nothing is known.
    return (None, "") if running else (0.0, "gate")


# --- the last figures of tenants that were released, for the metrics history ---
#
# It samples every ten seconds. Without them it would not know what a tenant received since its last
# sample, or that there was a tenant that was there for less. They are kept for a minute, and in
# memory only: what ended before gpushared was restarted is not known afterwards.

KEPT_SECONDS: Final = 60.0
MOST_KEPT: Final = 512  # the earliest are dropped


class _EndedRow(NamedTuple):
    at: float  # monotonic seconds
    row: EndedTenantMetrics


def ended_metrics(state: DaemonState) -> Iterator[EndedTenantMetrics]:
    """Yield a row for each tenant that was released in the last minute, the earliest first."""
    oldest = time.monotonic() - KEPT_SECONDS
    yield from (kept.row for kept in state.tenants.ended.values() if kept.at >= oldest)


def keep_last_figures(key: str, state: DaemonState) -> None:
    """Keep the figures of tenant `key`, which is about to be released; the decide thread's.

    No error of it keeps a tenant from being released.
    """
    record, now = state.ledger.entries.get(key), time.monotonic()
    kept: dict[tuple[str, float], _EndedRow] = {
        life: ended for life, ended in state.tenants.ended.items() if ended.at >= now - KEPT_SECONDS
    }
    if record is None or record.state == "none" or state.node.driver is None:
        return
    life = key, record.created  # what is created again may have the same key
    if life in kept:
        return  # it is the second attempt to release it, and the first has closed its pages
    try:
        kept[life] = _EndedRow(now, _last_row(record, state))
    except Exception:  # noqa: BLE001 - see above
        log("metrics-history-failed", "error", tenant=key, traceback=traceback.format_exc())
        return
    for surplus in list(kept)[:-MOST_KEPT]:
        del kept[surplus]
    state.tenants.ended = MappingProxyType(kept)


def _last_row(record: TenantRecord, state: DaemonState) -> EndedTenantMetrics:
    pages = state.tenants.pages.get(record.key)
    row = tenant_metrics_of(record, pages, state)
    for number, part in enumerate(row["cards"]):
        if pages is not None:
            gpu_ns, waited_ns = _since_the_last_look(record, number, pages, state)
            part["gpu_seconds"] += gpu_ns / 1e9
            part["throttled_seconds"] += waited_ns / 1e9
    return EndedTenantMetrics(**row, ended=time.time())


def _since_the_last_look(
    record: TenantRecord, number: int, pages: Pages, state: DaemonState
) -> tuple[int, int]:
    """Return what a tenant received of a card, and how long it waited, since the last look.

    The compute meter looks a few times a second. Of a tenant that an earlier daemon placed it must
    have looked once: what that daemon has counted is not counted again.
    """
    known = state.observed.compute.get((record.key, record.allocations[number].uuid))
    if known is None and pages.adopted:
        return 0, 0

    def read(held: Pages) -> tuple[Gate, int] | None:
        if number >= held.grant.card_count:
            return None
        waits = held.status.waits(number).values()
        return held.grant.gate(number), sum(one.throttled_ns for one in waits)

    found = pages.look(read, None)
    if found is None:
        return 0, 0
    gate, waited_ns = found
    if known is None:
        return (0 if gate.mode == abi.GATE_OPEN else gate.charged_ns), waited_ns
    received_ns = gate.charged_ns - known.charged_ns if known.source == GATE else 0
    # The meter also has the waits of processes that have ended since.
    later_ns = 0 if pages.adopted else waited_ns - known.throttled_ns
    return max(0, received_ns), max(0, later_ns)
