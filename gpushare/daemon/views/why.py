# SPDX-License-Identifier: Apache-2.0
"""The why operation: a breakdown of a tenant's memory. This module changes no state.

The parts of a card are the memory that the tenant's processes recorded, orphaned memory, and memory
that only the driver reports. They add up to the usage that counts against the quota, whatever a
tenant wrote. The report also has the driver's own figure, and the difference of the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.pages.grant_page import GrantPage
from gpushare.daemon.pages.status_page import MemoryUse, ProcessClaim, sum_claims
from gpushare.daemon.pages.tenants import LastDenial, Pages
from gpushare.daemon.state import DaemonState, LoadedDriver
from gpushare.daemon.store.record import CardAllocation, TenantRecord
from gpushare.daemon.views.advice import advice_for
from gpushare.daemon.views.eviction_rows import eviction_row
from gpushare.daemon.views.tenant_memory import KINDS, card_parts, most_bytes, process_parts
from gpushare.protocol import (
    DeniedAllocation,
    ShortfallReport,
    Why,
    WhyCard,
    WhyProcess,
    WhyProcessCard,
)
from gpushare.quota.size import format_size

_MOST_ADVICE: Final = 32  # sentences of a report, which is one packet

# A tenant's processes by the driver: each use with the uuid of its card.
_Seen = Sequence[tuple[str, ProcessUse]]


def explain_memory(record: TenantRecord, state: DaemonState) -> tuple[Why, list[WhyProcess]]:
    """Return the report on a tenant, and the processes that belong to it."""
    pages, driver = state.tenants.pages.get(record.key), state.driver
    claims = () if pages is None else _bounded(pages.claims(), record, driver)
    seen = () if driver is None else state.observed.usage.processes.get(record.key, ())
    holders = _holders(record, claims, seen, driver) if record.state == "bound" else []
    report = Why(
        key=record.key,
        id=record.id,
        name=record.title,
        state=record.state,
        reason=record.why,
        isolation=record.isolation,
        idle_since=state.observed.idle.get(record.key),
        evicted=eviction_row(record, state),
        stale_reason="" if driver is None else state.observed.usage.stale,
        cards=[] if driver is None else _cards(record, pages, claims, seen, state),
        denied=0 if pages is None else pages.denials.total,
        last_denied_allocation=None if pages is None else _denied(pages.denials.last),
        advice=[],
        notes=list(record.notes),
        processes=[],
    )
    report["advice"] = advice_for(report, holders)[:_MOST_ADVICE]
    return report, holders


def _bounded(
    claims: Sequence[ProcessClaim], record: TenantRecord, driver: LoadedDriver | None
) -> tuple[ProcessClaim, ...]:
    """Return `claims` without what is more than each card has: no process holds that."""
    most = [most_bytes(allocation, driver) for allocation in record.allocations]
    return tuple(
        replace(
            claim,
            held=tuple(one.at_most(size) for one, size in zip(claim.held, most, strict=False)),
        )
        for claim in claims
    )


def _denied(last: LastDenial | None) -> DeniedAllocation | None:
    if last is None:
        return None
    return DeniedAllocation(bytes=last.bytes, container_pid=last.pid, seen=last.seen)


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
    record: TenantRecord,
    pages: Pages | None,
    claims: Sequence[ProcessClaim],
    seen: _Seen,
    state: DaemonState,
) -> list[WhyCard]:
    driver, found = state.loaded(), []
    for number, allocation in enumerate(record.allocations):
        driver_bytes = _driver_bytes(use for uuid, use in seen if uuid == allocation.uuid)
        if pages is None or number >= pages.grant.card_count:
            row = _whole_card(allocation, driver_bytes)
        else:
            most = most_bytes(allocation, driver)
            row = own_share(allocation, number, claims, pages.grant, driver_bytes, most)
        card = driver.card(allocation.uuid)
        if card is not None:
            row["index"], row["model"] = card.index, card.model
            row["card_memory_bytes"] = card.memory_bytes
        shortfall = state.observed.shortfalls.get((record.key, allocation.uuid))
        if shortfall is not None:
            row["shortfall"] = ShortfallReport(
                bytes=shortfall.bytes, seen=shortfall.seen, times=shortfall.times
            )
        found.append(row)
    return found


def own_share(  # noqa: PLR0913, PLR0917 - a row is put together from all there is
    allocation: CardAllocation,
    number: int,
    claims: Sequence[ProcessClaim],
    grant: GrantPage,
    driver_bytes: int | None,
    most: int,
) -> WhyCard:
    """Return the report on card `number` of a tenant whose processes claim `claims`.

    `most` is what the card has: processes together claim no more in the report.
    """
    account = sum_claims(claims, number + 1, grant.managed_limits)[number]
    beyond = grant.overhead_bytes(number)
    kinds = {**card_parts(claims, number, account, most), "unaccounted": beyond}
    expected_bytes = min(account.expected_bytes, most)
    return WhyCard(
        index=-1,
        uuid=allocation.uuid,
        model="?",
        card_memory_bytes=0,
        quota_bytes=allocation.memory_bytes,
        burst_limit_bytes=allocation.most_bytes,
        current_limit_bytes=grant.limit_bytes(number),
        used_bytes=sum(kinds.values()),
        kinds=kinds,
        contexts=account.contexts,
        bytes_per_context=grant.context_bytes(number),
        pool_cached_bytes=min(account.pool_kept_bytes, most),
        exported_bytes=min(account.exported_bytes, most),
        imported_bytes=account.imported_bytes,
        oversubscribed_bytes=account.spared_bytes,
        oversubscribed_limit_bytes=account.managed_limit_bytes,
        expected_bytes=expected_bytes,
        driver_bytes=driver_bytes,
        drift_bytes=None if driver_bytes is None else driver_bytes - expected_bytes,
        drift_text=accounting_drift(driver_bytes, expected_bytes, beyond),
        shortfall=None,
    )


def _whole_card(allocation: CardAllocation, driver_bytes: int | None) -> WhyCard:
    used = driver_bytes or 0
    return WhyCard(
        index=-1,
        uuid=allocation.uuid,
        model="?",
        card_memory_bytes=0,
        quota_bytes=allocation.memory_bytes,
        burst_limit_bytes=allocation.memory_bytes,
        current_limit_bytes=allocation.memory_bytes,
        used_bytes=used,
        kinds={**dict.fromkeys(KINDS, 0), "orphaned": 0, "unaccounted": used},
        contexts=0,
        bytes_per_context=0,
        pool_cached_bytes=0,
        exported_bytes=0,
        imported_bytes=0,
        oversubscribed_bytes=0,
        oversubscribed_limit_bytes=0,
        expected_bytes=0,
        driver_bytes=driver_bytes,
        drift_bytes=driver_bytes,
        drift_text="a whole card has no account: its usage is the driver's figure",
        shortfall=None,
    )


def _driver_bytes(uses: Iterable[ProcessUse]) -> int | None:
    """Return the sum of the driver's figures; None if it lists processes without a figure."""
    figures = [use.bytes for use in uses]
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known or not figures else None


