# SPDX-License-Identifier: Apache-2.0
"""Cards and tenants as every reader sees them: one shape of a row for each.

`CardRow` and `TenantRow`, with a `TenantCard` for each of its cards, are what `ls`, `ps`, `top` and
`why`, the exporter, the metrics history, the dashboard and the reports select figures from. Sizes
are bytes, times seconds since the epoch. Each counter names its start, at which it is 0 again.
"""

from __future__ import annotations

import math
from typing import Final, TypedDict

#: The keys of `TenantCard.kinds`, exactly these.
KINDS: Final = (
    "buffers",
    "managed",
    "pools",
    "physical",  # VMM
    "arrays",
    "graphs",
    "modules",
    "context_limits",  # heap, stack and FIFO
    "external",
    "contexts",
    "orphaned",  # shared memory whose allocating process exited
    "unaccounted",  # only the driver reports it; all memory of a whole card, which has no account
)

#: The action for a non-tenant process: none for a host process, a report for a container's.
ACTIONS: Final = ("ignore", "warn")

_SAMPLED_SECONDS: Final = 0.2

#: The states of an eviction. Only in the second one the tenant has nothing of its cards.
EVICTION_STATES: Final = ("evicting", "evicted", "restoring", "failed")


class NonTenantProcessStatus(TypedDict):
    """A non-tenant process that uses memory of a card."""

    pid: int
    name: str
    bytes: int
    container: str  # its container, as "docker 4f5e6d7c8b9a"; empty: a host process


class CardLink(TypedDict):
    """The connection from a card to another card."""

    index: int
    uuid: str
    kind: str  # NV4 (number of NVLinks) | PIX | PXB | PHB | NODE | SYS | ?, as nvidia-smi topo -m
    distance: int  # 1 (nearest) to 70


class CardSensors(TypedDict, total=False):
    """A card's hardware by NVML, some ten seconds old at most; the keys that it has."""

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


class CardRow(TypedDict):
    """One card: its memory and compute, allocated and available."""

    index: int
    uuid: str
    model: str
    name: str  # as the driver reports it, with the vendor
    brand: str  # as NVIDIA_REQUIRE_ variables name it: tesla, nvidia, geforce; empty: unknown
    bus_id: str  # PCI address as NVML writes it; empty: unknown
    compute_capability: str  # "9.0"; empty: unknown
    is_datacenter: bool  # a card that cuda-compat packages support
    memory_bytes: int  # NVML's total minus what the driver reserves
    system_reserved_bytes: int  # reserved for the system by the node's configuration
    used_bytes: int | None  # memory of all processes, by the driver; None: not reported
    allocated_bytes: int
    burst_granted_bytes: int  # usable above quotas now, including what is used
    non_tenant_bytes: int  # memory of non-tenant processes, high-water mark
    non_tenant_processes: list[NonTenantProcessStatus]  # the largest
    non_tenant_actions: dict[str, int]  # how many non-tenant processes there are, by ACTIONS
    unattributed_bytes: int  # in use, but the driver reports no process: attributed to no tenant
    available_bytes: int  # to a new container; 0 while the card takes none
    evicted_bytes: int  # of evicted tenants, in host memory; in none of the figures above
    evicted_tenants: int
    cores_available: int  # percent of the card
    tenants: int
    max_tenants: int
    mode: str  # "shared" | "exclusive" | "unused"; "mps": its shares are clients of an MPS server
    mps_trusted: bool  # in mode mps: they trust each other; if not, it takes one of each host uid
    utilization: int | None  # percent of time busy, by NVML; None: unknown
    sensors: CardSensors
    health: str  # "ok", or the fault
    xids: dict[str, int]  # how often each XID was reported since gpushared started; the last last
    policy: str  # compute policy set for its tenants; empty: as requested
    allowed_mode: str  # accepted requests (node configuration): "any" | "shared" | "exclusive"
    schedulable_bytes: int  # memory for the scheduler of Kubernetes, including what it allocated
    schedulable_cores: int  # percent of the card for that scheduler, likewise
    is_schedulable: bool  # the scheduler may place new pods on it
    schedulable_reason: str  # why not; begins with a word of UNSCHEDULABLE
    cordoned: bool  # no new containers are placed on it
    cordon_reason: str
    numa_node: int | None  # its NUMA node; None: unknown
    links: list[CardLink]  # to each other card


