# SPDX-License-Identifier: Apache-2.0
"""The set operation: change a running tenant's quota, or take the change back.

What the operator sets is kept for the container in `Overrides`. What holds for the tenant is always
what its container requested with the overrides above it, by the rules of a create. All of a change
is done, or none of it.

Growing takes effect at once, or is refused if the card has no capacity. Shrinking takes effect at
once too, even below what is used: nothing can take back what a program has, but it gets nothing
more until it has freed enough, and what it still has is not allocated to others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.limits import reclaim_rounds
from gpushare.daemon.node import Node
from gpushare.daemon.pages.tenants import Pages, Tenants
from gpushare.daemon.placement.model import (
    AllocationUse,
    CardCapacity,
    capacity_text,
    cores_text,
)
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ledger import Ledger, TenantNotFound
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.errors import UserError
from gpushare.quota.effective_request import EffectiveRequest, change_recorded, resolve_request
from gpushare.quota.keys import OPERATORS, exact_duration, parse_change, read
from gpushare.quota.request import (
    COMPUTE_KEYS,
    IDLE_AFTER,
    PROFILE,
    TIME_LIMIT,
    QuotaRequest,
    RecordedValue,
    RequestRecord,
    Value,
    ValueSource,
    recorded_text,
    to_record,
)
from gpushare.quota.request_policy import SET_BY_PROFILE
from gpushare.quota.size import exact_size, format_size

#: Keys of the daemon alone: nothing of them is written into a tenant's pages.
DURATIONS: Final = frozenset({IDLE_AFTER, TIME_LIMIT})
_LIMIT: Final = "memory-limit"
_MEMORY: Final = ("memory", "memory-percent")
#: Keys that a container may request, and an operator may set.
_QUOTA: Final = frozenset({"memory", _LIMIT, *COMPUTE_KEYS, *DURATIONS})
_WEIGHED: Final = "native-burst-share"


class NotResizable(UserError):
    """The tenant's quota cannot be changed in its current state."""


def change_tenant(
    record: TenantRecord, change: Mapping[str, str], state: DaemonState, *, reset: bool = False
) -> TenantRecord:
    """Do what an operator asks for a tenant: `change`, by key, or `reset`; the decide thread's.

    TenantNotFound: it was released. Else as the functions below.
    """
    now = state.ledger.entries.get(record.key)
    if now is None or now.created != record.created:
        raise TenantNotFound(f"container {record.title} has exited", [])
    if reset:
        return reset_quota(now, state)
    quota = {key: text for key, text in change.items() if key != OVER_QUOTA_KEY}
    changed = set_quota(now, quota, state) if quota else now
    if OVER_QUOTA_KEY in change:
        set_over_quota_action(changed, change[OVER_QUOTA_KEY], state.node)
    return changed


def set_quota(record: TenantRecord, change: Mapping[str, str], state: DaemonState) -> TenantRecord:
    """Change the quota of `record` to `change`, by canonical key, on each of its cards.

    The keys are `memory`, `memory-limit`, those of compute, and `idle-after` and `time-limit`,
    which alone can be changed of whole cards. No ceiling bounds it: those are for requests, and
    this is the operator.

    NoRoom, QuotaError, NotResizable: nothing was changed.
    """
    # Before the values: they are read as those of a share.
    pages = _pages_to_change(record, change, state.tenants)
    spoken = parse_change(change)
    values = {key: _canonical_text(key, request.value) for key, request in spoken.requested.items()}
    limit = record.allocations[0].memory_limit_bytes
    if _LIMIT not in values and limit is not None and limit <= (spoken.memory_bytes or 0):
        values[_LIMIT] = values["memory"]  # it grows along
    overrides = {**state.node.overrides.of(record.settings_key), **values}
    changed = _resolved(record, overrides, spoken, state)
    if "weight" in spoken.requested:
        _refuse_idle_weight(changed, spoken, state.node)
    state.node.overrides.set(record.settings_key, values)
    _apply(changed, pages, state)
    log("tenant-resized", **record.named, previous=_previous(record, values), **values)
    return state.ledger.entries[record.key]