# --- its processes ---


def _holders(
    record: TenantRecord, claims: Sequence[ProcessClaim], seen: _Seen, driver: LoadedDriver | None
) -> list[WhyProcess]:
    """Return the processes with an account, the largest first; then those without."""
    members = processes.members(record.cgroup, record.pid, processes.Cgroups.mounted())
    by_claim = {(member.namespaced_pid, member.starttime): member for member in members}
    indices = _indices(record, driver)
    # By process: a tenant chooses how many there are, and each is looked up once for each card.
    used: dict[int, list[tuple[str, ProcessUse]]] = {}
    for uuid, use in seen:
        used.setdefault(use.pid, []).append((uuid, use))
    found = [
        _holder(claim, by_claim.get((claim.pid, claim.starttime)), indices, used)
        for claim in claims
    ]
    accounted = {row["pid"] for row in found}
    found += [
        _holder(None, member, indices, used)
        for member in members
        if member.pid in used and member.pid not in accounted
    ]
    return sorted(found, key=lambda row: -sum(held["bytes"] for held in row["cards"]))


def _indices(record: TenantRecord, driver: LoadedDriver | None) -> list[tuple[str, int]]:
    """Return uuid and index of the tenant's cards, by its card number."""
    cards = {} if driver is None else {card.uuid: card.index for card in driver.cards}
    return [(allocation.uuid, cards.get(allocation.uuid, -1)) for allocation in record.allocations]


def _holder(
    claim: ProcessClaim | None,
    process: Process | None,
    indices: Sequence[tuple[str, int]],
    used: Mapping[int, _Seen],
) -> WhyProcess:
    pid = None if process is None else process.pid
    seen = () if pid is None else used.get(pid, ())
    cards = []
    for number, (uuid, index) in enumerate(indices):
        held = claim.held[number] if claim is not None and number < len(claim.held) else MemoryUse()
        uses = [use for card, use in seen if card == uuid]
        if uses or held != MemoryUse():
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


def _held(index: int, held: MemoryUse, uses: Sequence[ProcessUse]) -> WhyProcessCard:
    return WhyProcessCard(
        index=index,
        bytes=held.held_bytes,
        kinds={name: size for name, size in process_parts(held).items() if size},
        contexts=held.contexts,
        exported_bytes=held.exported_bytes,
        imported_bytes=held.imported_bytes,
        driver_bytes=_driver_bytes(uses) if uses else None,
    )
