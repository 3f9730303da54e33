# SPDX-License-Identifier: Apache-2.0
"""A snapshot of gpushared's data as rows of `top`: cards, containers, processes.

Only this module of the package uses field names of the protocol. A container that uses several
cards has a `ContainerRow` for each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpushare.cli import status
from gpushare.cli.text import local_time
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpushare import protocol
    from gpushare.cli.top.graphs import GraphPage
    from gpushare.client import Client
    from gpushare.protocol.queue import QueueEntry


@dataclass(frozen=True)
class ProcessRow:
    """A process on one card. `bytes` or `utilization` (percent) None: the driver reports none."""

    pid: int
    container_pid: int
    name: str
    bytes: int | None
    utilization: int | None
    user: str = ""  # empty: unknown, as `command`
    command: str = ""  # with its arguments


@dataclass(frozen=True)
class Reading:
    """Percent of a card, and its text as in `gpushare ps`. `value` None: unknown."""

    value: float | None
    text: str


UNKNOWN: Final = Reading(None, "-")


@dataclass(frozen=True)
class ContainerRow:
    """A container on one card."""

    key: str
    name: str
    id: str
    card: int
    used_bytes: int
    memory_bytes: int
    limit_bytes: int
    over_bytes: int
    cores: int  # requested; 0: none
    cores_used: Reading  # in the last second
    cores_10s: Reading
    cores_60s: Reading
    share: str  # as in `gpushare inspect`; empty: a whole card
    throttled: float | None  # fraction of the last second
    policy: str
    level: str  # online, or offline and its priority
    gate: str
    isolation: str
    hung: bool
    run_state: str  # paused, frozen, stopping; empty: it runs
    eviction: str  # evicted, "evicted, waits", evicting, restoring, "eviction failed"; or empty
    forced: int
    overruns: int
    denied: int
    pid: int
    engine: str
    quota: tuple[tuple[str, str], ...]
    evicted: str  # since when, and how much of its memory; empty: it is not evicted
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    processes: tuple[ProcessRow, ...] = ()

    @property
    def is_troubled(self) -> bool:
        """Whether the container needs attention."""
        return self.hung or bool(self.over_bytes or self.warnings)


@dataclass(frozen=True)
class CardRow:
    """A card, with the sums of its containers."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    used_bytes: int  # by containers and non-tenant processes
    allocated_bytes: int
    non_tenant_bytes: int
    available: str
    evicted_bytes: int  # of its evicted containers, in host memory
    utilization: int | None
    temperature_celsius: int | None
    power_milliwatts: int | None
    cores_allocated: int
    cores_used: Reading  # sum of the containers
    cores_10s: Reading
    cores_60s: Reading
    policy: str
    mode: str
    health: str
    tenants: int
    tenants_max: int

    @property
    def is_troubled(self) -> bool:
        """Whether the card is unhealthy."""
        return self.health != "ok"


@dataclass(frozen=True)
class TopSnapshot:
    """The state at one time; `taken` is in seconds since the epoch."""

    taken: float
    cards: tuple[CardRow, ...] = ()
    containers: tuple[ContainerRow, ...] = ()
    document: dict[str, Any] = field(default_factory=dict, compare=False)  # for --json
    waiting: tuple[str, ...] = ()  # a line for each start that waits for room
    evicted: tuple[str, ...] = ()  # and for each evicted container, first those that wait
    graphs: GraphPage | None = None  # if they are shown

    def on(self, card: int) -> tuple[ContainerRow, ...]:
        """Return the containers of card `card`."""
        return tuple(one for one in self.containers if one.card == card)


def take_snapshot(client: Client) -> TopSnapshot:
    """Query the daemon. Raises what `client` raises."""
    cards, tenants = client.cards(), client.tenants()
    return snapshot_of(cards, tenants, time.time(), status.waiting_starts(client))


def snapshot_of(
    cards: list[protocol.CardStatus],
    tenants: list[protocol.TenantStatus],
    taken: float,
    waiting: Sequence[QueueEntry] = (),
) -> TopSnapshot:
    """Return the snapshot of `cards` and `tenants`, and of the starts that wait for room."""
    containers = tuple(
        _container(tenant, part, taken)
        for tenant in tenants
        if tenant["state"] != "none"
        for part in tenant["cards"]
    )
    return TopSnapshot(
        taken,
        tuple(_card(card, containers) for card in cards),
        containers,
        {**_document(cards, tenants, taken), "waiting": list(waiting)},
        tuple(map(status.waiting_line, waiting)),
        tuple(_evicted_lines(tenants, taken)),
    )


def _evicted_lines(tenants: list[protocol.TenantStatus], taken: float) -> list[str]:
    """Return a line for each evicted container, ending in its name, which may be long."""
    found = [
        (evicted["waits_since"] is None, evicted["since"], status.tenant_name(tenant), evicted)
        for tenant in tenants
        if (evicted := tenant["evicted"]) is not None
    ]
    found.sort(key=lambda one: one[:3])
    return [f"{_evicted_text(evicted, taken)}: {name}" for _, _, name, evicted in found]


