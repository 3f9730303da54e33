# SPDX-License-Identifier: Apache-2.0
"""A snapshot of gpushared's data as rows of `top`: cards, containers, processes.

A container that uses several cards has a `TopContainer` for each.
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

    from gpushare.cli.top.graphs import GraphPage
    from gpushare.client import Client
    from gpushare.protocol.queue import QueueEntry
    from gpushare.protocol.rows import CardRow, TenantCard, TenantEviction, TenantStatus


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
class TopContainer:
    """A container on one card."""

    tenant: TenantStatus
    part: TenantCard
    evicted: str = ""  # since when, and how much of its memory; empty: it is not evicted
    processes: tuple[ProcessRow, ...] = ()

    @property
    def key(self) -> str:
        """The container's key."""
        return self.tenant["key"]

    @property
    def card(self) -> int:
        """The index of the card."""
        return self.part["index"]

    @property
    def name(self) -> str:
        """The name by which the user knows the container."""
        return status.tenant_name(self.tenant)

    @property
    def is_troubled(self) -> bool:
        """Whether the container needs attention."""
        is_over = bool(self.part["over_limit_bytes"])
        return is_over or self.part["compute"]["is_hung"] or bool(self.tenant["warnings"])

    def cores(self, window: str) -> Reading:
        """Return the compute used in the last "1s", "10s" or "60s"."""
        value = self.part["compute"]["cores_used"][window]
        return Reading(value, status.cores_used(self.part, window))


@dataclass(frozen=True)
class TopCard:
    """A card, with its containers."""

    row: CardRow
    containers: tuple[TopContainer, ...] = ()

    @property
    def index(self) -> int:
        """The index of the card."""
        return self.row["index"]

    @property
    def used_bytes(self) -> int:
        """The memory of containers and of non-tenant processes."""
        used = sum(container.part["used_bytes"] for container in self.containers)
        return used + self.row["non_tenant_bytes"]

    @property
    def watts(self) -> float | None:
        """The power draw; None: unknown."""
        drawn = self.row["sensors"].get("power_milliwatts")
        return None if drawn is None else drawn / 1000

    @property
    def is_troubled(self) -> bool:
        """Whether the card is unhealthy."""
        return self.row["health"] != "ok"

    def cores(self, window: str) -> Reading:
        """Return the sum over the containers."""
        parts = [container.cores(window) for container in self.containers]
        known = [part.value for part in parts if part.value is not None]
        if not known:
            return UNKNOWN
        whole = any(part.text.startswith("~") for part in parts)  # a driver's figure is among them
        return Reading(sum(known), f"~{sum(known):.0f}" if whole else f"{sum(known):.1f}")


@dataclass(frozen=True)
class TopSnapshot:
    """The state at one time; `taken` is in seconds since the epoch."""

    taken: float
    cards: tuple[TopCard, ...] = ()
    containers: tuple[TopContainer, ...] = ()
    document: dict[str, Any] = field(default_factory=dict, compare=False)  # for --json
    waiting: tuple[str, ...] = ()  # a line for each start that waits for room
    evicted: tuple[str, ...] = ()  # and for each evicted container, first those that wait
    graphs: GraphPage | None = None  # if they are shown

    def on(self, card: int) -> tuple[TopContainer, ...]:
        """Return the containers of card `card`."""
        return tuple(one for one in self.containers if one.card == card)


def take_snapshot(client: Client) -> TopSnapshot:
    """Query the daemon. Raises what `client` raises."""
    cards, tenants = client.cards(), client.tenants()
    return snapshot_of(cards, tenants, time.time(), status.waiting_starts(client))


def snapshot_of(
    cards: list[CardRow],
    tenants: list[TenantStatus],
    taken: float,
    waiting: Sequence[QueueEntry] = (),
) -> TopSnapshot:
    """Return the snapshot of `cards` and `tenants`, and of the starts that wait for room."""
    containers = tuple(
        TopContainer(
            tenant,
            part,
            "" if tenant["eviction"] is None else _evicted_text(tenant["eviction"], taken),
            tuple(_processes(tenant, part["index"])),
        )
        for tenant in tenants
        if tenant["state"] != "none"
        for part in tenant["cards"]
    )
    return TopSnapshot(
        taken,
        tuple(
            TopCard(card, tuple(one for one in containers if one.card == card["index"]))
            for card in cards
        ),
        containers,
        {**_document(cards, tenants, taken), "waiting": list(waiting)},
        tuple(map(status.waiting_line, waiting)),
        tuple(_evicted_lines(tenants, taken)),
    )


def _evicted_lines(tenants: list[TenantStatus], taken: float) -> list[str]:
    """Return a line for each evicted container, ending in its name, which may be long."""
    found = [
        (evicted["waits_since"] is None, evicted["since"], status.tenant_name(tenant), evicted)
        for tenant in tenants
        if (evicted := tenant["eviction"]) is not None
    ]
    found.sort(key=lambda one: one[:3])
    return [f"{_evicted_text(evicted, taken)}: {name}" for _, _, name, evicted in found]


def _evicted_text(evicted: TenantEviction, taken: float) -> str:
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


def _processes(tenant: TenantStatus, card: int) -> list[ProcessRow]:
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


def _document(cards: list[CardRow], tenants: list[TenantStatus], taken: float) -> dict[str, Any]:
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
