# SPDX-License-Identifier: Apache-2.0
"""Reset of the set operation: a tenant gets what its container requested again.

The reset takes effect at once, or is refused if others have been allocated the memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from gpushare.daemon.core.log import log
from gpushare.daemon.operator.resize import (
    DURATIONS,
    NotResizable,
    apply_record,
    log_fields,
    pages_to_change,
    previous_values,
    resizable_pages,
    with_allocations,
    with_restored_compute,
)
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.quota.effective_request import change_recorded
from gpushare.quota.profiles import SET_BY_PROFILE
from gpushare.quota.request import COMPUTE_KEYS, PROFILE, QuotaRequest

_MEMORY: Final = ("memory", "memory-percent", PROFILE)
_LIMIT: Final = "memory-limit"
_QUOTA: Final = (
    "memory",
    PROFILE,
    _LIMIT,
    *COMPUTE_KEYS,
    *sorted(DURATIONS),
)  # the keys that a container may request


def reset_quota(record: TenantRecord, keys: Collection[str], state: DaemonState) -> TenantRecord:
    """Reset the operator's overrides of `keys`, canonical ones; all overrides for none.

    NoRoom, QuotaError, NotResizable: nothing was changed.
    """
    dropped = _set_of(record, keys, state)
    changed = _back(record, dropped, state) if dropped.intersection(_QUOTA) else record
    state.overrides.forget(record.settings_key, *dropped)
    if changed is not record:
        quota_keys = dropped.intersection(_QUOTA)
        apply_record(changed, pages_to_change(record, quota_keys, state), state)
    log(
        "tenant-resized",
        **log_fields(record),
        previous=previous_values(record, dropped),
        reset=sorted(dropped),
    )
    return state.ledger.entries[record.key]


def _set_of(record: TenantRecord, keys: Collection[str], state: DaemonState) -> set[str]:
    """Return what an operator has set of `keys`, with what goes along; NotResizable: nothing."""
    own = {*filter(record.is_set, _QUOTA), *state.overrides.of(record.settings_key)}
    dropped = own.intersection(keys) if keys else own
    if not dropped:
        what = ", ".join(sorted(keys)) or "the quota"
        raise NotResizable(f"{what} of {record.title} is not overridden. See gpushare inspect")
    if PROFILE in dropped:
        dropped |= own.intersection(SET_BY_PROFILE)
    elif PROFILE in own and not dropped.isdisjoint(SET_BY_PROFILE):
        dropped.add(PROFILE)  # the rest is not that any more
    if "memory" in dropped and record.quota.get(_LIMIT) == record.quota["memory"]:
        dropped.add(_LIMIT)  # it grew with memory, and was not set
    return dropped


def _back(record: TenantRecord, dropped: Collection[str], state: DaemonState) -> TenantRecord:
    """Return `record` as it would be without the overrides of `dropped`."""
    changed = record
    if "memory" in dropped or _LIMIT in dropped:
        memory = {*dropped}.intersection({"memory", _LIMIT})
        forms = memory.union(_MEMORY) if "memory" in memory else memory
        rows = {key: row for key, row in record.quota.items() if key not in forms}
        original = {key: row for key, row in record.requested.items() if key in forms}
        quota = change_recorded(original, {})
        allocations = tuple(
            _original(allocation, memory, quota, record, state) for allocation in record.allocations
        )
        changed = replace(record, quota={**rows, **original})
        changed = with_allocations(changed, allocations, resizable_pages(record, state), state)
    compute = [key for key in COMPUTE_KEYS if key in dropped]
    if compute:
        changed = with_restored_compute(changed, compute, state)
    if not {*SET_BY_PROFILE}.isdisjoint(dropped):
        rows = {key: row for key, row in changed.quota.items() if key != PROFILE}
        if PROFILE in record.requested and not any(map(changed.is_set, SET_BY_PROFILE)):
            rows[PROFILE] = record.requested[PROFILE]
        changed = replace(changed, quota=rows)
    for key in DURATIONS.intersection(dropped):
        rows = {other: row for other, row in changed.quota.items() if other != key}
        own = record.requested.get(key)
        changed = replace(changed, quota=rows if own is None else {**rows, key: own})
    return changed


def _original(
    allocation: CardAllocation,
    dropped: Collection[str],
    quota: QuotaRequest,
    record: TenantRecord,
    state: DaemonState,
) -> CardAllocation:
    """Return `allocation` with the values of `dropped` as the container requested them: `quota`."""
    memory_bytes, limit_bytes = allocation.memory_bytes, allocation.memory_limit_bytes
    if "memory" in dropped:
        memory_bytes = _memory_bytes(allocation, quota, record, state)
    if _LIMIT in dropped:
        limit_bytes = quota.memory_limit_bytes
    if limit_bytes is not None:
        limit_bytes = max(limit_bytes, memory_bytes)
    return replace(allocation, memory_bytes=memory_bytes, memory_limit_bytes=limit_bytes)


def _memory_bytes(
    allocation: CardAllocation, quota: QuotaRequest, record: TenantRecord, state: DaemonState
) -> int:
    if quota.memory_bytes is not None:
        return quota.memory_bytes
    card = state.loaded().card(allocation.uuid)
    if quota.memory_percent is None or card is None:
        raise NotResizable(
            f"{record.title} did not request memory: without the override it would have no share. "
            "Set its quota explicitly"
        )
    return max(1, card.memory_bytes * quota.memory_percent // 100)
