# SPDX-License-Identifier: Apache-2.0
"""The set operation: change a running tenant's quota. It is kept for its container.

All of a change is done, or none of it. Compute changes by the rules by which it was first granted.

Growing takes effect at once, or is refused if the card has no capacity. Shrinking takes effect at
once too, even below what is used: nothing can take back what a program has, but it gets nothing
more until it has freed enough, and what it still has is not allocated to others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.limits import driver_limits
from gpushare.daemon.limits.burst import reclaim_burst, reclaim_rounds, update_burst_limits
from gpushare.daemon.observe.dead_records import free_dead_records
from gpushare.daemon.operator.profile_change import change_by_profile
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.placement.model import (
    AllocationUse,
    CardCapacity,
    capacity_text,
    cores_text,
)
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.errors import UserError
from gpushare.quota.effective_request import EffectiveRequest, change_recorded, resolve_request
from gpushare.quota.keys import OPERATORS, parse_change, read
from gpushare.quota.profiles import SET_BY_PROFILE
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
from gpushare.quota.request_policy import RequestPolicy
from gpushare.quota.size import exact_size, format_size
from gpushare.quota.values import exact_duration

#: Keys of the daemon alone: nothing of them is written into a tenant's pages.
DURATIONS: Final = frozenset({IDLE_AFTER, TIME_LIMIT})


class NotResizable(UserError):
    """The tenant's quota cannot be changed in its current state."""


def set_quota(record: TenantRecord, change: Mapping[str, str], state: DaemonState) -> TenantRecord:
    """Change the quota of `record` to `change`, by canonical key, on each of its cards.

    The keys are `memory`, `memory-limit`, those of compute, `profile`, which stands for some of
    them, and `idle-after` and `time-limit`, which alone can be changed of whole cards.

    NoRoom, QuotaError, NotResizable: nothing was changed.
    """
    # Before the values: they are read as those of a share.
    pages = pages_to_change(record, change, state)
    quota = parse_change(change_by_profile(record, change, state))
    changed = with_compute(record, quota, state)
    has_memory = quota.memory_bytes is not None or quota.memory_limit_bytes is not None
    if has_memory:
        allocations = tuple(
            _allocation(allocation, quota, record) for allocation in changed.allocations
        )
        assert pages is not None
        changed = with_allocations(changed, allocations, pages, state, quota)
    values = _noted(quota, changed.allocations)
    quotas = dict(changed.quota)
    if PROFILE in change:
        values[PROFILE] = change[PROFILE].strip()
    elif not values.keys().isdisjoint(SET_BY_PROFILE):
        state.overrides.forget(record.settings_key, PROFILE)
        quotas.pop(PROFILE, None)  # it is not that any more
    state.overrides.set(record.settings_key, values)
    quotas |= {key: _operators(text) for key, text in values.items()}
    if quota.memory_bytes is not None:
        quotas.pop("memory-percent", None)
    apply_record(replace(changed, quota=quotas), pages, state)
    log("tenant-resized", **log_fields(record), previous=previous_values(record, values), **values)
    return state.ledger.entries[record.key]


def _operators(text: str) -> RecordedValue:
    return {"value": text, "source": "operator"}


def pages_to_change(
    record: TenantRecord, keys: Collection[str], state: DaemonState
) -> Pages | None:
    """Return the pages in which a change of `keys` is written, None if in none; NotResizable."""
    if record.allocations and set(keys) <= DURATIONS:
        return None
    return resizable_pages(record, state)


def resizable_pages(record: TenantRecord, state: DaemonState) -> Pages:
    """Return the pages of a tenant whose quota can be changed; NotResizable."""
    if not record.allocations:
        raise NotResizable(f"{record.title} has no GPU: {record.why}")
    if not record.shared:
        raise NotResizable(f"{record.title} has whole cards. You can set quotas only for shares")
    pages = state.tenants.pages.get(record.key)
    if pages is None:
        raise NotResizable(
            f"the pages of {record.title} are lost, or of another version of gpushare; restart "
            "the container"
        )
    return pages


