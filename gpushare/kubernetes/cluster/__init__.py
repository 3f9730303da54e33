# SPDX-License-Identifier: Apache-2.0
"""The cards and containers of a whole cluster, for `kubectl gpushare`.

The figures are those of each node's exporter, and of the Kubernetes API for a node whose exporter
does not answer. Everything is read, nothing is changed.

| module | content |
|---|---|
| kubectl | the API server, through `kubectl proxy` |
| figures | rows from the exporter of a node |
| allocations | rows from nodes, pods, ResourceSlices and ResourceClaims |
| survey | which nodes have gpushare, and the rows of all of them |
"""

from __future__ import annotations

from typing import TypedDict


class ClusterCard(TypedDict):
    """One card. The keys are those of CardRow; None means unknown."""

    node: str
    source: str  # exporter | kubernetes: then only what the scheduler has allocated is known
    index: int
    uuid: str
    model: str
    memory_bytes: int | None
    allocated_bytes: int | None
    burst_granted_bytes: int | None
    non_tenant_bytes: int | None
    available_bytes: int | None
    cores_available: int | None
    tenants: int | None
    max_tenants: int | None
    mode: str  # unused | shared | exclusive; empty: unknown
    cordoned: bool
    health: str  # "ok", or the fault; empty: unknown


#: One container on one card. The keys are those of its row; None means unknown.
ClusterContainer = TypedDict(
    "ClusterContainer",
    {
        "namespace": str,  # empty, as `pod`: of no pod
        "pod": str,
        "container": str,
        "id": str,  # of the engine; empty: unknown
        "node": str,
        "source": str,  # as in ClusterCard
        "index": int | None,
        "uuid": str,
        "used_bytes": int | None,
        "quota_bytes": int | None,
        "limit_bytes": int | None,  # quota and burst
        "cores": int | None,  # percent requested; 0: none
        "cores_used": float | None,  # percent of the card over ten seconds
        "cores_source": str,  # gate | driver | "" (none)
        "policy": str,  # in effect; empty: a whole card, or unknown
        "throttled": float | None,  # part of the last ten seconds
        "isolation": str,  # empty: unknown
        "class": str,  # online | offline; empty: unknown
        "priority": int | None,  # among offline containers
        "forced_launches": int | None,  # since gpushared started
        "is_hung": bool,
        "state": str,  # running | paused | frozen | stopping; empty: unknown
    },
)
