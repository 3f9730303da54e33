# SPDX-License-Identifier: Apache-2.0
"""The figures of gpushare/figures.py, for metrics. Nothing here changes any, or asks anybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import gpushare
from gpushare.daemon.cards.capacity import Room
from gpushare.daemon.compute.spent import CHECKED, GATE, Spent
from gpushare.daemon.log import counted
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.pages.account import Claim, accounts
from gpushare.daemon.store.ledger import Entry, Holding
from gpushare.daemon.views.why import card_parts
from gpushare.events import KEPT
from gpushare.figures import (
    ACTIONS,
    KINDS,
    CardFigures,
    NodeFigures,
    TenantCardFigures,
    TenantFigures,
)

# What the parts of `gpushare why` are called one by one.
_KIND_OF: Final = {
    "buffers": "buffer",
    "pools": "pool",
    "arrays": "array",
    "graphs": "graph",
    "modules": "module",
    "limits": "limit",
    "contexts": "context",
}


def of_node(node: Node) -> NodeFigures:
    """Return the figures of the daemon itself."""
    driver = node.driver
    return NodeFigures(
        version=gpushare.__version__,
        started=node.started,
        driver_version="" if driver is None else driver.nvml.driver_version,
        cuda_version="" if driver is None else driver.nvml.cuda_version,
        driver_up=driver is not None and not driver.truth.view.stale,
        scheduler_up=node.scheduler_pid != 0,
        operations=node.durations.figures(),
        events={event: counted(event) for event in sorted(KEPT)},
        history_lost=0 if node.history is None else node.history.lost,
    )


def cards(node: Node) -> Iterator[CardFigures]:
    """Yield a row for each card."""
    if node.driver is not None:
        for room in node.rooms():
            yield _card(room, node.driver, node.config.unknown)


def _card(room: Room, driver: Loaded, unknown: str) -> CardFigures:
    uuid = room.card.uuid
    held = [
        use.bytes
        for seen in driver.truth.view.processes.values()
        for card, use in seen
        if card == uuid
    ]
    strangers = sum(stranger.bytes for stranger in room.foreign)
    return CardFigures(
        index=room.card.index,
        uuid=uuid,
        model=room.card.model,
        memory_bytes=room.card.memory_bytes,
        used_bytes=None if None in held else sum(one or 0 for one in held) + strangers,
        granted_bytes=room.promised_bytes,
        free_bytes=room.free_bytes,
        cores_granted=100 - room.cores_free,
        utilisation=room.utilisation,
        shares=len(room.promises),
        shares_max=room.max_shares,
        cordoned=room.cordoned is not None,
        healthy=room.health == "ok",
        xids={
            str(number): count
            for (card, number), count in driver.truth.health.xids.items()
            if card == uuid
        },
        bypass=bypass(room, unknown),
    )


def bypass(room: Room, unknown: str) -> dict[str, int]:
    """Return how many processes are no tenant's, by what is done about them."""
    actions = [unknown if stranger.container else "ignore" for stranger in room.foreign]
    return {action: actions.count(action) for action in ACTIONS}


def tenants(node: Node) -> Iterator[TenantFigures]:
    """Yield a row for each tenant that has a part of a card, from its reservation on."""
    driver = node.driver
    if driver is None:
        return
    for entry in node.ledger.entries.values():
        if entry.state != "none":
            yield _tenant(entry, node, driver)


def _tenant(entry: Entry, node: Node, driver: Loaded) -> TenantFigures:
    pages = node.tenants.pages.get(entry.key)
    claims = () if pages is None else pages.claims()
    return TenantFigures(
        key=entry.key,
        id=entry.id,
        name=entry.title,
        engine=entry.engine,
        mode="exclusive" if entry.isolation == "exclusive" else "shared",
        policy=entry.policy,
        class_=entry.class_,
        priority=entry.priority,
        isolation=entry.isolation,
        held=[hold.by for hold in node.freezer.holds_of(entry.key) if hold.by != "duty"],
        created=entry.created,
        denied=0 if pages is None else pages.denials.seen,
        cards=[
            _part(entry, number, holding, claims, node, driver)
            for number, holding in enumerate(entry.holdings)
        ],
    )


def _part(  # noqa: PLR0913, PLR0917 - a row is put together from all there is
    entry: Entry,
    number: int,
    holding: Holding,
    claims: tuple[Claim, ...],
    node: Node,
    driver: Loaded,
) -> TenantCardFigures:
    card, spent = driver.card(holding.uuid), node.spending.of(entry.key, holding.uuid)
    kinds, limit, expected = _memory(entry, number, holding, claims, node, driver)
    used = sum(kinds.values())
    utilisation, source = busy(spent, running=entry.state == "bound")
    finding = node.audit.view.get((entry.key, holding.uuid))
    has = driver.truth.view.driver_bytes(entry.key, holding.uuid)
    return TenantCardFigures(
        index=-1 if card is None else card.index,
        uuid=holding.uuid,
        memory_bytes=holding.memory_bytes,
        limit_bytes=limit,
        used_bytes=used,
        kinds=kinds,
        drift_bytes=None if expected is None else expected - has,
        peak_bytes=max(used, node.peaks.of(entry.key, holding.uuid)),
        cores=holding.cores,
        utilisation=utilisation,
        source=source,
        gpu_seconds=spent.got_ns / 1e9,
        throttled_seconds=spent.waited_ns / 1e9,
        forced=spent.forced,
        active=max(spent.active, entry.created),
        over_bytes=0 if finding is None else max(0, finding.used_bytes - finding.may_bytes),
        bypassed=spent.bypassed,
        hung=spent.hung,
    )


def _memory(  # noqa: PLR0913, PLR0917 - as _part
    entry: Entry,
    number: int,
    holding: Holding,
    claims: tuple[Claim, ...],
    node: Node,
    driver: Loaded,
) -> tuple[dict[str, int], int, int | None]:
    """Return what it uses by kind, what it may use, and what its account expects of the driver."""
    kinds = dict.fromkeys(KINDS, 0)
    pages = node.tenants.pages.get(entry.key)
    if pages is None or number >= pages.grant.card_count:
        kinds["beyond"] = driver.truth.view.driver_bytes(entry.key, holding.uuid)
        return kinds, holding.memory_bytes, None
    account = accounts(claims, pages.grant.card_count)[number]
    found = card_parts(claims, number, account, pages.grant.overhead_bytes(number))
    kinds |= {_KIND_OF.get(part, part): size for part, size in found.items()}
    return kinds, pages.grant.limit_bytes(number), account.told_bytes


def busy(spent: Spent, *, running: bool) -> tuple[float | None, str]:
    """Return percent of the card over ten seconds, and who says so: nvml, or the gate.

    The driver is asked first. Where it has no such figures, or says 0 of a tenant that the gate
    charged (drivers do, of cards that are newer than they are), the gate's stands.
    """
    charged = spent.got[CHECKED] if spent.source == GATE else None
    said = spent.driver_percent
    if said is not None and (said or not charged):
        return said, "nvml"
    if charged is not None:
        return charged, "gate"
    # Nothing runs before a tenant is bound: that it has used nothing is known.
    return (None, "") if running else (0.0, "gate")
