# SPDX-License-Identifier: Apache-2.0
"""The reply of the op `metrics`: figures of cards, tenants and the daemon, for gpushare-exporter.

One request is one moment, and costs the daemon less than the rows of `gpushare ps`: it looks for no
processes and queries no engine. Sizes are bytes, times seconds. Each counter names its start: the
tenant, or the daemon's start, at which it is 0 again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypedDict

from gpushare.protocol.tenants import TenantPod

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

#: The states of an eviction. Only in the second one the tenant has nothing of its cards.
EVICTION_STATES: Final = ("evicting", "evicted", "restoring", "failed")


class CardSensors(TypedDict, total=False):
    """What NVML tells of a card's hardware, at most some ten seconds ago; the keys that it has."""

    temperature_celsius: int
    memory_temperature_celsius: int
    power_milliwatts: int
    energy_millijoules: int  # since the driver was loaded
    sm_clock_mhz: int
    memory_clock_mhz: int
    memory_copy_percent: int  # of the time in which memory was read or written
    encoder_percent: int
    decoder_percent: int
    pcie_replays: int
    correctable_rows: int  # of memory, remapped after correctable errors
    uncorrectable_rows: int
    row_remap_failures: int  # 1: one has failed
    corrected_ecc_errors: int  # in the card's lifetime
    uncorrected_ecc_errors: int
    reserved_bytes: int  # of memory, by the driver


class CardMetrics(TypedDict):
    """One card."""

    index: int
    uuid: str
    model: str
    name: str  # as the driver reports it, with the vendor
    bus_id: str  # PCI address as NVML writes it; empty: not known
    memory_bytes: int
    used_bytes: int | None  # memory of processes, by the driver; None: not reported
    allocated_bytes: int
    available_bytes: int  # as in CardStatus
    burst_bytes: int  # usable above the quotas now, or used
    non_tenant_bytes: int  # high-water mark
    evicted_bytes: int  # of its evicted tenants, in host memory
    evicted_tenants: int
    cores_allocated: int  # percent
    utilization: int | None  # percent
    tenants: int
    max_tenants: int
    mode: str  # unused | shared | exclusive | mps
    cordoned: bool
    healthy: bool
    health: str  # ok, or the fault
    xids: dict[str, int]  # how often each XID was reported since gpushared started; the last last
    non_tenant_processes: dict[str, int]  # those that use memory of it, by ACTIONS
    sensors: CardSensors


class TenantCardMetrics(TypedDict):
    """One card of a tenant."""

    index: int
    uuid: str
    memory_bytes: int  # quota
    limit_bytes: int
    used_bytes: int
    kinds: dict[str, int]  # they add up to used_bytes
    evicted_bytes: int  # what an evicted tenant had of the card, in host memory; 0: not evicted
    oversubscribed_bytes: int  # beside them: managed memory that the quota does not count
    oversubscribed_limit_bytes: int  # the most that there may be of that
    drift_bytes: int | None  # what its account expects less the driver's figure; None: no account
    peak_bytes: int  # the most that was seen, four times a second; since gpushared started
    cores: int  # percent requested; 0: none
    policy: str  # in effect; empty: a whole card
    utilization: float | None  # percent of the card over ten seconds; None: unknown
    source: str  # of it: nvml | gate | "" (none)
    gpu_seconds: float  # of the card's time that it had; since gpushared started
    throttled_seconds: float  # threads' waits at the gate; since gpushared started
    throttled: float | None  # part of the last ten seconds in which it waited; None: unknown
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
    pod: TenantPod | None  # None: of no pod of Kubernetes
    uid: int | None  # of the user that runs it, on the host; None: not known, or it does not run
    labels: dict[str, str]  # those that gpushare.yaml names
    mode: str  # shared | exclusive
    policy: str
    class_: str  # online | offline
    priority: int
    isolation: str
    held: list[str]  # interventions: operator | audit; stop: all its processes are to exit
    created: float
    idle_since: float | None  # seconds since the epoch; None: it is not idle by its policy
    eviction: str  # its state, of EVICTION_STATES; empty: its memory is on its cards
    restore_waits_since: float | None  # its program waits for it; seconds since the epoch
    denied: int  # allocations over the quota; since gpushared started
    cards: list[TenantCardMetrics]


class EndedTenantMetrics(TenantMetrics):
    """The last figures of a tenant that has ended: in the answers of some 60 s, and in no other."""

    ended: float  # when it was released; seconds since the epoch


class OperationMetrics(TypedDict):
    """How long one operation took, from its packet to its answer; since gpushared started."""

    buckets: list[int]  # how many took at most BOUNDS[n] and more than the one before
    seconds: float  # all of them together
    failures: dict[str, int]  # by the code of the refusal


class EvictionMetrics(TypedDict):
    """What was evicted and restored since gpushared started; a move is a restore as well."""

    evictions: int
    restores: int
    moves: int
    failures: int  # evictions and restores that the driver did not do
    eviction_seconds: float
    restore_seconds: float
    driver_seconds: float  # of both, in the driver


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
    evictions: EvictionMetrics
    history_lost: int  # events that could not be kept; since gpushared started
    queue_waiting: int  # starts that wait for room
    queue_oldest_seconds: float  # how long the oldest of them has waited; 0: none waits
    queue_granted: int  # starts that were granted room; since gpushared started
    queue_waited_seconds: float  # how long all of those waited together


@dataclass(frozen=True)
class Metrics:
    """All figures at one time."""

    cards: list[CardMetrics]
    tenants: list[TenantMetrics]
    node: NodeMetrics
    ended: list[EndedTenantMetrics] = field(default_factory=list)
