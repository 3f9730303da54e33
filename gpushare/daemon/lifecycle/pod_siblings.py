# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod: a request that names none of them is for the first that makes it.

What an init container had is released before the next container is created.
"""

from __future__ import annotations

import os
from typing import Final

from gpushare.daemon.identity import processes
from gpushare.daemon.lifecycle import release
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.quota import dialects
from gpushare.quota.annotations import PodIdentity, scoped_name
from gpushare.quota.errors import QuotaError
from gpushare.quota.request import QuotaRequest, RequestedValue

_MOST_PODS: Final = 4096  # pods; the one that was noted first is forgotten


def release_ended_of(pod: PodIdentity, state: DaemonState) -> None:
    """Release what containers of `pod` that are gone had: an init container is, before the next."""
    for record in _tenants_of(pod, state):
        if _is_gone(record, state):
            release.release_tenant(record.key, state, "the next container of its pod is made")


def refuse_second_container(pod: PodIdentity, quota: QuotaRequest, state: DaemonState) -> None:
    """Refuse a pod's request that names no container if another container of the pod has it.

    QuotaError. A container that was refused while the other ran stays refused after that.
    """
    value = quota.unnamed
    if value is None or not pod.sandbox:
        return
    holder = next(
        (record for record in _tenants_of(pod, state) if record.container != pod.container), None
    )
    if holder is not None and _runs(holder):
        _note_refusal(pod, holder.container, state)
    had = state.refused_siblings.get(pod.sandbox, {}).get(pod.container, "")
    if holder is None and not had:
        return
    first = holder.container if holder is not None else had
    rule = f"names no container, and {first} of pod {pod} has it"
    raise QuotaError(str(value.source), value.shown, rule, _fix_naming(first, pod, quota, value))


def _note_refusal(pod: PodIdentity, holder: str, state: DaemonState) -> None:
    """Note that a container was refused what `holder` had, so that it does not get it later.

    Otherwise, whichever starts while the other is down would take its place. A restart of the
    daemon forgets it; its holder is in the ledger, and so it is refused to others again.
    """
    refused = state.refused_siblings
    refused.setdefault(pod.sandbox, {}).setdefault(pod.container, holder)
    if len(refused) > _MOST_PODS:
        del refused[next(iter(refused))]


def _fix_naming(first: str, pod: PodIdentity, quota: QuotaRequest, value: RequestedValue) -> str:
    """Return what to write so that one container is named, in the dialect of the request."""
    theirs = dialects.container_selector(dialects.TABLES, value.source.name)
    if theirs:
        return f"use {theirs}: {first}"
    key = next(
        (key for key, one in quota.requested.items() if one.source == value.source), "memory"
    )
    return (
        f"use {scoped_name(first, key)}, and {scoped_name(pod.container, key)} if this one needs "
        "a share of a GPU too"
    )


def _tenants_of(pod: PodIdentity, state: DaemonState) -> list[TenantRecord]:
    """Return the tenants of `pod` that have a part of a GPU."""
    records = state.ledger.entries.values()
    return [
        record for record in records if pod.sandbox == record.sandbox != "" and record.allocations
    ]


def _is_gone(record: TenantRecord, state: DaemonState) -> bool:
    """Whether nothing of it runs, or ever will: what was to make it has ended before it did."""
    if record.state == "bound":
        return release.is_gone(record, state)
    return release.is_abandoned(record)


def _runs(record: TenantRecord) -> bool:
    pidfd = processes.open_pidfd(record.pid, record.starttime) if record.state == "bound" else None
    if pidfd is None:
        return False
    os.close(pidfd)
    return True
