# SPDX-License-Identifier: Apache-2.0
"""The control socket's language: who may ask what, and what comes back.

Transport: `SOCK_SEQPACKET` on `<run_dir>/control.sock`, one JSON object per packet. A request is at
most `MAX_REQUEST_BYTES`, a reply packet at most `MAX_REPLY_BYTES`. The daemon answers
`{"ack": true}` at once (a client gives up when that takes `ACK_SECONDS`), or `{"starting": true}`
and the acknowledgement when it is ready (within `START_SECONDS`), then any number of
`{"row": {...}}`, then one final `{"ok": true, ...}` or `{"ok": false, "code": ..., "error": ...}`
within `REPLY_SECONDS`. The C side of the same is `runtime/client.c`.

| op | from | fields | rows / result |
|---|---|---|---|
| create | launcher, root | id, bundle (path), verb, marker; fds: bundle, rootfs | given, key |
| bind | hook: root; `gpushare run`: who opened it | key, id, pid | - |
| release | hook: root; `gpushare run`: who opened it | key, id | - |
| open | `gpushare run`, root or own uid | quota {NAME: text}, name, pid, rootless | Opened |
| cards | anyone | - | Card rows |
| tenants | anyone | all (also what got no GPU, and why) | Tenant rows |
| tenant | anyone | name | tenant: Tenant |
| why | anyone | name | WhyProcess rows; why: Why |
| set | root | name; SET_FIELDS, texts, or reset: which, or "all" | tenant: Tenant, as it is now |
| pause | root | name; why (a text, or not) | tenant: Tenant, as it is now |
| resume | root | name | tenant: Tenant, as it is now |
| kick | root | name; signal (TERM, ...), grace (seconds); why (or not) | tenant: Tenant |
| reload | root | - | changed: the keys of gpushare.yaml that hold anew |
| card-policy | root | card (index or UUID), policy (none: as they ask) | card: Card, as it is now |
| card-cordon | root | card, reason (may be left out) | card: Card, as it is now |
| card-uncordon | root | card | card: Card, as it is now |
| status | anyone | - | Status's keys beside `ok` |
| metrics | anyone | - | CardFigures and TenantFigures rows, as card and tenant; node: NodeFigures |
| history | anyone | name (may be empty), since (epoch), after (a number) | HistoryEvent rows |

`marker` is "strong" or "weak"; `given` is "none", "shared" or "whole".
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypedDict

VERSION: Final = 1
MAX_REQUEST_BYTES: Final = 4096
MAX_REPLY_BYTES: Final = 65536
ACK_SECONDS: Final = 1.0
START_SECONDS: Final = 30.0
REPLY_SECONDS: Final = 10.0

HISTORY_ROWS: Final = 500  # the most in one answer; fewer: there are no more

SET_FIELDS: Final = (
    "memory",
    "memory_limit",
    "cores",
    "policy",
    "weight",
    "priority",
    "class",
    "on_over",
)
RESET_ALL: Final = "all"

#: What a container's first process may be sent by `kick`; KILL ends all of them at once.
KICK_SIGNALS: Final = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL")
KICK_MOST_SECONDS: Final = 3600

CODE_REFUSED: Final = "refused"  # the quota cannot be given: no room, bad key, bad value
CODE_USAGE: Final = "usage"  # the request itself is malformed
CODE_UNKNOWN: Final = "unknown"  # no such tenant, or several: `candidates` lists their names
CODE_FORBIDDEN: Final = "forbidden"  # not for this caller
CODE_ERROR: Final = "error"  # the daemon could not do it


class ProtocolError(ValueError):
    """A packet that is not one JSON object of this protocol."""


class ForeignProcess(TypedDict):
    """A process of no tenant that holds memory of a card."""

    pid: int
    name: str
    bytes: int
    container: str  # which it seems to be in, as "docker 4f5e6d7c8b9a"; empty: a host's program


class CardLink(TypedDict):
    """What is between a card and another one."""

    index: int
    uuid: str
    kind: str  # NV4 (that many NVLinks) | PIX | PXB | PHB | NODE | SYS | ?, as nvidia-smi topo -m
    distance: int  # 1 (near) to 70


class Card(TypedDict):
    """What one card has, has promised and can still give."""

    index: int
    uuid: str
    model: str
    memory_bytes: int  # NVML's total less what the driver reserves
    reserve_bytes: int  # kept back by the node's configuration
    promised_bytes: int
    borrowed_bytes: int  # what tenants use above what they were promised
    lent_bytes: int  # what tenants may use above it now: borrowed_bytes and more
    foreign_bytes: int  # processes of no tenant, high-water mark
    foreign: list[ForeignProcess]
    unattributed_bytes: int  # in use, and the driver tells of no process: nobody is blamed for it
    free_bytes: int
    cores_free: int  # percent of the card
    tenants: int
    tenants_max: int
    mode: str  # "shared" | "exclusive" | "free"
    utilisation: int | None  # percent of the time that it was busy, by NVML; None: not known
    health: str  # "ok" or what is wrong
    policy: str  # set for the compute of its tenants; empty: each has what it asks
    takes: str  # which requests: "any" | "shared" | "exclusive", by the node's configuration
    cordoned: bool  # nothing new is placed on it
    cordon_reason: str
    numa: int | None  # its NUMA node; None: not known
    links: list[CardLink]  # to each other card


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


class WhyLack(TypedDict):
    """What the driver had not got though it was promised; `times` since gpushared started."""

    bytes: int  # the last time
    seen: float  # seconds since the epoch
    times: int


class WhyCard(TypedDict):
    """Where every byte of a tenant's part of one card is: `parts` add up to `used_bytes`.

    The parts are buffers, managed, pools, physical (VMM), arrays, graphs, modules, limits (heap,
    stack and FIFO), external and contexts, as the tenant's own account has them; orphaned, shared
    memory whose maker is gone; and beyond, what the driver was found to have beside the account. Of
    a whole card, which has no account, all is beyond.
    """

    index: int
    uuid: str
    model: str
    memory_bytes: int  # quota
    memory_limit_bytes: int  # what it may use while the card has it to lend
    limit_bytes: int  # what it may use now: memory_bytes and what it is lent
    used_bytes: int
    parts: dict[str, int]
    contexts: int
    context_bytes: int  # the price of one
    pool_kept_bytes: int  # of pools: free, kept for their next allocation
    exported_bytes: int  # of used: the tenant's other processes may map it
    imported_bytes: int  # the most that one process maps of others'; counted where it was made
    expected_bytes: int  # what the driver should have, by the account
    driver_bytes: int | None  # what it has for the tenant's processes; None: it does not say
    drift_bytes: int | None  # driver_bytes - expected_bytes
    drift: str  # the same in words
    lacked: WhyLack | None  # None: it had what it asked for


class WhyHeld(TypedDict):
    """What one process holds on one card: `parts`, those that are not 0, add up to `bytes`."""

    index: int
    bytes: int
    parts: dict[str, int]
    contexts: int
    exported_bytes: int
    imported_bytes: int
    driver_bytes: int | None


class WhyProcess(TypedDict):
    """A process that has an account, or that the driver knows; `cards` where it holds any."""

    pid: int | None  # the host's; None: ended, or not among the container's processes
    container_pid: int
    name: str
    accounted: bool  # False: the driver knows it, and the account does not
    denied: int
    denied_bytes: int  # what the last of them asked for
    cards: list[WhyHeld]


class Denied(TypedDict):
    """An allocation that the quota refused."""

    bytes: int
    container_pid: int
    seen: float | None  # seconds since the epoch; None: before this daemon looked


class Why(TypedDict):
    """Where a tenant's memory is, and what to do about it."""

    key: str
    id: str
    name: str
    state: str
    why: str  # for state none: what to add to get a GPU
    isolation: str
    stale: str  # why the driver's figures are old; empty: they are not
    cards: list[WhyCard]
    denied: int  # allocations over the quota, of ended processes too; since gpushared started
    last_denied: Denied | None
    advice: list[str]
    processes: list[WhyProcess]  # sent as rows


