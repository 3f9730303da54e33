# SPDX-License-Identifier: Apache-2.0
"""What a tenant surely uses of a card: the driver's figures against the tenant's own claims.

Neither is one moment. The driver is asked for one process after another, and while it answers
memory moves from one process of a tenant to the next: the sum may then be twice what there ever
was. And claims are what the tenant writes. So of each process counts

    the least of: its claim before the sample, after it, and the driver's figure
    and the driver's figure above all that its claims explained in the last seconds

and only what two samples in a row agree on, of a process that was there in both. A tenant within
its quota has the second part small, for its claims are written before the driver is asked; one that
bypasses the library has all in the second part, at once.

Claims may be forged, so they explain only what can be true: a process has no more than its tenant
may, and maps no more than others export. A tenant that stays within these bounds and moves on by
new processes, or forges its claims in step with the samples, is judged by a second measure, which
knows no claims: what the driver reported for `ABOVE_NS` of the last `WINDOW_NS`, in however many
stretches. A sum that is read piece by piece is too high by chance for less than that. Of it,
memory that several processes map is counted once as far as the card's own figure shows that the
driver lists memory more than once.

The driver lists managed memory for no process. The tenant's claim is believed as far as the card
has memory that is listed for no process. It is compared with a limit of its own (`ProvenUse.all`):
a claim of managed memory never excuses memory that the driver does list (`ProvenUse.listed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpushare import abi
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.pages.status_page import ProcessClaim

#: How long claims go on explaining what they said: for this period, and the one before it.
PERIOD_NS: Final = 6 * 10**9
#: Use counts, whatever is claimed, that was there for so much of the window.
WINDOW_NS: Final = 10 * 10**9
ABOVE_NS: Final = 6 * 10**9
_SAMPLES: Final = 12  # in that time, at least
_STEP_NS: Final = 10**9  # the most that one sample stands for

_LEAST_BYTES: Final = 64 << 20


class ProcessClaimedUse(NamedTuple):
    """What a process claims to use itself, to export to others, and to map of others' memory.

    `context_bytes` is the part of `own_bytes` that was charged for contexts.
    """

    own_bytes: int
    mapped_bytes: int
    exported_bytes: int = 0
    context_bytes: int = 0


_NOTHING: Final = ProcessClaimedUse(0, 0)


@dataclass(frozen=True)
class ClaimedUse:
    """What a tenant's processes claim of one card, by (pid in their namespace, start time)."""

    by_process: Mapping[tuple[int, int], ProcessClaimedUse] = field(default_factory=dict)
    managed_bytes: int = 0  # as far as it counts against the quota
    spared_bytes: int = 0  # managed memory that does not

    def of(self, process: Process) -> ProcessClaimedUse:
        """Return what `process` claims."""
        return self.by_process.get((process.namespaced_pid, process.starttime), _NOTHING)

    @property
    def exported_bytes(self) -> int:
        """What they claim to export together: of memory that they claim to have."""
        return sum(min(one.exported_bytes, one.own_bytes) for one in self.by_process.values())


@dataclass(frozen=True)
class ClaimBounds:
    """How far a tenant's claims can be true on one card at one sample; None: not known.

    `own_bytes` is what it may use, `slack_bytes` what the audit tolerates above that, and
    `exported_bytes` what other tenants export. `unlisted_bytes` is in use on the card, and the
    driver lists it for no process; `doubled_bytes` is what it lists more than once at the most.
    """

    own_bytes: int
    slack_bytes: int = 0
    exported_bytes: int = 0
    unlisted_bytes: int | None = None
    doubled_bytes: int | None = None


class UseBounds(NamedTuple):
    """Bytes: what a tenant surely uses, what it uses at the most, and by this sample alone."""

    sure_bytes: int
    most_bytes: int
    alone_bytes: int


