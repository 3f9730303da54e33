# SPDX-License-Identifier: Apache-2.0
"""Containers and host processes, and their allocations."""

from __future__ import annotations

from typing import TypedDict


class CardComputeUsage(TypedDict):
    """A tenant's use of one card's compute. `cores_used` and `throttled` are by "1s", "10s", "60s".

    Counters start with the tenant; those that its processes claim start with gpushared.
    """

    cores_source: str  # gate (charged) | driver (NVML: open gates, whole cards) | "" (none)
    gate: str  # open | metered | window | closed; empty: a whole card
    cores_used: dict[str, float | None]  # percent of the card; None: unknown
    throttled: dict[str, float | None]  # fraction of the time spent waiting for the card, 0..1
    charged_ns: int  # card time, while its gate was metered
    windows: int
    overruns: int  # windows in which work did not complete in time
    forced_launches: int  # claimed: launches that proceeded after waiting too long
    throttled_ns: int  # claimed: time that threads waited at the launch gate
    is_hung: bool  # work is pending that appears never to complete
    driver_utilization: float | None  # by the driver, over 10 s; None: not reported
    gate_bypassed: bool  # clearly more than it claims, or launched at a closed gate


class TenantCard(TypedDict):
    """A tenant's allocation on one card."""

    index: int
    uuid: str
    quota_bytes: int  # the memory quota
    burst_limit_bytes: int  # equal to quota_bytes: no burst
    current_limit_bytes: int  # usable now: quota_bytes and current burst
    used_bytes: int  # as the formula in gpushare_abi.h
    burst_used_bytes: int  # of used_bytes, above quota_bytes
    over_limit_bytes: int  # of used_bytes, above current_limit_bytes; allocations fail meanwhile
    tracked_bytes: int  # all allocations; `why` breaks them down by kind
    oversubscribed_bytes: int  # beside used_bytes: managed memory that the quota does not count
    oversubscribed_limit_bytes: int  # the most that there may be of that; 0: none
    overhead_bytes: int  # contexts, modules, and memory that only the driver reports
    contexts: int
    cores: int  # percent requested; 0: none
    policy: str  # policy in effect: the card's or the tenant's; empty: a whole card
    share_percent: float | None  # percent of the card while all tenants compete; None: all of it
    is_capped: bool  # share_percent is also a cap
    cores_used_1s: float | None  # percent over the last second; None: unknown
    compute: CardComputeUsage
    denied_allocations: int  # claimed; since gpushared started, including exited processes
    over_quota_state: str  # by the driver's figures: seen | frozen | killed; empty: not over


class ProcessCard(TypedDict):
    """A process's use of one card, by the driver."""

    index: int
    bytes: int | None
    utilization: int | None  # percent of the card's time; None: nothing ran, or not reported


class TenantProcess(TypedDict):
    """A process of a tenant that uses the driver."""

    pid: int  # the host's
    container_pid: int
    name: str
    bytes: int | None  # on all cards together
    cards: list[ProcessCard]


class Intervention(TypedDict):
    """A pause, freeze or stop of a tenant."""

    by: str  # operator, idle (paused) | audit (frozen) | stop (all processes are to exit)
    reason: str
    since: float  # seconds since the epoch


class TenantEviction(TypedDict):
    """Where the GPU memory of an evicted tenant is."""

    state: str  # evicting | evicted | restoring | failed (it cannot be restored)
    since: float  # of this state; seconds since the epoch
    cause: str  # operator | move | idle | offline
    reason: str
    bytes: int  # in host memory, or on the way there or back
    from_cards: list[int]  # indices of the cards that it came from; -1: gone
    held: bool  # only an operator restores it
    waits_since: float | None  # its program waits for its restore; seconds since the epoch
    error: str  # for state failed: what the driver reported


class TenantPod(TypedDict):
    """The pod of a container, and the container's name in it."""

    namespace: str
    name: str
    uid: str
    container: str


class TenantMps(TypedDict):
    """What a tenant of a card in MPS mode has of the card's MPS server."""

    share: str  # space: multiprocessors of its own | percentage: a ceiling | "": no ceiling
    percentage: int  # of the multiprocessors, its ceiling; 100: none
    chunks: int  # of a static partition; 0: it has none
    # Beside the interposer's: cgroup, the driver's for the container | namespace or server, for
    # each of its processes | "": none
    memory_limit: str
    server_state: str  # as NVIDIA names it; "": no server runs
    lost: str  # why its processes can no longer use the card; "": they can


