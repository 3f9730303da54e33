# SPDX-License-Identifier: Apache-2.0
"""Compare every shared tenant's memory on each of its cards with its limit, at every sample.

No tenant is judged by figures that say nothing: a card that did not answer, a process whose memory
the driver does not know, a driver that has changed since the last sample. A tenant whose pages are
lost is judged by the driver's figures alone. While the size of a context is not known for a model,
a tenant is at most warned: it could not know what its contexts take.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare.daemon.audit.evidence import (
    ClaimBounds,
    ClaimedUse,
    ProvenUse,
    UseHistory,
    claimed_use,
    memory_of,
    slack_bytes,
)
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.observed import AuditInput, TenantOnCard
from gpushare.daemon.pages.status_page import ProcessClaim
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.policy import escalation
from gpushare.daemon.policy.escalation import (
    Action,
    Choice,
    Entitlement,
    EscalationState,
    QuotaSample,
    entitlement,
)
from gpushare.daemon.store.record import CardAllocation, TenantRecord

#: What a process leaves behind is gone by then, or is kept by another that has its descriptors.
ENDED_NS: Final = 10 * 10**9


@dataclass(frozen=True)
class Rules:
    """What others decide about a look: the operator's choice for a tenant, a card's context.

    `has_shortfall` is whether another tenant of the card has one, `shortfall_bytes` what the card
    has too little for the quota of such a tenant. `kill_after_ns`: see escalation.next_step.
    """

    choice: Callable[[TenantRecord], Choice]
    context_bytes: Callable[[str], int]
    has_shortfall: Callable[[TenantOnCard], bool]
    shortfall_bytes: Callable[[TenantOnCard], int] = lambda _: 0
    kill_after_ns: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What was found of one tenant on one card, and what is to be done; `sample` None: nothing."""

    entry: TenantRecord
    uuid: str
    state: EscalationState
    choice: Choice
    sample: QuotaSample | None = None
    actions: tuple[Action, ...] = ()
    pids: tuple[int, ...] = ()
    is_suspected: bool = False  # it may be above, or a step may follow: another look tells


@dataclass(frozen=True)
class _Seen:
    """The driver's figures of one tenant's processes on one card.

    `ended` have passed their descriptors on: they are listed for longer than it takes to end.
    """

    running: list[tuple[Process, ProcessUse]] = field(default_factory=list)
    ended: list[tuple[Process, ProcessUse]] = field(default_factory=list)


@dataclass(frozen=True)
class _TenantOnCard:
    """One tenant on one card at one look; `uses` None: the card did not answer.

    `before` and `after` are its claims, before the driver was asked and after it had answered.
    """

    entry: TenantRecord
    number: int  # of the card, as the tenant counts
    allocation: CardAllocation
    uses: _Seen | None
    before: ClaimedUse
    after: ClaimedUse

    @property
    def place(self) -> TenantOnCard:
        """The tenant's key and the card's uuid."""
        return self.entry.key, self.allocation.uuid


@dataclass
class _QuotaCase:
    """What is known of one tenant on one card from look to look.

    The first entitlement is for memory that the driver lists, the second for all memory.
    """

    history: UseHistory
    state: EscalationState = field(default_factory=EscalationState)
    entitlements: tuple[Entitlement | None, Entitlement | None] = (None, None)