def reset_quota(record: TenantRecord, state: DaemonState) -> TenantRecord:
    """Take back all that the operator has set.

    It takes effect at once, or is refused if others have been allocated the memory meanwhile.
    NoRoom, QuotaError, NotResizable: nothing was changed.
    """
    dropped = {*filter(record.is_set, _QUOTA), *state.node.overrides.of(record.settings_key)}
    if not dropped:
        raise NotResizable(f"the quota of {record.title} is not overridden. See gpushare inspect")
    pages = None
    changed = record
    if not dropped.isdisjoint(_QUOTA):
        pages = _pages_to_change(record, dropped & _QUOTA, state.tenants)
        changed = _resolved(record, {}, QuotaRequest(), state)
    state.node.overrides.forget(record.settings_key, *dropped)
    if changed is not record:
        _apply(changed, pages, state)
    previous = _previous(record, dropped)
    log("tenant-resized", **record.named, previous=previous, reset=sorted(dropped))
    return state.ledger.entries[record.key]


def _previous(record: TenantRecord, keys: Collection[str]) -> dict[str, str]:
    return {key: recorded_text(record.quota[key]) for key in keys if key in record.quota}


def _canonical_text(key: str, value: Value) -> str:
    if key in COMPUTE_KEYS:
        return str(value)
    number = int(str(value))
    return exact_duration(number) if key in DURATIONS else exact_size(number)


def _resolved(
    record: TenantRecord, overrides: Mapping[str, str], spoken: QuotaRequest, state: DaemonState
) -> TenantRecord:
    """Return `record` as its request and `overrides` have it, and its cards the capacity for it.

    `spoken` are those of the overrides that the operator has just named, for what is refused.
    """
    rows = _rows(record, overrides)

    def is_touched(*keys: str) -> bool:
        return any(key in overrides or record.is_set(key) for key in keys)

    if not record.shared or not is_touched(*_MEMORY, _LIMIT, *COMPUTE_KEYS):
        return replace(record, quota=rows)
    config = state.node.config
    terms = config.users if record.is_rootless else config.terms_of(record.namespace)
    # The node's defaults of now are for what the operator sets of compute, and for nothing else.
    sets_compute = not overrides.keys().isdisjoint(COMPUTE_KEYS)
    quota = change_recorded(rows, spoken.requested, terms.defaults if sets_compute else None)
    if not quota.has_memory():
        raise NotResizable(
            f"{record.title} did not request memory: without the override it would have no share. "
            "Set its quota explicitly"
        )
    changed = replace(record, quota={**to_record(quota.requested), **_operators(overrides)})
    if is_touched(*COMPUTE_KEYS):
        effective = _share(quota, record)
        priority = record.priority  # not requested: it stays, though today's ceiling may differ
        if "priority" in quota.requested:
            priority = effective.priority
        elif record.is_set("priority"):
            priority = terms.max_per_request.put_down(quota, effective).priority
        changed = replace(
            changed,
            policy=effective.policy,
            weight=effective.weight,
            priority=priority,
            class_=effective.class_,
        )
    parts = (_allocation(part, changed, record, quota, state.node) for part in record.allocations)
    changed = replace(changed, allocations=tuple(parts))
    if record.is_off_card and changed.allocations != record.allocations:
        fix = "restore it first (gpushare restore)"
        raise NotResizable(f"{record.title} is evicted, and has no part of a card to change; {fix}")
    if _memory(changed) != _memory(record):
        _refuse_without_memory(changed, record, quota, state)
    if _compute(changed) != _compute(record):
        _check_cores(changed, state)
    return changed


def _rows(record: TenantRecord, overrides: Mapping[str, str]) -> RequestRecord:
    """Return what the container requested, with what the operator set above it."""
    hidden = {"memory-percent"} if "memory" in overrides else set()
    if not overrides.keys().isdisjoint(SET_BY_PROFILE):
        hidden.add(PROFILE)  # it is not that any more
    rows = {key: row for key, row in record.requested.items() if key not in hidden}
    return {**rows, **_operators(overrides)}


def _operators(overrides: Mapping[str, str]) -> dict[str, RecordedValue]:
    return {
        key: {"value": text, "source": "operator"}
        for key, text in overrides.items()
        if key in _QUOTA
    }


