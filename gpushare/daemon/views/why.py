# SPDX-License-Identifier: Apache-2.0
"""The why operation: where every byte of a tenant's memory is. Nothing here changes any.

The parts of a card are what the tenant's processes noted, what outlived who made it, and what the
driver was found to have beside; they add up to what counts against the quota, whatever a tenant
wrote. The driver's own figure stands beside them, and what the two differ by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from gpushare import abi
from gpushare.daemon.cards.card import Use
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.node import Loaded, Node
from gpushare.daemon.pages.account import Account, Claim, Held, accounts
from gpushare.daemon.pages.grant import Grant
from gpushare.daemon.store.ledger import Entry, Holding
from gpushare.daemon.tenants import Denial, Pages
from gpushare.daemon.views.advice import advice
from gpushare.protocol import Denied, Why, WhyCard, WhyHeld, WhyLack, WhyProcess
from gpushare.quota import format_size

#: The parts that a process notes itself, in the order in which they are shown.
_KINDS: Final[Mapping[str, int]] = {
    "buffers": abi.KIND_BUFFER,
    "managed": abi.KIND_MANAGED,
    "pools": abi.KIND_POOL,
    "physical": abi.KIND_PHYSICAL,
    "arrays": abi.KIND_ARRAY,
    "graphs": abi.KIND_GRAPH,
    "modules": abi.KIND_MODULE,
    "limits": abi.KIND_LIMIT,
    "external": abi.KIND_EXTERNAL,
    "contexts": abi.KIND_CONTEXT,
}

# What the driver says of a tenant's processes: each use with the uuid of its card.
_Seen = Sequence[tuple[str, Use]]


def why(entry: Entry, node: Node) -> tuple[Why, list[WhyProcess]]:
    """Return the report on a tenant, and the processes that belong to it."""
    pages, driver = node.tenants.pages.get(entry.key), node.driver
    claims = () if pages is None else pages.claims()
    seen = () if driver is None else driver.truth.view.processes.get(entry.key, ())
    holders = _holders(entry, claims, seen, driver) if entry.state == "bound" else []
    report = Why(
        key=entry.key,
        id=entry.id,
        name=entry.title,
        state=entry.state,
        why=entry.why,
        isolation=entry.isolation,
        stale="" if driver is None else driver.truth.view.stale,
        cards=[] if driver is None else _cards(entry, pages, claims, seen, node),
        denied=0 if pages is None else pages.denials.total,
        last_denied=None if pages is None else _denied(pages.denials.last),
        advice=[],
        notes=list(entry.notes),
        processes=[],
    )
    report["advice"] = advice(report, holders)
    return report, holders


def _denied(last: Denial | None) -> Denied | None:
    if last is None:
        return None
    return Denied(bytes=last.bytes, container_pid=last.pid, seen=last.seen)


# --- a card ---


def parts(held: Held) -> dict[str, int]:
    """Return what a process holds, by part.

    They add up to it: what was noted of a kind counts as far as it is within what is held, and
    buffers are the rest. The two are not read in one moment, and the tenant may write anything.
    """
    found, rest = dict.fromkeys(_KINDS, 0), held.held_bytes
    for name, kind in _KINDS.items():
        if kind != abi.KIND_BUFFER:
            found[name] = min(held.kinds[kind], rest)
            rest -= found[name]
    found["buffers"] = rest
    return found


def drift(driver_bytes: int | None, expected_bytes: int, beyond_bytes: int) -> str:
    """Return in words what the driver has more, or less, than the account says it should.

    `beyond_bytes` is what of it counts against the quota.
    """
    if driver_bytes is None:
        return "the driver does not say what the container's processes have"
    more = driver_bytes - expected_bytes
    if more == 0:
        return "the driver has what the account says"
    if more < 0:
        return (
            f"the driver has {format_size(-more)} less than the account says: what is reserved and "
            "not taken yet, what another process's figure has, or contexts that take less than "
            "their price"
        )
    counted = "it counts" if beyond_bytes >= more else f"{format_size(beyond_bytes)} of it count"
    return (
        f"the driver has {format_size(more)} more than the account says: code, rounding, what no "
        f"call asks for; {counted} as beyond"
    )


def _cards(
    entry: Entry, pages: Pages | None, claims: Sequence[Claim], seen: _Seen, node: Node
) -> list[WhyCard]:
    driver, found = node.loaded(), []
    for number, holding in enumerate(entry.holdings):
        driver_bytes = _driver_bytes(use for uuid, use in seen if uuid == holding.uuid)
        if pages is None or number >= pages.grant.card_count:
            row = _whole_card(holding, driver_bytes)
        else:
            row = share(holding, number, claims, pages.grant, driver_bytes)
        card = driver.card(holding.uuid)
        if card is not None:
            row["index"], row["model"] = card.index, card.model
        lack = node.lacked.of(entry.key, holding.uuid)
        if lack is not None:
            row["lacked"] = WhyLack(bytes=lack.bytes, seen=lack.seen, times=lack.times)
        found.append(row)
    return found


def share(
    holding: Holding, number: int, claims: Sequence[Claim], grant: Grant, driver_bytes: int | None
) -> WhyCard:
    """Return the report on card `number` of a tenant whose processes claim `claims`."""
    account = accounts(claims, number + 1)[number]
    beyond = grant.overhead_bytes(number)
    return WhyCard(
        index=-1,
        uuid=holding.uuid,
        model="?",
        memory_bytes=holding.memory_bytes,
        memory_limit_bytes=holding.most_bytes,
        limit_bytes=grant.limit_bytes(number),
        used_bytes=account.used_bytes(beyond),
        parts=card_parts(claims, number, account, beyond),
        contexts=account.contexts,
        context_bytes=grant.context_bytes(number),
        pool_kept_bytes=account.pool_kept_bytes,
        exported_bytes=account.exported_bytes,
        imported_bytes=account.imported_bytes,
        expected_bytes=account.told_bytes,
        driver_bytes=driver_bytes,
        drift_bytes=None if driver_bytes is None else driver_bytes - account.told_bytes,
        drift=drift(driver_bytes, account.told_bytes, beyond),
        lacked=None,
    )


def card_parts(
    claims: Iterable[Claim], number: int, account: Account, beyond: int
) -> dict[str, int]:
    """Return what counts against the quota of card `number`, by part; `beyond` the account."""
    found = dict.fromkeys(_KINDS, 0)
    for claim in claims:
        for name, size in parts(claim.held[number]).items():
            found[name] += size
    return {**found, "orphaned": account.orphaned_bytes, "beyond": beyond}


def _whole_card(holding: Holding, driver_bytes: int | None) -> WhyCard:
    used = driver_bytes or 0
    return WhyCard(
        index=-1,
        uuid=holding.uuid,
        model="?",
        memory_bytes=holding.memory_bytes,
        memory_limit_bytes=holding.memory_bytes,
        limit_bytes=holding.memory_bytes,
        used_bytes=used,
        parts={**dict.fromkeys(_KINDS, 0), "orphaned": 0, "beyond": used},
        contexts=0,
        context_bytes=0,
        pool_kept_bytes=0,
        exported_bytes=0,
        imported_bytes=0,
        expected_bytes=0,
        driver_bytes=driver_bytes,
        drift_bytes=driver_bytes,
        drift="a whole card has no account: what is used is the driver's figure",
        lacked=None,
    )


def _driver_bytes(uses: Iterable[Use]) -> int | None:
    """Return the sum of what the driver says; None where it says nothing of those it knows."""
    figures = [use.bytes for use in uses]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known or not figures else None


# --- its processes ---


def _holders(
    entry: Entry, claims: Sequence[Claim], seen: _Seen, driver: Loaded | None
) -> list[WhyProcess]:
    """Return the processes with an account, by what they hold; then those without."""
    members = processes.members(entry.cgroup, entry.pid, processes.Cgroups.mounted())
    by_claim = {(member.namespaced_pid, member.starttime): member for member in members}
    indices = _indices(entry, driver)
    found = [
        _holder(claim, by_claim.get((claim.pid, claim.starttime)), indices, seen)
        for claim in claims
    ]
    accounted = {row["pid"] for row in found}
    known = {use.pid for _, use in seen}
    found += [
        _holder(None, member, indices, seen)
        for member in members
        if member.pid in known and member.pid not in accounted
    ]
    return sorted(found, key=lambda row: -sum(held["bytes"] for held in row["cards"]))


def _indices(entry: Entry, driver: Loaded | None) -> list[tuple[str, int]]:
    """Return uuid and index of the tenant's cards, by its card number."""
    cards = {} if driver is None else {card.uuid: card.index for card in driver.cards}
    return [(holding.uuid, cards.get(holding.uuid, -1)) for holding in entry.holdings]


