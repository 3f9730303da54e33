# SPDX-License-Identifier: Apache-2.0
"""The why operation: a breakdown of a tenant's memory. This module changes no state.

The kinds of memory are those of the tenant's row. The report also has the difference between the
account and the driver's own figure, the processes, and advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.node import Node
from gpushare.daemon.pages.status_page import MemoryUse, ProcessClaim, TenantClaims, sum_claims
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.record import TenantRecord
from gpushare.daemon.views.rows import (
    RowLookups,
    TenantMemory,
    accounted_memory,
    card_index,
    driver_sum,
    most_bytes,
    process_kinds,
    tenant_card,
    tenant_row,
)
from gpushare.daemon.views.tenant_status import (
    TenantProcessUse,
    charge_warnings,
    eviction_warnings,
    own_driver_warnings,
    processes_of,
)
from gpushare.protocol.rows import (
    ShortfallReport,
    TenantCard,
    Why,
    WhyCard,
    WhyProcess,
    WhyProcessCard,
)
from gpushare.quota.size import exact_size, format_size

_MOST_ADVICE: Final = 32  # sentences of a report, which is one packet


def explain_memory(record: TenantRecord, state: DaemonState) -> tuple[Why, list[WhyProcess]]:
    """Return the report on a tenant, and the processes that belong to it."""
    pages, driver = state.tenants.pages.get(record.key), state.node.driver
    lookups = RowLookups(state.node, state.ledger)
    claims = () if pages is None else _bounded(pages.claims(), record, state.node)
    listed: list[TenantProcessUse] = []
    if record.state == "bound":
        listed = processes_of(record, claims, state.node, state.observed, lookups.cgroups)
    places = [(part.uuid, card_index(part.uuid, state.node)) for part in record.allocations]
    holders = [_holder(use, places) for use in listed]
    holders.sort(key=lambda row: -sum(held["bytes"] for held in row["cards"]))  # the largest first
    report: Why = {
        **tenant_row(record, state, lookups),
        "reason": record.why,
        "stale_reason": "" if driver is None else state.observed.usage.stale,
        "cards": [] if driver is None else list(_cards(record, claims, state, lookups)),
        "last_denied_allocation": None if pages is None else pages.denials.last,
        "advice": [],
        "notes": list(record.notes),
        "processes": [],
    }
    charges = (
        charge_warnings(record, card, state.node, state.observed) for card in report["cards"]
    )
    others = (*eviction_warnings(record, state), *own_driver_warnings(record, listed, state.node))
    advice = [*chain.from_iterable(charges), *others, *advice_for(report, holders)]
    report["advice"] = advice[:_MOST_ADVICE]
    return report, holders


def _bounded(
    claims: Sequence[ProcessClaim], record: TenantRecord, node: Node
) -> tuple[ProcessClaim, ...]:
    """Return `claims` without what is more than each card has: no process holds that."""
    most = [most_bytes(allocation, node) for allocation in record.allocations]
    held = ((u.at_most(size) for u, size in zip(c.held, most, strict=False)) for c in claims)
    return tuple(replace(claim, held=tuple(uses)) for claim, uses in zip(claims, held, strict=True))


# --- a card ---


def accounting_drift(driver_bytes: int | None, expected_bytes: int, beyond_bytes: int) -> str:
    """Return a sentence on how much more, or less, the driver reports than the account.

    `beyond_bytes` is the part of the difference that counts against the quota.
    """
    if driver_bytes is None:
        return "the driver does not report the memory of the container's processes"
    more = driver_bytes - expected_bytes
    if more == 0:
        return "the driver and the account agree"
    if more < 0:
        return (
            f"the driver reports {format_size(-more)} less than the account: memory that is "
            "reserved and not used yet, memory that the driver reports for another process, or "
            "contexts that are smaller than their estimate"
        )
    counted = "It counts" if beyond_bytes >= more else f"{format_size(beyond_bytes)} of it counts"
    return (
        f"the driver reports {format_size(more)} more than the account: code, rounding, and memory "
        f"that no call requests. {counted} as unaccounted"
    )


def _cards(
    record: TenantRecord, claims: Sequence[ProcessClaim], state: DaemonState, lookups: RowLookups
) -> Iterator[WhyCard]:
    pages = state.tenants.pages.get(record.key)
    limits = () if pages is None else pages.grant.managed_limits
    accounts = sum_claims(claims, len(limits), limits)
    for number in range(len(record.allocations)):
        account = accounts[number] if number < len(accounts) else TenantClaims()
        memory = accounted_memory(record, number, claims, account, state)
        row = tenant_card(record, number, memory, state, lookups)
        price = pages.grant.context_bytes(number) if pages and number < len(accounts) else 0
        yield _card(record, memory, row, price, state)


def _card(
    record: TenantRecord, memory: TenantMemory, row: TenantCard, price: int, state: DaemonState
) -> WhyCard:
    card, account = state.node.loaded().card(row["uuid"]), memory.account
    measured, expected = row["driver_bytes"], row["expected_bytes"]
    drift = "a whole card has no account: its usage is the driver's figure"
    if expected is not None:
        drift = accounting_drift(measured, expected, row["kinds"]["unaccounted"])
    shortfall = state.observed.shortfalls.get((record.key, row["uuid"]))
    return {
        **row,
        "model": "?" if card is None else card.model,
        "card_memory_bytes": 0 if card is None else card.memory_bytes,
        "bytes_per_context": price,
        "pool_cached_bytes": min(account.pool_kept_bytes, memory.most_bytes),
        "exported_bytes": min(account.exported_bytes, memory.most_bytes),
        "imported_bytes": account.imported_bytes,
        "drift_bytes": None if measured is None else measured - (expected or 0),
        "drift_text": drift,
        "shortfall": None
        if shortfall is None
        else ShortfallReport(bytes=shortfall.bytes, seen=shortfall.seen, times=shortfall.times),
    }


# --- its processes ---


def _holder(holder: TenantProcessUse, places: Sequence[tuple[str, int]]) -> WhyProcess:
    """Return the row of a process; `places` are uuid and index of the tenant's cards."""
    process, claim = holder.process, holder.claim
    cards = []
    for number, (uuid, index) in enumerate(places):
        held = claim.held[number] if claim is not None and number < len(claim.held) else MemoryUse()
        uses = [use for card, use in holder.uses if card == uuid]
        if uses or held != MemoryUse():
            cards.append(_held(index, held, uses))
    inside = process.namespaced_pid if process is not None else 0
    return WhyProcess(
        pid=None if process is None else process.pid,
        container_pid=inside if claim is None else claim.pid,
        name="?" if process is None else processes.name_of(process.pid),
        accounted=claim is not None,
        denied=0 if claim is None else claim.denied,
        cards=cards,
    )


