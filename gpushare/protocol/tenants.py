# SPDX-License-Identifier: Apache-2.0
"""A container, or a process of the host, and what it got."""

from __future__ import annotations

from typing import TypedDict


class CardSpent(TypedDict):
    """What a tenant got of one card's compute. `got` and `throttled` are by "1s", "10s", "60s".

    The counts begin with the tenant; those that its processes claim, with gpushared.
    """

    source: str  # of got: gate (charged) | driver (NVML's: open gates and whole cards) | "" (none)
    gate: str  # open | metered | window | closed; empty: a whole card
    got: dict[str, float | None]  # percent of the card; None: not known
    throttled: dict[str, float | None]  # of the time: it wanted the card and did not have it, 0..1
    charged_ns: int  # of the card's time, while its gate counted
    windows: int
    overruns: int  # windows whose work did not end in time
    forced: int  # claimed: launches that went ahead after waiting too long
    waited_ns: int  # claimed: threads' time at the gate, those that wait now not yet
    hung: bool  # work is pending that seems never to end
    driver_percent: float | None  # what the driver saw, over 10 s; None: it does not say
    bypassed: bool  # that is clearly more than was charged: work goes round the gate


class TenantCard(TypedDict):
    """A tenant's part of one card."""

    index: int
    uuid: str
    memory_bytes: int  # quota: what is promised
    memory_limit_bytes: int  # what it may use while the card has it to lend; memory_bytes: no more
    limit_bytes: int  # what it may use now: memory_bytes and what it is lent
    used_bytes: int  # as the formula in gpushare_abi.h
    borrowed_bytes: int  # of used_bytes, above memory_bytes
    over_bytes: int  # of used_bytes, above limit_bytes: nothing more before it has freed as much
    buffer_bytes: int  # all that was allocated; `why` has it by what it was allocated for
    overhead_bytes: int  # contexts, modules, and what the driver has beside the account
    contexts: int
    cores: int  # percent asked; 0: none
    policy: str  # what holds here: the card's, or the tenant's own; empty: a whole card
    share: float | None  # percent it is to get while all want theirs; None: all there is
    capped: bool  # and never more than that
    cores_got: float | None  # percent over the last second, None: not known
    spent: CardSpent
    denied: int  # allocations over the quota, of ended processes too; since gpushared started
    audit: str  # above by the driver's figures: seen | frozen | killed; empty: it is not


class ProcessCard(TypedDict):
    """What the driver says that a process has of one card."""

    index: int
    bytes: int | None
    utilisation: int | None  # percent of the card's time; None: nothing ran, or it does not say


class TenantProcess(TypedDict):
    """A process of a tenant that holds the driver."""

    pid: int  # the host's
    container_pid: int
    name: str
    bytes: int | None  # of all cards together
    cards: list[ProcessCard]


class Held(TypedDict):
    """Who holds a tenant still, or ends it."""

    by: str  # operator (pause) | audit | kill: all its processes are to end
    why: str
    since: float  # seconds since the epoch


class Tenant(TypedDict):
    """A container (or host process) and what it got."""

    key: str
    id: str
    name: str
    engine: str  # docker | containerd | podman | runc | host
    state: str  # reserved | bound | none (all=True: asked for nothing)
    why: str  # for state none: what to add to get a GPU
    pid: int
    policy: str  # its own
    online: bool  # of class online: it never waits
    priority: int  # of those that are offline, 0 comes first
    weight: int  # under native-burst-share; 0: none asked
    isolation: str  # driver | interposer | audit | advice | exclusive
    on_over: str  # how far it goes where it has more memory: observe | warn | freeze | kill
    throttled: float  # the most that its cards say for the last second, 0..1; not known: 0
    created: float  # seconds since the epoch
    cards: list[TenantCard]
    processes: list[TenantProcess]
    held: list[Held]  # while anybody of operator and audit is there, it is frozen
    quota: dict[str, str]  # canonical keys as asked, each with its source after a space
    notes: list[str]  # what was asked and not taken, why, and what is not mediated
    warnings: list[str]  # what its user should know: that it is over its quota, on which card