class Judge:
    """Judges; `verdicts` is the last look's. The truth thread's."""

    def __init__(self) -> None:
        self.verdicts: Mapping[TenantOnCard, Verdict] = MappingProxyType({})
        self._cases: dict[TenantOnCard, _QuotaCase] = {}
        self._claims = _ClaimReader()
        self._ended: dict[Process, int] = {}  # since when they are listed, though they have ended

    def look(
        self, now_ns: int, look: AuditInput | None, rules: Rules
    ) -> Mapping[TenantOnCard, Verdict]:
        """Return what comes of a look, None where it was not answered, by tenant and card."""
        if look is None:
            self._skip_sample(now_ns)
            return self.verdicts
        found: dict[TenantOnCard, Verdict] = {}
        tenants = _tenants(look, self._by_place(now_ns, look), self._claims)
        cards = {
            uuid: _CardClaims.of([one for one in tenants if one.allocation.uuid == uuid], look)
            for uuid in {one.allocation.uuid for one in tenants}
        }
        for tenant in tenants:
            case = self._cases.setdefault(tenant.place, _QuotaCase(UseHistory(now_ns)))
            if tenant.entry.key in look.unread:
                found[tenant.place] = self._unchanged(tenant, case, rules)
                continue
            card = cards[tenant.allocation.uuid]
            found[tenant.place] = _judged(now_ns, look, rules, tenant, card, case)
        self._cases = {place: case for place, case in self._cases.items() if place in found}
        self.verdicts = MappingProxyType(found)
        return self.verdicts

    def _unchanged(self, tenant: _TenantOnCard, case: _QuotaCase, rules: Rules) -> Verdict:
        """Return what was found of a tenant when its claims were last read."""
        known = self.verdicts.get(tenant.place)
        if known is None:
            uuid = tenant.allocation.uuid
            return Verdict(tenant.entry, uuid, case.state, rules.choice(tenant.entry))
        return replace(known, entry=tenant.entry, actions=())

    def _by_place(self, now_ns: int, look: AuditInput) -> Mapping[TenantOnCard, _Seen]:
        """Return the driver's figures of each tenant's processes."""
        found: dict[TenantOnCard, _Seen] = {}
        ended: dict[Process, int] = {}
        for uuid, uses in look.owned.items():
            for sighting, use in uses:
                if sighting is None or (key := sighting.key) is None:
                    continue
                seen = found.setdefault((key, uuid), _Seen())
                if sighting.process is not None:
                    seen.running.append((sighting.process, use))
                elif sighting.ended is not None:
                    since_ns = ended[sighting.ended] = self._ended.get(sighting.ended, now_ns)
                    if now_ns - since_ns >= ENDED_NS:
                        seen.ended.append((sighting.ended, use))
        self._ended = ended
        return found

    def begin_anew(self, now_ns: int) -> None:
        """Forget what was seen, not what was done: the figures are of something else now."""
        for case in self._cases.values():
            case.history = UseHistory(now_ns)
        self._skip_sample(now_ns)

    def resumed(self, now_ns: int, key: str) -> None:
        """Note that an operator resumes tenant `key`."""
        for place, case in self._cases.items():
            if place[0] == key:
                case.state = escalation.after_resume(now_ns, case.state)

    def undone(self, now_ns: int, key: str) -> None:
        """Note that tenant `key` could not be frozen: it is tried again some seconds later."""
        for place, case in self._cases.items():
            if place[0] == key:
                case.state = escalation.after_failure(now_ns, case.state)

    def _skip_sample(self, now_ns: int) -> None:
        for case in self._cases.values():
            case.state, _ = escalation.next_step(now_ns, None, case.state, "observe")
        self.verdicts = MappingProxyType(
            {
                place: Verdict(
                    verdict.entry, verdict.uuid, self._cases[place].state, verdict.choice
                )
                for place, verdict in self.verdicts.items()
                if place in self._cases
            }
        )


