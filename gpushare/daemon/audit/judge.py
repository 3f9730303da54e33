# SPDX-License-Identifier: Apache-2.0
"""Compare every shared tenant's memory on each of its cards with its limit, at every sample.

No tenant is judged by figures that say nothing: a card that did not answer, a process whose memory
the driver does not know, a driver that has changed since the last sample. A tenant whose pages are
lost is judged by the driver's figures alone. While the size of a context is not known for a model,
a tenant is at most warned: it could not know what its contexts take.

On a card of which a tenant has no part, another's or its own while it is evicted, its limit is 0:
what it has there it has past the library.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.node import Node
from gpushare.daemon.observed import AuditInput, Observations, TenantOnCard
from gpushare.daemon.pages.status_page import ProcessClaim
from gpushare.daemon.pages.tenants import Pages
from gpushare.daemon.policy import (
    FROZEN_LOOKS,
    Action,
    Choice,
    Entitlement,
    EscalationState,
    QuotaSample,
    entitlement,
    next_step,
    spared,
)
from gpushare.daemon.store.record import CardAllocation, TenantRecord

#: How long claims go on explaining what they said: for this period, and the one before it.
PERIOD_NS: Final = 6 * 10**9
#: Use counts, whatever is claimed, that was there for so much of the window.
WINDOW_NS: Final = 10 * 10**9
ABOVE_NS: Final = 6 * 10**9
_SAMPLES: Final = 12  # in that time, at least
_STEP_NS: Final = 10**9  # the most that one sample stands for

_LEAST_BYTES: Final = 64 << 20


class ProcessClaimedUse(NamedTuple):
    """The claims of a process on one card."""

    own_bytes: int
    mapped_bytes: int  # of others' memory
    exported_bytes: int = 0  # to others
    context_bytes: int = 0  # the part of `own_bytes` that was charged for contexts


_NOTHING: Final = ProcessClaimedUse(0, 0)


@dataclass(frozen=True)
class ClaimedUse:
    """The claims of a tenant's processes on one card."""

    # By pid in their namespace, and start time.
    by_process: Mapping[tuple[int, int], ProcessClaimedUse] = field(default_factory=dict)
    managed_bytes: int = 0  # as far as it counts against the quota
    spared_bytes: int = 0  # managed memory that does not

    def of(self, process: Process) -> ProcessClaimedUse:
        """Return what `process` claims."""
        return self.by_process.get((process.namespaced_pid, process.starttime), _NOTHING)

    @property
    def exported_bytes(self) -> int:
        """The memory that they claim to export together, of what they claim to have."""
        return sum(min(use.exported_bytes, use.own_bytes) for use in self.by_process.values())


@dataclass(frozen=True)
class ClaimBounds:
    """The bounds of a tenant's true claims on one card at one sample; None: not known."""

    own_bytes: int  # what it may use
    slack_bytes: int = 0  # above that, and tolerated
    exported_bytes: int = 0  # by other tenants
    unlisted_bytes: int | None = None  # in use on the card, and listed for no process
    doubled_bytes: int | None = None  # listed more than once, at the most


class UseBounds(NamedTuple):
    """The use of a tenant, in bytes."""

    sure_bytes: int
    most_bytes: int
    alone_bytes: int  # by this sample alone


@dataclass(frozen=True)
class ProvenUse:
    """The proven use of a tenant: memory that the driver lists for its processes, and all."""

    listed: UseBounds
    all: UseBounds


@dataclass(frozen=True)
class _Process:
    """One process as of the last sample."""

    least_bytes: int
    explained_bytes: int  # in this period, the most that its claims explained
    explained_before_bytes: int  # ... in the one before


def claimed_use(
    claims: Iterable[ProcessClaim], number: int, managed_limit_bytes: int = 0
) -> ClaimedUse:
    """Return what `claims` say of the tenant's card `number`; two records of a process add up.

    So much managed memory as `managed_limit_bytes` does not count against its quota.
    """
    by_process: dict[tuple[int, int], ProcessClaimedUse] = {}
    managed = 0
    for claim in claims:
        use = claim.held[number]
        kept = use.kinds[abi.KIND_MANAGED]
        managed += kept
        before = by_process.get((claim.pid, claim.starttime), _NOTHING)
        by_process[claim.pid, claim.starttime] = ProcessClaimedUse(
            before.own_bytes + max(0, use.held_bytes - kept),
            before.mapped_bytes + use.imported_bytes,
            before.exported_bytes + use.exported_bytes,
            before.context_bytes + use.kinds[abi.KIND_CONTEXT],
        )
    spared = min(managed, managed_limit_bytes)
    return ClaimedUse(by_process, managed - spared, spared)