def _allocation(
    allocation: CardAllocation,
    changed: TenantRecord,
    record: TenantRecord,
    quota: QuotaRequest,
    node: Node,
) -> CardAllocation:
    """Return what `quota` gives a tenant of one card.

    The cards of a claim may have different parts: they stay, unless the request for them changes.
    """

    def is_same(*keys: str) -> bool:
        return all(changed.quota.get(key) == record.quota.get(key) for key in keys)

    memory_bytes, limit_bytes = allocation.quota_bytes, allocation.memory_limit_bytes
    if not is_same(*_MEMORY):
        card = node.loaded().card(allocation.uuid)
        if quota.memory_bytes is not None:
            memory_bytes = quota.memory_bytes
        elif card is not None:
            memory_bytes = max(1, card.memory_bytes * (quota.memory_percent or 0) // 100)
    if not is_same(*_MEMORY, _LIMIT):
        limit_bytes = quota.memory_limit_bytes
        if limit_bytes is not None and limit_bytes < memory_bytes:
            rule = f"is below the memory {exact_size(memory_bytes)} of {record.title}"
            raise quota.refuse(_LIMIT, rule, f"use {exact_size(memory_bytes)} or more")
    cores = allocation.cores if is_same("cores") else quota.cores or 0
    return replace(
        allocation, quota_bytes=memory_bytes, memory_limit_bytes=limit_bytes, cores=cores
    )


def _refuse_without_memory(
    changed: TenantRecord, record: TenantRecord, quota: QuotaRequest, state: DaemonState
) -> None:
    """Raise NoRoom or QuotaError where a tenant cannot have the memory of `changed`."""
    pages = _resizable_pages(record, state.tenants)
    for number, allocation in enumerate(changed.allocations):
        context_bytes = pages.grant.context_bytes(number)
        if changed.is_set("memory") and allocation.quota_bytes <= context_bytes:
            rule = f"is too small for a CUDA context, {format_size(context_bytes)}"
            raise quota.refuse("memory", rule, "set more")
    wanted = {allocation.uuid: allocation.quota_bytes for allocation in changed.allocations}
    more = {part.uuid: wanted[part.uuid] - part.quota_bytes for part in record.allocations}
    kept = replace(record, allocations=changed.allocations)
    if all(size <= 0 for size in more.values()) or _is_within_claim(kept, state.node, state.ledger):
        return
    state.ledger.integrity.refuse()
    for _ in reclaim_rounds():
        capacities = state.accounts.capacities()
        if not state.limits.reclaim(more, capacities):
            break
    for capacity in capacities:
        if capacity.card.uuid in wanted:
            check_memory_growth(capacity, record.key, record.title, wanted[capacity.card.uuid])


def _pages_to_change(record: TenantRecord, keys: Collection[str], tenants: Tenants) -> Pages | None:
    """Return the pages in which a change of `keys` is written, None if in none; NotResizable."""
    if record.allocations and set(keys) <= DURATIONS:
        return None
    return _resizable_pages(record, tenants)


def _resizable_pages(record: TenantRecord, tenants: Tenants) -> Pages:
    """Return the pages of a tenant whose quota can be changed; NotResizable."""
    if not record.allocations:
        raise NotResizable(f"{record.title} has no GPU: {record.why}")
    if not record.shared:
        raise NotResizable(f"{record.title} has whole cards. You can set quotas only for shares")
    pages = tenants.pages.get(record.key)
    if pages is None:
        raise NotResizable(
            f"the pages of {record.title} are lost, or of another version of gpushare; restart "
            "the container"
        )
    return pages


def _apply(changed: TenantRecord, pages: Pages | None, state: DaemonState) -> None:
    """Write a changed record to the ledger, the pages, the driver's limits and the scheduler."""
    before = state.ledger.entries[changed.key]
    with state.ledger.changed.deferred(state.loop.soon):
        state.ledger.put(changed)
        if pages is None:
            return
        if _memory(before) != _memory(changed):
            for number, allocation in enumerate(changed.allocations):
                # It keeps its burst memory until the limits are recomputed: it may be using it.
                burst_bytes = min(pages.grant.limit_bytes(number), allocation.burst_limit_bytes)
                state.limits.change(changed, number, max(burst_bytes, allocation.quota_bytes))
            state.limits.update()
        if _compute(before) != _compute(changed):
            for number, allocation in enumerate(changed.allocations):
                pages.grant.set_cores(number, allocation.cores)
            pages.grant.publish()


def _compute(record: TenantRecord) -> tuple[object, ...]:
    cores = [allocation.cores for allocation in record.allocations]
    own = record.is_set("policy")  # it stands above the card's
    return cores, record.policy, own, record.weight, record.priority, record.class_


def _memory(record: TenantRecord) -> list[tuple[int, int | None]]:
    return [(part.quota_bytes, part.memory_limit_bytes) for part in record.allocations]


def _is_within_claim(record: TenantRecord, node: Node, ledger: Ledger) -> bool:
    """Whether a claim decides what `record` may have; NoRoom if that is less."""
    return ledger.refuse_above_claim(record, node.loaded().cards, node.policy_of)


def _share(quota: QuotaRequest, record: TenantRecord) -> EffectiveRequest:
    effective = resolve_request(quota)
    if effective.kind == "exclusive":
        rule = f"is a whole card, and {record.title} has a share of one"
        fix = "set 99 or less; for a whole card, restart the container with GPUSHARE_CORES=100"
        raise quota.refuse("cores", rule, fix)
    return effective


def _check_cores(changed: TenantRecord, state: DaemonState) -> None:
    """Raise NoRoom if the cards do not have the cores that would be reserved for `changed`."""
    if _is_within_claim(changed, state.node, state.ledger):
        return
    for capacity in state.accounts.capacities():
        for allocation in changed.allocations:
            if allocation.uuid == capacity.card.uuid:
                cores = changed.reserved_cores(allocation, capacity.policy)
                others = capacity.without({changed.key})
                if cores > others.cores_available:
                    raise NoRoom(
                        f"the card of {changed.title} has no room for {cores} % of its compute: "
                        f"card {capacity.card.index} has {others.cores_available} % left"
                        f"{cores_text(others)}; request less, use policy best-effort, or see "
                        "gpushare ls"
                    )


def check_memory_growth(capacity: CardCapacity, key: str, tenant: str, memory_bytes: int) -> None:
    """Raise NoRoom if the card cannot raise the tenant's quota to `memory_bytes`."""
    own = next((use for use in capacity.allocations if use.key == key), AllocationUse(tenant, 0))
    if memory_bytes - own.quota_bytes - own.burst_used_bytes > capacity.available_bytes:
        more_bytes = memory_bytes - own.quota_bytes
        raise NoRoom(
            f"cannot grow {tenant} by {format_size(more_bytes)}: "
            f"card {capacity.card.index} {capacity_text(capacity)}; request less or see gpushare ls"
        )


def _refuse_idle_weight(changed: TenantRecord, quota: QuotaRequest, node: Node) -> None:
    """Refuse a weight that would have no effect."""
    held = {
        changed.policy_on(allocation, node.policy_of(allocation.uuid))
        for allocation in changed.allocations
    }
    if _WEIGHED not in held:
        policies = ", ".join(sorted(held))
        rule = f"applies only under {_WEIGHED}, and {changed.title} is under {policies}"
        raise quota.refuse("weight", rule, f"add --policy {_WEIGHED}")


OVER_QUOTA_KEY: Final = "over-quota-action"


def set_over_quota_action(record: TenantRecord, text: str, node: Node) -> None:
    """Have the audit go as far as `text` with `record`; QuotaError, NotResizable: as it was."""
    source = ValueSource("operator", f"--{OVER_QUOTA_KEY}")
    choice = str(read(OVER_QUOTA_KEY, source, text, OPERATORS).value)
    if not record.shared:
        raise NotResizable(f"{record.title} has no share of a card, so the audit does not check it")
    node.overrides.set(record.settings_key, {OVER_QUOTA_KEY: choice})
    log("tenant-resized", **record.named, **{OVER_QUOTA_KEY: choice})