def apply_record(changed: TenantRecord, pages: Pages | None, state: DaemonState) -> None:
    """Write a changed record to the ledger, the pages, the driver's limits and the scheduler."""
    before = state.ledger.entries[changed.key]
    with state.ledger.changed.deferred(state.loop.soon):
        state.ledger.put(changed)
        if pages is not None and _memory(before) != _memory(changed):
            _write_memory(changed, pages, state)
        if pages is not None and _compute(before) != _compute(changed):
            _write_cores(changed, pages)


def _compute(record: TenantRecord) -> tuple[object, ...]:
    cores = [one.cores for one in record.allocations]
    own = record.is_set("policy")  # it stands above the card's
    return cores, record.policy, own, record.weight, record.priority, record.class_


def _memory(record: TenantRecord) -> list[tuple[int, int | None]]:
    return [(one.memory_bytes, one.memory_limit_bytes) for one in record.allocations]


def previous_values(record: TenantRecord, keys: Iterable[str]) -> dict[str, str]:
    """Return the values that a tenant had of `keys`, for the log."""
    return {key: recorded_text(record.quota[key]) for key in keys if key in record.quota}


def log_fields(record: TenantRecord) -> dict[str, str]:
    """Return the log fields that identify a tenant."""
    return {"tenant": record.key, "name": record.title}


def with_allocations(
    record: TenantRecord,
    allocations: tuple[CardAllocation, ...],
    pages: Pages,
    state: DaemonState,
    quota: QuotaRequest | None = None,
) -> TenantRecord:
    """Return a record with these allocations, for which its cards have the capacity; NoRoom."""
    for number, allocation in enumerate(allocations):
        if quota is not None:
            _refuse_below_context(quota, allocation, pages.grant.context_bytes(number))
    # Memory of a process that has just died is free; the next sample would be too late.
    free_dead_records(record, pages)
    _check_room(record, allocations, state)
    return replace(record, allocations=allocations)


def _write_memory(record: TenantRecord, pages: Pages, state: DaemonState) -> None:
    for number, allocation in enumerate(record.allocations):
        # It keeps its burst memory until the limits are recomputed: it may be using it.
        burst_bytes = min(pages.grant.limit_bytes(number), allocation.most_bytes)
        driver_limits.change_limit(record, number, max(burst_bytes, allocation.memory_bytes), state)
    update_burst_limits(state)


def _write_cores(record: TenantRecord, pages: Pages) -> None:
    for number, allocation in enumerate(record.allocations):
        pages.grant.set_cores(number, allocation.cores)
    pages.grant.publish()


def _allocation(
    allocation: CardAllocation, quota: QuotaRequest, record: TenantRecord
) -> CardAllocation:
    """Return `allocation` under the new quota; a limit that was not named grows with the memory."""
    memory_bytes = quota.memory_bytes or allocation.memory_bytes
    limit_bytes = quota.memory_limit_bytes or allocation.memory_limit_bytes
    if limit_bytes is not None and limit_bytes < memory_bytes:
        if quota.memory_limit_bytes is not None:
            rule = f"is below the memory {exact_size(memory_bytes)} of {record.title}"
            raise quota.refuse("memory-limit", rule, f"use {exact_size(memory_bytes)} or more")
        limit_bytes = memory_bytes
    return replace(allocation, memory_bytes=memory_bytes, memory_limit_bytes=limit_bytes)


def _refuse_below_context(
    quota: QuotaRequest, allocation: CardAllocation, context_bytes: int
) -> None:
    if quota.memory_bytes is not None and allocation.memory_bytes <= context_bytes:
        rule = f"is too small for a CUDA context, {format_size(context_bytes)}"
        raise quota.refuse("memory", rule, "set more")


def _check_room(
    record: TenantRecord, allocations: tuple[CardAllocation, ...], state: DaemonState
) -> None:
    if _is_within_claim(replace(record, allocations=allocations), state):
        return
    more = {
        old.uuid: new.memory_bytes - old.memory_bytes
        for old, new in zip(record.allocations, allocations, strict=True)
    }
    if any(size > 0 for size in more.values()):
        state.integrity.refuse()
    for _ in reclaim_rounds():
        capacities = _capacities_for(record, state)
        if not reclaim_burst(more, capacities, state):
            break
    wanted = {allocation.uuid: allocation.memory_bytes for allocation in allocations}
    for capacity in capacities:
        if capacity.card.uuid in wanted:
            check_memory_growth(capacity, record.key, record.title, wanted[capacity.card.uuid])