#: Before the driver was asked, and after it had answered.
Claims = tuple[ClaimedUse, ClaimedUse]


def memory_of(uses: Iterable[tuple[Process, ProcessUse]], claims: Claims) -> list[ProcessMemory]:
    """Return the memory of each process, by the smaller of its claims before and after a sample."""
    return [
        ProcessMemory(
            use.bytes or 0,
            min(claim.of(process).own_bytes for claim in claims),
            min(claim.of(process).context_bytes for claim in claims),
        )
        for process, use in uses
    ]


class UseHistory:
    """The use of one tenant on one card that is proven, from sample to sample.

    Neither the driver's figures nor the tenant's own claims are of one moment. The driver is
    asked for one process after another, and while it answers memory moves from one process of a
    tenant to the next: the sum may then be twice what there ever was. And claims are what the
    tenant writes. So of each process counts

        the least of: its claim before the sample, after it, and the driver's figure
        and the driver's figure above all that its claims explained in the last seconds

    and only what two samples in a row agree on, of a process that was there in both. A tenant
    within its quota has the second part small, for its claims are written before the driver is
    asked; one that bypasses the library has all in the second part, at once.

    Claims may be forged, so they explain only what can be true: a process has no more than its
    tenant may, and maps no more than others export. A tenant that stays within these bounds and
    moves on by new processes, or forges its claims in step with the samples, is judged by a
    second measure, which knows no claims: what the driver reported for `ABOVE_NS` of the last
    `WINDOW_NS`, in however many stretches. A sum that is read piece by piece is too high by
    chance for less than that. Of it, memory that several processes map is counted once as far
    as the card's own figure shows that the driver lists memory more than once.

    The driver lists managed memory for no process. The tenant's claim is believed as far as the
    card has memory that is listed for no process. It is compared with a limit of its own
    (`ProvenUse.all`): a claim of managed memory never excuses memory that the driver does list
    (`ProvenUse.listed`).
    """

    def __init__(self, now_ns: int) -> None:
        self._processes: dict[tuple[int, int], _Process] = {}
        self._managed_bytes = 0
        self._since_ns = now_ns
        self._at_ns = now_ns
        # When, for how long, and how many bytes above what it might use.
        self._above: deque[tuple[int, int, int]] = deque()

    def look(
        self,
        now_ns: int,
        sizes: Sequence[tuple[Process, int]],
        claims: Claims,
        bounds: ClaimBounds,
    ) -> ProvenUse:
        """Return what a sample proves.

        `sizes` are the tenant's processes with the driver's figure for each.
        """
        if now_ns - self._since_ns >= PERIOD_NS:
            self._begin_period(now_ns)
        now = {
            (process.pid, process.starttime): self._process(process, size, claims, bounds)
            for process, size in sizes
        }
        agreed = sum(
            min(process.least_bytes, self._processes[which].least_bytes)
            for which, process in now.items()
            if which in self._processes
        )
        total = sum(size for _, size in sizes)
        doubled = sum(
            min(_mapped(process, claim, bounds) for claim in claims) for process, _ in sizes
        )
        if bounds.doubled_bytes is not None:
            doubled = min(doubled, bounds.doubled_bytes)
        sure = max(agreed, self._mostly(now_ns, total - min(total, doubled), bounds))
        claimed = [claim.managed_bytes for claim in claims]
        unlisted = bounds.unlisted_bytes
        managed = min(claimed) if unlisted is None else min(*claimed, unlisted)
        sure_managed = min(managed, self._managed_bytes)
        self._processes, self._managed_bytes = now, managed
        alone = max(sum(process.least_bytes for process in now.values()), sure)
        most = max(total, sure)
        listed = UseBounds(sure, most, alone)
        most += max(claimed)
        return ProvenUse(listed, UseBounds(sure + sure_managed, most, alone + managed))

    def _process(
        self, process: Process, size: int, claims: Claims, bounds: ClaimBounds
    ) -> _Process:
        known = self._processes.get((process.pid, process.starttime), _Process(0, 0, 0))
        own = tuple(claim.of(process).own_bytes for claim in claims)
        explained = max(
            known.explained_bytes,
            *(
                min(claim.of(process).own_bytes, bounds.own_bytes) + _mapped(process, claim, bounds)
                for claim in claims
            ),
        )
        beyond = size - max(explained, known.explained_before_bytes)
        least = min(size, min(*own, size) + max(0, beyond))
        return _Process(least, explained, known.explained_before_bytes)

    def _mostly(self, now_ns: int, total: int, bounds: ClaimBounds) -> int:
        """Return what the tenant used above what it might then, for ABOVE_NS of the window; else 0.

        It is counted from what the tenant may use now, which was perhaps more at that time.
        """
        may_bytes = bounds.own_bytes + bounds.slack_bytes
        self._above.append((now_ns, min(now_ns - self._at_ns, _STEP_NS), total - may_bytes))
        self._at_ns = now_ns
        while self._above[0][0] <= now_ns - WINDOW_NS:
            self._above.popleft()
        above = [(size, step_ns) for _, step_ns, size in self._above if size > 0]
        left_ns = ABOVE_NS
        for number, (size, step_ns) in enumerate(sorted(above, reverse=True)):
            left_ns -= step_ns
            if left_ns <= 0 and number + 1 >= _SAMPLES:
                return may_bytes + size
        return 0

    def _begin_period(self, now_ns: int) -> None:
        self._since_ns = now_ns
        self._processes = {
            which: _Process(known.least_bytes, 0, known.explained_bytes)
            for which, known in self._processes.items()
        }