@dataclass(frozen=True)
class ProvenUse:
    """What a tenant uses: memory that the driver lists for its processes, and all."""

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
    found: dict[tuple[int, int], ProcessClaimedUse] = {}
    managed = 0
    for claim in claims:
        held = claim.held[number]
        kept = held.kinds[abi.KIND_MANAGED]
        managed += kept
        before = found.get((claim.pid, claim.starttime), _NOTHING)
        found[claim.pid, claim.starttime] = ProcessClaimedUse(
            before.own_bytes + max(0, held.held_bytes - kept),
            before.mapped_bytes + held.imported_bytes,
            before.exported_bytes + held.exported_bytes,
            before.context_bytes + held.kinds[abi.KIND_CONTEXT],
        )
    spared = min(managed, managed_limit_bytes)
    return ClaimedUse(found, managed - spared, spared)


def memory_of(
    uses: Iterable[tuple[Process, ProcessUse]], before: ClaimedUse, after: ClaimedUse
) -> list[ProcessMemory]:
    """Return the memory of each process, by the smaller of its claims before and after a sample."""
    found = []
    for process, use in uses:
        claims = before.of(process), after.of(process)
        own = min(one.own_bytes for one in claims)
        charged = min(one.context_bytes for one in claims)
        found.append(ProcessMemory(use.bytes or 0, own, charged))
    return found


class UseHistory:
    """One tenant on one card, from sample to sample."""

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
        seen: Sequence[tuple[Process, int]],
        before: ClaimedUse,
        after: ClaimedUse,
        bounds: ClaimBounds,
    ) -> ProvenUse:
        """Return what a sample proves.

        `seen` are the tenant's processes with the driver's figure for each, `before` and `after`
        their claims before the driver was asked and afterwards.
        """
        if now_ns - self._since_ns >= PERIOD_NS:
            self._begin_period(now_ns)
        now = {
            (process.pid, process.starttime): self._process(process, size, before, after, bounds)
            for process, size in seen
        }
        agreed = sum(
            min(found.least_bytes, self._processes[which].least_bytes)
            for which, found in now.items()
            if which in self._processes
        )
        total = sum(size for _, size in seen)
        doubled = sum(
            min(_mapped(process, before, bounds), _mapped(process, after, bounds))
            for process, _ in seen
        )
        if bounds.doubled_bytes is not None:
            doubled = min(doubled, bounds.doubled_bytes)
        sure = max(agreed, self._mostly(now_ns, total - min(total, doubled), bounds))
        claimed = min(before.managed_bytes, after.managed_bytes)
        managed = claimed if bounds.unlisted_bytes is None else min(claimed, bounds.unlisted_bytes)
        sure_managed = min(managed, self._managed_bytes)
        self._processes, self._managed_bytes = now, managed
        alone = max(sum(found.least_bytes for found in now.values()), sure)
        most = max(total, sure)
        listed = UseBounds(sure, most, alone)
        most += max(before.managed_bytes, after.managed_bytes)
        return ProvenUse(listed, UseBounds(sure + sure_managed, most, alone + managed))

    def _process(
        self,
        process: Process,
        size: int,
        before: ClaimedUse,
        after: ClaimedUse,
        bounds: ClaimBounds,
    ) -> _Process:
        known = self._processes.get((process.pid, process.starttime), _Process(0, 0, 0))
        own = tuple(claims.of(process).own_bytes for claims in (before, after))
        explained = max(
            known.explained_bytes,
            *(
                min(claims.of(process).own_bytes, bounds.own_bytes)
                + _mapped(process, claims, bounds)
                for claims in (before, after)
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
    """A process on one card: the driver's figure, its claims, and what of these is for contexts."""

    driver_bytes: int
    claimed_bytes: int = 0
    charged_bytes: int = 0


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
    for one in processes:
        beyond = max(0, one.driver_bytes - one.claimed_bytes)
        late = min(beyond, max(0, context_bytes - one.charged_bytes))
        count += 1
        claimed += one.claimed_bytes
        charged += min(one.charged_bytes, one.driver_bytes, context_bytes)
        uncharged += late
        rest += beyond - late
    above = min(charged, max(0, claimed - may_bytes))
    most = context_bytes + min(context_bytes * count, may_bytes) // 8
    return uncharged + above + min(rest, most) + max(_LEAST_BYTES, may_bytes // 100)
