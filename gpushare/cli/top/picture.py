# SPDX-License-Identifier: Apache-2.0
"""What gpushared said at one moment, as what `top` shows: cards, containers, processes.

The names of the protocol's fields stand here and nowhere else in this package. A container that has
parts of several cards is a `Container` for each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gpushare.cli import ps
from gpushare.cli.ls import mode

if TYPE_CHECKING:
    from gpushare import protocol
    from gpushare.client import Client


@dataclass(frozen=True)
class Process:
    """A process on one card; `bytes` and `utilisation` (percent) None: the driver does not say."""

    pid: int
    container_pid: int
    name: str
    bytes: int | None
    utilisation: int | None


@dataclass(frozen=True)
class Figure:
    """Percent of a card as `text` shows it (as `gpushare ps`); `value` None: not known."""

    value: float | None
    text: str


UNKNOWN: Final = Figure(None, "-")


@dataclass(frozen=True)
class Container:
    """A container's part of one card."""

    key: str
    name: str
    id: str
    card: int
    used_bytes: int
    memory_bytes: int
    limit_bytes: int
    over_bytes: int
    cores: int  # asked; 0: none
    got: Figure  # over the last second, ten, sixty
    got_10s: Figure
    got_60s: Figure
    share: str  # what it is to get, in words; empty: a whole card
    throttled: float | None  # fraction of the last second
    policy: str
    level: str  # online, or offline and its priority
    gate: str
    isolation: str
    hung: bool
    stopped: str  # paused, frozen, ending; empty: it runs
    forced: int
    overruns: int
    denied: int
    pid: int
    engine: str
    quota: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    processes: tuple[Process, ...] = ()

    @property
    def is_troubled(self) -> bool:
        """Whether its user should look at it."""
        return self.hung or bool(self.over_bytes or self.warnings)


@dataclass(frozen=True)
class Card:
    """A card, and of its containers the sums."""

    index: int
    uuid: str
    model: str
    memory_bytes: int
    used_bytes: int  # by containers and by strangers
    promised_bytes: int
    foreign_bytes: int
    free_bytes: int
    utilisation: int | None
    cores_promised: int
    got: Figure  # of its containers together
    got_10s: Figure
    got_60s: Figure
    policy: str
    mode: str
    health: str
    tenants: int
    tenants_max: int

    @property
    def is_troubled(self) -> bool:
        """Whether something is wrong with it."""
        return self.health != "ok"


@dataclass(frozen=True)
class Picture:
    """One look; `taken` is in seconds since the epoch."""

    taken: float
    cards: tuple[Card, ...] = ()
    containers: tuple[Container, ...] = ()
    document: dict[str, Any] = field(default_factory=dict, compare=False)  # for --json

    def on(self, card: int) -> tuple[Container, ...]:
        """Return the containers of card `card`."""
        return tuple(one for one in self.containers if one.card == card)


def look(client: Client) -> Picture:
    """Ask the daemon; raises what `client` does."""
    cards, tenants = client.cards(), client.tenants()
    return picture(cards, tenants, time.time())


def picture(cards: list[protocol.Card], tenants: list[protocol.Tenant], taken: float) -> Picture:
    """Return what `cards` and `tenants` say."""
    containers = tuple(
        _container(tenant, part)
        for tenant in tenants
        if tenant["state"] != "none"
        for part in tenant["cards"]
    )
    return Picture(
        taken,
        tuple(_card(card, containers) for card in cards),
        containers,
        _document(cards, tenants, taken),
    )


def _container(tenant: protocol.Tenant, part: protocol.TenantCard) -> Container:
    spent = part["spent"]
    return Container(
        key=tenant["key"],
        name=ps.name(tenant),
        id=tenant["id"],
        card=part["index"],
        used_bytes=part["used_bytes"],
        memory_bytes=part["memory_bytes"],
        limit_bytes=part["limit_bytes"],
        over_bytes=part["over_bytes"],
        cores=part["cores"],
        got=_figure(part, "1s"),
        got_10s=_figure(part, "10s"),
        got_60s=_figure(part, "60s"),
        share="" if part["share"] is None else ps.share(tenant, part),
        throttled=spent["throttled"]["1s"],
        policy=part["policy"],
        level=ps.level(tenant),
        gate=spent["gate"],
        isolation=tenant["isolation"],
        hung=spent["hung"],
        stopped=ps.stopped(tenant),
        forced=spent["forced"],
        overruns=spent["overruns"],
        denied=part["denied"],
        pid=tenant["pid"],
        engine=tenant["engine"],
        quota=tuple(sorted(tenant["quota"].items())),
        warnings=tuple(tenant["warnings"]),
        notes=tuple(tenant["notes"]),
        processes=tuple(_processes(tenant, part["index"])),
    )


def _processes(tenant: protocol.Tenant, card: int) -> list[Process]:
    """Return the processes on `card`; what the driver knows nothing of is on the first."""
    first = tenant["cards"][0]["index"]
    found = []
    for row in tenant["processes"]:
        held = [part for part in row["cards"] if part["index"] == card]
        if held or (not row["cards"] and card == first):
            part = held[0] if held else None
            found.append(
                Process(
                    row["pid"],
                    row["container_pid"],
                    row["name"],
                    None if part is None else part["bytes"],
                    None if part is None else part["utilisation"],
                )
            )
    return found


def _card(card: protocol.Card, containers: tuple[Container, ...]) -> Card:
    here = [one for one in containers if one.card == card["index"]]
    return Card(
        index=card["index"],
        uuid=card["uuid"],
        model=card["model"],
        memory_bytes=card["memory_bytes"],
        used_bytes=sum(one.used_bytes for one in here) + card["foreign_bytes"],
        promised_bytes=card["promised_bytes"],
        foreign_bytes=card["foreign_bytes"],
        free_bytes=card["free_bytes"],
        utilisation=card["utilisation"],
        cores_promised=100 - card["cores_free"],
        got=_sum([one.got for one in here]),
        got_10s=_sum([one.got_10s for one in here]),
        got_60s=_sum([one.got_60s for one in here]),
        policy=card["policy"],
        mode=mode(card),
        health=card["health"],
        tenants=card["tenants"],
        tenants_max=card["tenants_max"],
    )


def _figure(part: protocol.TenantCard, window: str) -> Figure:
    return Figure(part["spent"]["got"][window], ps.got(part, window))


def _sum(parts: list[Figure]) -> Figure:
    known = [part.value for part in parts if part.value is not None]
    if not known:
        return UNKNOWN
    whole = any(part.text.startswith("~") for part in parts)  # percent of the driver's among them
    return Figure(sum(known), f"~{sum(known):.0f}" if whole else f"{sum(known):.1f}")


def _document(
    cards: list[protocol.Card], tenants: list[protocol.Tenant], taken: float
) -> dict[str, Any]:
    """Return what --json prints: the daemon's rows, the processes apart from their containers."""
    processes = [
        {"container": tenant["key"], **process}
        for tenant in tenants
        for process in tenant["processes"]
    ]
    containers = [
        {name: value for name, value in tenant.items() if name != "processes"} for tenant in tenants
    ]
    return {"time": taken, "cards": cards, "containers": containers, "processes": processes}