def _holder(
    claim: Claim | None, process: Process | None, indices: Sequence[tuple[str, int]], seen: _Seen
) -> WhyProcess:
    pid = None if process is None else process.pid
    cards = []
    for number, (uuid, index) in enumerate(indices):
        held = claim.held[number] if claim is not None and number < len(claim.held) else Held()
        uses = [use for card, use in seen if card == uuid and use.pid == pid]
        if uses or held != Held():
            cards.append(_held(index, held, uses))
    if claim is None:
        assert process is not None
        inside, denied, denied_bytes = process.namespaced_pid, 0, 0
    else:
        inside, denied, denied_bytes = claim.pid, claim.denied, claim.denied_bytes
    return WhyProcess(
        pid=pid,
        container_pid=inside,
        name="?" if pid is None else processes.name_of(pid),
        accounted=claim is not None,
        denied=denied,
        denied_bytes=denied_bytes,
        cards=cards,
    )


def _held(index: int, held: Held, uses: Sequence[Use]) -> WhyHeld:
    return WhyHeld(
        index=index,
        bytes=held.held_bytes,
        parts={name: size for name, size in parts(held).items() if size},
        contexts=held.contexts,
        exported_bytes=held.exported_bytes,
        imported_bytes=held.imported_bytes,
        driver_bytes=_driver_bytes(uses) if uses else None,
    )