def _mapped(process: Process, claims: ClaimedUse, bounds: ClaimBounds) -> int:
    """Return what a process may map of others: of its tenant's processes, and of other tenants."""
    claim = claims.of(process)
    if not claim.mapped_bytes:
        return 0
    own = min(claim.exported_bytes, claim.own_bytes)
    exported = min(claims.exported_bytes - own, bounds.own_bytes) + bounds.exported_bytes
    return min(claim.mapped_bytes, exported)


class ProcessMemory(NamedTuple):
    """The memory of a process on one card."""

    driver_bytes: int
    claimed_bytes: int = 0
    charged_bytes: int = 0  # of these, for contexts


def slack_bytes(
    may_bytes: int, context_bytes: int, processes: Iterable[ProcessMemory], managed_bytes: int = 0
) -> int:
    """Return the bytes above `may_bytes` that are nothing, with contexts of `context_bytes`.

    The driver may create a context before anybody can charge it, and loads code when a kernel first
    needs it. None of that is a bypass, and all of it is memory that the driver lists for a process
    beyond the claims of that process. So the slack is bounded by that: contexts whose size is in
    the claims are within the quota, and give no room to anything else.

    `managed_bytes` is claimed by no single one of `processes`.

    | what | at most |
    |---|---|
    | contexts that are not charged | of each process one, and what it has beyond its claims |
    | contexts that were charged when they were there | what is claimed above the limit |
    | late code, contexts larger than measured | of all processes together, one context and an \
eighth of the contexts or of the limit, and what they have beyond their claims |
    | figures that are read one after another | 64 MiB, or a hundredth of the limit |
    """
    count = charged = uncharged = rest = 0
    claimed = managed_bytes
    for process in processes:
        beyond = max(0, process.driver_bytes - process.claimed_bytes)
        late = min(beyond, max(0, context_bytes - process.charged_bytes))
        count += 1
        claimed += process.claimed_bytes
        charged += min(process.charged_bytes, process.driver_bytes, context_bytes)
        uncharged += late
        rest += beyond - late
    above = min(charged, max(0, claimed - may_bytes))
    most = context_bytes + min(context_bytes * count, may_bytes) // 8
    return uncharged + above + min(rest, most) + max(_LEAST_BYTES, may_bytes // 100)


#: The memory of an ended process is gone then, or kept by another that has its descriptors.
ENDED_NS: Final = 10 * 10**9
_LACKS_NS: Final = 5 * 10**9  # how long a report of a shortfall counts


@dataclass(frozen=True)
class Verdict:
    """The judgement of one tenant on one card, and the actions; `sample` None: nothing is known."""

    entry: TenantRecord
    uuid: str
    state: EscalationState
    choice: Choice
    sample: QuotaSample | None = None
    actions: tuple[Action, ...] = ()
    pids: tuple[int, ...] = ()
    is_suspected: bool = False  # it may be above, or a step may follow: another look tells


@dataclass(frozen=True)
class _ListedUse:
    """The driver's figures of one tenant's processes on one card."""

    running: list[tuple[Process, ProcessUse]] = field(default_factory=list)
    # Those that have passed their descriptors on: they are listed for longer than it takes to end.
    ended: list[tuple[Process, ProcessUse]] = field(default_factory=list)


@dataclass(frozen=True)
class _TenantOnCard:
    """One tenant on one card at one look."""

    entry: TenantRecord
    uuid: str
    number: int  # of the card, as the tenant counts
    allocation: CardAllocation | None  # None: it has no part of the card
    case: _QuotaCase
    uses: _ListedUse | None  # None: the card did not answer
    claims: Claims

    @property
    def place(self) -> TenantOnCard:
        """The tenant's key and the card's uuid."""
        return self.entry.key, self.uuid


@dataclass
class _QuotaCase:
    """The history of one tenant on one card."""

    history: UseHistory
    has_part: bool  # of the card
    state: EscalationState = field(default_factory=EscalationState)
    # The first is for memory that the driver lists, the second for all memory.
    entitlements: tuple[Entitlement | None, Entitlement | None] = (None, None)
    _read: Sequence[ProcessClaim] = ()  # the claims that `_claimed` is of
    _claimed: ClaimedUse = field(default_factory=ClaimedUse)

    def claimed(
        self, claims: Sequence[ProcessClaim], number: int, allocation: CardAllocation | None
    ) -> ClaimedUse:
        """Return what `claims` say of card `number`: most are those of the last look, read once."""
        if allocation is None:
            return ClaimedUse()
        if claims is not self._read:
            self._claimed = claimed_use(claims, number, allocation.managed_bytes)
            self._read = claims
        return self._claimed


class Judge:
    """Judges the tenants; `verdicts` is the last look's. The truth thread's."""

    def __init__(self, node: Node, observed: Observations) -> None:
        self.verdicts: Mapping[TenantOnCard, Verdict] = MappingProxyType({})
        self._node, self._observed = node, observed
        self._cases: dict[TenantOnCard, _QuotaCase] = {}
        self._ended: dict[Process, int] = {}  # since when they are listed, though they have ended

    def look(self, now_ns: int, look: AuditInput | None) -> Mapping[TenantOnCard, Verdict]:
        """Return what comes of a look, None where it was not answered, by tenant and card."""
        if look is None:
            self._skip_sample(now_ns)
            return self.verdicts
        verdicts: dict[TenantOnCard, Verdict] = {}
        tenants = self._tenants(now_ns, look)
        cards = {
            uuid: _card_claims(uuid, [tenant for tenant in tenants if tenant.uuid == uuid], look)
            for uuid in {tenant.uuid for tenant in tenants}
        }
        for tenant in tenants:
            record, uuid = tenant.entry, tenant.uuid
            known = self.verdicts.get(tenant.place)
            if record.key not in look.unread:
                verdict = self._judged(now_ns, look, tenant, cards[uuid])
            elif known is not None:
                verdict = replace(known, entry=record, actions=())
            else:
                choice = self._node.over_quota_action(record)
                verdict = Verdict(record, uuid, tenant.case.state, choice)
            verdicts[tenant.place] = verdict
        self._cases = {place: case for place, case in self._cases.items() if place in verdicts}
        self.verdicts = MappingProxyType(verdicts)
        return self.verdicts

    def _tenants(self, now_ns: int, look: AuditInput) -> list[_TenantOnCard]:
        """Return the tenants of a look: shared ones on their cards, and all on any other."""
        listed = self._by_place(now_ns, look)
        others: dict[str, set[str]] = {}  # by key: cards of which it has no part, now or before
        for key, uuid in (*listed, *self._cases):
            if (found := look.entries.get(key)) is not None and not found.has_part_of(uuid):
                others.setdefault(key, set()).add(uuid)
        tenants = []
        for record in look.entries.values():
            if record.state != "bound":
                continue
            parts = record.allocations if record.shared and not record.is_off_card else ()
            places: list[tuple[str, int, CardAllocation | None]] = [
                *((part.uuid, number, part) for number, part in enumerate(parts)),
                *((uuid, 0, None) for uuid in sorted(others.get(record.key, ()))),
            ]
            for uuid, number, part in places:
                case = self._case(now_ns, (record.key, uuid), has_part=part is not None)
                uses = listed.get((record.key, uuid), _ListedUse()) if uuid in look.owned else None
                claims = (
                    case.claimed(look.before.get(record.key, ()), number, part),
                    case.claimed(look.after.get(record.key, ()), number, part),
                )
                tenants.append(_TenantOnCard(record, uuid, number, part, case, uses, claims))
        return tenants

    def _case(self, now_ns: int, place: TenantOnCard, *, has_part: bool) -> _QuotaCase:
        """Return the history of a tenant on a card; a new one where its part comes or goes."""
        case = self._cases.get(place)
        if case is None or case.has_part != has_part:
            state = EscalationState() if case is None else case.state
            case = self._cases[place] = _QuotaCase(UseHistory(now_ns), has_part, state)
        return case

    def _by_place(self, now_ns: int, look: AuditInput) -> Mapping[TenantOnCard, _ListedUse]:
        """Return the driver's figures of each tenant's processes."""
        places: dict[TenantOnCard, _ListedUse] = {}
        ended: dict[Process, int] = {}
        for uuid, uses in look.owned.items():
            for sighting, use in uses:
                if sighting is None or (key := sighting.key) is None:
                    continue
                listed = places.setdefault((key, uuid), _ListedUse())
                if sighting.process is not None:
                    listed.running.append((sighting.process, use))
                elif sighting.ended is not None:
                    since_ns = ended[sighting.ended] = self._ended.get(sighting.ended, now_ns)
                    if now_ns - since_ns >= ENDED_NS:
                        listed.ended.append((sighting.ended, use))
        self._ended = ended
        return places

    def _judged(
        self, now_ns: int, look: AuditInput, tenant: _TenantOnCard, card: _CardClaims
    ) -> Verdict:
        record, uuid, case = tenant.entry, tenant.uuid, tenant.case
        choice, context_bytes = self._node.over_quota_action(record), self._context_bytes(uuid)
        if not context_bytes and choice in {"freeze", "kill"}:
            choice = "warn"
        limits = _limits(look.pages.get(record.key), tenant)
        known = case.entitlements[0]
        may = max(limits.now_bytes, limits.ever_bytes) if known is None else known.may_bytes
        uses = tenant.uses or _ListedUse()
        processes = memory_of([*uses.running, *uses.ended], tenant.claims)
        managed = max(claim.managed_bytes for claim in tenant.claims)
        slack = slack_bytes(may, context_bytes, processes, managed)
        exported = sum(card.exported.values()) - card.exported[record.key]
        bounds = ClaimBounds(may, slack, exported, card.unlisted_bytes, card.doubled_bytes)
        proven = _proven_use(now_ns, tenant, bounds)
        if proven is None:
            case.state, _ = next_step(now_ns, None, case.state, choice)
            return Verdict(record, uuid, case.state, choice)
        has_shortfall = self._has_shortfall(now_ns, tenant.place)
        kept = limits.kept_bytes
        if kept is None and has_shortfall:
            kept = 0  # its rightful use is unknown, and another tenant is short of memory
        listed, all_ = (
            entitlement(now_ns, limits.now_bytes, use.most_bytes, before, limits.ever_bytes, kept)
            for use, before in zip((proven.listed, proven.all), case.entitlements, strict=True)
        )
        case.entitlements = listed, all_
        use, limit = max(
            ((proven.listed, listed.may_bytes), (proven.all, all_.may_bytes)),
            key=lambda pair: pair[0].sure_bytes - pair[1],
        )
        if limit != may:
            may, slack = limit, slack_bytes(limit, context_bytes, processes, managed)
        lacked = self._shortfall_bytes(tenant.place)
        sample = QuotaSample(use.sure_bytes, may, slack, has_shortfall, lacked)
        delay = self._node.config.timing.shortfall_kill_seconds
        kill_after_ns = int(delay * 10**9) if delay else None
        case.state, actions = next_step(now_ns, sample, case.state, choice, kill_after_ns)
        return Verdict(
            record,
            uuid,
            case.state,
            choice,
            sample,
            actions,
            pids=tuple(process.pid for process, _ in uses.running),
            is_suspected=case.state.looks < FROZEN_LOOKS and use.alone_bytes > may + slack,
        )

    def _context_bytes(self, uuid: str) -> int:
        driver, card = self._node.driver, self._node.card(uuid)
        return driver.contexts.sizes.get(card.model, 0) if driver and card else 0

    def _has_shortfall(self, now_ns: int, place: TenantOnCard) -> bool:
        """Whether another tenant of the card has reported a shortfall lately."""
        return any(
            key != place[0] and uuid == place[1] and now_ns - shortfall.seen_ns < _LACKS_NS
            for (key, uuid), shortfall in self._observed.shortfalls.items()
        )

    def _shortfall_bytes(self, place: TenantOnCard) -> int:
        """Return what a card has too little for another tenant's quota, by the driver's figures.

        Only tenants that have reported a shortfall count: one that does not try to allocate lacks
        nothing. What tenants claim about their use is not read.
        """
        observed, (own, uuid) = self._observed, place
        look, card = observed.last, self._node.card(uuid)
        free = None if look is None or card is None else look.sample.free_bytes(card)
        if not observed.shortfalls or look is None or free is None:
            return 0
        unused = [
            allocation.quota_bytes - observed.usage.driver_bytes[key, uuid]
            for key, where in observed.shortfalls
            if key != own and where == uuid and (record := look.entries.get(key)) is not None
            for allocation in record.allocations
            if allocation.uuid == uuid
        ]
        return max(0, max(unused, default=0) - free)

    def begin_anew(self, now_ns: int) -> None:
        """Forget what was seen, not what was done: the figures are of something else now."""
        for case in self._cases.values():
            case.history = UseHistory(now_ns)
        self._skip_sample(now_ns)

    def spare(self, key: str, until_ns: int) -> None:
        """Note that tenant `key` runs, though it was to be frozen; it is not before `until_ns`."""
        for place, case in self._cases.items():
            if place[0] == key:
                case.state = spared(case.state, until_ns)

    def _skip_sample(self, now_ns: int) -> None:
        for case in self._cases.values():
            case.state, _ = next_step(now_ns, None, case.state, "observe")
        self.verdicts = MappingProxyType(
            {
                place: Verdict(
                    verdict.entry, verdict.uuid, self._cases[place].state, verdict.choice
                )
                for place, verdict in self.verdicts.items()
                if place in self._cases
            }
        )


@dataclass(frozen=True)
class _CardClaims:
    """Sums of a card that bound what its tenants can claim; None: the driver has no figure."""

    exported: Mapping[str, int]  # by tenant key
    unlisted_bytes: int | None
    doubled_bytes: int | None


def _card_claims(uuid: str, tenants: Sequence[_TenantOnCard], look: AuditInput) -> _CardClaims:
    exported: dict[str, int] = {}
    managed = 0
    for tenant in tenants:
        # No claim is more than its tenant was ever allowed.
        part = tenant.allocation
        most = 0 if part is None else part.burst_limit_bytes + part.managed_bytes
        exported[tenant.entry.key] = min(most, max(use.exported_bytes for use in tenant.claims))
        managed += min(most, max(use.managed_bytes + use.spared_bytes for use in tenant.claims))
    used = look.sample.used.get(uuid)
    if used is None:
        return _CardClaims(exported, None, None)
    # Managed memory is in the card's figure and in no process's, and hides what is listed twice.
    listed = sum(use.bytes or 0 for use in look.sample.uses.get(uuid, ()))
    return _CardClaims(exported, max(0, used - listed), max(0, listed - used + managed))


def _proven_use(now_ns: int, tenant: _TenantOnCard, bounds: ClaimBounds) -> ProvenUse | None:
    """Return what a tenant uses of a card; None where the look says nothing of it."""
    uses = tenant.uses
    if uses is None or any(use.bytes is None for _, use in (*uses.running, *uses.ended)):
        return None
    running, ended = (
        [(process, use.bytes or 0) for process, use in pairs]
        for pairs in (uses.running, uses.ended)
    )
    sizes = [*running, *_above(ended, bounds.own_bytes)]
    return tenant.case.history.look(now_ns, sizes, tenant.claims, bounds)


def _above(ended: list[tuple[Process, int]], may_bytes: int) -> list[tuple[Process, int]]:
    """Return what ended processes left, above what the tenant may use.

    They had no more, and others may have used it again before it was charged to the tenant.
    """
    above = []
    for process, size in ended:
        counted = max(0, size - may_bytes)
        may_bytes -= size - counted
        if counted:
            above.append((process, counted))
    return above


class _Limits(NamedTuple):
    """The limits of a tenant on one card."""

    now_bytes: int
    ever_bytes: int  # the most that it ever had
    kept_bytes: int | None  # what it may keep of that; None: no limit was lowered by this daemon


def _limits(pages: Pages | None, tenant: _TenantOnCard) -> _Limits:
    if tenant.allocation is None:
        return _Limits(0, 0, 0)
    number, most_bytes = tenant.number, tenant.allocation.burst_limit_bytes
    if pages is None or number >= pages.grant.card_count:
        return _Limits(most_bytes, most_bytes, None)
    # The limit first: what may be kept is noted before a lower limit is.
    limit = pages.grant.limit_bytes(number)
    ever = max(limit, pages.grant.most[number], most_bytes)
    return _Limits(limit, ever, pages.kept.get(number))