class _ClaimReader:
    """Reads claims that are the same as at the last look once: most are, and there may be many."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[Sequence[ProcessClaim], ClaimedUse]] = {}

    def read(
        self, key: str, number: int, claims: Sequence[ProcessClaim], allocation: CardAllocation
    ) -> ClaimedUse:
        """Return what `claims` of tenant `key` say of its card `number`."""
        known = self._known.get((key, number))
        if known is None or known[0] is not claims:
            found = claimed_use(claims, number, allocation.managed_bytes)
            known = self._known[key, number] = claims, found
        return known[1]

    def forget(self, keys: Container[str]) -> None:
        """Forget all tenants but `keys`."""
        self._known = {place: known for place, known in self._known.items() if place[0] in keys}


def _tenants(
    look: AuditInput, seen: Mapping[TenantOnCard, _Seen], reader: _ClaimReader
) -> list[_TenantOnCard]:
    """Return the shared tenants of a look, on each of their cards."""
    return [
        _TenantOnCard(
            record,
            number,
            allocation,
            seen.get((record.key, allocation.uuid), _Seen())
            if allocation.uuid in look.owned
            else None,
            *(
                reader.read(record.key, number, claims.get(record.key, ()), allocation)
                for claims in (look.before, look.after)
            ),
        )
        for record in look.entries.values()
        if record.state == "bound" and record.shared
        for number, allocation in enumerate(record.allocations)
    ]


@dataclass(frozen=True)
class _CardClaims:
    """What the tenants of a card claim to export and to have of managed memory, by their key.

    No claim is more than its tenant was ever allowed. `listed_bytes` is the driver's figure.
    """

    exported: Mapping[str, int]
    managed: Mapping[str, int]
    listed_bytes: int

    @classmethod
    def of(cls, tenants: Sequence[_TenantOnCard], look: AuditInput) -> _CardClaims:
        def claimed(figure: Callable[[ClaimedUse], int]) -> Mapping[str, int]:
            most = ((one, max(figure(one.before), figure(one.after))) for one in tenants)
            return {
                one.entry.key: min(
                    size, one.allocation.burst_limit_bytes + one.allocation.managed_bytes
                )
                for one, size in most
            }

        return cls(
            claimed(lambda claims: claims.exported_bytes),
            claimed(lambda claims: claims.managed_bytes + claims.spared_bytes),
            sum(use.bytes or 0 for use in look.sample.uses.get(tenants[0].allocation.uuid, ())),
        )


def _judged(  # noqa: PLR0913, PLR0917 - the tenant, its card, and what is known of both
    now_ns: int,
    look: AuditInput,
    rules: Rules,
    tenant: _TenantOnCard,
    card: _CardClaims,
    case: _QuotaCase,
) -> Verdict:
    record, uuid = tenant.entry, tenant.allocation.uuid
    choice = rules.choice(record)
    context_bytes = rules.context_bytes(uuid)
    if not context_bytes and choice in {"freeze", "kill"}:
        choice = "warn"
    limits = _limits(look.pages.get(record.key), tenant)
    known = case.entitlements[0]
    may = max(limits.now_bytes, limits.ever_bytes) if known is None else known.may_bytes
    uses = tenant.uses or _Seen()
    processes = memory_of([*uses.running, *uses.ended], tenant.before, tenant.after)
    managed = max(tenant.before.managed_bytes, tenant.after.managed_bytes)
    slack = slack_bytes(may, context_bytes, processes, managed)
    bounds = _bounds(look, tenant, card, may, slack)
    figures = _figures(now_ns, case.history, tenant, bounds)
    if figures is None:
        case.state, _ = escalation.next_step(now_ns, None, case.state, choice)
        return Verdict(record, uuid, case.state, choice)
    has_shortfall = rules.has_shortfall(tenant.place)
    kept = limits.kept_bytes
    if kept is None and has_shortfall:
        kept = 0  # its rightful use is unknown, and another tenant is short of memory
    listed, all_ = (
        entitlement(now_ns, limits.now_bytes, use.most_bytes, before, limits.ever_bytes, kept)
        for use, before in zip((figures.listed, figures.all), case.entitlements, strict=True)
    )
    case.entitlements = listed, all_
    use, limit = max(
        ((figures.listed, listed.may_bytes), (figures.all, all_.may_bytes)),
        key=lambda pair: pair[0].sure_bytes - pair[1],
    )
    if limit != may:
        may, slack = limit, slack_bytes(limit, context_bytes, processes, managed)
    sample = QuotaSample(
        use.sure_bytes, may, slack, has_shortfall, rules.shortfall_bytes(tenant.place)
    )
    case.state, actions = escalation.next_step(
        now_ns, sample, case.state, choice, rules.kill_after_ns
    )
    return Verdict(
        record,
        uuid,
        case.state,
        choice,
        sample,
        actions,
        pids=tuple(one.pid for one, _ in uses.running),
        is_suspected=(case.state.looks < escalation.FROZEN_LOOKS and use.alone_bytes > may + slack),
    )


def _bounds(
    look: AuditInput, tenant: _TenantOnCard, card: _CardClaims, may_bytes: int, slack_bytes: int
) -> ClaimBounds:
    """Return how far the claims of a tenant that may use `may_bytes` can be true."""
    key, uuid = tenant.place
    exported = sum(card.exported.values()) - card.exported[key]
    used = look.sample.used.get(uuid)
    if used is None:
        return ClaimBounds(may_bytes, slack_bytes, exported)
    # Managed memory is in the card's figure and in no process's, and hides what is listed twice.
    listed, managed = card.listed_bytes, sum(card.managed.values())
    unlisted, doubled = max(0, used - listed), max(0, listed - used + managed)
    return ClaimBounds(may_bytes, slack_bytes, exported, unlisted, doubled)


def _figures(
    now_ns: int, history: UseHistory, tenant: _TenantOnCard, bounds: ClaimBounds
) -> ProvenUse | None:
    """Return the figures of one tenant on one card; None where the look says nothing of it."""
    if tenant.uses is None:
        return None
    running, ended = (
        [(process, use.bytes) for process, use in uses if use.bytes is not None]
        for uses in (tenant.uses.running, tenant.uses.ended)
    )
    if len(running) + len(ended) < len(tenant.uses.running) + len(tenant.uses.ended):
        return None
    seen = [*running, *_above(ended, bounds.own_bytes)]
    return history.look(now_ns, seen, tenant.before, tenant.after, bounds)


def _above(ended: list[tuple[Process, int]], may_bytes: int) -> list[tuple[Process, int]]:
    """Return what ended processes left, above what the tenant may use.

    They had no more, and others may have used it again before it was charged to the tenant.
    """
    found = []
    for process, size in ended:
        counted = max(0, size - may_bytes)
        may_bytes -= size - counted
        if counted:
            found.append((process, counted))
    return found


class _Limits(NamedTuple):
    """What a tenant may use now, the most that it was ever allowed, and what it may keep of that.

    `kept_bytes` is None where no limit was lowered since this daemon started.
    """

    now_bytes: int
    ever_bytes: int
    kept_bytes: int | None


def _limits(pages: Pages | None, tenant: _TenantOnCard) -> _Limits:
    number, most_bytes = tenant.number, tenant.allocation.burst_limit_bytes

    def read(pages: Pages) -> _Limits | None:
        if number >= pages.grant.card_count:
            return None
        # The limit first: what may be kept is noted before a lower limit is.
        limit = pages.grant.limit_bytes(number)
        ever = max(limit, pages.grant.most_bytes(number), most_bytes)
        return _Limits(limit, ever, pages.kept.get(number))

    found = None if pages is None else pages.look(read, None)
    return found or _Limits(most_bytes, most_bytes, None)