class UnifiedCard(TypedDict):
    """A card whose memory is the machine's: the keys of CardRow that it has.

    gpushare allocates nothing of it, so it has no figures.
    """

    index: int
    uuid: str
    model: str
    mode: str  # "unified"
    health: str  # "ok"
    schedulable_reason: str  # why it cannot be shared


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


def chance_percent(percent: float, seconds: float) -> float:
    """Return how far from `percent` of a card the driver's figure over `seconds` may be by chance.

    The driver counts each 0.2 s of a card for the one process that had it last (seen on an H100
    with driver 580), so that its figure is a number of samples: one in 16,000 is beyond four
    standard deviations.
    """
    part = min(percent, 100.0) / 100
    return 400 * math.sqrt(part * (1 - part) * _SAMPLED_SECONDS / max(seconds, _SAMPLED_SECONDS))


class TenantCard(TypedDict):
    """A tenant's part of one card. A whole card has no account of its memory."""

    index: int  # -1: the card is gone
    uuid: str
    quota_bytes: int  # the memory quota
    burst_limit_bytes: int  # equal to quota_bytes: no burst
    limit_bytes: int  # usable now: quota_bytes and current burst
    used_bytes: int  # as the formula in gpushare_abi.h; 0 while the tenant is evicted
    kinds: dict[str, int]  # by KINDS; they add up to used_bytes
    over_limit_bytes: int  # of used_bytes, above limit_bytes; allocations fail meanwhile
    overhead_bytes: int  # contexts, modules, and memory that only the driver reports
    contexts: int
    evicted_bytes: int  # what an evicted tenant had of the card, in host memory; 0: not evicted
    oversubscribed_bytes: int  # beside used_bytes: managed memory that the quota does not count
    oversubscribed_limit_bytes: int  # the most that there may be of that; 0: none
    peak_bytes: int  # the most that was seen, four times a second; since gpushared started
    expected_bytes: int | None  # the driver's figure, by the account; None: no account
    driver_bytes: int | None  # the driver's figure of its processes; None: not reported
    over_quota_bytes: int  # above limit_bytes, by the driver's figures
    over_quota_state: str  # by the driver's figures: seen | frozen | killed; empty: not over
    cores: int  # percent requested; 0: none
    policy: str  # policy in effect: the card's or the tenant's; empty: a whole card
    share_percent: float | None  # percent of the card while all tenants compete; None: all of it
    is_capped: bool  # share_percent is also a cap
    utilization: float | None  # percent of the card over 10 s, by utilization_source; None: unknown
    utilization_source: str  # driver, unless only the gate knows | gate | "" (none)
    encoder_percent: int | None  # of its time, over the last second; None: not reported
    decoder_percent: int | None
    gpu_seconds: float  # of the card's time that it had; since gpushared started
    last_active: float  # when it was last seen to use the card; before that, its start
    compute: CardComputeUsage


#: The state of a container that does not run, by its cause; the first one that applies.
RUN_STATES: Final = {
    "stop": "stopping",
    "operator": "paused",
    "idle": "paused",
    "audit": "frozen",
    "engine": "paused",
}


class Intervention(TypedDict):
    """A pause, freeze or stop of a tenant."""

    # operator, idle, engine (paused; engine: by a program that is not gpushare, or there is no
    # record of it) | audit (frozen) | stop (all processes are to exit)
    by: str
    reason: str
    since: float | None  # seconds since the epoch; None: not known


class TenantEviction(TypedDict):
    """Where the GPU memory of an evicted tenant is."""

    state: str  # of EVICTION_STATES; failed: it cannot be restored
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
    """A tenant's part of the MPS server of a card in MPS mode."""

    percentage: int  # of the multiprocessors, its ceiling; 100: none
    trusted: bool  # the card's containers trust each other; if not, it is the only one of its uid
    # Beside the interposer's: cgroup, the driver's for the container | server, for each of its
    # processes | "": none
    memory_limit: str
    server_state: str  # as NVIDIA names it; "": no server runs
    lost: str  # why its processes can no longer use the card; "": they can