class TenantStatus(TypedDict):
    """A container or host process, and its allocation."""

    key: str
    id: str
    name: str
    engine: str  # docker | containerd | podman | runc | host
    pod: TenantPod | None  # None: of no pod of Kubernetes
    state: str  # reserved | bound | none (with all=True: no GPU requested)
    reason: str  # for state none: what to add to get a GPU
    pid: int
    policy: str  # its own
    online: bool  # class online: never waits for its turn
    priority: int  # among offline tenants, 0 is served first
    weight: int  # under native-burst-share; 0: none requested
    isolation: str  # driver | interposer | audit | advice | exclusive | mps
    mps: TenantMps | None  # None: it is no client of an MPS server
    over_quota_action: str  # action when over quota: observe | warn | freeze | kill
    throttled_ratio: float  # maximum of its cards over the last second, 0..1; unknown: 0
    created_at: float  # seconds since the epoch
    idle_since: float | None  # seconds since the epoch; None: not idle by idle of gpushare.yaml
    evicted: TenantEviction | None  # None: its memory is on its cards
    ends_at: float | None  # seconds since the epoch: its time limit; None: it has none
    cards: list[TenantCard]
    processes: list[TenantProcess]
    interventions: list[Intervention]  # frozen while there is one by operator, idle or audit
    quota: dict[str, str]  # canonical keys as requested, each with its source after a space
    notes: list[str]  # requests that were not applied and why, and capabilities without interposer
    warnings: list[str]  # for its user, for example that it is over quota and on which card


class ShortfallReport(TypedDict):
    """Memory within the quota that the driver did not have; `times` since gpushared started."""

    bytes: int  # of the last shortfall
    seen: float  # seconds since the epoch
    times: int


class WhyCard(TypedDict):
    """A tenant's memory on one card by kind: `kinds` add up to `used_bytes`.

    The kinds are buffers, managed, pools, physical (VMM), arrays, graphs, modules, context_limits
    (heap, stack and FIFO), external and contexts, by the tenant's own account; orphaned, shared
    memory whose allocating process exited; and unaccounted, what only the driver reports. On a
    whole card, which has no account, all memory is unaccounted.
    """

    index: int
    uuid: str
    model: str
    card_memory_bytes: int  # 0: unknown
    quota_bytes: int  # quota
    burst_limit_bytes: int  # equal to quota_bytes: no burst
    current_limit_bytes: int  # usable now: quota_bytes and current burst
    used_bytes: int
    kinds: dict[str, int]
    contexts: int
    bytes_per_context: int  # memory of one context
    pool_cached_bytes: int  # of pools: free, retained for the next allocation
    exported_bytes: int  # of used: the tenant's other processes may map it
    imported_bytes: int  # maximum mapped by one process; charged where allocated
    oversubscribed_bytes: int  # beside used_bytes: managed memory that the quota does not count
    oversubscribed_limit_bytes: int  # the most that there may be of that; 0: none
    expected_bytes: int  # expected driver usage, by the account
    driver_bytes: int | None  # driver usage of the tenant's processes; None: not reported
    drift_bytes: int | None  # driver_bytes - expected_bytes
    drift_text: str  # the same as text
    shortfall: ShortfallReport | None  # None: no shortfall


class WhyProcessCard(TypedDict):
    """A process's memory on one card: `kinds` other than 0 add up to `bytes`."""

    index: int
    bytes: int
    kinds: dict[str, int]
    contexts: int
    exported_bytes: int
    imported_bytes: int
    driver_bytes: int | None


class WhyProcess(TypedDict):
    """A process with an account, or reported by the driver; `cards` lists the cards it uses."""

    pid: int | None  # on the host; None: exited, or not among the container's processes
    container_pid: int
    name: str
    accounted: bool  # False: reported by the driver, without an account
    denied: int
    denied_bytes: int  # size of the last one
    cards: list[WhyProcessCard]


class DeniedAllocation(TypedDict):
    """An allocation that was refused because of the quota."""

    bytes: int
    container_pid: int
    seen: float | None  # seconds since the epoch; None: before this daemon observed it


class Why(TypedDict):
    """A tenant's memory usage, with advice."""

    key: str
    id: str
    name: str
    state: str
    reason: str  # for state none: what to add to get a GPU
    isolation: str
    idle_since: float | None  # as in TenantStatus
    evicted: TenantEviction | None  # as in TenantStatus; then no card has any of its memory
    stale_reason: str  # why the driver's figures are stale; empty: they are current
    cards: list[WhyCard]
    denied: int  # since gpushared started, including exited processes
    last_denied_allocation: DeniedAllocation | None
    advice: list[str]
    notes: list[str]  # requests that were changed or not applied
    processes: list[WhyProcess]  # sent as rows
