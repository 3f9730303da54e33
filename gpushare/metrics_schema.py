# SPDX-License-Identifier: Apache-2.0
"""The reply of the op `metrics`: figures of cards, tenants and the daemon, for gpushare-exporter.

One request is one moment, and costs the daemon less than the rows of `gpushare ps`: it looks for no
processes and queries no engine. Sizes are bytes, times seconds. Each counter names its start: the
tenant, or the daemon's start, at which it is 0 again.
"""

from __future__ import annotations

from typing import Final, TypedDict

#: Upper bounds of the buckets of `OperationMetrics.buckets`, in seconds; the last bucket has none.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: The keys of `TenantCardMetrics.kinds`, exactly these.
KINDS: Final = (
    *(
        "buffer",
        "managed",
        "pool",
        "physical",
        "array",
        "graph",
        "module",
        "context_limit",
        "external",
    ),
    *("context", "orphaned", "unaccounted"),
)

#: The action for a non-tenant process: none for a host process, `audit.unallocated` of
#: gpushare.yaml for a process of a container.
ACTIONS: Final = ("ignore", "warn", "kill")


class CardMetrics(TypedDict):
    """One card."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    used_bytes: int | None  # memory of processes, by the driver; None: not reported
    allocated_bytes: int
    available_bytes: int
    cores_allocated: int  # percent
    utilization: int | None  # percent
    tenants: int
    max_tenants: int
    cordoned: bool
    healthy: bool
    xids: dict[str, int]  # how often each XID was reported, since gpushared started
    non_tenant_processes: dict[str, int]  # those that use memory of it, by ACTIONS


class TenantCardMetrics(TypedDict):
    """One card of a tenant."""

    index: int
    uuid: str
    memory_bytes: int  # quota
    limit_bytes: int
    used_bytes: int
    kinds: dict[str, int]  # they add up to used_bytes
    drift_bytes: int | None  # what its account expects less the driver's figure; None: no account
    peak_bytes: int  # the most that was seen, four times a second; since gpushared started
    cores: int  # percent requested; 0: none
    utilization: float | None  # percent of the card over ten seconds; None: unknown
    source: str  # of it: nvml | gate | "" (none)
    gpu_seconds: float  # of the card's time that it had; since gpushared started
    throttled_seconds: float  # threads' waits at the gate; since gpushared started
    forced: int  # launches that went ahead after waiting too long; since gpushared started
    active: float  # when it was last seen to use the card; at first when it was first looked at
    over_bytes: int  # above its limit, by the audit
    bypassed: bool  # its work bypasses the launch gate
    hung: bool


class TenantMetrics(TypedDict):
    """One tenant that has a part of a card."""

    key: str
    id: str
    name: str
    engine: str  # as in TenantStatus; the name of a host process is its user's choice, and no pod's
    mode: str  # shared | exclusive
    policy: str
    class_: str  # online | offline
    priority: int
    isolation: str
    held: list[str]  # interventions: operator | audit; stop: all its processes are to exit
    created: float
    denied: int  # allocations over the quota; since gpushared started
    cards: list[TenantCardMetrics]


class OperationMetrics(TypedDict):
    """How long one operation took, from its packet to its answer; since gpushared started."""

    buckets: list[int]  # how many took at most BOUNDS[n] and more than the one before
    seconds: float  # all of them together
    failures: dict[str, int]  # by the code of the refusal


class NodeMetrics(TypedDict):
    """The daemon, and the machine."""

    version: str
    node_name: str  # of this machine in Kubernetes; empty: not known to gpushared
    started: float  # seconds since the epoch
    driver_version: str
    cuda_version: str
    driver_up: bool  # it is loaded, and its figures are not stale
    scheduler_up: bool
    operations: dict[str, OperationMetrics]
    events: dict[str, int]  # how often each event of COUNTED occurred
    history_lost: int  # events that could not be kept; since gpushared started