def _evicted_text(evicted: protocol.TenantEviction, taken: float) -> str:
    """Return "evicted since 14:05, waits since 14:09, 24 GiB in host memory"."""
    size, since = format_size(evicted["bytes"]), _clock(evicted["since"], taken)
    if evicted["state"] == "failed":
        return f"eviction failed at {since}, {size} lost"
    waits = evicted["waits_since"]
    waiting = "" if waits is None else f", waits since {_clock(waits, taken)}"
    where = "in host memory" if evicted["state"] == "evicted" else "in all"
    return f"{evicted['state']} since {since}{waiting}, {size} {where}"


def _clock(seconds: float, taken: float) -> str:
    """Return a time of the day; with the date if it is another day than `taken`."""
    day, _, clock = local_time(seconds).partition(" ")
    return clock if local_time(taken).startswith(day) else f"{day} {clock}"


def _container(
    tenant: protocol.TenantStatus, part: protocol.TenantCard, taken: float
) -> ContainerRow:
    usage, evicted = part["compute"], tenant["evicted"]
    return ContainerRow(
        key=tenant["key"],
        name=status.tenant_name(tenant),
        id=tenant["id"],
        card=part["index"],
        used_bytes=part["used_bytes"],
        memory_bytes=part["quota_bytes"],
        limit_bytes=part["current_limit_bytes"],
        over_bytes=part["over_limit_bytes"],
        cores=part["cores"],
        cores_used=_reading(part, "1s"),
        cores_10s=_reading(part, "10s"),
        cores_60s=_reading(part, "60s"),
        share="" if part["share_percent"] is None else status.share(tenant, part),
        throttled=usage["throttled"]["1s"],
        policy=part["policy"],
        level=status.latency_class(tenant),
        gate=usage["gate"],
        isolation=status.isolation(tenant),
        hung=usage["is_hung"],
        run_state=status.run_state(tenant),
        eviction="" if evicted is None else _eviction(evicted),
        evicted="" if evicted is None else _evicted_text(evicted, taken),
        forced=usage["forced_launches"],
        overruns=usage["overruns"],
        denied=part["denied_allocations"],
        pid=tenant["pid"],
        engine=tenant["engine"],
        quota=tuple(sorted(tenant["quota"].items())),
        warnings=tuple(tenant["warnings"]),
        notes=tuple(tenant["notes"]),
        processes=tuple(_processes(tenant, part["index"])),
    )


def _eviction(evicted: protocol.TenantEviction) -> str:
    """Return the state as a cell of the table."""
    waits = ", waits" if evicted["waits_since"] is not None else ""
    return "eviction failed" if evicted["state"] == "failed" else f"{evicted['state']}{waits}"


def _processes(tenant: protocol.TenantStatus, card: int) -> list[ProcessRow]:
    """Return the processes on `card`; one without a card is listed under the tenant's first."""
    first = tenant["cards"][0]["index"]
    found = []
    for row in tenant["processes"]:
        parts = [part for part in row["cards"] if part["index"] == card]
        if parts or (not row["cards"] and card == first):
            part = parts[0] if parts else None
            found.append(
                ProcessRow(
                    row["pid"],
                    row["container_pid"],
                    row["name"],
                    None if part is None else part["bytes"],
                    None if part is None else part["utilization"],
                )
            )
    return found


def _card(card: protocol.CardStatus, containers: tuple[ContainerRow, ...]) -> CardRow:
    here = [one for one in containers if one.card == card["index"]]
    return CardRow(
        index=card["index"],
        uuid=card["uuid"],
        model=card["model"],
        memory_bytes=card["memory_bytes"],
        used_bytes=sum(one.used_bytes for one in here) + card["non_tenant_bytes"],
        allocated_bytes=card["allocated_bytes"],
        non_tenant_bytes=card["non_tenant_bytes"],
        available=status.available(card),
        evicted_bytes=card["evicted_bytes"],
        utilization=card["utilization"],
        temperature_celsius=card["temperature_celsius"],
        power_milliwatts=card["power_milliwatts"],
        cores_allocated=100 - card["cores_available"],
        cores_used=_sum([one.cores_used for one in here]),
        cores_10s=_sum([one.cores_10s for one in here]),
        cores_60s=_sum([one.cores_60s for one in here]),
        policy=card["policy"],
        mode=status.mode(card),
        health=card["health"],
        tenants=card["tenants"],
        tenants_max=card["max_tenants"],
    )


def _reading(part: protocol.TenantCard, window: str) -> Reading:
    return Reading(part["compute"]["cores_used"][window], status.cores_used(part, window))


def _sum(parts: list[Reading]) -> Reading:
    known = [part.value for part in parts if part.value is not None]
    if not known:
        return UNKNOWN
    whole = any(part.text.startswith("~") for part in parts)  # a driver's figure is among them
    return Reading(sum(known), f"~{sum(known):.0f}" if whole else f"{sum(known):.1f}")


def _document(
    cards: list[protocol.CardStatus], tenants: list[protocol.TenantStatus], taken: float
) -> dict[str, Any]:
    """Return the document of --json: the daemon's rows, with the processes in a separate list."""
    processes = [
        {"container": tenant["key"], **process}
        for tenant in tenants
        for process in tenant["processes"]
    ]
    containers = [
        {name: value for name, value in tenant.items() if name != "processes"} for tenant in tenants
    ]
    return {"time": taken, "cards": cards, "containers": containers, "processes": processes}