def _held(index: int, held: MemoryUse, uses: Sequence[ProcessUse]) -> WhyProcessCard:
    return WhyProcessCard(
        index=index,
        bytes=held.held_bytes,
        kinds={name: size for name, size in process_kinds(held).items() if size},
        driver_bytes=driver_sum(use.bytes for use in uses) if uses else None,
    )


# --- advice for a report of `gpushare why`: one sentence each, the most urgent first ---

_STEP: Final = 256 << 20  # step of a suggested larger quota
_MUCH: Final = 10  # unused memory of a tenth of the quota is worth a sentence
_MOST_PIDS: Final = 8


def advice_for(report: Why, holders: Sequence[WhyProcess]) -> list[str]:
    """Return advice for `report`, whose processes are `holders`; none if nothing is wrong.

    A whole card has no account, and an evicted container has none of its memory on a card.
    """
    if report["isolation"] == "exclusive" or report["eviction"] is not None:
        return []
    of_cards = [sentence for card in report["cards"] for sentence in _of_card(report, card)]
    return [*of_cards, *_unaccounted(holders)]


def _of_card(report: Why, card: WhyCard) -> Iterator[str]:
    on = f"card {card['index']}: " if len(report["cards"]) > 1 else ""
    for advice in (
        _shortfall(card),
        _over(report, card),
        _too_small(report, card),
        _cached(report, card),
    ):
        yield from (on + sentence for sentence in advice)


def _shortfall(card: WhyCard) -> Iterator[str]:
    shortfall = card["shortfall"]
    if shortfall is not None:
        times = "once" if shortfall["times"] == 1 else f"{shortfall['times']} times"
        yield (
            f"shortfall ({times}): the driver could not provide memory within the quota. Last "
            f"request: {format_size(shortfall['bytes'])}. Another container or process uses more "
            "than its part of the card: see gpushare ps and gpushare history"
        )


def _over(report: Why, card: WhyCard) -> Iterator[str]:
    over = card["used_bytes"] - card["limit_bytes"]
    if over > 0:
        change = _enlarge(report, card, card["used_bytes"])
        yield (
            f"the container is {format_size(over)} over quota: allocations fail until usage fits "
            "the quota. Free memory" + (f", or {change}" if change else "")
        )


def _too_small(report: Why, card: WhyCard) -> Iterator[str]:
    last = report["last_denied_allocation"]
    if last is None or not last["bytes"]:
        return
    free = card["limit_bytes"] - card["used_bytes"]
    if 0 <= free < last["bytes"]:
        change = _enlarge(report, card, card["used_bytes"] + last["bytes"])
        yield (
            f"to fit the last denied allocation, {change} (gpushare ls shows the card's available "
            "memory)"
            if change
            else f"the last denied allocation, {format_size(last['bytes'])}, does not fit the "
            f"card beside what the container uses: the card has "
            f"{format_size(card['card_memory_bytes'])}"
        )


def _enlarge(report: Why, card: WhyCard, size: int) -> str:
    """Return the command for a quota of `size`; "" if that is more than the card has.

    Sizes come from what the tenant claims, and the advice is for root.
    """
    rounded, most = -(-size // _STEP) * _STEP, card["card_memory_bytes"]
    if most and size > most:
        return ""
    return f"run gpushare set {report['name']} --memory {exact_size(min(rounded, most or rounded))}"


def _cached(report: Why, card: WhyCard) -> Iterator[str]:
    cached, last = card["pool_cached_bytes"], report["last_denied_allocation"]
    free = card["limit_bytes"] - card["used_bytes"]
    # It is over quota, or what was refused last would be refused again.
    is_short = free < (0 if last is None else last["bytes"])
    if cached and (is_short or cached * _MUCH >= card["quota_bytes"]):
        yield (
            f"memory pools keep {format_size(cached)} of unused memory: torch.cuda.empty_cache() "
            "or cuMemPoolTrimTo releases it"
        )
    buffers = card["kinds"]["buffers"]
    if is_short and buffers * 2 >= card["used_bytes"]:
        yield (
            "most of the memory is buffers. A framework caches freed buffers: "
            "torch.cuda.empty_cache() releases them"
        )


def _unaccounted(holders: Sequence[WhyProcess]) -> Iterator[str]:
    rows = [row for row in holders if not row["accounted"]]
    if rows:
        used = sum(held["driver_bytes"] or 0 for row in rows for held in row["cards"])
        pids = ", ".join([str(row["pid"]) for row in rows[:_MOST_PIDS]])
        yield (
            f"{format_size(used)} is used without an account, by process {pids}: it bypasses the "
            "interposer library, and counts as unaccounted"
        )