_Class = TypedDict("_Class", {"class": str})  # a keyword, which no class body can have


class _TenantFacts(_Class):
    """A container or host process.

    Its key `class` is online (it never waits for its turn) or offline.
    """

    key: str
    id: str
    name: str
    engine: str  # docker | containerd | podman | runc | host; a user chose the name of a host's
    pod: TenantPod | None  # None: of no pod of Kubernetes
    uid: int | None  # of the user that runs it, on the host; None: not known, or it does not run
    labels: dict[str, str]  # those that gpushare.yaml names
    state: str  # reserved | bound | none (with all=True: no GPU requested)
    policy: str  # its own
    priority: int  # among offline tenants, 0 is served first
    isolation: str  # driver | interposer | audited | advisory | exclusive | mps | remote
    interventions: list[Intervention]  # it runs while there is none but stop
    created: float
    idle_since: float | None  # None: not idle by idle of gpushare.yaml
    eviction: TenantEviction | None  # None: its memory is on its cards
    denied_allocations: int  # claimed: over the quota, on all cards, also of exited processes
    denied_since_start: int  # of them, since gpushared started


class TenantRow(_TenantFacts):
    """A container or host process, and its allocation."""

    cards: list[TenantCard]


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


class TenantStatus(TenantRow):
    """A row with what takes longer to find: processes, and what to tell its user."""

    reason: str  # for state none: what to add to get a GPU
    pid: int
    weight: int  # under native-burst-share; 0: none requested
    mps: TenantMps | None  # None: it is no client of an MPS server
    over_quota_action: str  # action when over quota: observe | warn | freeze | kill
    ends_at: float | None  # its time limit; None: it has none
    processes: list[TenantProcess]
    quota: dict[str, str]  # canonical keys as requested, each with its source after a space
    notes: list[str]  # requests that were not applied and why, and capabilities without interposer
    warnings: list[str]  # for its user, for example that it is over quota and on which card


class EndedTenantRow(TenantRow):
    """The last row of a tenant that has ended: in the answers of some 60 s, and in no other."""

    ended: float  # when it was released


class ShortfallReport(TypedDict):
    """Memory within the quota that the driver did not have; `times` since gpushared started."""

    bytes: int  # of the last shortfall
    seen: float  # seconds since the epoch
    times: int


class WhyCard(TenantCard):
    """A tenant's memory on one card. Of an evicted tenant, the account is shown."""

    model: str
    card_memory_bytes: int  # 0: unknown
    bytes_per_context: int  # memory of one context
    pool_cached_bytes: int  # of pools: free, retained for the next allocation
    exported_bytes: int  # of used: the tenant's other processes may map it
    imported_bytes: int  # maximum mapped by one process; charged where allocated
    drift_bytes: int | None  # driver_bytes - expected_bytes
    drift_text: str  # the same as text
    shortfall: ShortfallReport | None  # None: no shortfall


class WhyProcessCard(TypedDict):
    """A process's memory on one card: `kinds` other than 0 add up to `bytes`."""

    index: int
    bytes: int
    kinds: dict[str, int]
    driver_bytes: int | None


class WhyProcess(TypedDict):
    """A process with an account, or reported by the driver; `cards` lists the cards it uses."""

    pid: int | None  # on the host; None: exited, or not among the container's processes
    container_pid: int
    name: str
    accounted: bool  # False: reported by the driver, without an account
    denied: int
    cards: list[WhyProcessCard]


class DeniedAllocation(TypedDict):
    """An allocation that was refused because of the quota."""

    bytes: int
    container_pid: int
    seen: float | None  # seconds since the epoch; None: before this daemon observed it


class Why(_TenantFacts):
    """A tenant's memory usage, with advice."""

    reason: str  # as in TenantStatus, as `notes`
    stale_reason: str  # why the driver's figures are stale; empty: they are current
    cards: list[WhyCard]
    last_denied_allocation: DeniedAllocation | None
    advice: list[str]
    notes: list[str]
    processes: list[WhyProcess]  # sent as rows
