# SPDX-License-Identifier: Apache-2.0
"""The rows of cards and tenants for clients. This module changes no state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Literal

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.compute import shares
from gpushare.daemon.identity import processes
from gpushare.daemon.pages.status_page import ProcessClaim, TenantClaims, sum_claims
from gpushare.daemon.placement.model import NO_LINKS, NO_NODE, CardCapacity, Links
from gpushare.daemon.state import ComputeUsage, DaemonState, LoadedDriver
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.protocol import (
    MAX_REPLY_BYTES,
    CardComputeUsage,
    CardLink,
    CardStatus,
    Intervention,
    NonTenantProcessStatus,
    ProcessCard,
    TenantCard,
    TenantPod,
    TenantProcess,
    TenantStatus,
)
from gpushare.quota import format_size, recorded_text

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
    capacity: CardCapacity, capacities: Sequence[CardCapacity] = (), links: Links = NO_LINKS
) -> CardStatus:
    """Return one row of `gpushare ls`; `capacities` are the cards to show links to."""
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
        available_bytes=capacity.available_bytes,
        cores_available=capacity.cores_available,
        tenants=len(capacity.allocations),
        max_tenants=capacity.max_tenants,
        mode=_mode(capacity),
        utilization=capacity.utilisation,
        health=capacity.health,
        policy=capacity.policy,
        allowed_mode=capacity.mode,
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


def _mode(capacity: CardCapacity) -> str:
    if not capacity.allocations:
        return "unused"
    return "exclusive" if capacity.exclusive else "shared"


def tenant_row(record: TenantRecord, state: DaemonState) -> TenantStatus:
    """Return one row of `gpushare ps`."""
    pages = state.tenants.pages.get(record.key)
    claims = () if pages is None else pages.claims()
    sums = sum_claims(claims, len(record.allocations))
    cards = _card_rows(record, sums, state)
    row = TenantStatus(
        key=record.key,
        id=record.id,
        name=record.title,
        engine=record.engine,
        pod=_pod(record),
        state=record.state,
        reason=record.why,
        pid=record.pid,
        policy=record.policy,
        online=record.class_ == "online",
        priority=record.priority,
        weight=record.weight,
        isolation=record.isolation,
        over_quota_action=state.over_quota_action(record) if record.shared else "",
        throttled_ratio=max(
            (card["compute"]["throttled"]["1s"] or 0.0 for card in cards), default=0.0
        ),
        created_at=record.created,
        cards=cards,
        processes=_process_rows(record, claims, state) if record.state == "bound" else [],
        interventions=interventions(record, state),
        quota={key: recorded_text(value) for key, value in record.quota.items()},
        notes=list(record.notes),
        warnings=[
            *(_intervention_warning(record.title, one) for one in interventions(record, state)),
            *(warning for card in cards for warning in _warnings(record, card, state)),
            *(warning for card in cards for warning in _over_quota_warnings(record, card, state)),
        ],
    )
    return _within_packet(row)


def _pod(record: TenantRecord) -> TenantPod | None:
    names = record.name.split("/")  # of a pod's container: NAMESPACE/POD/CONTAINER
    if not record.pod_uid or len(names) != 3:
        return None
    return TenantPod(
        namespace=names[0], name=names[1], uid=record.pod_uid, container=record.container
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
    freezes = [freeze for freeze in state.ledger.freezes.of(record.key) if freeze.by != "duty"]
    return [Intervention(by=freeze.by, reason=freeze.why, since=freeze.since) for freeze in freezes]


def _intervention_warning(title: str, one: Intervention) -> str:
    why = f": {one['reason']}" if one["reason"] else ""
    if one["by"] == "stop":
        return f"{title} is stopping{why}"
    how = "paused" if one["by"] == "operator" else "frozen"
    return f"{title} is {how} ({one['by']}{why}); gpushare resume {title} resumes it"


def _warnings(record: TenantRecord, card: TenantCard, state: DaemonState) -> Iterator[str]:
    compute, where = card["compute"], f"{record.title} on card {card['index']}"
    if card["over_limit_bytes"]:
        yield _over(record, card)
    usage = state.observed.compute_of(record.key, card["uuid"])
    cap = state.observed.caps.get((record.key, card["uuid"]))
    if cap is not None:
        yield (
            f"{where}: bypasses the launch gate: limited to {cap.may_percent:.0f} % by "
            f"freezing, the driver measured {cap.measured_percent:.0f} %"
        )
    elif usage.bypassed and state.config.terms_of(record.namespace).compute != "observe":
        how = "work bypasses the launch gate"
        if usage.claimed_percent and (usage.ungated_percent or 0.0) > usage.claimed_percent / 4:
            how = "it launches work while its gate is closed"
        yield (
            f"{where}: charged {usage.charged_percent or 0.0:.0f} %, the driver measured "
            f"{usage.driver_percent or 0.0:.0f} %: {how}"
        )
    if usage.overcharged:
        yield (
            f"{where}: charged {usage.charged_percent:.0f} %, the driver measured "
            f"{usage.driver_percent:.0f} %: another container bypasses the launch gate and slows "
            "this one"
        )
    if compute["is_hung"]:
        yield (
            f"{where}: work is pending that appears never to complete. The container is charged "
            "for it; others are not affected"
        )


def _over_quota_warnings(
    record: TenantRecord, card: TenantCard, state: DaemonState
) -> Iterator[str]:
    """Yield the audit's warnings, unless the operator chose to observe only."""
    found = state.observed.findings.get((record.key, card["uuid"]))
    if found is None or found.choice == "observe":
        return
    if (
        found.used_bytes <= card["current_limit_bytes"]
    ):  # its quota was raised since: the next sample reports it
        return
    used, may = format_size(found.used_bytes), format_size(found.may_bytes)
    fix = f"free memory, or run gpushare set {record.title} --memory SIZE"
    if found.level == "frozen":
        fix = f"it cannot free memory while it is frozen: gpushare set {record.title} --memory SIZE"
        fix += f", gpushare resume {record.title} (for a minute), or gpushare stop {record.title}"
    yield (
        f"{record.title} uses {used} of card {card['index']} according to the driver, over its "
        f"limit of {may}: "
        f"it bypasses the interposer library; {fix}"
    )


