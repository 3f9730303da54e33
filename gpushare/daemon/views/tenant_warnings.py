# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a tenant, in sentences. This module changes no state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpushare.daemon.cards.mps_state import MPS
from gpushare.daemon.eviction.evictions import kill_hangs
from gpushare.daemon.observe.sampler import mps_clients
from gpushare.daemon.observe.time_limits import is_near, seconds_left
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.protocol import Intervention, TenantCard
from gpushare.quota.request import TIME_LIMIT
from gpushare.quota.size import format_size


def warnings_of(
    record: TenantRecord,
    cards: Sequence[TenantCard],
    interventions: Sequence[Intervention],
    state: DaemonState,
) -> Iterator[str]:
    """Yield the warnings of `ps` and `inspect`, the most urgent first."""
    for one in interventions:
        yield _intervention_warning(record.title, one)
    yield from _eviction_warnings(record, state)
    yield from _idle_warnings(record, state)
    yield from _time_warnings(record)
    for card in cards:
        yield from _card_warnings(record, card, state)
    for card in cards:
        yield from _over_quota_warnings(record, card, state)


def _intervention_warning(title: str, one: Intervention) -> str:
    why = f": {one['reason']}" if one["reason"] else ""
    if one["by"] == "stop":
        return f"{title} is stopping{why}"
    how = "paused" if one["by"] in {"operator", "idle"} else "frozen"
    return f"{title} is {how} ({one['by']}{why}); gpushare resume {title} resumes it"


def _eviction_warnings(record: TenantRecord, state: DaemonState) -> Iterator[str]:
    eviction = record.eviction
    if eviction is None:
        if kill_hangs(record, state):
            yield from _kill_warnings(record, state.node.loaded().nvml.driver_version)
        return
    if eviction.state == "failed":
        yield (
            f"{record.title}: the driver has lost its GPU memory ({eviction.error}); stop it with "
            f"gpushare stop {record.title} (gpushare explain evicted)"
        )
    elif record.key in state.observed.waiting:
        yield f"{record.title} uses CUDA while its memory is evicted: {_awaited(record, state)}"


def _awaited(record: TenantRecord, state: DaemonState) -> str:
    """Return what a tenant waits for whose memory is evicted."""
    name = record.title
    if record.eviction is not None and record.eviction.held:
        return f"it waits until gpushare restore {name}"
    if state.ledger.is_frozen(record.key):
        return f"it is paused or frozen, and waits until gpushare resume {name}"
    if fault := state.observed.restore_faults.get(record.key):
        return f"it waits, and gpushared tries again: {fault}"
    if why := state.queue.reasons.get(record.key):
        return f"it waits until a card has room (gpushare queue): {why}"
    return "it waits until a card has room"


def _kill_warnings(record: TenantRecord, driver: str) -> Iterator[str]:
    """Yield what a driver does to a host whose restored process is killed (cuda-checkpoint 53)."""
    yield (
        f"{record.title} was restored by driver {driver}, with which killing a restored process "
        f"has hung a host: end it with gpushare stop {record.title}, which evicts it first"
    )


def _idle_warnings(record: TenantRecord, state: DaemonState) -> Iterator[str]:
    action = state.node.config.terms_of(record.namespace).idle.action
    if record.key in state.observed.idle and action not in {"report", "evict"}:
        yield f"{record.title} holds GPU memory and does not use its cards (idle.action: {action})"


def _time_warnings(record: TenantRecord) -> Iterator[str]:
    left = seconds_left(record)
    if left is not None and left > 0 and is_near(record):
        limit = record.quota[TIME_LIMIT]["value"]
        yield (
            f"{record.title} is stopped in {left:.0f} s: its time limit is {limit}; to extend it: "
            f"gpushare set {record.title} --time-limit TIME"
        )


def _card_warnings(record: TenantRecord, card: TenantCard, state: DaemonState) -> Iterator[str]:
    compute, where = card["compute"], f"{record.title} on card {card['index']}"
    if card["over_limit_bytes"]:
        yield _over(record, card)
    usage = state.observed.compute_of(record.key, card["uuid"])
    if usage.gate_bypassed and state.node.config.terms_of(record.namespace).compute != "observe":
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
    yield from _mps_warnings(record, where, state)
    pids = mps_clients(record, card["uuid"], state.observed.usage)
    if pids and record.isolation != MPS:
        yield (
            f"{where}: uses an MPS server that gpushare did not start (process {pids[0]}): a fatal "
            "fault of any client of that server ends it (gpushare explain mps)"
        )
    if compute["is_hung"]:
        yield (
            f"{where}: work is pending that appears never to complete. The container is charged "
            "for it; others are not affected"
        )


def _mps_warnings(record: TenantRecord, where: str, state: DaemonState) -> Iterator[str]:
    """Yield what is wrong with a client of an MPS server that gpushare runs."""
    if record.isolation != MPS:
        return
    loss = state.node.mps.loss_of(record.key)
    if loss is not None:
        yield f"{where}: {loss.reason}. Restart the container (gpushare explain mps-neighbour)"
    pid = state.node.mps.bypass_of(record.key)
    if pid:
        yield (
            f"{where}: process {pid} uses the card without its MPS server: none of the server's "
            "limits hold for it (gpushare explain mps)"
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
