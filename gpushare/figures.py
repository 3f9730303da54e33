# SPDX-License-Identifier: Apache-2.0
"""What the op `metrics` answers: figures of cards, tenants and the daemon, for gpushare-exporter.

One request is one moment, and costs the daemon less than the rows that people are shown: nobody's
processes are looked for and no engine is asked. Sizes are bytes, times seconds. What only ever
grows says what it begins with: the tenant, or the daemon's start, where it is 0 again.
"""

from __future__ import annotations

from typing import Final, TypedDict

#: Upper bounds of the buckets of `Operation.buckets`, in seconds; the last bucket has none.
BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: What memory is used for, in `TenantCardFigures.kinds`: these and no other.
KINDS: Final = (
    *("buffer", "managed", "pool", "physical", "array", "graph", "module", "limit", "external"),
    *("context", "orphaned", "beyond"),
)

#: What is done about a process of no tenant: of the host's own nothing, of one in a container what
#: `audit.unknown` in gpushare.yaml says.
ACTIONS: Final = ("ignore", "warn", "kill")


class CardFigures(TypedDict):
    """One card."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    used_bytes: int | None  # what the driver says that processes have; None: it does not say
    granted_bytes: int
    free_bytes: int
    cores_granted: int  # percent
    utilisation: int | None  # percent
    shares: int
    shares_max: int
    cordoned: bool
    healthy: bool
    xids: dict[str, int]  # how often each XID was reported, since gpushared started
    bypass: dict[str, int]  # processes of no tenant that hold memory of it, by ACTIONS


class TenantCardFigures(TypedDict):
    """One card of a tenant."""

    index: int
    uuid: str
    memory_bytes: int  # quota
    limit_bytes: int
    used_bytes: int
    kinds: dict[str, int]  # they add up to used_bytes
    drift_bytes: int | None  # what its account expects less what the driver has; None: no account
    peak_bytes: int  # the most that was seen, four times a second; since gpushared started
    cores: int  # percent asked; 0: none
    utilisation: float | None  # percent of the card over ten seconds; None: nobody knows
    source: str  # of it: nvml | gate | "" (none)
    gpu_seconds: float  # of the card's time that it had; since gpushared started
    throttled_seconds: float  # threads' waits at the gate; since gpushared started
    forced: int  # launches that went ahead after waiting too long; since gpushared started
    active: float  # when it was last seen to use the card; at first when it was first looked at
    over_bytes: int  # what it has above what it may, as the audit sees it
    bypassed: bool  # its work goes round the gate
    hung: bool


class TenantFigures(TypedDict):
    """One tenant that has a part of a card."""

    key: str
    id: str
    name: str
    engine: str  # as Tenant's: of a host's the name is its user's own, and no pod's
    mode: str  # shared | exclusive
    policy: str
    class_: str  # online | offline
    priority: int
    isolation: str
    held: list[str]  # who holds it still: operator | audit; or kill: it is being ended
    created: float
    denied: int  # allocations over the quota; since gpushared started
    cards: list[TenantCardFigures]


class Operation(TypedDict):
    """How long one operation took, from its packet to its answer; since gpushared started."""

    buckets: list[int]  # how many took at most BOUNDS[n] and more than the one before
    seconds: float  # all of them together
    failures: dict[str, int]  # by the code of the refusal


class NodeFigures(TypedDict):
    """The daemon, and the machine."""

    version: str
    started: float  # seconds since the epoch
    driver_version: str
    cuda_version: str
    driver_up: bool  # it is loaded, and its figures are not old
    scheduler_up: bool
    operations: dict[str, Operation]
    events: dict[str, int]  # how often each of those that the history keeps was logged
    history_lost: int  # events that could not be kept; since gpushared started