def _over(record: TenantRecord, card: TenantCard) -> str:
    used, limit, over = map(
        format_size, (card["used_bytes"], card["current_limit_bytes"], card["over_limit_bytes"])
    )
    return (
        f"{record.title} uses {used} of {limit} on card {card['index']}: "
        f"allocations fail until it frees {over}"
    )


def _card_rows(
    record: TenantRecord, sums: tuple[TenantClaims, ...], state: DaemonState
) -> list[TenantCard]:
    if state.driver is None:
        return []
    return [
        _card(record, number, allocation, sums[number], state, state.driver)
        for number, allocation in enumerate(record.allocations)
    ]


def _card(  # noqa: PLR0913, PLR0917 - a row is put together from all there is
    record: TenantRecord,
    number: int,
    allocation: CardAllocation,
    account: TenantClaims,
    state: DaemonState,
    driver: LoadedDriver,
) -> TenantCard:
    card = driver.card(allocation.uuid)
    found = state.observed.findings.get((record.key, allocation.uuid))
    compute = _compute_usage(state.observed.compute_of(record.key, allocation.uuid))
    share = shares.shares_on_card(allocation.uuid, state).get(record.key)
    uses = _uses(record, allocation.uuid, state)
    driver_bytes = sum(use.bytes or 0 for use in uses)
    pages = state.tenants.pages.get(record.key)
    if pages is None or number >= pages.grant.card_count:
        used, overhead = driver_bytes, 0
        limit = allocation.memory_bytes
    else:
        limit = pages.grant.limit_bytes(number)
        beside = pages.grant.overhead_bytes(number)
        most = allocation.most_bytes if card is None else card.memory_bytes
        used = min(account.used_bytes(0), most) + beside  # no tenant holds more than the card has
        kinds = account.kinds
        overhead = min(used, beside + kinds[abi.KIND_CONTEXT] + kinds[abi.KIND_MODULE])
    return TenantCard(
        index=-1 if card is None else card.index,
        uuid=allocation.uuid,
        quota_bytes=allocation.memory_bytes,
        burst_limit_bytes=allocation.most_bytes,
        current_limit_bytes=limit,
        used_bytes=used,
        burst_used_bytes=max(0, used - allocation.memory_bytes),
        over_limit_bytes=max(0, used - limit),
        tracked_bytes=used - overhead,
        overhead_bytes=overhead,
        contexts=account.contexts,
        cores=allocation.cores,
        policy=shares.effective_policy(record, allocation, state.policy_of(allocation.uuid)),
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
        cores_used={f"{seconds}s": _rounded(got) for seconds, got in compute.got.items()},
        throttled={f"{seconds}s": _rounded(part) for seconds, part in compute.throttled.items()},
        charged_ns=compute.charged_ns,
        windows=compute.windows,
        overruns=compute.overruns,
        forced_launches=compute.forced,
        throttled_ns=compute.waited_ns,
        is_hung=compute.hung,
        driver_utilization=_rounded(compute.driver_percent),
        gate_bypassed=compute.bypassed,
    )


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def _uses(record: TenantRecord, uuid: str, state: DaemonState) -> list[ProcessUse]:
    seen = state.observed.usage.processes.get(record.key, ())
    return [use for card, use in seen if card == uuid]


def _process_rows(
    record: TenantRecord, claims: Sequence[ProcessClaim], state: DaemonState
) -> list[TenantProcess]:
    """Return the processes that use the driver: those that claim to, and those that it lists."""
    by_driver: dict[int, list[tuple[str, ProcessUse]]] = {}
    if state.driver is not None:
        for uuid, use in state.observed.usage.processes.get(record.key, ()):
            by_driver.setdefault(use.pid, []).append((uuid, use))
    claimed = {(claim.pid, claim.starttime) for claim in claims}
    cgroups = processes.Cgroups.mounted()
    found = [
        process
        for process in processes.members(record.cgroup, record.pid, cgroups)
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
            ProcessCard(index=card_index(uuid, state), bytes=use.bytes, utilization=use.utilisation)
            for uuid, use in uses
        ],
    )


def card_index(uuid: str, state: DaemonState) -> int:
    """Return the index of a card, -1 if it is gone."""
    card = None if state.driver is None else state.driver.card(uuid)
    return -1 if card is None else card.index