class Status(TypedDict):
    """The daemon itself."""

    version: str
    pid: int
    generation: int  # of the daemons since the machine was started
    scheduler: int  # the process that holds shares of compute; 0: none does
    driver_version: str
    cuda_version: str
    cards: int
    tenants: int
    simulated: bool
    slow_motion: float  # what a simulated card multiplies every duration by; else 1
    config: str
    libraries: str
    run_dir: str
    warnings: list[str]


class HistoryEvent(TypedDict):
    """An event of the node's history (docs/reference/events.md); numbers only grow."""

    number: int
    at: float  # seconds since the epoch, as the clock was then
    boot: str  # the boot's id (random(4))
    generation: int  # how many gpushareds had begun on this history
    event: str
    level: str
    key: str  # the tenant's; empty: of none
    id: str
    name: str
    card: str  # UUID; empty: of none
    fields: dict[str, Any]  # the rest of the log's line


class MountRow(TypedDict):
    """One bind mount; `destination` is a path as the tenant sees it."""

    source: str
    destination: str
    read_only: bool


class Opened(TypedDict):
    """What a host process gets; `gpushare run` makes the mounts in a namespace of its own.

    `mounts`, in order: the driver's own libraries beneath /opt/gpushare/driver, the filters beneath
    /opt/gpushare/lib, the tenant's folder at /opt/gpushare/tenant and its `status` over that. The
    filters over the names of this host's own loader are the caller's to find. A whole card has no
    mounts. What is not a mount (CUDA_VISIBLE_DEVICES, a simulated device) is in `env`.

    The caller then joins the cgroup /gpushare/<id> of every hierarchy it can (host/cgroups.py)
    and sends `bind` with its own pid, and only then becomes the command; who releases the tenant
    removes that cgroup. A reservation that is never bound expires as a container's does.
    """

    key: str
    id: str  # "host-" and the key's first characters
    directory: str  # the tenant's, on the host: what a rootless process reads instead of the mounts
    mounts: list[MountRow]
    env: dict[str, str]
    isolation: str  # as Tenant's


def encode(message: dict[str, Any], limit: int = MAX_REPLY_BYTES) -> bytes:
    """Return the packet of `message`; ProtocolError when it is longer than `limit` bytes."""
    packet = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    if len(packet) > limit:
        raise ProtocolError(f"a packet of {len(packet)} bytes is over the limit of {limit}")
    return packet


def decode(packet: bytes) -> dict[str, Any]:
    """Return the object in `packet`; duplicate keys, NaN and deep nesting are ProtocolErrors."""
    try:
        message = json.loads(
            packet,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON object: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("not a JSON object")
    return message


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f'the key "{key}" is there twice')
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number here")