def _capacities_for(record: TenantRecord, state: DaemonState) -> tuple[CardCapacity, ...]:
    """Return the cards as a change finds them: an evicted tenant needs no room until its restore.

    What a card could never give to it is refused nevertheless: it would not be restored any more.
    """
    capacities = state.capacities()
    if not record.is_off_card:
        return capacities
    own = {
        one.uuid: AllocationUse(record.title, one.memory_bytes, key=record.key)
        for one in record.allocations
    }
    return tuple(
        replace(one, allocations=(own[one.card.uuid],), reservations=())
        for one in capacities
        if one.card.uuid in own
    )


def _is_within_claim(record: TenantRecord, state: DaemonState) -> bool:
    """Whether a claim decides what `record` may have; NoRoom if that is less."""
    return state.ledger.refuse_above_claim(record, state.loaded().cards, state.policy_of)


def _noted(quota: QuotaRequest, allocations: tuple[CardAllocation, ...]) -> dict[str, str]:
    """Return the overrides by canonical key, with a limit that grew along."""
    values = {key: _canonical_text(key, one.value) for key, one in quota.requested.items()}
    limits = {allocation.memory_limit_bytes for allocation in allocations}
    if quota.memory_bytes is not None and limits == {quota.memory_bytes}:
        values["memory-limit"] = exact_size(quota.memory_bytes)
    return values


def _canonical_text(key: str, value: Value) -> str:
    if key in COMPUTE_KEYS:
        return str(value)
    number = int(str(value))
    return exact_duration(number) if key in DURATIONS else exact_size(number)


_MEMORY: Final = ("memory", "memory-percent")
_WEIGHED: Final = "native-burst-share"


def with_compute(record: TenantRecord, change: QuotaRequest, state: DaemonState) -> TenantRecord:
    """Return `record` with what `change` says of compute.

    No ceiling bounds it: those are for requests, and this is the operator. QuotaError where it
    contradicts itself or does nothing, NoRoom where its cards have not as many cores left.
    """
    changed_values = {key: one for key, one in change.requested.items() if key in COMPUTE_KEYS}
    if not changed_values:
        return record
    quota = change_recorded(
        _recorded(record.quota, COMPUTE_KEYS),
        changed_values,
        request_policy(record, state).defaults,
    )
    effective = _share(quota, record)
    set_by_operator = {key: _operators(one.text) for key, one in changed_values.items()}
    changed = _with(
        record, effective, {**record.quota, **to_record(quota.requested), **set_by_operator}
    )
    if "priority" not in quota.requested:
        # A priority that a ceiling lowered at the start was not requested, and stays.
        changed = replace(changed, priority=record.priority)
    _check_cores(changed, state)
    if "weight" in changed_values:
        _refuse_idle_weight(changed, quota, state)
    return changed


def with_restored_compute(
    entry: TenantRecord, dropped: Collection[str], state: DaemonState
) -> TenantRecord:
    """Return `entry` without the overrides of `dropped`, keys of compute.

    NoRoom if its original cores are allocated to others; QuotaError if the original request
    contradicts the remaining overrides.
    """
    kept = [key for key in COMPUTE_KEYS if key not in dropped]
    record = _recorded(entry.quota, kept) | {
        key: entry.requested[key] for key in dropped if key in entry.requested
    }
    terms = request_policy(entry, state)
    quota = change_recorded(record, {}, terms.defaults)
    effective = terms.max_per_request.put_down(quota, _share(quota, entry))
    others = {key: row for key, row in entry.quota.items() if key not in dropped}
    changed = _with(entry, effective, {**others, **to_record(quota.requested)})
    _check_cores(changed, state)
    return changed


def request_policy(record: TenantRecord, state: DaemonState) -> RequestPolicy:
    """Return what the node holds a tenant to."""
    return (
        state.config.users
        if record.isolation == "advisory"
        else state.config.terms_of(record.namespace)
    )


