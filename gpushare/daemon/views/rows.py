# SPDX-License-Identifier: Apache-2.0
"""The rows that clients are shown: cards, tenants, the daemon itself. Nothing here changes any."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence

import gpushare
from gpushare import abi, config
from gpushare.daemon.audit.unknown import Stranger
from gpushare.daemon.cards.capacity import Room
from gpushare.daemon.cards.card import Use
from gpushare.daemon.cards.topology import NO_LINKS, NO_NODE, Links
from gpushare.daemon.compute import shares
from gpushare.daemon.compute.spent import Spent
from gpushare.daemon.identity import processes
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.pages.account import Account, Claim, accounts
from gpushare.daemon.store.ledger import Entry, Holding
from gpushare.protocol import (
    Card,
    CardLink,
    CardSpent,
    ForeignProcess,
    Held,
    ProcessCard,
    Status,
    Tenant,
    TenantCard,
    TenantProcess,
)
from gpushare.quota import format_size

# What one packet has room for.
_MOST_FOREIGN = 64
_MOST_STRANGERS = 16
_MOST_PROCESSES = 192
_MOST_HELD = 256  # of all processes together, one for each card that it holds


def card_row(room: Room, rooms: Sequence[Room] = (), links: Links = NO_LINKS) -> Card:
    """Return one row of `gpushare ls`; `rooms` are the cards that it has links to."""
    node = links.node(room.card.uuid)
    foreign = sorted(room.foreign, key=lambda process: -process.bytes)[:_MOST_FOREIGN]
    return Card(
        index=room.card.index,
        uuid=room.card.uuid,
        model=room.card.model,
        brand=room.card.brand,
        capability=".".join(map(str, room.card.capability or ())),
        datacenter=room.card.datacenter,
        memory_bytes=room.card.memory_bytes,
        reserve_bytes=room.reserve_bytes,
        promised_bytes=room.promised_bytes,
        borrowed_bytes=room.borrowed_bytes,
        lent_bytes=room.lent_bytes,
        foreign_bytes=room.foreign_bytes,
        foreign=[
            ForeignProcess(
                pid=process.pid,
                name=process.name,
                bytes=process.bytes,
                container=process.container,
            )
            for process in foreign
        ],
        unattributed_bytes=room.unattributed_bytes,
        free_bytes=room.free_bytes,
        cores_free=room.cores_free,
        tenants=len(room.promises),
        tenants_max=room.max_shares,
        mode=_mode(room),
        utilisation=room.utilisation,
        health=room.health,
        policy=room.policy,
        takes=room.mode,
        cordoned=room.cordoned is not None,
        cordon_reason=room.cordoned or "",
        numa=None if node == NO_NODE else node,
        links=[
            CardLink(
                index=other.card.index, uuid=other.card.uuid, kind=link.kind, distance=link.distance
            )
            for other in rooms
            if other.card.uuid != room.card.uuid
            for link in (links.link(room.card.uuid, other.card.uuid),)
        ],
    )


def _mode(room: Room) -> str:
    if not room.promises:
        return "free"
    return "exclusive" if room.exclusive else "shared"


def tenant_row(entry: Entry, node: Node) -> Tenant:
    """Return one row of `gpushare ps`."""
    pages = node.tenants.pages.get(entry.key)
    claims = () if pages is None else pages.claims()
    sums = accounts(claims, len(entry.holdings))
    cards = _card_rows(entry, sums, node)
    return Tenant(
        key=entry.key,
        id=entry.id,
        name=entry.title,
        engine=entry.engine,
        state=entry.state,
        why=entry.why,
        pid=entry.pid,
        policy=entry.policy,
        online=entry.class_ == "online",
        priority=entry.priority,
        weight=entry.weight,
        isolation=entry.isolation,
        on_over=node.audit.choice(entry) if entry.shared else "",
        throttled=max((card["spent"]["throttled"]["1s"] or 0.0 for card in cards), default=0.0),
        created=entry.created,
        cards=cards,
        processes=_process_rows(entry, claims, node) if entry.state == "bound" else [],
        held=held(entry, node),
        quota=dict(entry.quota),
        notes=list(entry.notes),
        warnings=[
            *map(_held_words, itertools.repeat(entry.title), held(entry, node)),
            *(warning for card in cards for warning in _warnings(entry, card, node)),
            *(warning for card in cards for warning in _audited(entry, card, node)),
        ],
    )


def held(entry: Entry, node: Node) -> list[Held]:
    """Return who holds a tenant still, or ends it."""
    holds = [hold for hold in node.freezer.holds_of(entry.key) if hold.by != "duty"]
    return [Held(by=hold.by, why=hold.why, since=hold.since) for hold in holds]


def _held_words(title: str, one: Held) -> str:
    why = f": {one['why']}" if one["why"] else ""
    if one["by"] == "kill":
        return f"{title} is being ended{why}"
    how = "paused" if one["by"] == "operator" else "frozen"
    return f"{title} is {how} ({one['by']}{why}); gpushare resume {title} lets it go on"


def _warnings(entry: Entry, card: TenantCard, node: Node) -> Iterator[str]:
    spent, where = card["spent"], f"{entry.title} on card {card['index']}"
    if card["over_bytes"]:
        yield _over(entry, card)
    held_to = node.overuse.view.get((entry.key, card["uuid"]))
    if held_to is not None:
        yield f"{where}: goes round the gate: held to {held_to.may_percent:.0f} % by freezing"
    elif spent["bypassed"] and node.config.terms_of(entry.namespace).compute != "observe":
        charged, seen = spent["got"]["10s"] or 0.0, spent["driver_percent"] or 0.0
        yield (
            f"{where}: charged {charged:.0f} %, the driver saw {seen:.0f} %: work goes round the "
            "gate"
        )
    if spent["hung"]:
        yield f"{where}: work is pending that seems never to end; it is charged, others go on"


def _audited(entry: Entry, card: TenantCard, node: Node) -> Iterator[str]:
    """Yield what the audit has to say, where its operator lets it."""
    found = node.audit.view.get((entry.key, card["uuid"]))
    if found is None or found.choice == "observe":
        return
    if found.used_bytes <= card["limit_bytes"]:  # was given more since: the next look says so
        return
    used, may = format_size(found.used_bytes), format_size(found.may_bytes)
    fix = f"free some, or: gpushare set {entry.title} --memory SIZE"
    if found.level == "frozen":
        fix = f"nothing frees it while it is frozen: gpushare set {entry.title} --memory SIZE"
        fix += f", gpushare resume {entry.title} (for a minute), or gpushare kick {entry.title}"
    yield (
        f"{entry.title} has {used} of card {card['index']} by the driver, and may have {may}: "
        f"it goes round the filter libraries; {fix}"
    )


def _over(entry: Entry, card: TenantCard) -> str:
    used, limit, over = map(
        format_size, (card["used_bytes"], card["limit_bytes"], card["over_bytes"])
    )
    return (
        f"{entry.title} uses {used} of {limit} on card {card['index']}: "
        f"it gets nothing more until it frees {over}"
    )


def _card_rows(entry: Entry, sums: tuple[Account, ...], node: Node) -> list[TenantCard]:
    if node.driver is None:
        return []
    return [
        _card(entry, number, holding, sums[number], node, node.driver)
        for number, holding in enumerate(entry.holdings)
    ]


def _card(  # noqa: PLR0913, PLR0917 - a row is put together from all there is
    entry: Entry,
    number: int,
    holding: Holding,
    account: Account,
    node: Node,
    driver: Loaded,
) -> TenantCard:
    card = driver.card(holding.uuid)
    found = node.audit.view.get((entry.key, holding.uuid))
    spent = _spent(node.spending.of(entry.key, holding.uuid))
    share = shares.of_card(holding.uuid, node).get(entry.key)
    uses = _uses(entry, holding.uuid, driver)
    driver_bytes = sum(use.bytes or 0 for use in uses)
    pages = node.tenants.pages.get(entry.key)
    if pages is None or number >= pages.grant.card_count:
        used, overhead = driver_bytes, 0
        limit = holding.memory_bytes
    else:
        limit = pages.grant.limit_bytes(number)
        beside = pages.grant.overhead_bytes(number)
        used = account.used_bytes(beside)
        kinds = account.kinds
        overhead = min(used, beside + kinds[abi.KIND_CONTEXT] + kinds[abi.KIND_MODULE])
    return TenantCard(
        index=-1 if card is None else card.index,
        uuid=holding.uuid,
        memory_bytes=holding.memory_bytes,
        memory_limit_bytes=holding.most_bytes,
        limit_bytes=limit,
        used_bytes=used,
        borrowed_bytes=max(0, used - holding.memory_bytes),
        over_bytes=max(0, used - limit),
        buffer_bytes=used - overhead,
        overhead_bytes=overhead,
        contexts=account.contexts,
        cores=holding.cores,
        policy=shares.policy_of(entry, holding, node.policy_of(holding.uuid)),
        share=None if share is None else share.permille / 10,
        capped=share is not None and share.capped,
        cores_got=spent["got"]["1s"],
        spent=spent,
        denied=0 if pages is None else pages.denials.total,
        audit=found.level if found else "",
    )


def _spent(spent: Spent) -> CardSpent:
    return CardSpent(
        source=spent.source,
        gate=spent.gate,
        got={f"{seconds}s": _rounded(got) for seconds, got in spent.got.items()},
        throttled={f"{seconds}s": _rounded(part) for seconds, part in spent.throttled.items()},
        charged_ns=spent.charged_ns,
        windows=spent.windows,
        overruns=spent.overruns,
        forced=spent.forced,
        waited_ns=spent.waited_ns,
        hung=spent.hung,
        driver_percent=_rounded(spent.driver_percent),
        bypassed=spent.bypassed,
    )


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 3)


def _uses(entry: Entry, uuid: str, driver: Loaded) -> list[Use]:
    seen = driver.truth.view.processes.get(entry.key, ())
    return [use for card, use in seen if card == uuid]


def _process_rows(entry: Entry, claims: Sequence[Claim], node: Node) -> list[TenantProcess]:
    """Return the processes that hold the driver: those that say so, and those it knows of."""
    by_driver: dict[int, list[tuple[str, Use]]] = {}
    if node.driver is not None:
        for uuid, use in node.driver.truth.view.processes.get(entry.key, ()):
            by_driver.setdefault(use.pid, []).append((uuid, use))
    claimed = {(claim.pid, claim.starttime) for claim in claims}
    cgroups = processes.Cgroups.mounted()
    found = [
        process
        for process in processes.members(entry.cgroup, entry.pid, cgroups)
        if (process.namespaced_pid, process.starttime) in claimed or process.pid in by_driver
    ]
    rows: list[TenantProcess] = []
    left = _MOST_HELD
    for process in sorted(found, key=lambda one: one.pid)[:_MOST_PROCESSES]:
        uses = by_driver.get(process.pid, [])
        rows.append(_process_row(process, uses[:left], node))
        left -= len(uses[:left])
    return rows


def _process_row(
    process: processes.Process, uses: Sequence[tuple[str, Use]], node: Node
) -> TenantProcess:
    known = [use.bytes for _, use in uses if use.bytes is not None]
    return TenantProcess(
        pid=process.pid,
        container_pid=process.namespaced_pid,
        name=processes.name_of(process.pid),
        bytes=sum(known) if known else None,
        cards=[
            ProcessCard(index=_index(uuid, node), bytes=use.bytes, utilisation=use.utilisation)
            for uuid, use in uses
        ],
    )


def _index(uuid: str, node: Node) -> int:
    card = None if node.driver is None else node.driver.card(uuid)
    return -1 if card is None else card.index


def _unwell(node: Node) -> Iterator[str]:
    """Yield what is wrong with each card that is not well, and who is on it."""
    if node.driver is None:
        return
    for room in node.rooms():
        if room.health != "ok":
            tenants = len(room.promises)
            kept = f" (tenants that keep what they were promised: {tenants})" if tenants else ""
            yield f"card {room.card.index} ({room.card.model}) is not well: {room.health}{kept}"


def _stranger(found: Stranger, node: Node) -> str:
    return (
        f"process {found.pid} ({found.name}) in {found.container} has "
        f"{format_size(found.bytes)} of card {_index(found.uuid, node)} and was given none: it "
        "went round gpushare; run it with the runtime gpushare, and not --privileged"
    )


def status_row(node: Node) -> Status:
    """Return what the daemon says of itself."""
    driver = node.driver
    warnings = [*node.warnings, *node.ledger.told]
    told = node.ledger.fault, node.doubt.why, node.overrides.told, node.card_overrides.told
    warnings += [why for why in told if why]
    if driver is None:
        warnings.append(node.why_none)
    elif node.driver_fault:
        warnings.append(node.driver_fault)
    elif driver.truth.view.stale:
        warnings.append(f"the figures are old: {driver.truth.view.stale}")
    warnings += _unwell(node)
    warnings += [_stranger(one, node) for one in node.audit.strangers.view[:_MOST_STRANGERS]]
    if node.scheduler_fault:
        warnings.append(node.scheduler_fault)
    if node.history is not None and node.history.fault:
        warnings.append(f"what happens is not kept: {node.history.fault}")
    if node.config_fault:
        warnings.append(node.config_fault)
    elif config.outdated(node.config):
        warnings.append(
            f"{node.config.file or config.DEFAULT_FILE} was changed after gpushared read it; "
            "sudo gpushare config reload"
        )
    return Status(
        version=gpushare.__version__,
        pid=os.getpid(),
        generation=node.ledger.generation,
        scheduler=node.scheduler_pid,
        driver_version=driver.nvml.driver_version if driver else "",
        cuda_version=driver.nvml.cuda_version if driver else "",
        cards=len(driver.cards) if driver else 0,
        tenants=sum(entry.state != "none" for entry in node.ledger.entries.values()),
        simulated=driver is not None and driver.is_simulated,
        slow_motion=1.0 if driver is None else driver.slow_motion,
        config="" if node.config.file is None else str(node.config.file),
        libraries=str(node.libraries),
        run_dir=str(node.config.run_dir),
        warnings=warnings,
    )