def _recorded(quota: RequestRecord, keys: Collection[str]) -> dict[str, RecordedValue]:
    """Return the values of `keys`, with the memory, for there is no share without any."""
    memory = next((key for key in _MEMORY if key in quota), _MEMORY[0])
    return {key: quota[key] for key in (memory, *keys) if key in quota}


def _share(quota: QuotaRequest, record: TenantRecord) -> EffectiveRequest:
    effective = resolve_request(quota)
    if effective.kind == "exclusive":
        rule = f"is a whole card, and {record.title} has a share of one"
        fix = "set 99 or less; for a whole card, restart the container with GPUSHARE_CORES=100"
        raise quota.refuse("cores", rule, fix)
    return effective


def _with(record: TenantRecord, effective: EffectiveRequest, quota: RequestRecord) -> TenantRecord:
    # The cards of a claim may have different cores: they stay, unless the request for them changes.
    keeps_cores = quota.get("cores") == record.quota.get("cores")
    return replace(
        record,
        policy=effective.policy,
        weight=effective.weight,
        priority=effective.priority,
        class_=effective.class_,
        quota=quota,
        allocations=tuple(
            allocation if keeps_cores else replace(allocation, cores=effective.cores)
            for allocation in record.allocations
        ),
    )


def _check_cores(changed: TenantRecord, state: DaemonState) -> None:
    """Raise NoRoom if the cards do not have the cores that would be reserved for `changed`."""
    if _is_within_claim(changed, state):
        return
    for capacity in _capacities_for(changed, state):
        for allocation in changed.allocations:
            if allocation.uuid == capacity.card.uuid:
                cores = changed.reserved_cores(allocation, capacity.policy)
                check_cores_growth(capacity, changed.key, changed.title, cores)


def check_memory_growth(capacity: CardCapacity, key: str, tenant: str, memory_bytes: int) -> None:
    """Raise NoRoom if the card cannot raise the tenant's quota to `memory_bytes`."""
    own = next((use for use in capacity.allocations if use.key == key), AllocationUse(tenant, 0))
    if memory_bytes - own.memory_bytes - own.burst_used_bytes > capacity.available_bytes:
        more_bytes = memory_bytes - own.memory_bytes
        raise NoRoom(
            f"cannot grow {tenant} by {format_size(more_bytes)}: "
            f"card {capacity.card.index} {capacity_text(capacity)}; request less or see gpushare ls"
        )


def check_cores_growth(capacity: CardCapacity, key: str, tenant: str, cores: int) -> None:
    """Raise NoRoom if the card cannot reserve `cores` percent for tenant `key`."""
    others = replace(
        capacity, allocations=tuple(one for one in capacity.allocations if one.key != key)
    )
    if cores > others.cores_available:
        raise NoRoom(
            f"the card of {tenant} has no room for {cores} % of its compute: card "
            f"{capacity.card.index} has {others.cores_available} % left{cores_text(others)}; "
            "request less, use policy best-effort, or see gpushare ls"
        )


def _refuse_idle_weight(changed: TenantRecord, quota: QuotaRequest, state: DaemonState) -> None:
    """Refuse a weight that would have no effect."""
    held = {
        changed.policy_on(allocation, state.policy_of(allocation.uuid))
        for allocation in changed.allocations
    }
    if _WEIGHED not in held:
        rule = (
            f"applies only under {_WEIGHED}, and {changed.title} is under {', '.join(sorted(held))}"
        )
        raise quota.refuse("weight", rule, f"add --policy {_WEIGHED}")


OVER_QUOTA_KEY: Final = "over-quota-action"


def set_over_quota_action(record: TenantRecord, text: str, state: DaemonState) -> None:
    """Have the audit go as far as `text` with `record`; QuotaError, NotResizable: as it was."""
    source = ValueSource("operator", f"--{OVER_QUOTA_KEY}")
    choice = str(read(OVER_QUOTA_KEY, source, text, OPERATORS).value)
    if not record.shared:
        raise NotResizable(f"{record.title} has no share of a card, so the audit does not check it")
    state.overrides.set(record.settings_key, {OVER_QUOTA_KEY: choice})
    log("tenant-resized", **log_fields(record), **{OVER_QUOTA_KEY: choice})
